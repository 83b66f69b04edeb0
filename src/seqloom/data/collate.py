"""Collation of examples into batches of padded tensors; `seqloom.data.batching` selects the examples.

Empty rows, whose masks are all False, occur only if `shapes` limits the number of shapes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from seqloom.core.errors import DataError, UsageError
from seqloom.core.tree import Tree
from seqloom.data.batching import Array, Batches, LengthSampler, Ragged, Shape, check_budget
from seqloom.text import END, Tokenizer
from seqloom.text.model_inputs import Row

if TYPE_CHECKING:
    from seqloom.data.text_inputs import Spellings

IGNORE = -100  # a target that cross entropy ignores, as in torch
FIRST = "first"  # key in `words` of the positions of each word's first token
SPELLING = "spelling"  # key in `words` of the spelling numbers of the words


# --- parallel sentences -----------------------------------------------------------------------------------------------


class ParallelBatches(Batches):
    """Batches of pairs of token sequences. Both sides end with END, which is included in their lengths."""

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
        self.pairs = np.flatnonzero(lengths.max(axis=1, initial=0) <= (max_length or np.inf))  # the pairs that fit
        self.left_out = len(lengths) - len(self.pairs)
        if not len(self.pairs):
            raise DataError(
                f"All {len(lengths):,} pairs are longer than {max_length} tokens. Raise batch.max_length."
                if len(lengths)
                else "The split must contain pairs, but it is empty."
            )
        self.sampler = LengthSampler(
            lengths[self.pairs], tokens=tokens, shapes=shapes, purpose="pairs", members=self.pairs
        )

    def collate(self, members: Array, shape: Shape | None = None) -> Tree:
        return collate_parallel(self.sources, self.targets, members, shape)


def collate_parallel(sources: Ragged, targets: Ragged, members: Array, shape: Shape | None = None) -> Tree:
    """Return the batch of these pairs, padded to a shape or to the longest sequence of each side."""
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
    """Return the decoder inputs for targets (B, T): END, followed by all targets but the last; padding is END."""
    inputs = torch.full_like(targets, END)
    inputs[:, 1:] = targets[:, :-1]
    return inputs


# --- texts, and sentences with words ----------------------------------------------------------------------------------


class TextBatches(Batches):
    """Batches of texts with labels, or with a number for each word.

    tokens (B, S), mask (B, S)                    the texts; padding is 0 and False
    each key of `values` (B,) or (B, L)           a number for each text, such as its label; IGNORE in empty rows
    each key of `words` (B, W), words (B, W)      a number for each word: its tag, its first token; padding is 0, False
    characters (B, W, C) or (B, S, C)             the spelling of each word or token, if there are spellings
    """

    has_targets = False

    def __init__(
        self,
        texts: Iterable[Sequence[int]] | Ragged,
        *,
        tokens: int,
        shapes: int | None = None,
        max_length: int | None = None,
        values: Mapping[str, ArrayLike] | None = None,
        words: Mapping[str, Ragged] | None = None,
        spellings: "Spellings | None" = None,
        spelled: Ragged | None = None,
        was_cut: Sequence[bool] | None = None,
    ):
        """Create batches.

        `texts` and `spelled`, the spellings of their tokens, end with END; `words` do not. Texts longer than
        `max_length` tokens are truncated and end with END. Words whose `first` token is removed are dropped and counted
        in `words_cut`. `was_cut` (N,) marks texts that were already truncated.
        """
        if max_length is not None and max_length < 2:
            raise UsageError(f"max_length must be at least 2, for a token and END; got {max_length}.")
        texts = texts if isinstance(texts, Ragged) else Ragged.of(texts)
        if not len(texts):
            raise DataError("The split must contain texts, but it is empty.")
        lengths = np.minimum(texts.lengths, max_length or np.iinfo(np.int64).max)
        truncated = lengths < texts.lengths
        self.was_cut = truncated if was_cut is None else np.array(was_cut)
        self.cut = int(self.was_cut.sum())
        self.texts = texts.truncate_texts(lengths) if truncated.any() else texts
        self.spellings = spellings
        self.spelled = spelled.truncate_texts(lengths) if spelled is not None and truncated.any() else spelled
        self.tokens, self.values = tokens, {name: np.asarray(numbers) for name, numbers in (values or {}).items()}
        self.words, self.words_cut = truncate_words(words or {}, lengths)
        widths = next(iter(self.words.values())).lengths if self.words else lengths
        both = np.stack([lengths, widths], axis=1)
        self.sampler = LengthSampler(both, tokens=tokens, shapes=shapes, purpose="examples")

    def __len__(self) -> int:
        return len(self.texts)

    def shapes(self) -> set[tuple[int, ...]]:
        """Return all possible shapes of a batch: (B, S), or (B, S, W) with words."""
        return {shape if self.words else shape[:2] for shape in self.sampler.shapes}

    def collate(self, members: Array, shape: Shape | None = None) -> Tree:
        if shape is None:
            max_words = max((int(numbers.lengths[members].max()) for numbers in self.words.values()), default=0)
            shape = len(members), int(self.texts.lengths[members].max()), max_words
        rows, width, max_words = shape
        batch: dict[str, Tensor] = {}
        batch["tokens"], batch["mask"] = self.texts.pad(members, rows, width)
        for name, values in self.values.items():
            batch[name] = pad_values(values, members, rows)
        for name, numbers in self.words.items():
            batch[name], batch["words"] = numbers.pad(members, rows, max_words)
        spelling = batch.pop(SPELLING, None)
        if self.spelled is not None:
            spelling, _ = self.spelled.pad(members, rows, width)
        if self.spellings is not None and spelling is not None:
            batch["characters"] = self.spellings.characters(spelling)
        return batch


def truncate_words(words: Mapping[str, Ragged], lengths: Array) -> tuple[dict[str, Ragged], int]:
    """Drop the words whose first token is truncated; return the remaining words and the number of dropped words."""
    if not words:
        return {}, 0
    first = words[FIRST]
    is_kept = first.ids < np.repeat(lengths - 1, first.lengths)
    if is_kept.all():
        return dict(words), 0
    counts = np.add.reduceat(is_kept, first.starts[:-1]).astype(np.int64)
    return {name: numbers.truncate(counts) for name, numbers in words.items()}, int((~is_kept).sum())


def pad_values(values: Array, members: Array, rows: int) -> Tensor:
    """Return one number or one vector of numbers per row; empty rows contain IGNORE."""
    padded = np.full((rows, *values.shape[1:]), IGNORE, dtype=values.dtype)
    padded[: len(members)] = values[members]
    return torch.from_numpy(padded)


# --- rows of texts between special tokens -----------------------------------------------------------------------------


@dataclass(frozen=True)
class ExampleRows:
    """The rows of an example, and whether its texts were truncated."""

    rows: Sequence[Row]
    cut: bool = False
    answerable: Sequence[Sequence[bool]] | None = None  # positions of each row where an answer may occur


class RowBatches(Batches):
    """Batches of examples with one or several rows: a pair, a text with each option, or a window of a context.

    tokens, mask, segments (B, R, S)      padding is 0 and False; missing rows of an example are padding
    answerable (B, R, S)                  positions where an answer may occur, for question answering
    each key of `values` (B,)             a number for each example, such as its label; IGNORE in empty rows
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
            raise DataError("The split must contain examples, but it is empty.")
        self.tokens = tokens
        arrays = {name: np.asarray(numbers) for name, numbers in (values or {}).items()}
        self.values = {name: a.astype(np.float32) if a.dtype.kind == "f" else a for name, a in arrays.items()}
        self.was_cut = np.array([example.cut for example in examples])
        self.cut = int(self.was_cut.sum())
        rows = [row for example in examples for row in example.rows]
        self.texts = Ragged.plain([row.tokens for row in rows])
        self._extra = {"segments": Ragged.plain([row.segments for row in rows])}
        if examples[0].answerable is not None:
            self._extra["answerable"] = Ragged.plain([row for example in examples for row in example.answerable or ()])
        self._first = np.cumsum([0, *(len(example.rows) for example in examples)])
        self.rows = int(np.diff(self._first).max())  # R
        self.lengths = np.maximum.reduceat(self.texts.lengths, self._first[:-1])  # length of each example's longest row
        both = np.stack([self.lengths, self.lengths], axis=1)
        self.sampler = LengthSampler(both, tokens=max(1, tokens // self.rows), shapes=shapes, purpose="examples")

    def __len__(self) -> int:
        return len(self._first) - 1

    def shapes(self) -> set[tuple[int, ...]]:
        return {shape[:2] for shape in self.sampler.shapes}

    def collate(self, members: Array, shape: Shape | None = None) -> Tree:
        size, width, _ = shape or (len(members), int(self.lengths[members].max()), 0)
        counts = self._first[members + 1] - self._first[members]
        example = np.repeat(np.arange(len(members)), counts)  # example of each row
        row_in_example = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = self._first[members][example] + row_in_example
        indices = torch.from_numpy(example * self.rows + row_in_example)
        batch: dict[str, Tensor] = {}
        for name, ragged in {"tokens": self.texts, **self._extra}.items():
            ids, mask = ragged.pad(rows, len(rows), width)
            for key, values in ((name, ids), ("mask", mask)):
                padded = values.new_zeros(size * self.rows, width)
                padded[indices] = values
                batch[key] = padded.unflatten(0, (size, self.rows))  # (B, R, S)
        if "answerable" in batch:
            batch["answerable"] = batch["answerable"].bool()
        return batch | {name: pad_values(numbers, members, size) for name, numbers in self.values.items()}


# --- prompts and completions ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PromptCompletion:
    """The tokens of a prompt and its completion, the start of the completion, and whether the prompt was truncated."""

    ids: list[int]
    start: int
    cut: bool = False


def encode_completion(tokenizer: Tokenizer, prompt: str, completion: str) -> PromptCompletion:
    """Encode a prompt and its completion as one text.

    The space before a completion is encoded with it, because byte-pair encoding merges a space with the next word.
    """
    ids, prompt_ids = tokenizer.encode(prompt + completion), tokenizer.encode(prompt.rstrip(" "))
    pairs = zip(ids, prompt_ids, strict=False)
    start = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(prompt_ids)))
    return PromptCompletion(ids, start)


