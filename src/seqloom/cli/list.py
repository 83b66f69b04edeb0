"""`seqloom list`: list cells, attention scores, tasks, corpora, recipes and ladders."""

import ast
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from seqloom.cli._options import json_option
from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean

PACKAGE = Path(__file__).parent.parent


def list_names(
    what: Annotated[
        str | None,
        typer.Argument(metavar="cells|attention|tasks|corpora|recipes|ladders", help="What to list. [default: all]"),
    ] = None,
    as_json: Annotated[bool, json_option("One JSON object: name → summary.")] = False,
) -> None:
    """List cells, attention scores, tasks, corpora, recipes and ladders: `seqloom list recipes`."""
    if what is not None and what not in LISTS:
        raise UsageError(f"Cannot list {what!r}: {did_you_mean(what, LISTS)}.")
    listed = {kind: LISTS[kind]() for kind in ([what] if what else LISTS)}
    if as_json:
        print(json.dumps(listed[what] if what else listed, ensure_ascii=False))
        return
    for kind, summaries in listed.items():
        if what is None:
            print(f"{kind}:")
        width = max(map(len, summaries), default=0) + 2
        for name, summary in summaries.items():
            margin = "" if what else "  "
            print(f"{margin}{name:{width}}" + summary.replace("\n", "\n" + " " * (width + len(margin))))


def read_equations(parts: Mapping[str, type]) -> dict[str, str]:
    """Return the equations at the beginning of the docstrings of cells or scores."""
    return {name: inspect.cleandoc(part.__doc__ or "").partition("\n\n")[0] for name, part in parts.items()}


def list_cells() -> dict[str, str]:
    """Return the equations of each cell."""
    from seqloom.nn.cells import CELLS

    return read_equations(CELLS)


def list_attention_scores() -> dict[str, str]:
    """Return the equation of each score."""
    from seqloom.nn.scores import SCORES

    return read_equations(SCORES)


def list_tasks() -> dict[str, str]:
    """Return the summary of each task. The files are only parsed, because importing all tasks is slow."""
    from seqloom.tasks import names

    files = {name: PACKAGE / "tasks" / f"{name.replace('-', '_')}.py" for name in names()}
    docstrings = {name: ast.get_docstring(ast.parse(file.read_bytes())) for name, file in files.items()}
    return {name: (docstring or "").partition("\n")[0] for name, docstring in docstrings.items()}


def list_corpora() -> dict[str, str]:
    """Return the summary of each corpus."""
    from seqloom.data.corpora import CORPORA

    return {name: module.SUMMARY for name, module in CORPORA.items()}


def list_yaml_files(folder: Path) -> dict[str, str]:
    """Return the summary of each recipe or ladder of a folder: the comment on its first line."""
    files = sorted(folder.glob("*.yaml"), key=lambda file: file.stem)
    return {file.stem: file.read_text("utf-8").lstrip("# ").strip().partition("\n")[0] for file in files}


LISTS: dict[str, Callable[[], dict[str, str]]] = {
    "cells": list_cells,
    "attention": list_attention_scores,
    "tasks": list_tasks,
    "corpora": list_corpora,
    "recipes": lambda: list_yaml_files(PACKAGE / "recipes"),
    "ladders": lambda: list_yaml_files(PACKAGE / "recipes" / "ladders"),
}
