"""The corpora, with one module for each corpus. A new module in this package is a new corpus, named after its file.

Each module has `SUMMARY` (one line), `FORM` (the kind of its examples), `Config` (whose `corpus` is the
name) and `load(config)`, which returns a `Corpus` of these examples:

    text                  documents                            str, in a TextCorpus
    parallel              sentences and their translations     ParallelExample
    text-classification   texts with labels                    TextClassificationExample
    multi-label           texts with any number of labels      MultiLabelExample
    token-classification  sentences with a tag for each word   TokenClassificationExample
    sentence-pair         two texts with a label or a score    SentencePairExample
    multiple-choice       texts with options, one is correct   MultipleChoiceExample
    question-answering    questions answered by a text span    QuestionAnsweringExample
    instructions          instructions and their answers       Instruction
    series                values at times                      Series
    series-labelled       series with labels                   LabelledSeries
    tracks                observed and true positions          Track
    image-classification  images with labels                   LabelledImage
    image-captioning      images with captions                 CaptionedImage
    video                 clips with labels and captions       ClipExample
    visual-question-answering  questions about images          VisualQuestion
    transcription         recordings and their texts           TranscribedExample
    sound-labels          sounds with labels of their frames   LabelledSound

A recipe declares the corpora that it accepts by the class of their examples:
`data: CorpusConfig[TextClassificationExample]`. A corpus module is imported on first use, and `load`
imports slow or optional packages.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar, get_args

from seqloom.config import Kinds
from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean
from seqloom.data.corpus import Corpus, FilesConfig
from seqloom.data.files import use_encoding

T = TypeVar("T")
E_co = TypeVar("E_co", covariant=True)


class CorpusModules(Mapping[str, ModuleType]):
    """A mapping from corpus names to their modules, which are imported on access."""

    def __init__(self) -> None:
        names = sorted(module.name for module in iter_modules(__path__))
        self._files = {name.replace("_", "-"): name for name in names if not name.startswith("_")}

    def __getitem__(self, name: str) -> ModuleType:
        return import_module(f"{__name__}.{self._files[name]}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


CORPORA = CorpusModules()


def corpora_of_form(*forms: str) -> dict[str, ModuleType]:
    """Return the corpora with examples of these forms, by name."""
    return {name: module for form in forms for name, module in CORPORA.items() if form == module.FORM}


def is_multi_label(config: Any) -> bool:
    """Return whether the examples of a corpus config can have any number of labels."""
    return bool(getattr(config, "multi_label", False))


class CorpusKinds(Kinds):
    """The configs of all corpora of the given forms."""

    def __init__(self, *forms: str):
        super().__init__("corpus", {})
        self.forms = forms

    def names(self) -> list[str]:
        return list(corpora_of_form(*self.forms))

    def find(self, name: Any) -> Any:
        module = CORPORA.get(name)
        return module.Config if module is not None and module.FORM in self.forms else None


class CorpusConfig(Protocol[E_co]):
    """The Config of any corpus with examples of this type; `str` stands for plain text."""

    @property
    def corpus(self) -> str: ...

    if not TYPE_CHECKING:

        def __class_getitem__(cls, example: object) -> object:
            """Accept any corpus with examples of this type, or of several types: `str | Track`."""
            forms = ["text" if kind is str else kind.form for kind in get_args(example) or (example,)]
            return Annotated[Any, CorpusKinds(*forms)]


def load(config: "CorpusConfig[T]", check: bool = True) -> Any:
    """Load a corpus and, with `check`, add notes on labels that a model cannot learn from it."""
    with use_encoding(config.encoding if isinstance(config, FilesConfig) else "utf-8"):
        corpus: Corpus[T] = find(config.corpus).load(config)
    return corpus.checked() if check else corpus


def find(name: str) -> ModuleType:
    """Return the module of a corpus by its name."""
    if name not in CORPORA:
        raise UsageError(f"Unknown corpus '{name}': {did_you_mean(name, CORPORA)}.")
    return CORPORA[name]
