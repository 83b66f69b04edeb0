"""From generated tokens to text that appears as it is made, and ends at a stop string.

The first stop string is the one that is complete first (of two complete at the same character, the longer), so the text
does not depend on how it was cut into tokens. Text that may turn out to be the beginning of a stop string is held back.
"""

from collections.abc import Generator, Sequence
from typing import Protocol

import torch

from seqloom.core.errors import UsageError
from seqloom.decoding.generate import Step, Steps

Pieces = Generator[list[str], None, None]  # the new text of every row, time after time


class PieceDecoder(Protocol):
    """Turns token ids into text one by one; some text may have to wait for the next id, as half a character does."""

    def push(self, token: int, /) -> str: ...

    def flush(self) -> str: ...


class StopCutter:
    """Passes text on up to the first stop string."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        if isinstance(stop, str) or not all(stop):
            raise UsageError(f"Stop strings must be a list of texts with at least one character each; got {stop!r}.")
        self._stop = tuple(stop)
        self._held = ""
        self.done = False

    def push(self, text: str) -> str:
        """What may be shown now that `text` has arrived."""
        if self.done:
            return ""
        text = self._held + text
        places = [(text.find(stop), len(stop)) for stop in self._stop]
        found = [(start + length, start) for start, length in places if start >= 0]
        if found:
            self.done, self._held = True, ""
            return text[: min(found)[1]]
        shown = len(text) - self._unsure(text)
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """What was held back and is no stop string after all."""
        held, self._held, self.done = self._held, "", True
        return held

    def _unsure(self, text: str) -> int:
        """The length of the longest end of `text` with which a stop string begins."""
        longest = min(len(text), max(map(len, self._stop), default=1) - 1)
        ends = (size for size in range(longest, 0, -1) if any(s.startswith(text[-size:]) for s in self._stop))
        return next(ends, 0)


class _Row:
    """The text of one row: ids → pieces → pieces up to the stop string."""

    def __init__(self, decoder: PieceDecoder, stop: Sequence[str]) -> None:
        self._decoder = decoder
        self._cutter = StopCutter(stop)

    @property
    def done(self) -> bool:
        return self._cutter.done

    def push(self, token: int, finished: bool) -> str:
        if self.done:
            return ""
        return self.flush() if finished else self._cutter.push(self._decoder.push(token))

    def flush(self) -> str:
        return "" if self.done else self._cutter.push(self._decoder.flush()) + self._cutter.flush()


def text_streams(steps: Steps, decoders: Sequence[PieceDecoder], stop: Sequence[str] = ()) -> Pieces:
    """The new text of every row (often "") after each token; a row that meets a stop string leaves the generation.

    The last list holds what was held back. `decoders` are one fresh decoder per row.
    """
    return _text_streams(steps, [_Row(decoder, stop) for decoder in decoders])


def _text_streams(steps: Steps, rows: list[_Row]) -> Pieces:
    try:
        step: Step | None = next(steps, None)
        while step is not None:
            arrived = zip(rows, step.tokens.tolist(), step.finished.tolist(), strict=True)
            yield [row.push(token, finished) for row, token, finished in arrived]
            if all(row.done for row in rows):
                return
            try:
                step = steps.send(torch.tensor([row.done for row in rows]))
            except StopIteration:
                step = None
        yield [row.flush() for row in rows]
    finally:
        steps.close()


def text_stream(steps: Steps, decoder: PieceDecoder, stop: Sequence[str] = ()) -> Generator[str, None, None]:
    """The text of a single row in pieces, none of them empty."""
    return (piece for (piece,) in text_streams(steps, [decoder], stop) if piece)
