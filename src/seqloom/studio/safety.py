"""Who may ask, and for how long: the guard in front of everything the studio answers, and limits of connections.

1. The Host must be one this server is called by, so that no other site's name can be pointed at it (DNS rebinding).
2. An Origin, where a browser sends one, must be this server, so that no other page can ask.
3. Every question under /api/ must carry the token of the opening address. It comes in a header, which no form and no
   image can send; there are no cookies.
4. A body may have so many bytes and no more.
5. Every answer forbids what the page does not need: scripts but its own, other hosts, HTML made from strings.

The page itself (what is in `web/`) is the same for everybody and says nothing of anybody's runs; it
needs no token.

uvicorn itself waits for ever for the rest of a request. Here

- a request, headers and body, must arrive within `receive_seconds` of the opening of its connection, or of the end of
  the answer before it (an idle connection is closed sooner, by uvicorn's keep-alive timeout);
- a client must not stop reading an answer for `send_seconds`;
- of more than `connections`, the one that has waited longest without a complete request is closed.
"""

import asyncio
import hmac
import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import Any

import h11
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

BODY = 1_000_000  # bytes of a question
TOO_LARGE = f"A question may have {BODY:,} bytes at most."
HERE = ("127.0.0.1", "localhost", "::1")
# `name`, `name:port`, `[IPv6 address]` or `[IPv6 address]:port`, and nothing else (RFC 9110, section 7.2)
HOST = re.compile(
    r"(?:(?P<name>[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)|\[(?P<ipv6>[0-9A-Fa-f:.]+)\])(?::(?P<port>[0-9]{1,5}))?"
)
NOTEBOOKS = "http://localhost:* http://127.0.0.1:* https://localhost:* https://127.0.0.1:*"


def content_policy(frames: str) -> str:
    """The content security policy; `frames` says which pages may show this one inside of theirs."""
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data: blob:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            f"frame-ancestors {frames}",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def is_here(host: str) -> bool:
    """Whether an address to listen on is this machine alone."""
    return host in HERE


class Guard:
    """ASGI, around the whole application."""

    def __init__(self, app: ASGIApp, token: str, host: str, notebook: bool = False) -> None:
        self.app, self.token, self.host = app, token, host
        self.headers = {
            "content-security-policy": content_policy(NOTEBOOKS if notebook else "'none'"),
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
            "cache-control": "no-store",
            "permissions-policy": "camera=(), microphone=(), geolocation=()",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no websockets here
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message["headers"] if pair[0].decode("latin-1") not in self.headers]
                own = [(name.encode(), value.encode()) for name, value in self.headers.items()]
                message = {**message, "headers": [*kept, *own]}
            await send(message)

        refusal = self._refusal(scope, Headers(scope=scope))
        if refusal is not None:
            status, words = refusal
            await JSONResponse({"error": words}, status)(scope, receive, send_with_headers)
            return
        await self.app(scope, _limit_body(receive), send_with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        """The status and the words for a question that is not answered; None where it is."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_own(hosts[0]):
            return 400, "This server is not called by that name. Open the address that `seqloom studio` printed."
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{hosts[0]}", f"https://{hosts[0]}"):
            return 403, "Another page may not ask this server anything."
        if not headers.get("content-length", "0").isdecimal() or int(headers.get("content-length", "0")) > BODY:
            return 413, TOO_LARGE
        token = headers.get("authorization", "").encode("latin-1", "replace")
        if scope["path"].startswith("/api") and not hmac.compare_digest(token, f"Bearer {self.token}".encode()):
            return 401, "The token is missing or wrong. Open the address that `seqloom studio` printed."
        return None

    def _is_own(self, host: str) -> bool:
        """Whether a Host header names this server. Numbers cannot be rebound: listening elsewhere, any will do."""
        name = host_name(host)
        if name is None:
            return False
        if is_here(name) or name == self.host.lower():
            return True
        if is_here(self.host):
            return False
        if name in (socket.gethostname().lower(), socket.getfqdn().lower()):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def host_name(header: str) -> str | None:
    """The name or address in a Host header, in lower case and without port or brackets; None if it is malformed."""
    match = HOST.fullmatch(header)
    if match is None or not 0 < int(match["port"] or "80") < 65536:
        return None
    if match["ipv6"] is None:
        return match["name"].lower()
    try:
        return str(ipaddress.IPv6Address(match["ipv6"]))
    except ValueError:
        return None


def _limit_body(receive: Receive) -> Receive:
    """A body that was sent without saying its length may be no longer, either."""
    seen = 0

    async def receive_counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > BODY:
            raise HTTPException(413)
        return message

    return receive_counted


# --- connections ------------------------------------------------------------------------------------------------------

INCOMPLETE = (h11.IDLE, h11.SEND_BODY)  # states of a client whose request has not arrived as a whole


@dataclass(frozen=True)
class Limits:
    """Limits of connections."""

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
        # If there are too many, close the one that has waited longest without a complete request; the newest, if all
        # others have one.
        others = [one for one in self.connections if isinstance(one, LimitedProtocol)]
        still_open = [one for one in others if not one.transport.is_closing()]
        if len(still_open) > self.limits.connections:
            waiting = {one: one.receiving.when() for one in still_open if one.receiving is not None}
            min(waiting, key=waiting.__getitem__, default=self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self.receiving, self.sending):
            if timer is not None:
                timer.cancel()
        self.receiving = self.sending = None
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
