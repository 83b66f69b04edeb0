"""Access control for all requests to the studio, and connection limits.

1. The Host header must name this server, which prevents DNS rebinding.
2. If the browser sends an Origin header, it must name this server. Requests from other pages are therefore rejected.
3. Every request under /api/ must contain the token of the start address in a header. Forms and images cannot set
   headers, and no cookies are used.
4. The size of a request body is limited. An endpoint can have a larger limit, for example for an image.
5. Every response has a content security policy that allows only the scripts of the page itself. Other hosts and HTML
   that is built from strings are blocked.

The files in `web/` contain no information about runs and can be read without a token.

By default, uvicorn waits indefinitely for the rest of a request. The studio has these limits:

- the headers and body of a request must arrive within `receive_seconds` after its connection was opened, or after the
previous response (uvicorn's keep-alive timeout closes an idle connection earlier);
- a connection is closed when its client reads nothing of a response for `send_seconds`;
- when there are more than `connections` connections, the one that has waited longest without a complete request is
  closed.
"""

import asyncio
import hmac
import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import h11
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_BODY_BYTES = 1_000_000
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
# `name`, `name:port`, `[IPv6 address]` or `[IPv6 address]:port`; no other text is allowed (RFC 9110, section 7.2)
HOST_HEADER = re.compile(
    r"(?:(?P<name>[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)|\[(?P<ipv6>[0-9A-Fa-f:.]+)\])(?::(?P<port>[0-9]{1,5}))?"
)
NOTEBOOK_ORIGINS = "http://localhost:* http://127.0.0.1:* https://localhost:* https://127.0.0.1:*"


def content_policy(frames: str) -> str:
    """Return the content security policy. `frames` lists the origins of pages that may embed this page."""
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


def body_too_large(limit: int) -> str:
    return f"A request body may have at most {limit:,} bytes."


def is_loopback(host: str) -> bool:
    """Whether a host is the loopback interface."""
    return host in LOOPBACK_HOSTS


class Guard:
    """ASGI middleware that checks requests and sets the security headers."""

    def __init__(
        self, app: ASGIApp, token: str, host: str, notebook: bool = False, limits: Mapping[str, int] | None = None
    ) -> None:
        """`limits` contains the maximum sizes of request bodies by path, if they differ from `MAX_BODY_BYTES`."""
        self.app, self.token, self.host, self.limits = app, token, host, limits or {}
        self.headers = {
            "content-security-policy": content_policy(NOTEBOOK_ORIGINS if notebook else "'none'"),
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
        if scope["type"] != "http":  # no websockets
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message["headers"] if pair[0].decode("latin-1") not in self.headers]
                added = [(name.encode(), value.encode()) for name, value in self.headers.items()]
                message = {**message, "headers": [*kept, *added]}
            await send(message)

        refusal = self._refusal(scope, Headers(scope=scope))
        if refusal is not None:
            status, message = refusal
            await JSONResponse({"error": message}, status)(scope, receive, send_with_headers)
            return
        await self.app(scope, _limit_body(receive, self._limit(scope)), send_with_headers)

    def _limit(self, scope: Scope) -> int:
        """Return the maximum size of a request body."""
        return self.limits.get(scope["path"], MAX_BODY_BYTES)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        """Return status and message for a rejected request, or None."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_own_host(hosts[0]):
            return 400, "The Host header does not name this server. Open the address that `seqloom studio` printed."
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{hosts[0]}", f"https://{hosts[0]}"):
            return 403, "Requests from other pages are not allowed."
        if not headers.get("content-length", "0").isdecimal() or int(headers.get("content-length", "0")) > self._limit(
            scope
        ):
            return 413, body_too_large(self._limit(scope))
        token = headers.get("authorization", "").encode("latin-1", "replace")
        if scope["path"].startswith("/api") and not hmac.compare_digest(token, f"Bearer {self.token}".encode()):
            return 401, "The token is missing or wrong. Open the address that `seqloom studio` printed."
        return None

    def _is_own_host(self, host: str) -> bool:
        """Whether a Host header names this server.

        A server that listens on other interfaces accepts any IP address, because DNS rebinding cannot change an IP
        address.
        """
        name = host_name(host)
        if name is None:
            return False
        if is_loopback(name) or name == self.host.lower():
            return True
        if is_loopback(self.host):
            return False
        if name in (socket.gethostname().lower(), socket.getfqdn().lower()):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def host_name(header: str) -> str | None:
    """Return the host of a Host header in lower case, without port and brackets, or None if it is malformed."""
    match = HOST_HEADER.fullmatch(header)
    if match is None or not 0 < int(match["port"] or "80") < 65536:
        return None
    if match["ipv6"] is None:
        return match["name"].lower()
    try:
        return str(ipaddress.IPv6Address(match["ipv6"]))
    except ValueError:
        return None


def _limit_body(receive: Receive, limit: int) -> Receive:
    """Limit the size of a body that was sent without Content-Length."""
    received_bytes = 0

    async def receive_counted() -> Message:
        nonlocal received_bytes
        message = await receive()
        received_bytes += len(message.get("body", b""))
        if received_bytes > limit:
            raise HTTPException(413, body_too_large(limit))
        return message

    return receive_counted


# --- connections ------------------------------------------------------------------------------------------------------

INCOMPLETE_STATES = (h11.IDLE, h11.SEND_BODY)  # states of a client whose request is incomplete


@dataclass(frozen=True)
class Limits:
    """Connection limits."""

    receive_seconds: float = 15.0
    send_seconds: float = 60.0
    connections: int = 128


class LimitedProtocol(H11Protocol):
    """A connection that is closed when its client is too slow."""

    def __init__(self, limits: Limits, **options: Any) -> None:
        super().__init__(**options)
        self.limits = limits
        self.receiving: asyncio.TimerHandle | None = None  # active while a request is incomplete
        self.sending: asyncio.TimerHandle | None = None  # active while the client does not read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_request()
        # Above the limit, close the connection that has waited longest without a complete request, or otherwise this
        # one.
        connections = [other for other in self.connections if isinstance(other, LimitedProtocol)]
        still_open = [other for other in connections if not other.transport.is_closing()]
        if len(still_open) > self.limits.connections:
            waiting = {other: other.receiving.when() for other in still_open if other.receiving is not None}
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
        """Start or cancel the timer of an incomplete request."""
        incomplete = self.conn.their_state in INCOMPLETE_STATES and not self.transport.is_closing()
        if incomplete and self.receiving is None:
            self.receiving = self.loop.call_later(self.limits.receive_seconds, self.transport.abort)
        elif not incomplete and self.receiving is not None:
            self.receiving.cancel()
            self.receiving = None
