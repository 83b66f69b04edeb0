"""A text and several continuations, or a question and several answers, of which one is right; in splits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from seqloom.core.errors import DataError
from seqloom.core.words import shown
from seqloom.data.corpus import Corpus, Example


@dataclass(frozen=True)
class Choice(Example):
    form: ClassVar = "choices"

    text: str
    options: tuple[str, ...]
    answer: int  # the place of the right one, from 0

    def texts(self) -> Sequence[str]:
        return self.text, *self.options

    def parts(self) -> Sequence[str]:
        return self.text, str(len(self.options)), *self.options, str(self.answer)

    @classmethod
    def sizes(cls, corpus: Corpus[Self], split: str) -> dict[str, int]:
        sizes = super().sizes(corpus, split)
        options = sum(len(choice.options) for choice in corpus.split(split))
        return {"examples": sizes["examples"], "options": options, **sizes}


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
