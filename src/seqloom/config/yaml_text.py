"""The YAML of recipes, restricted to plain data.

Scalars follow the core schema of YAML 1.2: `no` and `12:30` are strings and `2e-3` is a number. PyYAML would read them
as False, 750 and a string. Repeated keys, anchors, aliases and tags are rejected.
"""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError
from yaml.events import AliasEvent, CollectionStartEvent, NodeEvent, ScalarEvent
from yaml.nodes import MappingNode, Node, ScalarNode

from seqloom.core import Json
from seqloom.core.errors import UsageError
from seqloom.core.limits import MAX_RECIPE

MAX_INT_DIGITS = 3000  # maximum in any base; Python cannot print integers of more than 4,300 decimal digits
_INT = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
_WHOLE_EXPONENT = re.compile(r"([-+]?[0-9]{1,9})[eE]\+?([0-9]|1[0-2])")  # 1e6 is an integer
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_NULL = re.compile(r"~|null|Null|NULL|")


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012 (PyYAML's stubs declare an instance variable)

    def compose_node(self, parent: Node | None, index: Json) -> Node | None:
        event = self.peek_event()
        mark: Any = event.start_mark
        if isinstance(event, AliasEvent) or (isinstance(event, NodeEvent) and event.anchor is not None):
            raise ConstructorError(None, None, "anchors (&x) and aliases (*x) are not supported", mark)
        if isinstance(event, ScalarEvent | CollectionStartEvent) and event.tag is not None:
            raise ConstructorError(None, None, f"tags ({event.tag}) are not supported", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Hashable, Json]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                raise ConstructorError(None, None, "keys must be strings", key.start_mark)
            if key.value in seen:
                raise ConstructorError(None, None, f"the key '{key.value}' is repeated", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def scalar(self, node: ScalarNode) -> Json:
        return plain_scalar(node.value)


class _Dumper(yaml.SafeDumper):
    """A dumper that writes flat lists on one line.

    The dumper quotes each string that YAML 1.1 or 1.2 would read as another type.
    """

    def represent_flat_list(self, value: list[Json]) -> Node:
        nested = any(isinstance(item, list | dict) for item in value)
        return self.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=not nested)

    def ignore_aliases(self, data: Json) -> bool:
        return True


_Dumper.add_representer(list, _Dumper.represent_flat_list)


for _tag, _pattern in (("int", _INT), ("float", _FLOAT), ("bool", _BOOL), ("null", _NULL)):
    _name, _whole = f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern.pattern})\\Z")
    _Loader.add_implicit_resolver(_name, _whole, None)
    _Loader.add_constructor(_name, _Loader.scalar)
    _Dumper.add_implicit_resolver(_name, _whole, None)


def plain_scalar(text: str) -> Json:
    """Return the value of an unquoted YAML scalar."""
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        base = 0 if text[:2] in ("0x", "0o") else 10
        return int(text, base) if len(text) <= MAX_INT_DIGITS else text
    if match := _WHOLE_EXPONENT.fullmatch(text):
        return int(match[1]) * 10 ** int(match[2])
    if _FLOAT.fullmatch(text):
        is_word = text.lower().endswith((".inf", ".nan"))
        return float(text.replace(".", "") if is_word else text)
    return text


def decode_utf8(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{name}, line {line}: not UTF-8 text; save the file as UTF-8.") from None


def parse_yaml(text: str, name: str) -> Json:
    """Parse any YAML value; messages refer to the text as `name`."""
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(f"{name}, line {line}: contains the control character U+{error.character:04X}.") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        cause = str(error.problem or error.context or "unknown reason")
        if not isinstance(error, ConstructorError):  # raised by _Loader with our messages
            is_tab = "'\\t'" in cause
            cause = "indentation must be spaces, not tabs" if is_tab else f"this is not valid YAML, {cause}"
        raise UsageError(f"{name}{f', line {mark.line + 1}' if mark else ''}: {cause}.") from None
    except RecursionError:
        raise UsageError(f"{name}: nested too deeply.") from None
    except ValueError as error:
        raise UsageError(f"{name}: {error}.") from None


def load_yaml(source: Path | str, name: str | None = None) -> dict[str, Json]:
    """Load the mapping in a YAML file (a Path) or a string (a str); an empty file gives an empty mapping."""
    if isinstance(source, Path):
        name = name or str(source)
        text = decode_utf8(read_recipe_file(source), name)
    else:
        name, text = name or "the YAML text", source
    value = parse_yaml(text, name)
    if not isinstance(value, dict | None):
        kind = "a list" if isinstance(value, list) else "a single value"
        raise UsageError(f"{name}: must contain keys and values, such as 'seed: 1', but it is {kind}.")
    return value or {}


def read_recipe_file(path: Path) -> bytes:
    """Read a YAML file of at most MAX_RECIPE bytes."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_RECIPE + 1)
    except FileNotFoundError:
        raise UsageError(f"{path}: the file does not exist.") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: is a folder; pass a YAML file.") from None
    except PermissionError:
        raise UsageError(f"{path}: permission denied; make the file readable.") from None
    if len(content) > MAX_RECIPE:
        raise UsageError(f"{path}: too large for a recipe; a recipe has at most {MAX_RECIPE:,} bytes.")
    return content


def dump_yaml(mapping: Json) -> str:
    """Write a mapping as YAML in the order of its keys; `load_yaml` reads it back unchanged."""
    return yaml.dump(mapping, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=110)
