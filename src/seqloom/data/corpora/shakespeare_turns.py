"""Dialogue: consecutive turns of Tiny Shakespeare; the target is the next turn."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from seqloom.config import config
from seqloom.config.constraints import NonNegativeInt, PositiveInt
from seqloom.data.corpora.shakespeare import SOURCE
from seqloom.data.corpus import SPLITS, Corpus
from seqloom.data.examples import ParallelExample
from seqloom.data.files import read_nonblank

SUMMARY = "Tiny Shakespeare as dialogue: earlier turns and the next turn (needs SEQLOOM_DATA)"
FORM = "parallel"
BORDERS = (0.0, 0.8, 0.9, 1.0)  # train, dev and test are consecutive parts of the plays
SEPARATOR = " | "  # between the turns of a source


@config
class Config:
    corpus: Literal["shakespeare-turns"] = "shakespeare-turns"
    history: NonNegativeInt = 0  # number of turns before the preceding turn that the source contains
    max_words: PositiveInt = 20  # turns with more words are no targets; in a source, their last words are kept


class Turn(NamedTuple):
    speaker: str
    words: list[str]


def load(config: Config) -> Corpus[ParallelExample]:
    """Load the turns. A preceding turn that occurred before, in any split, is left out."""
    turns = list(read_turns(read_nonblank(SOURCE.file("tinyshakespeare/input.txt.gz"))))
    cuts = [round(border * len(turns)) for border in BORDERS]
    seen: set[str] = set()
    splits = {
        split: list(dialogue_pairs(turns[start:end], config, seen))
        for split, (start, end) in zip(SPLITS, pairwise(cuts), strict=True)
    }
    earlier = f" and {config.history} before it" if config.history else ""
    return Corpus(
        name="shakespeare-turns",
        licence="MIT",
        description=f"turns of Tiny Shakespeare: the preceding turn{earlier}, and the next turn",
        splits=splits,
    )


def read_turns(text: str) -> Iterator[Turn]:
    """Yield the turns of a play; a blank line ends a turn, and its first line is the speaker followed by a colon."""
    for block in text.split("\n\n"):
        speaker, _, speech = block.strip().partition(":\n")
        if speech.strip() and "\n" not in speaker:
            yield Turn(speaker, speech.split())


def dialogue_pairs(turns: Sequence[Turn], config: Config, seen: set[str]) -> Iterator[ParallelExample]:
    """Yield the pairs whose preceding turn and next speaker are not in `seen`, and add these to `seen`.

    The number of turns in the source does not change which targets occur, so runs with and without history are
    comparable.
    """
    for index in range(1, len(turns)):
        earlier, answer = turns[max(0, index - 1 - config.history) : index], turns[index]
        texts = [f"{turn.speaker}: {' '.join(turn.words[-config.max_words :])}" for turn in earlier]
        last = SEPARATOR.join([texts[-1], f"{answer.speaker}:"])
        if len(answer.words) <= config.max_words and last not in seen:
            seen.add(last)
            yield ParallelExample(SEPARATOR.join([*texts[:-1], last]), " ".join(answer.words))
