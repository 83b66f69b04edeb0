"""Long computations: cancel them, and follow their progress. Both reach a computation without its knowing by whom.

    cancellation = Cancellation()
    with cancellation.active():     # in the thread that computes
        compute()                   # its loops call `check_cancelled` at each step
    cancellation.cancel()           # from any thread

    with report_progress(show):           # show("learning merges", characters so far, of how many where that is known)
        learn()                     # goes through texts in `track`

Outside these blocks `check_cancelled` does nothing and nothing is reported.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar


class Cancelled(Exception):
    """The computation was cancelled: nobody waits for its result."""


class Cancellation:
    """A request to stop a computation. A child is also cancelled when its parent is."""

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
        """Let `check_cancelled` obey this cancellation, in this thread and inside this block."""
        token = _active.set(self)
        try:
            yield
        finally:
            _active.reset(token)


_active: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


def active_cancellation() -> Cancellation | None:
    """The cancellation that this thread obeys, to be the parent of those of the threads it starts."""
    return _active.get()


def check_cancelled() -> None:
    """Raise `Cancelled` if the computation of this thread was cancelled."""
    cancellation = _active.get()
    if cancellation is not None and cancellation.is_cancelled:
        raise Cancelled


Listener = Callable[[str, int, int | None], None]  # what is done, characters so far, of how many where that is known
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def report_progress(listener: Listener) -> Iterator[None]:
    """Call `listener` with the progress of all that is tracked in this block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def track(pieces: Iterable[str], label: str, texts: Iterable[str]) -> Iterable[str]:
    """Pass the pieces of `texts` on, reporting how many characters have been read."""
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
