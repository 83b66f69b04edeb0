"""A text and several continuations, or a question and several answers, of which one is right; in splits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seqloom.core.errors import DataError
from seqloom.core.words import shown
from seqloom.data.corpus import find_split
from seqloom.data.examples import ExampleCorpus


@dataclass(frozen=True)
class Choice:
    text: str
    options: tuple[str, ...]
    answer: int  # the place of the right one, from 0

    def texts(self) -> Sequence[str]:
        return self.text, *self.options

    def parts(self) -> Sequence[str]:
        return self.text, str(len(self.options)), *self.options, str(self.answer)


@dataclass(frozen=True)
class ChoiceCorpus(ExampleCorpus):
    splits: Mapping[str, Sequence[Choice]]

    def split(self, name: str) -> Sequence[Choice]:
        """The examples of a split, or DataError with the reason there are none."""
        found: Sequence[Choice] = find_split(self, name)
        return found

    def most_options(self) -> int:
        return max(len(choice.options) for choices in self.splits.values() for choice in choices)

    def chance(self, split: str) -> float:
        """The share that is right by guessing."""
        choices = self.split(split)
        return sum(1 / len(choice.options) for choice in choices) / len(choices)

    def sizes(self, split: str) -> dict[str, int]:
        found = super().sizes(split)
        options = sum(len(choice.options) for choice in self.split(split))
        return {"examples": found["examples"], "options": options, **found}


def answer_place(cell: str, options: Sequence[str], counted_from: int, where: str) -> int:
    """Which option a cell means: by its number, or word for word; `where` it stands, for the message."""
    if options.count(cell) == 1:
        return options.index(cell)
    try:
        place = int(cell) - counted_from
    except ValueError:
        place = -1
    if not 0 <= place < len(options):
        last = len(options) - 1 + counted_from
        raise DataError(
            f"{where} must say which of its {len(options)} options is right: a number from {counted_from} to {last}, "
            f"or the option itself; got {shown(cell)}. Numbers from 1: data.counted_from=1."
        )
    return place
