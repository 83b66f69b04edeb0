"""The reference of all keys, read from the configs: name, type, default and description of each.

A key is described where it is defined, by the comment at the end of its line or, if that is too short, by the comment
lines above it.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from seqloom.config.constraints import bounds
from seqloom.config.messages import describe, field_types, key_of, options, tags
from seqloom.config.schema import to_mapping

REQUIRED = "required"


@dataclass(frozen=True)
class Key:
    """One key of a section, as the reference shows it."""

    name: str
    type: str
    default: Any  # REQUIRED if there is none
    description: str


@dataclass(frozen=True)
class Section:
    """One config that a recipe can hold: the path of its key, and what chooses it, such as kind `gpt`."""

    path: str
    config: type
    discriminator: str | None = None
    tag: str | None = None


def keys(config: type) -> list[Key]:
    """Describe every key of a config, in the order of their definition."""
    comments = field_comments(config)
    types = field_types(config)
    return [
        Key(name, describe_type(types[name]), default_of(field), comments.get(field.name, ""))
        for field in fields(config)
        if field.init and (name := key_of(field.name))
    ]


def default_of(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return to_mapping(field.default)
    return REQUIRED if field.default_factory is MISSING else to_mapping(field.default_factory())


def describe_type(annotation: Any) -> str:
    """Describe an annotation with its bounds: `a whole number, at least 1, or null`."""
    words = describe(annotation)
    limits = " and ".join(bounds(annotation))
    if not limits:
        return words
    return f"{words.removesuffix(' or null')}, {limits}{', or null' if options(annotation).nullable else ''}"


def sections(recipe: Any, path: str = "") -> Iterator[Section]:
    """Every config that a recipe can hold, sections within sections too."""
    for name, annotation in field_types(recipe).items():
        key = f"{path}.{name}" if path else name
        found = options(annotation)
        for member in found.members:
            if is_dataclass(member) and isinstance(member, type):
                tag = tags(member, found.discriminator)[0] if found.discriminator else None
                yield Section(key, member, found.discriminator, tag)
                yield from sections(member, key)


def field_comments(config: type) -> dict[str, str]:
    """The comments of a config's fields, those of its base classes included."""
    comments: dict[str, str] = {}
    for base in reversed(config.__mro__):
        if is_dataclass(base):
            source = inspect.getsourcefile(base) or sys.modules[base.__module__].__file__
            comments |= _comments_in(Path(str(source))).get(base.__qualname__, {})
    return comments


@cache
def _comments_in(path: Path) -> dict[str, dict[str, str]]:
    """The comments of all annotated fields in a source file, by class."""
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    found: dict[str, dict[str, str]] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                name = prefix + child.name
                found[name] = {
                    field.target.id: _comment_of(lines, field)
                    for field in child.body
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
                }
                visit(child, f"{name}.")
            elif isinstance(child, ast.FunctionDef):
                visit(child, f"{prefix}{child.name}.<locals>.")

    visit(ast.parse(text), "")
    return found


def _comment_of(lines: list[str], field: ast.AnnAssign) -> str:
    end = lines[(field.end_lineno or field.lineno) - 1].encode()[field.end_col_offset or 0 :].decode().strip()
    if end.startswith("#"):
        return end.lstrip("# ")
    above: list[str] = []
    index = field.lineno - 2
    while index >= 0 and lines[index].strip().startswith("#"):
        above.insert(0, lines[index].strip().lstrip("# "))
        index -= 1
    return " ".join(above)
