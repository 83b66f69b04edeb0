"""Examples of one row or several as padded batches: a pair, a text with each of its options, a window of a context.

A row is texts between special tokens (`seqloom.text.specials`). How examples fall into batches is told in `buckets.py`;
an example is as long as the longest of its rows. What a batch holds:

    tokens, mask, segments (B, R, S)      padding is 0 and False; rows that an example has not are all padding
    places (B, R, S)                      where an answer may be, where that is asked for
    a name of `values` (B,)               a number for each example: its label; IGNORE in rows without an example
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from seqloom.core.errors import DataError
from seqloom.core.tree import Tree
from seqloom.data.buckets import Array, Buckets, Shape, refuse_none
from seqloom.data.example_batches import IGNORE, ExampleBatches
from seqloom.data.pair_batches import Ragged
from seqloom.text.specials import Row


@dataclass(frozen=True)
class Rows:
    """The rows of an example, and whether its texts had to be cut."""

    rows: Sequence[Row]
    cut: bool = False
    places: Sequence[Sequence[bool]] | None = None  # of each row


class RowBatches(ExampleBatches):
    """The examples of a split as batches: a pure function of seed, step, rank and world."""

    def __init__(
        self,
        examples: Sequence[Rows],
        *,
        tokens: int,
        shapes: int | None = None,
        values: Mapping[str, Sequence[float]] | None = None,
    ):
        refuse_none(tokens, shapes)
        if not examples:
            raise DataError("There is nothing to read: the split is empty.")
        self.tokens, self.words = tokens, {}
        self.values = {name: _numbers(own) for name, own in (values or {}).items()}
        self.was_cut = np.array([example.cut for example in examples])
        self.cut = int(self.was_cut.sum())
        rows = [row for example in examples for row in example.rows]
        self.texts = Ragged.plain([row.tokens for row in rows])
        self._more = {"segments": Ragged.plain([row.segments for row in rows])}
        if examples[0].places is not None:
            self._more["places"] = Ragged.plain([own for example in examples for own in example.places or ()])
        self._first = np.cumsum([0, *(len(example.rows) for example in examples)])
        self.rows = int(np.diff(self._first).max())  # R
        lengths = np.maximum.reduceat(self.texts.lengths, self._first[:-1])
        self._buckets = Buckets(
            np.stack([lengths, lengths], axis=1), tokens=max(1, tokens // self.rows), shapes=shapes, purpose="examples"
        )
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self._first) - 1

    def tree(self, chosen: Array, shape: Shape | None = None) -> Tree:
        """The batch of these examples, padded to a shape (B, S, ·), or to the longest."""
        count, width, _ = shape or (len(chosen), int(self.lengths[chosen].max()), 0)
        counts = self._first[chosen + 1] - self._first[chosen]
        example = np.repeat(np.arange(len(chosen)), counts)  # of each row
        place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        real = self._first[chosen][example] + place
        into = torch.from_numpy(example * self.rows + place)
        found: dict[str, torch.Tensor] = {}
        for name, ragged in {"tokens": self.texts, **self._more}.items():
            ids, mask = ragged.padded(real, len(real), width)
            found[name] = self._spread(ids, into, count)
            found["mask"] = self._spread(mask, into, count)
        if "places" in found:
            found["places"] = found["places"].bool()
        for name, values in self.values.items():
            filled = np.full(count, IGNORE, dtype=values.dtype)
            filled[: len(chosen)] = values[chosen]
            found[name] = torch.from_numpy(filled)
        return found

    def _spread(self, rows: torch.Tensor, into: torch.Tensor, count: int) -> torch.Tensor:
        """Real rows to (B, R, S)."""
        made = rows.new_zeros(count * self.rows, rows.shape[1])
        made[into] = rows
        return made.unflatten(0, (count, self.rows))


def _numbers(values: Sequence[float]) -> Array:
    """Whole numbers, or those that a model counts in."""
    found = np.asarray(values)
    return found.astype(np.float32) if found.dtype.kind == "f" else found
