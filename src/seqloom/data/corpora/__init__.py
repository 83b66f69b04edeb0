"""The corpora, one file each: a new file here is a new corpus, and its name is the file's.

Each has `SUMMARY` (one line), `FORM` (what its examples are), `Config` (whose `corpus` is the name)
and `load(config)`, which returns a `Corpus` of these examples:

    text                  documents                            str, in a TextCorpus
    parallel              sentences and their translations     ParallelExample
    text-classification   texts with a label each              TextClassificationExample
    token-classification  sentences with a tag for each word   TokenClassificationExample
    sentence-pair         two texts with a label or a score    SentencePairExample
    multiple-choice       texts with options, one is right     MultipleChoiceExample
    question-answering    questions, answered in a text        QuestionAnsweringExample
    instructions          what to do, and the answer to give   Instruction
    series                values at times                      Series
    series-labelled       series with a label each             LabelledSeries
    tracks                positions, observed and true         Track

A recipe declares what it reads by the class of the examples: `data:
CorpusConfig[TextClassificationExample]`. A corpus is imported when it is named; whatever is slow or
may be missing it imports when it loads.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar, get_args

from seqloom.config import Kinds
from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean
from seqloom.data.corpus import Corpus

T = TypeVar("T")
E_co = TypeVar("E_co", covariant=True)


class CorpusModules(Mapping[str, ModuleType]):
    """The modules of all corpora by name, imported when they are asked for."""

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


def of_form(*forms: str) -> dict[str, ModuleType]:
    """Return the corpora whose examples have one of these forms, by name."""
    return {name: module for form in forms for name, module in CORPORA.items() if form == module.FORM}


class CorpusKinds(Kinds):
    """The configs of all corpora of some forms."""

    def __init__(self, *forms: str):
        super().__init__("corpus", {})
        self.forms = forms

    def names(self) -> list[str]:
        return list(of_form(*self.forms))

    def find(self, name: Any) -> Any:
        module = CORPORA.get(name)
        return module.Config if module is not None and module.FORM in self.forms else None


class CorpusConfig(Protocol[E_co]):
    """The Config of any corpus of such examples; of `str` for plain text."""

    @property
    def corpus(self) -> str: ...

    if not TYPE_CHECKING:

        def __class_getitem__(cls, example: object) -> object:
            """Let a section choose among the corpora of such examples, or of several kinds: `str | Track`."""
            forms = ["text" if kind is str else kind.form for kind in get_args(example) or (example,)]
            return Annotated[Any, CorpusKinds(*forms)]


def load(config: "CorpusConfig[T]") -> Any:
    """Return the corpus of `T` that this configuration describes, with notes on what a model cannot learn from it."""
    corpus: Corpus[T] = find(config.corpus).load(config)
    return corpus.checked()


def find(name: str) -> ModuleType:
    """The module of a corpus, by its name."""
    if name not in CORPORA:
        raise UsageError(f"There is no corpus '{name}': {did_you_mean(name, CORPORA)}.")
    return CORPORA[name]
