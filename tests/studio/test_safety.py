"""Access control: hosts, origins, tokens, paths, sizes, and security headers."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.studio.conftest import TOKEN

from seqloom.core.errors import ResourceError, UsageError
from seqloom.studio.run_folder import RunFolder, UnknownRun
from seqloom.studio.safety import MAX_BODY_BYTES, host_name
from seqloom.studio.server import Studio, make_app
from seqloom.studio.views import VIEWS

GOOD = {"authorization": f"Bearer {TOKEN}", "host": "127.0.0.1:8733", "content-type": "application/json"}


def ask(client: TestClient, path: str = "/api/runs", body: Any = None, **headers: str) -> Any:
    changed = {**GOOD, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return client.post(path, content=json.dumps(body or {}), headers=changed)


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:1", "localhost:8733", "[::1]:9000", "[::1]", "LocalHost:65535"),
        "[0:0:0:0:0:0:0:1]:80",  # another spelling of ::1
    ],
)
def test_loopback_hosts_are_accepted(client: TestClient, host: str) -> None:
    assert ask(client, host=host).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
        "192.168.0.7",
        "",
        "127.0.0.1@evil.example",
        *("localhost:8733@evil.example", "127.0.0.1:80@evil.example", "evil.example@localhost", "user:pass@localhost"),
        *("localhost:evil", "localhost:", "localhost:-1", "localhost:0", "localhost:65536", "localhost:8733:8733"),
        *("127.0.0.1:80:80", "127.0.0.1:8o", "127.0.0.1:+80", "127.0.0.1: 80", "localhost:080800"),
        *("localhost.", "127.0.0.1.", "127.0.0.1.:80", ".localhost", "127.1", "0x7f.0.0.1", "2130706433", "127.0.0.01"),
        *("::1", "[::1", "::1]", "[::1]evil", "[::1]:evil", "[::1]:", "[[::1]]", "[127.0.0.1]", "[localhost]", "[]"),
        *("[::1%lo]", "[::ffff:127.0.0.1.evil]", "[::2]", "[g::1]"),
        *("localhost/", "localhost/evil", "localhost?", "localhost#", "localhost, evil.example", "localhost evil"),
        *("localhost\\", "local_host", "http://localhost", "localhost%00", "localhost\t:80"),
    ],
)
def test_other_hosts_are_rejected(client: TestClient, host: str) -> None:
    assert ask(client, host=host).status_code == 400
    assert client.get("/", headers={"host": host}).status_code == 400


@pytest.mark.parametrize("header", ["localhost:٣", "localhost\u200b", "ｌocalhost", "127。0。0。1"])
def test_host_header_must_be_ascii(header: str) -> None:
    assert host_name(header) is None


def test_several_host_headers_are_rejected(client: TestClient) -> None:
    for hosts in (["localhost", "localhost"], ["localhost", "evil.example"], ["evil.example", "localhost"]):
        assert client.get("/", headers=[(b"host", host.encode()) for host in hosts]).status_code == 400


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "file://"])
def test_other_origins_are_rejected(client: TestClient, origin: str) -> None:
    response = ask(client, origin=origin)
    assert response.status_code == 403 and "runs" not in response.json()


def test_same_origin_is_accepted(client: TestClient) -> None:
    assert ask(client, origin="http://127.0.0.1:8733").status_code == 200


@pytest.mark.parametrize(
    "header", ["", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, "Bearer ümläut", "Basic abc"]
)
def test_requests_without_valid_token_are_rejected(client: TestClient, header: str) -> None:
    headers = [(b"host", b"127.0.0.1"), (b"authorization", header.encode())]
    response = client.post("/api/runs", headers=headers, content="{}")
    assert response.status_code == 401
    assert list(response.json()) == ["error"]


def test_every_endpoint_needs_the_token(client: TestClient) -> None:
    """All addresses under /api require the token, including addresses that do not exist."""
    paths = [str(getattr(route, "path", "")) for view in VIEWS.values() for route in view.router.routes]
    assert len(paths) >= 10
    for path in [*paths, "/api", "/api/nothing", "/api//runs"]:
        assert client.post(path, headers={"host": "127.0.0.1", "authorization": ""}, content="{}").status_code == 401, (
            path
        )


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "/lib/%2e%2e/%2e%2e/server.py",
        "/server.py",
        "/lib/..%5c..%5cserver.py",
        "//etc/passwd",
        "/views/../../run_folder.py",
        "/.lock",
        "/index.html%00.js",
        "/runs/lm-lstm/recipe.yaml",
    ],
)
def test_only_web_files_are_served(client: TestClient, path: str) -> None:
    response = client.get(path, headers=GOOD)
    assert response.status_code in (400, 404)
    assert "root:" not in response.text and "import" not in response.text


@pytest.mark.parametrize(
    "name",
    [
        "..",
        ".",
        "",
        "/",
        "../studio-runs/gpt",
        "gpt/../gpt",
        "/etc",
        "gpt/",
        "./gpt",
        "gpt\0",
        "gpt/checkpoints",
        "C:\\gpt",
        "%2e%2e",
        "~",
        "gpt\n",
        "file:///etc/passwd",
        "GPT ",
    ],
)
def test_run_id_is_never_a_path(client: TestClient, name: str) -> None:
    questions = {"runs/card": {"run": name}, "runs/curves": {"runs": [name]}, "heads": {"run": name, "text": "a"}}
    for path, body in {**questions, "write/next": {"run": name}}.items():
        response = ask(client, f"/api/{path}", body)
        assert response.status_code == (404 if name else 422), (path, name)
        assert list(response.json()) == ["error"]


def test_symbolic_links_are_not_followed(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "link").symlink_to(runs / "gpt")
    (tmp_path / "inside" / "all").symlink_to(runs)
    run_folder = RunFolder(tmp_path / "inside")
    assert run_folder.paths() == {}
    with pytest.raises(UnknownRun, match="There is no run 'link'"):
        run_folder.find("link")


def test_request_size_is_limited(client: TestClient) -> None:
    assert ask(client, body={"x": "y" * MAX_BODY_BYTES}).status_code == 413
    chunks = (b'{"runs": []' if i == 0 else b"}" if i == 40 else b" " * 65536 for i in range(41))
    answered = client.post("/api/runs/curves", headers=GOOD, content=chunks)
    assert answered.status_code == 413 and "at most 1,000,000 bytes" in answered.json()["error"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"runs": 3}',
        b'{"runs": ["gpt"], "more": 1}',
        b'{"runs": [1e999]}',
        b"\xff\xfe",
        b"[" * 5000,
    ],
)
def test_invalid_body_returns_error_message(client: TestClient, body: bytes) -> None:
    response = client.post("/api/runs/curves", headers=GOOD, content=body)
    assert response.status_code in (400, 422)
    assert set(response.json()) == {"error"} and "Traceback" not in response.text


def test_responses_have_security_headers(client: TestClient) -> None:
    refused = client.get("/nothing", headers=GOOD)
    for response in (
        client.get("/", headers=GOOD),
        client.get("/app.js", headers=GOOD),
        ask(client),
        refused,
        ask(client, host="evil.example"),
    ):
        rules = response.headers["content-security-policy"]
        assert "default-src 'none'" in rules and "script-src 'self'" in rules
        assert "require-trusted-types-for 'script'" in rules and "frame-ancestors 'none'" in rules
        assert "unsafe" not in rules
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert "set-cookie" not in response.headers and "access-control-allow-origin" not in response.headers


def test_page_builds_no_markup_from_strings() -> None:
    web = Path(make_app.__code__.co_filename).parent / "web"
    forbidden = (
        "innerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "parseFromString",
        "srcdoc",
        "http://",
        "https://",
    )
    allowed = ("http://www.w3.org/2000/svg",)
    for path in web.rglob("*.*"):
        text = path.read_text("utf-8")
        for name in allowed:
            text = text.replace(name, "")
        assert [word for word in forbidden if word in text] == [], path.name
    page = (web / "index.html").read_text("utf-8")
    assert "<script>" not in page and "style=" not in page and "onclick" not in page


def test_public_server_accepts_addresses_and_own_names(run_folder: RunFolder) -> None:
    client = TestClient(make_app(run_folder, TOKEN, "0.0.0.0"), base_url="http://127.0.0.1")
    for host in ("192.168.0.7:8733", "[fe80::1]:8733", "localhost", socket.gethostname()):
        assert ask(client, host=host).status_code == 200, host
    assert ask(client, host="evil.example").status_code == 400
    assert ask(client, host="192.168.0.7", authorization="").status_code == 401


def test_token_is_random_and_passed_in_the_url_fragment(runs: Path) -> None:
    first, second = Studio(runs), Studio(runs)
    try:
        assert first.token != second.token and len(first.token) >= 32
        assert first.port != second.port
        before, _, after = first.address("heads", run="gpt").partition("#")
        assert first.token not in before and first.token in after and "run=gpt" in after
        assert before == f"http://127.0.0.1:{first.port}/"
        with pytest.raises(ResourceError, match=r"Cannot listen on 127\.0\.0\.1, port .* Leave --port out"):
            Studio(runs, port=first.port)
    finally:
        first.socket.close()
        second.socket.close()


def test_invalid_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        RunFolder(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        RunFolder(tmp_path / "file")
