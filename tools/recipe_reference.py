"""Write the tables of keys in docs/reference/recipes.md from the configs. See tools/reference.py.

The keys, their order and their defaults come from the configs. An existing row keeps its meaning. The meaning of a new
row is the comment at the end of the key's definition, the comment lines above it, or otherwise the type of the key. A
removed section is deleted together with the text below its heading, and new sections are added.
"""

import re
from dataclasses import fields
from typing import Any

import yaml

from seqloom.config.constraints import key_of
from seqloom.config.yaml_text import parse_yaml
from seqloom.recipes.reference import REQUIRED, default_of, meaning_of

TOP = "The top level"
HEAD = ["| key | default | meaning |", "|---|---|---|"]
ROW = re.compile(r"\| `(\w+)` \| (.+?) \| (.*?) ?\|")
SECTION = "section"  # shown instead of a default that another section describes


# --- the page ---------------------------------------------------------------------------------------------------------


def parts(text: str) -> list[tuple[str, list[str]]]:
    """Return the headings of a page. Each heading has the lines up to the next heading."""
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
    """Return whether the text of a default represents this value."""
    given = parse_yaml(text.strip("`"), "the default")
    return bool(given == value) and isinstance(given, bool) == isinstance(value, bool)


def update_table(lines: list[str], section: Any) -> list[str]:
    """Return these lines with their table of keys updated from the config."""
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
    # A new key follows the key that precedes it in the config
    for before, key in zip([None, *rows], rows, strict=False):
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
            if summary.startswith(f"{section.__name__}("):  # the summary of a dataclass without a docstring
                summary = ""
            lines = [f"{'####' if '.' in key else '###'} {heading}", *(["", summary] if summary else []), ""]
            described.insert(same[-1] + 1 if same else len(described), (heading, lines))
    return "\n".join(
        line
        for heading, lines in described
        for line in (update_table(lines, configs[heading]) if heading in configs else lines)
    )
