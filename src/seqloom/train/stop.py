"""Requests to stop training without losing progress.

A signal that arrives during an update of the weights or a write to a file is handled afterwards. A signal that arrives
inside an `interruptible` block (reading data, evaluating) interrupts the block immediately.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from seqloom.core.errors import Interrupted


class Stop:
    """A request to stop, made by a signal or a caller."""

    def __init__(self) -> None:
        self.requested = False
        self.signal: int = signal.SIGINT  # the signal that requested the stop
        self._may_raise = False

    def request(self, number: int = signal.SIGINT) -> None:
        self.requested, self.signal = True, number
        if self._may_raise:
            self._may_raise = False  # a second request must not interrupt the following save
            raise Interrupted("Stopped on request.")

    def withdraw(self, number: int) -> bool:
        """Withdraw the request with this number and return True, unless a signal has replaced it."""
        if not self.requested or self.signal != number:
            return False
        self.requested = False
        return True

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a request raise `Interrupted` immediately within this block."""
        outer, self._may_raise = self._may_raise, True
        try:
            if self.requested:
                raise Interrupted("Stopped on request.")
            yield
        finally:
            self._may_raise = outer

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Request a stop on Ctrl-C and SIGTERM within this block."""

        def handle(number: int, frame: FrameType | None) -> None:
            self.request(number)

        previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
