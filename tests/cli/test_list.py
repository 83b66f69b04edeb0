import json
from pathlib import Path

import pytest

from seqloom.cli.app import main
from seqloom.cli.list import LISTS, PACKAGE
from seqloom.nn.cells import CELLS
from seqloom.nn.scores import SCORES


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["list", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", LISTS)
def test_every_entry_has_a_summary(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    things = json.loads(listed(capsys, kind, "--json"))
    assert things
    assert all(things.values())
    if kind in ("recipes", "ladders"):
        # No sentence is incomplete
        assert [name for name, summary in things.items() if not summary.endswith(".")] == []
    lines = listed(capsys, kind).splitlines()
    assert [line.split()[0] for line in lines if line[0] != " "] == list(things)
    message = [part for summary in things.values() for part in summary.splitlines()]
    assert all(line.endswith(part) for line, part in zip(lines, message, strict=True))


def test_lists_contain_the_names_of_the_registries(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(json.loads(listed(capsys, "cells", "--json"))) == list(CELLS)
    assert list(json.loads(listed(capsys, "attention", "--json"))) == list(SCORES)
    assert {"pydocs", "toys", "text"} <= set(json.loads(listed(capsys, "corpora", "--json")))
    files = sorted(path.stem for path in Path(PACKAGE, "recipes").glob("*.yaml"))
    assert list(json.loads(listed(capsys, "recipes", "--json"))) == files
    assert "ngram" in json.loads(listed(capsys, "tasks", "--json"))


def test_all_lists_are_shown_without_an_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(json.loads(listed(capsys, "--json"))) == list(LISTS)
    headings = [line for line in listed(capsys).splitlines() if not line.startswith(" ")]
    assert headings == [f"{kind}:" for kind in LISTS]


def test_error_for_an_unknown_list_has_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "corpus"]) == 2
    assert capsys.readouterr().err == (
        "seqloom: Cannot list 'corpus': did you mean corpora? "
        "(choose from cells, attention, tasks, corpora, recipes, ladders).\n"
    )
