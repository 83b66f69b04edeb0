"""Damaged runs are listed with a reason and do not affect other runs."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.checksums import update_checksums
from tests.studio.conftest import TOKEN, Window

from seqloom.studio.run_folder import RunFolder
from seqloom.studio.server import Studio, make_app

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names themselves")
BAD_NAME = os.fsdecode(b"bad\xff")


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def edit_recipe(run: Path, old: str, new: str) -> None:
    text = (run / "recipe.yaml").read_text("utf-8")
    assert old in text
    (run / "recipe.yaml").write_text(text.replace(old, new), "utf-8")
    update_checksums(run)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "FIFO as log": (lambda run: replace_by_fifo(run / "log.jsonl"), "log.jsonl must be a regular file; it is a FIFO"),
    "FIFO as metrics": (lambda run: replace_by_fifo(run / "metrics" / "dev.json"), "dev.json must be a regular file"),
    "FIFO as data": (lambda run: replace_by_fifo(run / "data.json"), "data.json must be a regular file; it is a FIFO"),
    "FIFO as recipe": (lambda run: replace_by_fifo(run / "recipe.yaml"), "recipe.yaml must be a regular file"),
    "directory as metrics": (lambda run: replace_by_directory(run / "metrics" / "dev.json"), "it is a directory"),
    "device as metrics": (lambda run: replace_by_link(run / "metrics" / "dev.json"), "it is a symbolic link"),
    "list as metrics": (lambda run: (run / "metrics" / "dev.json").write_text("[1]"), "metrics/dev.json is damaged"),
    "deep metrics": (lambda run: (run / "metrics" / "dev.json").write_text("[" * 5000), "nested too deeply"),
    "lone surrogate": (lambda run: edit_recipe(run, "cell: elman", r'cell: "\ud800"'), "not valid Unicode"),
    "deep YAML": (lambda run: edit_recipe(run, "cell: elman", f"cell: {'[' * 1200}"), "nested too deeply"),
    "not UTF-8": (lambda run: (run / "recipe.yaml").write_bytes(b"task: \xff"), "not UTF-8"),
}


@pytest.fixture
def folder(runs: Path, tmp_path: Path) -> Path:
    """A folder with two valid runs."""
    for name in ("a good one", "good too"):
        shutil.copytree(runs / "lm-elman", tmp_path / "run_folder" / name)
    return tmp_path / "run_folder"


def ask(folder: Path, path: str = "", **question: Any) -> Any:
    client = TestClient(make_app(RunFolder(folder), TOKEN), base_url="http://127.0.0.1", raise_server_exceptions=False)
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    return client.post(f"/api/runs{path}", headers=headers, content=json.dumps(question))


def listed(folder: Path) -> dict[str, dict[str, Any]]:
    began = time.perf_counter()
    answer = ask(folder)
    assert answer.status_code == 200 and time.perf_counter() - began < 10
    return {run["id"]: run for run in answer.json()["runs"]}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_run_is_listed_with_its_problem(folder: Path, damage: str) -> None:
    shutil.copytree(folder / "good too", folder / "bad")
    act, reason = DAMAGES[damage]
    act(folder / "bad")
    rows = listed(folder)
    assert list(rows) == ["a good one", "bad", "good too"]
    assert reason in rows["bad"]["problem"] and "\n" not in rows["bad"]["problem"] and rows["bad"]["views"] == []
    assert all(rows[name]["problem"] is None and rows[name]["views"] for name in ("a good one", "good too"))
    for path, question in (("/card", {"run": "bad"}), ("/curves", {"runs": ["bad"]})):
        answer = ask(folder, path, **question)
        assert answer.status_code in (200, 400, 500) and "Internal error" not in answer.text, answer.text


@LINUX
def test_name_that_is_not_utf8_is_listed(folder: Path) -> None:
    shutil.copytree(folder / "good too", folder / BAD_NAME)
    rows = listed(folder)
    assert list(rows) == ["a good one", "bad\\xff", "good too"]
    assert rows["bad\\xff"]["problem"] == "The directory name bad\\xff is not UTF-8. Rename it."
    assert rows["good too"]["problem"] is None
    for run in ("bad\\xff", BAD_NAME):  # the name in the list, and the name of the file
        answer = ask(folder, "/card", run=run)
        assert answer.status_code in (400, 404, 422) and list(answer.json()) == ["error"]


@LINUX
def test_folder_name_may_be_invalid_utf8(folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / BAD_NAME)
    answer = ask(tmp_path / BAD_NAME).json()
    assert answer["folder"] == f"{tmp_path}/bad\\xff" and len(answer["runs"]) == 2
    assert all(run["problem"] is None for run in answer["runs"])
    assert ask(tmp_path / BAD_NAME, "/card", run="good too").status_code == 200


def test_invalid_log_does_not_affect_the_list(folder: Path) -> None:
    for content in ("[" * 8000, '"text"', "[1]", "\0", '{"event": '):
        (folder / "good too" / "log.jsonl").write_text(content)
        rows = listed(folder)
        assert rows["good too"]["problem"] is None


def test_values_of_wrong_type_are_omitted(folder: Path) -> None:
    run = folder / "good too"
    edit_recipe(run, "cell: elman", f"cell: {'[' * 150}{']' * 150}")
    metrics = json.loads((run / "metrics" / "dev.json").read_text())
    (run / "metrics" / "dev.json").write_text(json.dumps({**metrics, "\ud800": 1.0}))
    rows = listed(folder)
    assert rows["good too"]["cell"] is None and rows["a good one"]["cell"] == "elman"
    card = ask(folder, "/card", run="good too")
    assert card.status_code == 200 and card.json()["metrics"]["dev"]["\\ud800"] == 1.0


def test_repaired_run_is_listed_again(folder: Path) -> None:
    run_folder = RunFolder(folder)
    client = TestClient(
        make_app(run_folder, TOKEN), base_url="http://127.0.0.1", headers={"authorization": f"Bearer {TOKEN}"}
    )
    log = folder / "good too" / "log.jsonl"
    content = log.read_bytes()

    def problem() -> Any:
        return {run["id"]: run for run in client.post("/api/runs").json()["runs"]}["good too"]["problem"]

    assert problem() is None
    replace_by_fifo(log)
    assert "it is a FIFO" in problem()
    log.unlink()
    log.write_bytes(content)
    assert problem() is None


def test_page_lists_damaged_and_valid_runs(window: Window, folder: Path) -> None:
    shutil.copytree(folder / "good too", folder / "bad")
    replace_by_fifo(folder / "bad" / "log.jsonl")
    with Studio(folder).running() as studio, window.showing(studio) as opened:
        page = opened.open("runs")
        assert page.locator(".runs-table tbody tr").count() == 3
        assert "must be a regular file; it is a FIFO" in page.locator('tr[data-run="bad"]').inner_text()
        page.locator('figure[data-figure="curve-loss"]').wait_for()
