"""What there is to choose from."""

import ast
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from seqloom.cli._options import json_option
from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean

PACKAGE = Path(__file__).parent.parent


def list_things(
    what: Annotated[
        str | None, typer.Argument(metavar="cells|attention|tasks|corpora|recipes|ladders", help="All, if left out.")
    ] = None,
    as_json: Annotated[bool, json_option("One JSON object: name → summary.")] = False,
) -> None:
    """Cells, scores of attention, tasks, corpora, recipes and ladders, each in words: `seqloom list recipes`."""
    if what is not None and what not in THINGS:
        raise UsageError(f"cannot list '{what}': {did_you_mean(what, THINGS)}.")
    found = {kind: THINGS[kind]() for kind in ([what] if what else THINGS)}
    if as_json:
        print(json.dumps(found[what] if what else found, ensure_ascii=False))
        return
    for kind, things in found.items():
        if what is None:
            print(f"{kind}:")
        width = max(map(len, things), default=0) + 2
        for name, summary in things.items():
            margin = "" if what else "  "
            print(f"{margin}{name:{width}}" + summary.replace("\n", "\n" + " " * (width + len(margin))))


def cells() -> dict[str, str]:
    from seqloom.nn.cells import CELLS

    return {name: _equations(cell) for name, cell in CELLS.items()}


def attention() -> dict[str, str]:
    from seqloom.nn.scores import SCORES

    return {name: _equations(score) for name, score in SCORES.items()}


def _equations(part: type) -> str:
    """Of a cell or a score: its docstring begins with them."""
    return inspect.cleandoc(part.__doc__ or "").partition("\n\n")[0]


def tasks() -> dict[str, str]:
    """Read, not imported: a task pulls in everything it ties together."""
    from seqloom.tasks import names

    files = {name: PACKAGE / "tasks" / f"{name.replace('-', '_')}.py" for name in names()}
    return {name: _first_line(ast.get_docstring(ast.parse(file.read_bytes()))) for name, file in files.items()}


def corpora() -> dict[str, str]:
    from seqloom.data.corpora import CORPORA

    return {name: module.SUMMARY for name, module in CORPORA.items()}


def recipes() -> dict[str, str]:
    return _yaml_files(PACKAGE / "recipes")


def ladders() -> dict[str, str]:
    return _yaml_files(PACKAGE / "recipes" / "ladders")


def _yaml_files(folder: Path) -> dict[str, str]:
    """The summary of a recipe or a ladder is the comment on its first line."""
    files = sorted(folder.glob("*.yaml"), key=lambda file: file.stem)
    return {file.stem: _first_line(file.read_text("utf-8").lstrip("# ")) for file in files}


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


THINGS: dict[str, Callable[[], dict[str, str]]] = {
    "cells": cells,
    "attention": attention,
    "tasks": tasks,
    "corpora": corpora,
    "recipes": recipes,
    "ladders": ladders,
}
