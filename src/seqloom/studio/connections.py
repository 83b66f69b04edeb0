"""Connections with limits: slow clients are disconnected, and there are never too many connections.

uvicorn itself waits for ever for the rest of a request. Here

- a request, headers and body, must arrive within `receive_seconds` of the opening of its connection, or of the end of
  the answer before it (an idle connection is closed sooner, by uvicorn's keep-alive timeout);
- a client must not stop reading an answer for `send_seconds`;
- of more than `connections`, the one that has waited longest without a complete request is closed.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

INCOMPLETE = (h11.IDLE, h11.SEND_BODY)  # states of a client whose request has not arrived as a whole


@dataclass(frozen=True)
class Limits:
    receive_seconds: float = 15.0
    send_seconds: float = 60.0
    connections: int = 128


class LimitedProtocol(H11Protocol):
    """One connection."""

    def __init__(self, limits: Limits, **options: Any) -> None:
        super().__init__(**options)
        self.limits = limits
        self.receiving: asyncio.TimerHandle | None = None  # runs while a request is incomplete
        self.sending: asyncio.TimerHandle | None = None  # runs while the client does not read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_request()
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        self._watch_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.sending is None:
            self.sending = self.loop.call_later(self.limits.send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.sending is not None:
            self.sending.cancel()
            self.sending = None

    def _watch_request(self) -> None:
        """Let the time for a request run while it is incomplete."""
        incomplete = self.conn.their_state in INCOMPLETE and not self.transport.is_closing()
        if incomplete and self.receiving is None:
            self.receiving = self.loop.call_later(self.limits.receive_seconds, self.transport.abort)
        elif not incomplete and self.receiving is not None:
            self.receiving.cancel()
            self.receiving = None

    def _make_room(self) -> None:
        """If there are too many connections, close the one that has waited longest without a complete request; the
        newest, if all others have one."""
        others = [one for one in self.connections if isinstance(one, LimitedProtocol)]
        still_open = [one for one in others if not one.transport.is_closing()]
        if len(still_open) > self.limits.connections:
            waiting = {one: one.receiving.when() for one in still_open if one.receiving is not None}
            min(waiting, key=waiting.__getitem__, default=self).transport.abort()

    def _stop_timers(self) -> None:
        for timer in (self.receiving, self.sending):
            if timer is not None:
                timer.cancel()
        self.receiving = self.sending = None


def protocol_with(limits: Limits) -> Callable[..., LimitedProtocol]:
    """What uvicorn calls for each new connection."""
    return partial(LimitedProtocol, limits)
