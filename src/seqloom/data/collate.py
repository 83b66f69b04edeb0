"""How examples of each kind become a batch of padded tensors; `seqloom.data.batching` decides which examples.

Rows without an example, all of whose masks are False, come only where `shapes` says how many shapes there may be.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import DataError, UsageError
from seqloom.core.tree import Tree
from seqloom.data.batching import Array, Batches, LengthSampler, Ragged, Shape, check_budget
from seqloom.text import END, Tokenizer
from seqloom.text.model_inputs import Row

if TYPE_CHECKING:
    from seqloom.data.readers import Spellings

IGNORE = -100  # what cross entropy passes over, as torch has it
FIRST = "first"  # of `words`: the position of each word's first token
SPELLING = "spelling"  # of `words`: the number of each word's spelling


# --- parallel sentences -----------------------------------------------------------------------------------------------


class ParallelBatches(Batches):
    """Pairs of token sequences; both sides end with END, and their lengths count it."""

    def __init__(
        self,
        sources: Iterable[Sequence[int]] | Ragged,
        targets: Iterable[Sequence[int]] | Ragged,
        *,
        tokens: int,
        shapes: int | None = None,
        max_length: int | None = None,
    ):
        self.sources = sources if isinstance(sources, Ragged) else Ragged.of(sources)
        self.targets = targets if isinstance(targets, Ragged) else Ragged.of(targets)
        self.tokens = tokens
        lengths = np.stack([self.sources.lengths, self.targets.lengths], axis=1)  # (N, 2)
        self.pairs = np.flatnonzero(lengths.max(axis=1, initial=0) <= (max_length or np.inf))  # those that are read
        self.left_out = len(lengths) - len(self.pairs)
        if not len(self.pairs):
            raise DataError(
                f"There is no pair to read: all {len(lengths):,} are longer than {max_length} tokens. Raise "
                "batch.max_length."
                if len(lengths)
                else "There is no pair to read: the split is empty."
            )
        self.sampler = LengthSampler(
            lengths[self.pairs], tokens=tokens, shapes=shapes, purpose="pairs", members=self.pairs
        )

    def collate(self, members: Array, shape: Shape | None = None) -> Tree:
        return collate_parallel(self.sources, self.targets, members, shape)


def collate_parallel(sources: Ragged, targets: Ragged, members: Array, shape: Shape | None = None) -> Tree:
    """Return the batch of these pairs, padded to a shape, or to the longest of each side."""
    longest = (int(side.lengths[members].max()) for side in (sources, targets)) if shape is None else ()
    rows, *widths = shape or (len(members), *longest)
    source, source_mask = sources.pad(members, rows, widths[0])
    target, target_mask = targets.pad(members, rows, widths[1])
    return {
        "source": source,  # (B, S)
        "source_mask": source_mask,
        "inputs": shift_right(target),  # (B, T)
        "targets": target,
        "target_mask": target_mask,
    }


def shift_right(targets: Tensor) -> Tensor:
    """Return the inputs that predict the targets (B, T): END, then the targets without their last; padding is END."""
    inputs = torch.full_like(targets, END)
    inputs[:, 1:] = targets[:, :-1]
    return inputs


# --- texts, and sentences with words ----------------------------------------------------------------------------------


class TextBatches(Batches):
    """Texts with a label each, or a number for each word.

    tokens (B, S), mask (B, S)                    the texts; padding is 0 and False
    a name of `values` (B,)                       a number for each text: its label; IGNORE in rows without a text
    a name of `words` (B, W), words (B, W)        a number for each word: its tag, its first token; padding is 0, False
    characters (B, W, C) or (B, S, C)             how each word, or each token, is spelled, where there are spellings
    """

    has_targets = False

    def __init__(
        self,
        texts: Iterable[Sequence[int]] | Ragged,
        *,
        tokens: int,
        shapes: int | None = None,
        max_length: int | None = None,
        values: Mapping[str, Sequence[int]] | None = None,
        words: Mapping[str, Ragged] | None = None,
        spellings: "Spellings | None" = None,
        spelled: Ragged | None = None,
        was_cut: Sequence[bool] | None = None,
    ):
        """`texts` has END at the end of each, `words` has none. `spelled` has the spellings of all tokens, END too.

        A text longer than `max_length` tokens is cut there, END after it; its words are cut too, by their `first`.
        `was_cut` (N,) says of which texts only the beginning is read, `words_cut` counts the words that are not.
        """
        if max_length is not None and max_length < 2:
            raise UsageError(f"max_length must leave room for a token and its end: at least 2, got {max_length}.")
        texts = texts if isinstance(texts, Ragged) else Ragged.of(texts)
        if not len(texts):
            raise DataError("There is no text to read: the split is empty.")
        lengths = np.minimum(texts.lengths, max_length or np.iinfo(np.int64).max)
        shortened = lengths < texts.lengths
        self.was_cut = shortened if was_cut is None else np.array(was_cut)
        self.cut = int(self.was_cut.sum())
        self.texts = texts.truncate_texts(lengths) if shortened.any() else texts
        self.spellings = spellings
        self.spelled = spelled.truncate_texts(lengths) if spelled is not None and shortened.any() else spelled
        self.tokens, self.values = tokens, {name: np.asarray(own) for name, own in (values or {}).items()}
        self.words, self.words_cut = truncate_words(words or {}, lengths)
        widths = next(iter(self.words.values())).lengths if self.words else lengths
        both = np.stack([lengths, widths], axis=1)
        self.sampler = LengthSampler(both, tokens=tokens, shapes=shapes, purpose="examples")

    def __len__(self) -> int:
        return len(self.texts)

    def shapes(self) -> set[tuple[int, ...]]:
        """Every shape a batch can have: (B, S), or (B, S, W) where words are wanted."""
        return {shape if self.words else shape[:2] for shape in self.sampler.shapes}

    def collate(self, members: Array, shape: Shape | None = None) -> Tree:
        if shape is None:
            most_words = max((int(numbers.lengths[members].max()) for numbers in self.words.values()), default=0)
            shape = len(members), int(self.texts.lengths[members].max()), most_words
        rows, width, most_words = shape
        batch: dict[str, Tensor] = {}
        batch["tokens"], batch["mask"] = self.texts.pad(members, rows, width)
        for name, values in self.values.items():
            batch[name] = pad_values(values, members, rows)
        for name, numbers in self.words.items():
            batch[name], batch["words"] = numbers.pad(members, rows, most_words)
        spelling = batch.pop(SPELLING, None)
        if self.spelled is not None:
            spelling, _ = self.spelled.pad(members, rows, width)
        if self.spellings is not None and spelling is not None:
            batch["characters"] = self.spellings.characters(spelling)
        return batch


def truncate_words(words: Mapping[str, Ragged], lengths: Array) -> tuple[dict[str, Ragged], int]:
    """Return the words whose first token is read, before the END of their text; and how many are not."""
    if not words:
        return {}, 0
    first = words[FIRST]
    is_read = first.ids < np.repeat(lengths - 1, first.lengths)
    if is_read.all():
        return dict(words), 0
    counts = np.add.reduceat(is_read, first.starts[:-1]).astype(np.int64)
    return {name: numbers.truncate(counts) for name, numbers in words.items()}, int((~is_read).sum())


def pad_values(values: Array, members: Array, rows: int) -> Tensor:
    """Return a number for each row, IGNORE in rows without an example."""
    padded = np.full(rows, IGNORE, dtype=values.dtype)
    padded[: len(members)] = values[members]
    return torch.from_numpy(padded)


# --- rows of texts between special tokens -----------------------------------------------------------------------------


@dataclass(frozen=True)
class ExampleRows:
    """The rows of an example, and whether its texts had to be cut."""

    rows: Sequence[Row]
    cut: bool = False
    places: Sequence[Sequence[bool]] | None = None  # of each row: where an answer may be


class RowBatches(Batches):
    """Examples of one row or several: a pair, a text with each of its options, a window of a context.

    tokens, mask, segments (B, R, S)      padding is 0 and False; rows that an example has not are all padding
    places (B, R, S)                      where an answer may be, where that is asked for
    a name of `values` (B,)               a number for each example: its label; IGNORE in rows without an example
    """

    has_targets = False

    def __init__(
        self,
        examples: Sequence[ExampleRows],
        *,
        tokens: int,
        shapes: int | None = None,
        values: Mapping[str, Sequence[float]] | None = None,
    ):
        check_budget(tokens, shapes)
        if not examples:
            raise DataError("There is nothing to read: the split is empty.")
        self.tokens = tokens
        numbers = {name: np.asarray(own) for name, own in (values or {}).items()}
        self.values = {name: own.astype(np.float32) if own.dtype.kind == "f" else own for name, own in numbers.items()}
        self.was_cut = np.array([example.cut for example in examples])
        self.cut = int(self.was_cut.sum())
        rows = [row for example in examples for row in example.rows]
        self.texts = Ragged.plain([row.tokens for row in rows])
        self._more = {"segments": Ragged.plain([row.segments for row in rows])}
        if examples[0].places is not None:
            self._more["places"] = Ragged.plain([own for example in examples for own in example.places or ()])
        self._first = np.cumsum([0, *(len(example.rows) for example in examples)])
        self.rows = int(np.diff(self._first).max())  # R
        self.lengths = np.maximum.reduceat(self.texts.lengths, self._first[:-1])  # that of an example's longest row
        both = np.stack([self.lengths, self.lengths], axis=1)
        self.sampler = LengthSampler(both, tokens=max(1, tokens // self.rows), shapes=shapes, purpose="examples")

    def __len__(self) -> int:
        return len(self._first) - 1

    def shapes(self) -> set[tuple[int, ...]]:
        return {shape[:2] for shape in self.sampler.shapes}

    def collate(self, members: Array, shape: Shape | None = None) -> Tree:
        size, width, _ = shape or (len(members), int(self.lengths[members].max()), 0)
        counts = self._first[members + 1] - self._first[members]
        example = np.repeat(np.arange(len(members)), counts)  # of each row
        place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = self._first[members][example] + place
        into = torch.from_numpy(example * self.rows + place)
        batch: dict[str, Tensor] = {}
        for name, ragged in {"tokens": self.texts, **self._more}.items():
            ids, mask = ragged.pad(rows, len(rows), width)
            for key, part in ((name, ids), ("mask", mask)):
                spread = part.new_zeros(size * self.rows, width)
                spread[into] = part
                batch[key] = spread.unflatten(0, (size, self.rows))  # (B, R, S)
        if "places" in batch:
            batch["places"] = batch["places"].bool()
        return batch | {name: pad_values(values, members, size) for name, values in self.values.items()}


# --- prompts and completions ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PromptCompletion:
    """The tokens of a prompt and its completion, and where that begins; `cut` if the prompt was shortened."""

    ids: list[int]
    start: int
    cut: bool = False


def encode_completion(tokenizer: Tokenizer, prompt: str, completion: str) -> PromptCompletion:
    """Encode a prompt and its completion as one text.

    The space before a completion belongs to it, since byte pairs join the two: a prompt ends before it.
    """
    ids, before = tokenizer.encode(prompt + completion), tokenizer.encode(prompt.rstrip(" "))
    pairs = zip(ids, before, strict=False)
    start = next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(ids), len(before)))
    return PromptCompletion(ids, start)


def shorten_prompt(tokenizer: Tokenizer, text: str, over: int) -> str:
    """Return a text without so many tokens at its end, or a few more where one is part of a character; one stays."""
    spans = tokenizer.spans(text)
    kept = max(1, len(spans) - over)
    if kept >= len(spans):
        return text
    return text[: min(spans[kept - 1][1], spans[kept][0])] or text[: spans[0][1]]


class PromptCompletionBatches(TextBatches):
    """Prompts that are only read, and completions that are learned, END included.

    inputs, targets (B, T), counted (B, T): which targets the loss is of; read: how many tokens there are in all.
    """

    def __init__(self, examples: Iterable[PromptCompletion], *, tokens: int, shapes: int | None = None) -> None:
        found = list(examples)
        starts, was_cut = {"start": [one.start for one in found]}, [one.cut for one in found]
        super().__init__((one.ids for one in found), tokens=tokens, shapes=shapes, values=starts, was_cut=was_cut)
        self.counted = sum(len(one.ids) + 1 - one.start for one in found)  # tokens that are learned

    def collate(self, members: Array, shape: Shape | None = None) -> Tree:
        batch = super().collate(members, shape)
        targets, mask = batch["tokens"], batch["mask"]
        counted = mask & (torch.arange(targets.shape[1]) >= batch["start"].unsqueeze(1))
        return {"inputs": shift_right(targets), "targets": targets, "counted": counted, "read": int(mask.sum())}
