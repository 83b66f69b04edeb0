"""The views that the page offers: their files, their menu, and the discovery of a new view."""

import json
import re
import sys
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.studio.conftest import TOKEN

from seqloom.studio import server, views
from seqloom.studio.endpoints import View
from seqloom.studio.run_folder import RunFolder
from seqloom.studio.server import WEB, make_app, render_page
from seqloom.studio.views import MENU, VIEWS, find_views


def menu_of(page: str) -> list[list[str]]:
    """Read the menu of a page in the same way as its script."""
    (value,) = re.findall(r'id="views"[^>]* data-views="([^"]*)"', page)
    menu: list[list[str]] = json.loads(unescape(value))
    return menu


def test_menu_of_the_served_page_lists_all_views(tmp_path: Path) -> None:
    client = TestClient(make_app(RunFolder(tmp_path), TOKEN), base_url="http://127.0.0.1")
    response = client.get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert [name for name, _ in menu_of(response.text)] == list(VIEWS) == list(MENU)
    assert menu_of(response.text)[1] == ["write", "Translate, generate"]
    for style in re.findall(r'<link rel="stylesheet" href="([^"]+)">', response.text):
        assert client.get(f"/{style}").headers["content-type"].startswith("text/css"), style


@pytest.mark.parametrize("name", VIEWS)
def test_view_has_a_module_in_the_page(name: str) -> None:
    module = (WEB / "views" / f"{name}.js").read_text("utf-8")
    assert all(f"export const {part} =" in module for part in ("title", "lead"))
    assert re.search(r"export (async )?function show\(", module)


def test_every_style_sheet_belongs_to_a_view() -> None:
    assert {file.stem for file in (WEB / "views").glob("*.css")} <= VIEWS.keys()


def test_new_view_is_discovered_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = 'from seqloom.studio.endpoints import View\n\nview = View("echo", "An \'echo\' & more")\n'
    (tmp_path / "echo.py").write_text(code)
    (tmp_path / "views").mkdir()
    (tmp_path / "index.html").write_text((WEB / "index.html").read_text("utf-8"))
    monkeypatch.setattr(views, "__path__", [*views.__path__, str(tmp_path)])
    monkeypatch.setattr(server, "WEB", tmp_path)
    try:
        found = find_views()
    finally:
        sys.modules.pop("seqloom.studio.views.echo", None)
    assert list(found) == [*MENU, "echo"]
    page = render_page(found)
    assert menu_of(page)[-1] == ["echo", "An 'echo' & more"]
    assert "echo.css" not in page
    (tmp_path / "views" / "echo.css").touch()
    assert '<link rel="stylesheet" href="views/echo.css">' in render_page(found)


def test_view_is_offered_only_for_tasks_that_list_it() -> None:
    recipe = {"task": "tag", "model": {"kind": "tagger"}}
    assert View("understand", "Understand").suits(recipe)
    assert not View("echo", "Echo").suits(recipe)
    assert not View("understand", "Understand", lambda model: False).suits(recipe)
