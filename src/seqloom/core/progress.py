"""Cancellation and progress of long computations, independent of the caller.

    cancellation = Cancellation()
    with cancellation.active():     # in the thread that computes
        compute()                   # its loops call `check_cancelled` in each step
    cancellation.cancel()           # from any thread

    with report_progress(show):     # calls show("learning merges", characters so far, total or None)
        learn()                     # iterates over texts with `track`

Outside these blocks, `check_cancelled` has no effect and progress is not reported.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar


class Cancelled(Exception):
    """The computation was cancelled because its result is no longer needed."""


class Cancellation:
    """A request to stop a computation. Cancelling a parent also cancels its children."""

    def __init__(self, parent: "Cancellation | None" = None) -> None:
        self._parent = parent
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled or (self._parent is not None and self._parent.is_cancelled)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make `check_cancelled` use this cancellation in this thread until the block ends."""
        token = _active.set(self)
        try:
            yield
        finally:
            _active.reset(token)


_active: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


def active_cancellation() -> Cancellation | None:
    """Return the active cancellation of this thread, which becomes the parent of cancellations in new threads."""
    return _active.get()


def check_cancelled() -> None:
    """Raise `Cancelled` if the computation of this thread was cancelled."""
    cancellation = _active.get()
    if cancellation is not None and cancellation.is_cancelled:
        raise Cancelled


Listener = Callable[[str, int, int | None], None]  # called with a label, the characters so far, and the total or None
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def report_progress(listener: Listener) -> Iterator[None]:
    """Call `listener` with the progress of everything tracked in this block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def track(pieces: Iterable[str], label: str, texts: Iterable[str]) -> Iterable[str]:
    """Iterate over the pieces of `texts` and report the number of characters read."""
    listener = _listener.get()
    total = sum(map(len, texts)) if listener is not None and isinstance(texts, Sequence) else None

    def report() -> Iterator[str]:
        done = 0
        for piece in pieces:
            yield piece
            done += len(piece)
            if listener is not None:
                listener(label, done, total)

    return pieces if listener is None else report()
