"""The studio server: static files, the endpoints of the views, and error responses."""

import asyncio
import errno
import json
import secrets
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from seqloom.core.errors import ResourceError, SeqloomError
from seqloom.inspect.values import to_plain
from seqloom.studio.endpoints import View
from seqloom.studio.queues import DeadlineExceeded, QueueFull, Queues
from seqloom.studio.run_folder import RunFolder, UnknownRun, user_message
from seqloom.studio.safety import Guard, LimitedProtocol, Limits
from seqloom.studio.views import VIEWS

WEB = Path(__file__).parent / "web"
PORT = 8733
MAX_PORTS_TRIED = 20
# Status of other errors: 400
ERROR_STATUS: dict[type[SeqloomError], int] = {UnknownRun: 404, QueueFull: 429, DeadlineExceeded: 503}
# Media types of files that are served unchanged
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def make_app(
    run_folder: RunFolder, token: str, host: str = "127.0.0.1", *, notebook: bool = False, queues: Queues | None = None
) -> Guard:
    """Create the ASGI application with its access control."""
    app = FastAPI(title="seqloom studio", openapi_url=None, docs_url=None, redoc_url=None)
    app.state.run_folder = run_folder
    app.state.queues = queues or Queues()
    for view in VIEWS.values():
        app.include_router(view.router)
    # The served files by URL path. The list is fixed when the server starts: a URL is never converted to a file path.
    files = {
        f"/{path.relative_to(WEB).as_posix()}": path for path in sorted(WEB.rglob("*")) if path.suffix in MEDIA_TYPES
    }
    for name, path in files.items():
        app.get(name)(_sender(path))
    page = render_page(VIEWS)

    @app.get("/", response_class=HTMLResponse)
    async def send_page() -> str:
        return page

    for kind in (SeqloomError, RequestValidationError, HTTPException, Exception):
        app.exception_handler(kind)(_answer_error)
    limits = {path: limit for view in VIEWS.values() for path, limit in view.body_limits.items()}
    return Guard(app, token, host, notebook, limits)


def render_page(views: Mapping[str, View]) -> str:
    """Return index.html with the menu and the style sheets of the views."""
    names = [name for name in views if (WEB / "views" / f"{name}.css").is_file()]
    styles = "\n    ".join(f'<link rel="stylesheet" href="views/{name}.css">' for name in names)
    menu = escape(json.dumps([[view.name, view.label] for view in views.values()]))
    page = (WEB / "index.html").read_text("utf-8")
    return page.replace("<!-- style sheets of the views -->", styles).replace('data-views="[]"', f'data-views="{menu}"')


def _sender(path: Path) -> Callable[[], Coroutine[Any, Any, FileResponse]]:
    async def send() -> FileResponse:
        return FileResponse(path, media_type=MEDIA_TYPES[path.suffix])

    return send


async def _answer_error(request: Request, error: Exception) -> Response:
    """Return the message of an error as JSON. The message of a validation error contains field names, but no values."""
    match error:
        case SeqloomError():
            status = next((status for kind, status in ERROR_STATUS.items() if isinstance(error, kind)), 400)
            message = str(error)
        case RequestValidationError():
            problems = [
                f"{'.'.join(str(part) for part in problem['loc'][1:]) or 'the body'}: {problem['msg']}"
                for problem in error.errors()
            ]
            status, message = 422, "; ".join(problems)[:500]
        case HTTPException():
            status = error.status_code
            message = error.detail if status == 413 else "Nothing is served at this address."
        case _:
            status = 500
            message = user_message(error) or f"Internal error of the studio ({type(error).__name__})."
    return JSONResponse({"error": to_plain(message)}, status)


class Studio:
    """A studio server with its access token and address."""

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
        self.run_folder = RunFolder(folder)
        self.token, self.host = secrets.token_urlsafe(24), host
        self.socket = _listen(host, port)
        self.port: int = self.socket.getsockname()[1]
        app = make_app(self.run_folder, self.token, host, notebook=notebook, queues=queues)
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
        """Return the address of a view.

        The access token is in the fragment (after #), which browsers do not send to the server. A list is written as a
        repeated parameter.
        """
        host = "localhost" if self.host in ("0.0.0.0", "::") else f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/#/{view}?{urlencode({**parameters, 'token': self.token}, doseq=True)}"

    def run(self) -> None:
        """Serve until Ctrl-C."""
        asyncio.run(self.server.serve(sockets=[self.socket]))

    @contextmanager
    def running(self) -> Iterator["Studio"]:
        """Serve in a thread until the end of the block."""
        thread = self.start()
        try:
            yield self
        finally:
            self.server.should_exit = True
            thread.join(timeout=10)

    def start(self) -> threading.Thread:
        """Serve in a daemon thread. Return when the server accepts requests."""
        thread = threading.Thread(target=self.run, name="seqloom studio", daemon=True)
        thread.start()
        while not self.server.started and thread.is_alive():
            thread.join(timeout=0.02)
        return thread


def _listen(host: str, port: int | None) -> socket.socket:
    """Listen on `port`, or on the first free port starting at 8733."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ports = range(PORT, PORT + MAX_PORTS_TRIED) if port is None else [port]
    for number in (*ports, *([0] if port is None else [])):
        server_socket = socket.socket(family, socket.SOCK_STREAM)
        server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server_socket.bind((host, number))
            server_socket.listen(64)
        except OSError as error:
            server_socket.close()
            if port is not None or isinstance(error, socket.gaierror) or number == 0:
                is_taken = error.errno == errno.EADDRINUSE and port is not None
                hint = " Leave --port out to use a free port." if is_taken else ""
                reason = f"{error.strerror or error}.{hint}"
                raise ResourceError(f"Cannot listen on {host}, port {number}: {reason}") from error
        else:
            return server_socket
    raise AssertionError("port 0 is always free")
