"""The recipe grammar: configs as frozen dataclasses, constraints in their annotations, YAML, overrides, messages."""

import copy
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import PurePath
from typing import Annotated, Any, TypeVar, dataclass_transform, overload

from pydantic import ConfigDict, Field, ValidationError

from seqloom.config.constraints import violations
from seqloom.config.kinds import Kinds, adapter
from seqloom.config.messages import explain, field_types, join, key_of, options
from seqloom.config.yaml_text import dump_yaml, load_yaml, parse_yaml, plain_scalar
from seqloom.core.errors import UsageError
from seqloom.core.limits import limit_problems
from seqloom.core.words import WHOLE_NUMBERS, is_unicode, nearest, shown

__all__ = [
    "ABSENT",
    "Discriminator",
    "Kinds",
    "apply_overrides",
    "build",
    "config",
    "differences",
    "dump_yaml",
    "load_yaml",
    "nearest",
    "parse_overrides",
    "to_mapping",
]


# --- schema -----------------------------------------------------------------------------------------------------------


T = TypeVar("T")
Override = tuple[tuple[str, ...], Any]
CHOOSERS = ("kind", "corpus")  # the keys that say which config a section is
_RULES = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, alias_generator=key_of)


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT = _Absent()  # stands in `differences` for a key that one side does not have


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def config(cls: type[T]) -> type[T]:
    """A frozen dataclass with named fields only, whose unknown keys are refused by `build`.

    Constraints on a single value stand in its annotation (`config/constraints.py`). Rules between fields: a method
    `problems` that yields a plain sentence for each thing wrong.
    """
    if hasattr(cls, "problems") or not hasattr(cls, "__post_init__"):
        cls.__post_init__ = _refuse  # type: ignore[attr-defined]
    made = dataclass(frozen=True, kw_only=True)(cls)
    made.__pydantic_config__ = _RULES  # type: ignore[attr-defined]
    return made


def _refuse(self: Any) -> None:
    """All problems in one error, a line each. A ValueError on the way is the last of them."""
    found = [*limit_problems(vars(self)), *violations(self)]
    try:
        found.extend(self.problems() if hasattr(self, "problems") else ())
    except ValueError as error:
        found.append(str(error))
    if found:
        raise ValueError("\n".join(found))


@dataclass(frozen=True)
class Discriminator:
    """Marks a union of configs with the key that tells them apart: `Annotated[A | B, Discriminator("kind")]`.

    Unlike pydantic's own it also stands before a single config, so that a registry may begin with one member.
    """

    discriminator: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        if is_dataclass(source):
            return handler(source)
        return handler.generate_schema(Annotated[source, Field(discriminator=self.discriminator)])


def parse_overrides(words: Iterable[str]) -> list[Override]:
    """`["train.lr=2e-3"]` → `[(("train", "lr"), 0.002)]`; values are YAML scalars, [lists] or {mappings}."""
    return [_parse_override(word) for word in words]


def _parse_override(word: str) -> Override:
    name, equals, text = word.partition("=")
    if not equals:
        raise UsageError(f"An override must look like key.path=value, got '{word}'.")
    path = tuple(part.strip() for part in name.split("."))
    if not all(path):
        raise UsageError(f"An override must begin with a key, such as train.lr=0.01, got '{word}'.")
    text = text.strip()
    # Only what opens a list, a mapping or a quotation is parsed; *.txt or "a: b" are then the text they look like.
    value = parse_yaml(text, f"the override '{word}'") if text[:1] in ("[", "{", '"', "'") else plain_scalar(text)
    return path, value


def apply_overrides(mapping: Mapping[str, Any], overrides: Iterable[Override]) -> dict[str, Any]:
    """A copy of `mapping` with each override set, the later winning; missing sections are made.

    Choosing another `kind` or `corpus` starts its section afresh, since the keys of the old one would mean nothing to
    it; such choices are made first, so that the order of the words does not matter.
    """
    result: dict[str, Any] = copy.deepcopy(dict(mapping))
    for path, value in sorted(overrides, key=lambda override: override[0][-1] not in CHOOSERS):
        section = result
        for depth, key in enumerate(path[:-1], start=1):
            if section.get(key) is None:
                section[key] = {}
            section = section[key]
            if not isinstance(section, dict):
                parent = ".".join(path[:depth])
                raise UsageError(
                    f"{'.'.join(path)} cannot be set: {parent} is {shown(section)}, not a section with keys of its own."
                )
        if path[-1] in CHOOSERS and section.get(path[-1]) != value:
            section.clear()
        section[path[-1]] = copy.deepcopy(value)
    return result


