"""The recipe grammar: configs as frozen dataclasses, constraints in their annotations, YAML, overrides, messages.

A recipe is read once (`load_yaml`), overridden (`apply_overrides`) and checked in one pass
(`build`), which reports the problems of all sections at once. Numbers, text and booleans are never
turned into one another, and nothing is ever evaluated.
"""

import copy
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import PurePath
from typing import Any, Protocol, TypeVar, dataclass_transform, overload, runtime_checkable

from pydantic import ConfigDict, ValidationError

from seqloom.config.constraints import (
    Annotation,
    Discriminator,
    Kinds,
    adapter,
    field_types,
    join,
    key_of,
    options,
    violations,
)
from seqloom.config.yaml_text import dump_yaml, load_yaml, parse_yaml, plain_scalar
from seqloom.core import Json
from seqloom.core.errors import UsageError
from seqloom.core.limits import limit_problems
from seqloom.core.words import WHOLE_NUMBERS, is_unicode, nearest, shown

__all__ = ["Discriminator", "Kinds", "dump_yaml", "load_yaml", "nearest"]  # besides what is defined here

T = TypeVar("T")
Override = tuple[tuple[str, ...], Json]
CHOOSERS = ("kind", "corpus")  # the keys that say which config a section is
RULES = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, alias_generator=key_of)


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT = _Absent()  # stands in `differences` for a key that one side does not have


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def config(cls: type[T]) -> type[T]:
    """A frozen dataclass with named fields only, whose unknown keys are refused by `build`.

    Constraints on a single value stand in its annotation (`config/constraints.py`). Rules between
    fields: a method `problems` that yields a plain sentence for each thing wrong.
    """
    cls.__post_init__ = _refuse  # type: ignore[attr-defined]
    made = dataclass(frozen=True, kw_only=True)(cls)
    made.__pydantic_config__ = RULES  # type: ignore[attr-defined]
    return made


@runtime_checkable
class _WithProblems(Protocol):
    def problems(self) -> Iterable[str]: ...


class ConfigError(ValueError):
    """All problems of a config, a line each: those of single values, and those of the rules between fields."""

    def __init__(self, violations: list[str], problems: list[str]):
        super().__init__("\n".join([*violations, *problems]))
        self.problems = problems


def _refuse(self: object) -> None:
    """Raise a ConfigError if anything is wrong. A ValueError of a rule is the last problem.

    A value that violates a constraint may make a rule impossible to compute; this rule and those
    after it are then left out.
    """
    broken, problems = list(violations(self)), list(limit_problems(vars(self)))
    try:
        problems.extend(self.problems() if isinstance(self, _WithProblems) else ())
    except ValueError as error:
        problems.append(str(error))
    except Exception:
        if not broken:
            raise
    if broken or problems:
        raise ConfigError(broken, [problem for problem in problems if problem not in broken])


# --- overrides --------------------------------------------------------------------------------------------------------


def parse_overrides(words: Iterable[str]) -> list[Override]:
    """`["train.lr=2e-3"]` → `[(("train", "lr"), 0.002)]`; values are YAML scalars, [lists] or {mappings}."""
    overrides: list[Override] = []
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"An override must look like key.path=value, got '{word}'.")
        path = tuple(part.strip() for part in name.split("."))
        if not all(path):
            raise UsageError(f"An override must begin with a key, such as train.lr=0.01, got '{word}'.")
        text = text.strip()
        # Only what opens a list, a mapping or a quotation is parsed; *.txt or "a: b" are then the text they look like.
        is_yaml = text[:1] in ("[", "{", '"', "'")
        overrides.append((path, parse_yaml(text, f"the override '{word}'") if is_yaml else plain_scalar(text)))
    return overrides


def apply_overrides(mapping: Mapping[str, Json], overrides: Iterable[Override]) -> dict[str, Json]:
    """A copy of `mapping` with each override set, the later winning; missing sections are made.

    Choosing another `kind` or `corpus` starts its section afresh, since the keys of the old one
    would mean nothing to it; such choices are made first, so that the order of the words does not
    matter.
    """
    result: dict[str, Json] = copy.deepcopy(dict(mapping))
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


