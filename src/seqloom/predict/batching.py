"""Lines in windows and batches: predictions come one per line, in the order of the lines."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from seqloom.core.cancellation import check_cancelled
from seqloom.core.errors import DataError, SeqloomError, UsageError
from seqloom.core.limits import max_source
from seqloom.core.words import shown
from seqloom.text.base import END

Answer = TypeVar("Answer")
Line = TypeVar("Line")
TOKENS = 8192  # computed together, padding included; a line that has more goes alone


def predict_windows(
    lines: Iterable[Line], predict: Callable[[list[Line]], Iterable[Answer]], *, batch_size: int, window: int
) -> Iterator[Answer]:
    """Give `predict` `window` lines at a time. Lines before one that cannot be read are still answered."""
    check_sizes(batch_size=batch_size, window=window)
    return (answer for read in windows(lines, window) for answer in predict(read))


def predict_batches(
    lengths: Sequence[int],
    batch_size: int,
    predict: Callable[[list[int]], Iterable[Answer]],
    tokens: int = TOKENS,
) -> list[Answer]:
    """Return an answer per index of `lengths`; `predict` gets the indices of lines of similar length together."""
    answers: dict[int, Answer] = {}
    for indices in similar_lengths(lengths, batch_size, tokens):
        answers.update(zip(indices, predict(indices), strict=True))
    return [answers[index] for index in range(len(lengths))]


def similar_lengths(lengths: Sequence[int], batch_size: int, tokens: int = TOKENS) -> Iterator[list[int]]:
    """Yield batches of indices: `batch_size` of about the same length, fewer where they are long."""
    check_cancelled()
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) == batch_size or (len(batch) + 1) * lengths[index] > tokens):
            yield batch
            check_cancelled()
            batch = []
        batch.append(index)
    if batch:
        yield batch


def windows(lines: Iterable[Line], size: int) -> Iterator[list[Line]]:
    """Yield `size` lines at a time; those before a line that cannot be read come before its error."""
    read: list[Line] = []
    try:
        for line in lines:
            read.append(line)
            if len(read) == size:
                yield read
                read = []
    except SeqloomError:
        if read:
            yield read
        raise
    if read:
        yield read


def as_lines(lines: str | Iterable[str]) -> Iterable[str]:
    """Return a single text as a list of one."""
    return [lines] if isinstance(lines, str) else lines


def split_columns(lines: Iterable[str], least: int, what: str, most: int | None = None) -> Iterator[list[str]]:
    """Yield the fields between the tabs of each line; a blank line has `least` empty ones."""
    for number, line in enumerate(lines, start=1):
        cells = line.split("\t") if line.strip() else [""] * least
        if len(cells) < least or (most is not None and len(cells) > most):
            found = "no tab" if len(cells) == 1 else f"{len(cells)} columns"
            raise DataError(f"Line {number:,} must hold {what} with a tab between; it has {found}: {shown(line)}.")
        yield cells


def pad_rows(rows: Sequence[list[int]], device: torch.device, padding: int = END) -> tuple[Tensor, Tensor]:
    """Return rows of tokens with padding, and the mask of real tokens, both (B, S)."""
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [padding] * (longest - len(row)) for row in rows], device=device)
    lengths = torch.tensor([[len(row)] for row in rows], device=device)
    return tokens, torch.arange(longest, device=device) < lengths


def check_sizes(**sizes: int | None) -> None:
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise UsageError(f"{name} must be at least 1, got {value}.")


def check_source(number: int, tokens: int, longest: int | None, key: str) -> None:
    """Refuse a text with more tokens, its end included, than an encoder–decoder can read."""
    most = max_source()
    if longest is not None and tokens > longest:
        raise DataError(
            f"Line {number:,} has {tokens:,} tokens, its end included, and this model knows only {longest:,} places. "
            f"Cut the line, or train with a larger {key}."
        )
    if tokens > most:
        raise DataError(
            f"Line {number:,} has {tokens:,} tokens, its end included; at most {most:,} are read at once. Cut the "
            f"line into sentences, or allow more: SEQLOOM_MAX_SOURCE={tokens}."
        )
