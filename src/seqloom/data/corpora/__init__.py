"""The corpora, one file each: a new file here is a new corpus, and its name is the file's.

Each has `SUMMARY` (one line), `FORM` (what its examples are), `Config` (whose `corpus` is the name) and `load(config)`:

    text        documents                            Corpus
    pairs       sentences and their translations     ParallelCorpus
    labelled    texts with a label each              LabelledCorpus
    tagged      sentences with a tag for each word   TaggedCorpus
    matched     two texts with a label or a score    MatchedCorpus
    choices     texts with options, one is right     ChoiceCorpus
    answers     questions, answered in a text        AnswerCorpus
    instructions  what to do, and the answer to give  InstructionCorpus
    series      values at times                      SeriesCorpus
    series-labelled  series with a label each        LabelledSeriesCorpus
    tracks      places, observed and true            TrackCorpus

Importing this imports all of them; whatever is slow or may be missing they import when they load.
"""

from functools import reduce
from importlib import import_module
from operator import or_
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Protocol

from seqloom.core.config import Discriminator
from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean
from seqloom.data.answers import AnswerCorpus
from seqloom.data.choices import ChoiceCorpus
from seqloom.data.corpus import Corpus
from seqloom.data.instructions import InstructionCorpus
from seqloom.data.labelled import LabelledCorpus, checked_labels
from seqloom.data.matched import MatchedCorpus
from seqloom.data.parallel import ParallelCorpus
from seqloom.data.tagged import TaggedCorpus, checked_tags

FORMS = (
    *("text", "pairs", "labelled", "tagged", "matched", "choices", "answers", "instructions"),
    *("series", "series-labelled", "tracks"),
)
CORPORA: dict[str, ModuleType] = {
    name.replace("_", "-"): import_module(f"{__name__}.{name}")
    for name in sorted(module.name for module in iter_modules(__path__))
    if not name.startswith("_")
}
PLAIN, PARALLEL, LABELLED, TAGGED, MATCHED, CHOICES, ANSWERS, INSTRUCTIONS, SERIES, LABELLED_SERIES, TRACKS = (
    {name: module for name, module in CORPORA.items() if form == module.FORM} for form in FORMS
)

if TYPE_CHECKING:
    from seqloom.data.labelled_series import LabelledSeriesCorpus
    from seqloom.data.series import SeriesCorpus
    from seqloom.data.tracks import TrackCorpus

    class CorpusConfig(Protocol):
        """The Config of any corpus of plain text."""

        @property
        def corpus(self) -> str: ...

    class ParallelConfig(Protocol):
        """The Config of any parallel corpus."""

        @property
        def corpus(self) -> str: ...

    class LabelledConfig(Protocol):
        """The Config of any corpus of texts with labels."""

        @property
        def corpus(self) -> str: ...

    class TaggedConfig(Protocol):
        """The Config of any corpus of sentences with tags."""

        @property
        def corpus(self) -> str: ...

    class MatchedConfig(Protocol):
        """The Config of any corpus of pairs of texts with labels or scores."""

        @property
        def corpus(self) -> str: ...

    class ChoicesConfig(Protocol):
        """The Config of any corpus of texts with options."""

        @property
        def corpus(self) -> str: ...

    class AnswersConfig(Protocol):
        """The Config of any corpus of questions with answers."""

        @property
        def corpus(self) -> str: ...

    class InstructionsConfig(Protocol):
        """The Config of any corpus of instructions."""

        @property
        def corpus(self) -> str: ...

    class SeriesConfig(Protocol):
        """The Config of any corpus of series."""

        @property
        def corpus(self) -> str: ...

    class LabelledSeriesConfig(Protocol):
        """The Config of any corpus of series with labels."""

        @property
        def corpus(self) -> str: ...

    class TracksConfig(Protocol):
        """The Config of any corpus of tracks."""

        @property
        def corpus(self) -> str: ...

else:
    (
        CorpusConfig,
        ParallelConfig,
        LabelledConfig,
        TaggedConfig,
        MatchedConfig,
        ChoicesConfig,
        AnswersConfig,
        InstructionsConfig,
        SeriesConfig,
        LabelledSeriesConfig,
        TracksConfig,
    ) = (
        Annotated[reduce(or_, [module.Config for module in modules.values()]), Discriminator("corpus")]
        for modules in (
            *(PLAIN, PARALLEL, LABELLED, TAGGED, MATCHED, CHOICES, ANSWERS, INSTRUCTIONS),
            *(SERIES, LABELLED_SERIES, TRACKS),
        )
    )


def load(config: CorpusConfig) -> Corpus:
    """The corpus this configuration describes."""
    corpus: Corpus = find(config.corpus).load(config)
    return corpus


def load_parallel(config: ParallelConfig) -> ParallelCorpus:
    """The parallel corpus this configuration describes."""
    corpus: ParallelCorpus = find(config.corpus).load(config)
    return corpus


def load_labelled(config: LabelledConfig) -> LabelledCorpus:
    """The texts and labels this configuration describes: at least two labels, a note on those train never has."""
    return checked_labels(find(config.corpus).load(config))


def load_tagged(config: TaggedConfig) -> TaggedCorpus:
    """The tagged sentences this configuration describes: at least two tags, a note on those train never has."""
    return checked_tags(find(config.corpus).load(config))


def load_matched(config: MatchedConfig) -> MatchedCorpus:
    """The pairs of texts this configuration describes."""
    corpus: MatchedCorpus = find(config.corpus).load(config)
    return corpus


def load_choices(config: ChoicesConfig) -> ChoiceCorpus:
    """The texts and options this configuration describes."""
    corpus: ChoiceCorpus = find(config.corpus).load(config)
    return corpus


def load_answers(config: AnswersConfig) -> AnswerCorpus:
    """The questions and answers this configuration describes."""
    corpus: AnswerCorpus = find(config.corpus).load(config)
    return corpus


def load_instructions(config: InstructionsConfig) -> InstructionCorpus:
    """The instructions and answers this configuration describes."""
    corpus: InstructionCorpus = find(config.corpus).load(config)
    return corpus


def load_series(config: SeriesConfig) -> "SeriesCorpus":
    """The series this configuration describes."""
    corpus: SeriesCorpus = find(config.corpus).load(config)
    return corpus


def load_labelled_series(config: LabelledSeriesConfig) -> "LabelledSeriesCorpus":
    """The series and labels this configuration describes: at least two labels."""
    from seqloom.data.labelled_series import checked_series_labels

    return checked_series_labels(find(config.corpus).load(config))


def load_tracks(config: TracksConfig) -> "TrackCorpus":
    """The tracks this configuration describes."""
    corpus: TrackCorpus = find(config.corpus).load(config)
    return corpus


def find(name: str) -> ModuleType:
    """The module of a corpus, by its name."""
    if name not in CORPORA:
        raise UsageError(f"There is no corpus '{name}': {did_you_mean(name, CORPORA)}.")
    return CORPORA[name]
