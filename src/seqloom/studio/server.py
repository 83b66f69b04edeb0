"""The studio's server: the page, the questions of its views, and errors in plain words."""

import asyncio
import errno
import secrets
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from seqloom.core.errors import ResourceError, SeqloomError
from seqloom.inspect.values import to_plain
from seqloom.studio.queues import DeadlineExceeded, QueueFull, Queues
from seqloom.studio.safety import TOO_LARGE, Guard, LimitedProtocol, Limits
from seqloom.studio.shelf import Shelf, UnknownRun, readable
from seqloom.studio.views import VIEWS

WEB = Path(__file__).parent / "web"
PORT = 8733
TRIED = 20  # ports after the first, where that is taken
STATUS: dict[type[SeqloomError], int] = {UnknownRun: 404, QueueFull: 429, DeadlineExceeded: 503}  # of errors; else 400
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


def make_app(
    shelf: Shelf, token: str, host: str = "127.0.0.1", *, notebook: bool = False, queues: Queues | None = None
) -> Guard:
    """The whole application, guarded."""
    app = FastAPI(title="seqloom studio", openapi_url=None, docs_url=None, redoc_url=None)
    app.state.shelf = shelf
    app.state.queues = queues or Queues()
    for view in VIEWS.values():
        app.include_router(view.router)
    # Every file of the page by its address. The list is made once: no address is ever made into a path.
    files = {f"/{path.relative_to(WEB).as_posix()}": path for path in sorted(WEB.rglob("*")) if path.suffix in TYPES}
    for name, path in {"/": WEB / "index.html", **files}.items():
        app.get(name)(_sender(path))
    for kind in (SeqloomError, RequestValidationError, HTTPException, Exception):
        app.exception_handler(kind)(_answer_error)
    return Guard(app, token, host, notebook)


def _sender(path: Path) -> Callable[[], Coroutine[Any, Any, FileResponse]]:
    async def send() -> FileResponse:
        return FileResponse(path, media_type=TYPES[path.suffix])

    return send


async def _answer_error(request: Request, error: Exception) -> Response:
    """Say what is wrong in plain words; of a question, by the names of its parts, and never what was in them."""
    match error:
        case SeqloomError():
            status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), 400)
            words = str(error)
        case RequestValidationError():
            problems = [
                f"{'.'.join(str(part) for part in one['loc'][1:]) or 'the body'}: {one['msg']}"
                for one in error.errors()
            ]
            status, words = 422, "; ".join(problems)[:500]
        case HTTPException():
            status = error.status_code
            words = TOO_LARGE if status == 413 else "There is nothing at this address."
        case _:
            status = 500
            words = readable(error) or f"Something went wrong in the studio itself ({type(error).__name__})."
    return JSONResponse({"error": to_plain(words)}, status)


class Studio:
    """A server on its way: its token and its address."""

    def __init__(
        self,
        folder: Path,
        host: str = "127.0.0.1",
        port: int | None = None,
        *,
        notebook: bool = False,
        queues: Queues | None = None,
        limits: Limits | None = None,
    ):
        self.shelf = Shelf(folder)
        self.token, self.host = secrets.token_urlsafe(24), host
        self.socket = _listen(host, port)
        self.port: int = self.socket.getsockname()[1]
        app = make_app(self.shelf, self.token, host, notebook=notebook, queues=queues)
        options: dict[str, Any] = {
            "http": partial(LimitedProtocol, limits or Limits()),
            "log_level": "error",
            "access_log": False,
            "server_header": False,
            "lifespan": "off",
            "ws": "none",
            "timeout_graceful_shutdown": 1,
        }
        self.server = uvicorn.Server(uvicorn.Config(app, **options))

    def address(self, view: str = "runs", **parameters: str | list[str]) -> str:
        """Where the page opens: the token is behind the #, which browsers keep to themselves. Of a list, each has its
        own place in the address."""
        named = "localhost" if self.host in ("0.0.0.0", "::") else f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{named}:{self.port}/#/{view}?{urlencode({**parameters, 'token': self.token}, doseq=True)}"

    def run(self) -> None:
        """Serve until Ctrl-C."""
        asyncio.run(self.server.serve(sockets=[self.socket]))

    @contextmanager
    def running(self) -> Iterator["Studio"]:
        """Serve in a thread for as long as the block lasts."""
        thread = self.start()
        try:
            yield self
        finally:
            self.server.should_exit = True
            thread.join(timeout=10)

    def start(self) -> threading.Thread:
        """Serve in a thread that ends with the program; back once it answers."""
        thread = threading.Thread(target=self.run, name="seqloom studio", daemon=True)
        thread.start()
        while not self.server.started and thread.is_alive():
            thread.join(timeout=0.02)
        return thread


def _listen(host: str, port: int | None) -> socket.socket:
    """Listen at a port: the one asked for, or else the first that is free from 8733 on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    wanted = range(PORT, PORT + TRIED) if port is None else [port]
    for number in (*wanted, *([0] if port is None else [])):
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, number))
            listening.listen(64)
        except OSError as error:
            listening.close()
            if port is not None or isinstance(error, socket.gaierror) or number == 0:
                taken = error.errno == errno.EADDRINUSE and port is not None
                mend = " Leave --port out to take a free one." if taken else ""
                reason = f"{error.strerror or error}.{mend}"
                raise ResourceError(f"Cannot listen at {host}, port {number}: {reason}") from error
        else:
            return listening
    raise AssertionError("port 0 is always free")
