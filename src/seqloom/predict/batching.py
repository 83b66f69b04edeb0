"""Lines in, as many answers out, in their order: what models share that answer line by line."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from seqloom.core.cancellation import check_cancelled
from seqloom.core.errors import DataError, SeqloomError, UsageError
from seqloom.core.limits import max_source

Answer = TypeVar("Answer")
Line = TypeVar("Line")
TOKENS = 8192  # read together, padding included; a line that has more goes alone


def answered(
    lines: str | Iterable[str], answer: Callable[[list[str]], Iterable[Answer]], *, batch_size: int, window: int
) -> Iterator[Answer]:
    """`answer` gets `window` lines at a time. What was read before an input that breaks is still answered."""
    check_sizes(batch_size=batch_size, window=window)
    return (one for read in windows(lines_of(lines), window) for one in answer(read))


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


def check_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise UsageError(f"{name} must be at least 1, got {value}.")


def lines_of(lines: str | Iterable[str]) -> Iterable[str]:
    """One line is a list of one."""
    return [lines] if isinstance(lines, str) else lines


def windows(lines: Iterable[Line], size: int) -> Iterator[list[Line]]:
    """So many at a time. What came before one that cannot be read is still handed over."""
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


def alike(lengths: Sequence[int], batch_size: int, tokens: int = TOKENS) -> Iterator[list[int]]:
    """The places of what is read together: `batch_size` of about the same length, fewer where they are long."""
    check_cancelled()
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) == batch_size or (len(batch) + 1) * lengths[place] > tokens):
            yield batch
            check_cancelled()
            batch = []
        batch.append(place)
    if batch:
        yield batch
