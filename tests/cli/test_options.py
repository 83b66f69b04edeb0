"""Shared options are declared once and are equal in every command."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from seqloom.cli import _options, app

SHARED = ("as_json", "device", "data_dir")


def options(command: Any) -> Iterator[Any]:
    """Yield the options of a command and of its subcommands."""
    yield from command.params
    for subcommand in getattr(command, "commands", {}).values():
        yield from options(subcommand)


@pytest.mark.parametrize("path", sorted(Path(_options.__file__).parent.glob("*.py")), ids=lambda path: path.name)
def test_commands_do_not_redeclare_shared_options(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parameters = (node for node in ast.walk(tree) if isinstance(node, ast.arg) and node.annotation is not None)
    declared = [node.arg for node in parameters if "typer.Option" in ast.unparse(node.annotation or node)]
    assert not set(declared) & set(SHARED)


@pytest.mark.parametrize(
    ("name", "flag", "default"), [("device", "--device", "auto"), ("data_dir", "--data-dir", None)]
)
def test_shared_options_are_equal_in_every_command(name: str, flag: str, default: str | None) -> None:
    command = typer.main.get_command(app.build_app())
    result = [option for option in options(command) if option.name == name]
    assert len(result) >= 10
    assert {(*option.opts, option.default, option.help) for option in result} == {(flag, default, result[0].help)}
