"""Write the tables of keys in docs/reference/recipes.md from the configs; see tools/reference.py.

Keys, their order of appearance and their defaults come from the configs. A row keeps the meaning that the page gives;
a new row takes it from where the key is defined: the comment at the end of its line, the comment lines above it, or
else its type. Removed sections are deleted with the text below their heading, and new ones are added.
"""

import ast
import inspect
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import yaml

from seqloom import tasks
from seqloom.config import to_mapping
from seqloom.config.constraints import BOUNDS, field_types, key_of, options, tags
from seqloom.config.messages import describe
from seqloom.config.yaml_text import parse_yaml

TOP = "The top level"
HEAD = ["| key | default | meaning |", "|---|---|---|"]
ROW = re.compile(r"\| `(\w+)` \| (.+?) \| (.*?) ?\|")
REQUIRED, SECTION = "required", "section"  # for a key without a default, and for a default that is described elsewhere


# --- sections ---------------------------------------------------------------------------------------------------------


def sections(recipe: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every config of a recipe, nested sections included, with the beginning of its heading."""
    for name, annotation in field_types(recipe).items():
        if name == "backbone":  # a model, which has its own section
            continue
        allowed = options(annotation)
        for member in filter(is_dataclass, allowed.members):
            if allowed.discriminator:
                (tag,) = tags(member, allowed.discriminator)
                yield f"`{prefix}{name}`, {allowed.discriminator} `{tag}`", member
            else:
                yield f"`{prefix}{name}` of the task", member
            yield from sections(member, f"{prefix}{name}.")


def all_sections(names: Collection[str]) -> dict[str, Any]:
    """Return the configs of these tasks by heading; the heading of a section without a kind lists its tasks."""
    users: dict[tuple[str, Any], dict[str, None]] = {}
    for task in names:
        for beginning, section in sections(tasks.task_info(task).recipe):
            users.setdefault((beginning, section), {})[f"`{task}`"] = None
    result: dict[str, Any] = {}
    for (beginning, section), those in users.items():
        *others, last = those
        if beginning in result:  # a kind with a different model in this task
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


def meaning_of(config: Any, field: Field[Any]) -> str:
    """Return the comment of a field, or its type: `a whole number, at least 1, or null`."""
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
    """Return the comments of the fields that a class defines, without inherited ones."""
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
    """Return the comment at the end of the line of a field, or the comment lines above it."""
    end = lines[(field.end_lineno or field.lineno) - 1].encode()[field.end_col_offset or 0 :].decode().strip()
    if end.startswith("#"):
        return end.lstrip("# ")
    first = field.lineno - 1
    while first and lines[first - 1].strip().startswith("#"):
        first -= 1
    return " ".join(line.strip().lstrip("# ") for line in lines[first : field.lineno - 1])


# --- the page ---------------------------------------------------------------------------------------------------------


def parts(text: str) -> list[tuple[str, list[str]]]:
    """Return the headings of a page, each with its lines up to the next heading."""
    result: list[tuple[str, list[str]]] = [("", [])]
    in_code = False
    for line in text.split("\n"):
        in_code ^= line.startswith("```")
        if line.startswith("#") and not in_code:
            result.append((line.lstrip("# "), []))
        result[-1][1].append(line)
    return result


def table(lines: list[str]) -> dict[str, tuple[str, str]]:
    """Return the rows of the table of keys in these lines: key → default and meaning."""
    return {row[1]: (row[2], row[3]) for line in lines if (row := ROW.fullmatch(line))}


def equal(text: str, value: Any) -> bool:
    """Whether the text of a default means this value."""
    given = parse_yaml(text.strip("`"), "the default")
    return bool(given == value) and isinstance(given, bool) == isinstance(value, bool)


def update_table(lines: list[str], section: Any) -> list[str]:
    """Return these lines with the table of keys updated from the config."""
    old = table(lines)
    rows: dict[str, str] = {}
    for field in fields(section):
        key, value = key_of(field.name), default_of(field)
        flow = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=9999).split("\n")[0]
        default, meaning = old.get(key, ("", meaning_of(section, field)))
        if not default or not equal(default, value):
            default = REQUIRED if value == REQUIRED else f"`{flow}`"
        rows[key] = f"| `{key}` | {default} | {meaning}{' ' * bool(meaning)}|"
    keys = [key for key in old if key in rows]
    for before, key in zip([None, *rows], rows, strict=False):  # a new key follows the key before it in the config
        if key not in keys:
            keys.insert(keys.index(before) + 1 if before else 0, key)
    if HEAD[0] not in lines:
        return [*lines[:-1], "", *HEAD, *rows.values(), ""]
    first = lines.index(HEAD[0])
    last = first + len(HEAD) + len(old)
    return [*lines[:first], *HEAD, *(rows[key] for key in keys), *lines[last:]]


def update(text: str, configs: dict[str, Any]) -> str:
    """Return the page with an updated table below the heading of each section."""
    described = [part for part in parts(text) if part[0] in (*configs, TOP) or not table(part[1])]
    for heading, section in configs.items():
        if heading not in dict(described):
            key = heading.split("`")[1]
            same = [i for i, (other, _) in enumerate(described) if re.match(rf"`{key.split('.')[0]}\b", other)]
            summary = (section.__doc__ or "").split("\n")[0]
            if summary.startswith(f"{section.__name__}("):  # a dataclass without a docstring
                summary = ""
            lines = [f"{'####' if '.' in key else '###'} {heading}", *(["", summary] if summary else []), ""]
            described.insert(same[-1] + 1 if same else len(described), (heading, lines))
    return "\n".join(
        line
        for heading, lines in described
        for line in (update_table(lines, configs[heading]) if heading in configs else lines)
    )
