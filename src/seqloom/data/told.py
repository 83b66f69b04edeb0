"""Texts of which only the end is learned: a question, and the answer a language model is to give.

question answer END          the loss is of the answer's tokens and of END; the question is only read
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from seqloom.core.tree import Tree
from seqloom.data.buckets import Array
from seqloom.data.example_batches import ExampleBatches
from seqloom.text import END, Tokenizer
from seqloom.text.spans import token_spans

FEWEST = 1  # tokens of a question that stay, however long the answer is


@dataclass(frozen=True)
class Told:
    """The tokens of a question and its answer, and where the answer begins; `cut` if the question was shortened."""

    ids: list[int]
    start: int
    cut: bool = False


def told(tokenizer: Tokenizer, question: str, answer: str) -> Told:
    """The space before an answer belongs to it, since byte pairs join the two: a question that is asked ends before."""
    ids, before = tokenizer.encode(question + answer), tokenizer.encode(question.rstrip(" "))
    pairs = zip(ids, before, strict=False)
    start = next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(ids), len(before)))
    return Told(ids, start)


def shortened(tokenizer: Tokenizer, text: str, over: int) -> str:
    """A text without so many tokens at its end, or a few more where one is part of a character; one stays, whole."""
    spans = token_spans(tokenizer, text)
    kept = max(FEWEST, len(spans) - over)
    if kept >= len(spans):
        return text
    return text[: min(spans[kept - 1][1], spans[kept][0])] or text[: spans[0][1]]


class ToldBatches:
    """Questions and answers of a split as batches: a pure function of seed, step, rank and world.

    inputs, targets (B, T), counted (B, T): which targets the loss is of; read: how many tokens that is in all.
    """

    def __init__(self, examples: Iterable[Told], **options: Any) -> None:
        """`options` are those of `ExampleBatches`."""
        found = list(examples)
        starts = {"start": [one.start for one in found]}
        self.cut = sum(one.cut for one in found)
        self.counted = sum(len(one.ids) + 1 - one.start for one in found)  # tokens that are learned, END included
        self.examples = ExampleBatches((one.ids for one in found), values=starts, **options)

    @property
    def steps_per_epoch(self) -> int:
        return self.examples.steps_per_epoch

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        return _tree(self.examples.batch(seed, step, rank, world))

    def largest_step(self, seed: int) -> int:
        return self.examples.largest_step(seed)

    def every(self) -> Iterable[tuple[Array, Tree]]:
        """Each example once: its batches, with the numbers of the examples in them."""
        return ((members, _tree(batch)) for members, batch in self.examples.every())


def _tree(batch: Tree) -> Tree:
    targets, mask = batch["tokens"], batch["mask"]
    inputs = torch.full_like(targets, END)
    inputs[:, 1:] = targets[:, :-1]
    counted = mask & (torch.arange(targets.shape[1]) >= batch["start"].unsqueeze(1))
    return {"inputs": inputs, "targets": targets, "counted": counted, "read": int(mask.sum())}
