"""Cooperative cancellation: a computation stops at its next step once nobody waits for its result.

    cancellation = Cancellation()
    with cancellation.active():     # in the thread that computes
        compute()                   # its loops call `check_cancelled` at each step
    cancellation.cancel()           # from any thread

A loop that calls `check_cancelled` needs to know neither who cancels nor why. Outside an active block the call does
nothing.
"""

from collections.abc import Iterator
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