@overload
def build(cls: type[T], mapping: Mapping[str, Any], source: str = ...) -> T: ...
@overload
def build(cls: Any, mapping: Mapping[str, Any], source: str = ...) -> Any: ...
def build(cls: Any, mapping: Mapping[str, Any], source: str = "the recipe") -> Any:
    """An instance of `cls` from plain values, or one UsageError that names the problems of every section.

    A section is first asked for its keys and types; only where these are right, what its values mean can be checked.

    The values pass through JSON on their way: there pydantic's strict mode takes lists for tuples and text for paths,
    while numbers, text and booleans stay what they are.
    """
    problems = _unspeakable(mapping)
    if not problems:
        try:
            return adapter(cls).validate_json(json.dumps(_completed(cls, mapping), default=_plain))
        except ValidationError as error:
            problems = explain(cls, error.errors(include_url=False))
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    raise UsageError("\n".join([f"{source} has {count}:", *(f"  {problem}" for problem in problems)]))


def _unspeakable(value: Any, path: str = "") -> list[str]:
    """Keys and text that no recipe file could hold, and whole numbers beyond 64 bits, which no setting can take."""
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            return [f"{path or 'the top level'}: keys must be text, got {shown(key)}" for key in wrong]
        return [line for key, item in value.items() for line in _unspeakable(item, join(path, key))]
    if isinstance(value, list | tuple):
        return [line for index, item in enumerate(value) for line in _unspeakable(item, f"{path}[{index}]")]
    if isinstance(value, str) and not is_unicode(value):
        return [f"{path}: is not valid UTF-8 text, got {shown(value)}"]
    if isinstance(value, int) and value not in WHOLE_NUMBERS:
        return [f"{path}: must be a whole number of at most 64 bits, got {shown(value)}"]
    return []


def _completed(cls: Any, mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A section that may be left out may also be left empty, or without its kind where its keys are those of the usual.

    `train:` with every key commented out reads as null; where null is a value of its own, it stays null.
    """
    if not is_dataclass(cls):
        return dict(mapping)
    found = {key: options(annotation) for key, annotation in field_types(cls).items()}
    usual = {key_of(entry.name): entry for entry in fields(cls)}
    empty = {
        key
        for key, allowed in found.items()
        if mapping.get(key, ABSENT) is None and not allowed.nullable and allowed.is_section
    }
    made = {key: value for key, value in mapping.items() if key not in empty}
    for key, allowed in found.items():
        name, section = allowed.discriminator, made.get(key)
        if not name or not isinstance(section, Mapping) or name in section:
            continue
        entry = usual[key]
        default: Any = entry.default if entry.default_factory is MISSING else entry.default_factory()
        if not is_dataclass(default):
            continue
        if section.keys() <= field_types(type(default)).keys():
            made[key] = {name: getattr(default, name), **section}
    return made


def to_mapping(value: Any) -> Any:
    """Plain values that YAML and JSON can hold and `build` turns back into an equal instance."""
    if is_dataclass(value) and not isinstance(value, type):
        return {key_of(entry.name): to_mapping(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_mapping(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_mapping(item) for item in value]
    return str(value) if isinstance(value, PurePath) else value


def _plain(value: Any) -> Any:
    made = to_mapping(value)
    if made is value:
        raise TypeError(f"a recipe cannot hold {shown(value)}")
    return made


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Every key path where two recipes differ, with both values; ABSENT where one side lacks the key."""
    return list(_differences(a, b, ""))


def _differences(a: Any, b: Any, path: str) -> Sequence[tuple[str, Any, Any]]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        keys = dict.fromkeys([*a, *b])
        return [line for key in keys for line in _differences(a.get(key, ABSENT), b.get(key, ABSENT), join(path, key))]
    return [] if _same(a, b) else [(path, a, b)]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)
