"""The reference of recipe keys. Sections, defaults and meanings are read from the configs and their field comments."""

import ast
import inspect
import sys
from collections.abc import Collection, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

from seqloom import tasks
from seqloom.config import to_mapping
from seqloom.config.constraints import BOUNDS, field_types, key_of, options, tags
from seqloom.config.messages import describe
from seqloom.core import Json
from seqloom.core.words import format_value

REQUIRED = "required"  # shown instead of a default


def sections(recipe: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the heading prefix and the config of every section of a recipe, including nested sections."""
    for name, annotation in field_types(recipe).items():
        if name == "backbone":  # a model with its own section
            continue
        allowed = options(annotation)
        for member in filter(is_dataclass, allowed.members):
            if allowed.discriminator:
                (tag,) = tags(member, allowed.discriminator)
                yield f"`{prefix}{name}`, {allowed.discriminator} `{tag}`", member
            else:
                yield f"`{prefix}{name}` of the task", member
            yield from sections(member, f"{prefix}{name}.")


def all_sections(names: Collection[str]) -> dict[str, Json]:
    """Return the configs of the given tasks by heading. The heading of a section without a kind lists its tasks."""
    users: dict[tuple[str, Any], dict[str, None]] = {}
    for task in names:
        for beginning, section in sections(tasks.task_info(task).recipe):
            users.setdefault((beginning, section), {})[f"`{task}`"] = None
    result: dict[str, Json] = {}
    for (beginning, section), those in users.items():
        *others, last = those
        if beginning in result:  # the kind has a different model in this task
            beginning += " of the task"
        if beginning.endswith("of the task"):
            beginning += f"s {', '.join(others)} and {last}" if others else f" {last}"
        result[beginning] = section
    return result


def default_of(field: Field[Any]) -> Any:
    """Return the default of a key as plain values."""
    if field.default is not MISSING:
        return to_mapping(field.default)
    return REQUIRED if field.default_factory is MISSING else to_mapping(field.default_factory())


def changed_settings(section: Any, hidden: Collection[str] = (), prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the key, the value and the default of each setting of a recipe that is required or changed.

    Keys in `hidden` are omitted.
    """
    for field in fields(section):
        key, value = f"{prefix}{key_of(field.name)}", getattr(section, field.name)
        default = default_of(field)
        if key in hidden or to_mapping(value) == default:
            continue
        if is_dataclass(value):
            yield from changed_settings(value, hidden, f"{key}.")
        else:
            shown, usual = (
                part if isinstance(part, str) else format_value(part) for part in (to_mapping(value), default)
            )
            yield key, shown, usual


def meaning_of(config: Any, field: Field[Any]) -> str:
    """Return the comment of a field, or a description of its type: `a whole number, at least 1, or null`."""
    if key_of(field.name) in ("kind", "corpus"):
        return ""
    for base in config.__mro__:
        if is_dataclass(base) and (comment := comments_of(base).get(field.name)):
            return comment.replace("|", "\\|").replace("None is", "`null` is").replace("None:", "`null`:")
    annotation = field_types(config)[key_of(field.name)]
    nullable = " or null" if options(annotation).nullable else ""
    constraints = [entry for part in (annotation, *get_args(annotation)) for entry in get_args(part)[1:]]
    limits = "".join(
        f", {bound.words} {getattr(constraint, bound.attribute)}"
        for constraint in constraints
        for bound in BOUNDS.values()
        if isinstance(constraint, bound.constraint)
    )
    return describe(annotation).removesuffix(nullable) + limits + nullable


def comments_of(config: Any) -> dict[str, str]:
    """Return the comments of the fields that a class defines, without inherited fields."""
    path = inspect.getsourcefile(config) or sys.modules[config.__module__].__file__
    lines = Path(str(path)).read_text(encoding="utf-8").split("\n")
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.ClassDef) and node.name == config.__name__:
            assigned = [field for field in node.body if isinstance(field, ast.AnnAssign)]
            return {
                field.target.id: comment_of(lines, field) for field in assigned if isinstance(field.target, ast.Name)
            }
    return {}


def comment_of(lines: list[str], field: ast.AnnAssign) -> str:
    """Return the comment at the end of a field's line, or the comment lines above the field."""
    end = lines[(field.end_lineno or field.lineno) - 1].encode()[field.end_col_offset or 0 :].decode().strip()
    if end.startswith("#"):
        return end.lstrip("# ")
    first = field.lineno - 1
    while first and lines[first - 1].strip().startswith("#"):
        first -= 1
    return " ".join(line.strip().lstrip("# ") for line in lines[first : field.lineno - 1])