def shorten_prompt(tokenizer: Tokenizer, text: str, excess: int) -> str:
    """Remove at least `excess` tokens from the end of a text without splitting a character; keep at least one token."""
    spans = tokenizer.spans(text)
    kept = max(1, len(spans) - excess)
    if kept >= len(spans):
        return text
    return text[: min(spans[kept - 1][1], spans[kept][0])] or text[: spans[0][1]]


class PromptCompletionBatches(TextBatches):
    """Batches of prompts and completions; the loss covers the completions, including END.

    A batch has inputs and targets (B, T). `counted` (B, T) marks the targets of the loss. `read` is the number of
    tokens.
    """

    def __init__(self, examples: Iterable[PromptCompletion], *, tokens: int, shapes: int | None = None) -> None:
        examples = list(examples)
        starts, was_cut = {"start": [example.start for example in examples]}, [example.cut for example in examples]
        ids = (example.ids for example in examples)
        super().__init__(ids, tokens=tokens, shapes=shapes, values=starts, was_cut=was_cut)
        self.counted = sum(len(example.ids) + 1 - example.start for example in examples)  # targets in the loss

    def collate(self, members: Array, shape: Shape | None = None) -> Tree:
        batch = super().collate(members, shape)
        targets, mask = batch["tokens"], batch["mask"]
        counted = mask & (torch.arange(targets.shape[1]) >= batch["start"].unsqueeze(1))
        return {"inputs": shift_right(targets), "targets": targets, "counted": counted, "read": int(mask.sum())}
