"""Progress of work on texts that comes before the first step of a training.

Whoever works wraps the pieces of text it goes through in `track`; whoever shows progress listens with `listening`.
Where nobody listens, nothing is reported.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int | None], None]  # what is done, characters so far, of how many where that is known
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` with the progress of all that is tracked in this block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def track(pieces: Iterable[str], label: str, texts: Iterable[str]) -> Iterable[str]:
    """Pass the pieces of `texts` on, reporting how many characters have been read."""
    listener = _listener.get()
    if listener is None:
        return pieces
    total = sum(map(len, texts)) if isinstance(texts, Sequence) else None
    return _report(pieces, label, total, listener)


def _report(pieces: Iterable[str], label: str, total: int | None, listener: Listener) -> Iterator[str]:
    done = 0
    for piece in pieces:
        yield piece
        done += len(piece)
        listener(label, done, total)