# --- building ---------------------------------------------------------------------------------------------------------


@overload
def build(cls: type[T], mapping: Mapping[str, Json], source: str = ...) -> T: ...
@overload
def build(cls: Annotation, mapping: Mapping[str, Json], source: str = ...) -> Any: ...
def build(cls: Annotation, mapping: Mapping[str, Json], source: str = "the recipe") -> Any:
    """An instance of `cls` from plain values, or one UsageError that names the problems of every section.

    The rules between the fields of a section are checked where its keys and types are right, even
    if values violate constraints.

    The values pass through JSON on their way: there pydantic's strict mode takes lists for tuples
    and text for paths, while numbers, text and booleans stay what they are.
    """

    def plain(value: object) -> Json:
        if (mapped := to_mapping(value)) is value:
            raise TypeError(f"a recipe cannot hold {shown(value)}")
        return mapped

    problems = list(_unspeakable(mapping))
    if not problems:
        text = json.dumps(complete_sections(cls, mapping), default=plain)
        try:
            return adapter(cls).validate_json(text)
        except ValidationError as error:
            from seqloom.config.messages import explain  # which a recipe without problems does not need

            problems = explain(cls, json.loads(text), error.errors(include_url=False))
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    raise UsageError("\n".join([f"{source} has {count}:", *(f"  {problem}" for problem in problems)]))


def _unspeakable(value: Json, path: str = "") -> Iterator[str]:
    """Keys and text that no recipe file could hold, and whole numbers beyond 64 bits, which no setting can take."""
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        yield from (f"{path or 'the top level'}: keys must be text, got {shown(key)}" for key in wrong)
        for key, item in () if wrong else value.items():
            yield from _unspeakable(item, join(path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _unspeakable(item, f"{path}[{index}]")
    elif isinstance(value, str) and not is_unicode(value):
        yield f"{path}: is not valid UTF-8 text, got {shown(value)}"
    elif isinstance(value, int) and value not in WHOLE_NUMBERS:
        yield f"{path}: must be a whole number of at most 64 bits, got {shown(value)}"


def complete_sections(cls: Annotation, mapping: Mapping[str, Json]) -> dict[str, Json]:
    """A section that may be left out may also be left empty, or without its kind where its keys are those of the usual.

    `train:` with every key commented out reads as null; where null is a value of its own, it stays
    null.
    """
    if not is_dataclass(cls):
        return dict(mapping)
    completed = dict(mapping)
    for entry in fields(cls):
        key = key_of(entry.name)
        if not entry.init or key not in mapping:
            continue
        allowed, section = options(field_types(cls)[key]), mapping[key]
        if section is None and not allowed.nullable and allowed.is_section:
            del completed[key]
        name = allowed.discriminator
        if name and isinstance(section, Mapping) and name not in section:
            default: Any = entry.default if entry.default_factory is MISSING else entry.default_factory()
            if is_dataclass(default) and section.keys() <= field_types(type(default)).keys():
                completed[key] = {name: getattr(default, name), **section}
    return completed


def to_mapping(value: Any) -> Json:
    """Plain values that YAML and JSON can hold and `build` turns back into an equal instance."""
    if is_dataclass(value) and not isinstance(value, type):
        return {key_of(entry.name): to_mapping(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_mapping(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_mapping(item) for item in value]
    return str(value) if isinstance(value, PurePath) else value


def differences(a: Json, b: Json, path: str = "") -> list[tuple[str, Json, Json]]:
    """Every key path where two recipes differ, with both values; ABSENT where one side lacks the key."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        keys = dict.fromkeys([*a, *b])
        return [line for key in keys for line in differences(a.get(key, ABSENT), b.get(key, ABSENT), join(path, key))]
    return [] if _same(a, b) else [(path, a, b)]


def _same(a: Json, b: Json) -> bool:
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)
