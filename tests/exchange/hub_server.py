"""A local server with the same responses as the Hugging Face hub."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Models by name: folders whose files the server sends. Names in `gated` require the token `secret`."""

    models: dict[str, Path]
    gated: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)  # HTTP method and path of each request
    url: str = ""

    def downloads(self) -> set[str]:
        """The names of the files that were sent."""
        return {path.rpartition("/")[2] for path in self.requests if path.startswith("GET ") and "/resolve/" in path}


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = self.path.partition("?")[0]
            hub.requests.append(f"{self.command} {url}")
            api = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", url)
            file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", url)
            name, revision = (api[1], api[3]) if api else (file[1], file[2]) if file else ("", "")
            if name not in hub.models:
                return self.fail(401, "RepoNotFound")  # like the hub, which hides private models in this way
            if revision not in ("main", "v1", COMMIT):
                return self.fail(404, "RevisionNotFound")
            folder = hub.models[name]
            if file is not None:
                if name in hub.gated and self.headers["Authorization"] != "Bearer secret":
                    return self.fail(403, "GatedRepo")
                return self.send(200, (folder / file[3]).read_bytes())
            entries = [
                {
                    "type": "file",
                    "path": str(path.relative_to(folder)),
                    "size": path.stat().st_size,
                    "oid": digest(path),
                }
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            ]
            siblings = [{"rfilename": entry["path"]} for entry in entries]
            content = entries if api and api[2] == "tree" else {"id": name, "sha": COMMIT, "siblings": siblings}
            return self.send(200, json.dumps(content).encode())

        do_HEAD = do_GET

        def send(self, code: int, content: bytes, **headers: str) -> None:
            self.send_response(code)
            about = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(content).hexdigest()}"', **headers}
            for key, value in {**about, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def fail(self, code: int, reason: str) -> None:
            self.send(code, b"{}", **{"X-Error-Code": reason, "X-Error-Message": reason})

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        hub.url = f"http://127.0.0.1:{server.server_port}"
        yield hub
        server.shutdown()


def digest(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()
