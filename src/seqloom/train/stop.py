"""Being asked to stop, and doing it only where nothing can be lost.

A signal that arrives while weights change or files are written is remembered and obeyed a moment
later; one that arrives inside an `interruptible` block (reading data, evaluating) breaks the block
off at once.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from seqloom.core.errors import Interrupted


class Stop:
    def __init__(self) -> None:
        self.requested = False
        self.signal: int = signal.SIGINT  # which one asked for it
        self._may_raise = False

    def request(self, number: int = signal.SIGINT) -> None:
        self.requested, self.signal = True, number
        if self._may_raise:
            self._may_raise = False  # a second request must not break off the saving that follows
            raise Interrupted("Stopped on request.")

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """A block that holds nothing worth saving: a request inside it raises `Interrupted` at once."""
        outer, self._may_raise = self._may_raise, True
        try:
            if self.requested:
                raise Interrupted("Stopped on request.")
            yield
        finally:
            self._may_raise = outer

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Within this block Ctrl-C and SIGTERM are requests to stop."""

        def handle(number: int, frame: FrameType | None) -> None:
            self.request(number)

        previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
