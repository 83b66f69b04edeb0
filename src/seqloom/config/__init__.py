"""The recipe grammar: frozen dataclasses with constraints in their annotations, YAML, overrides and messages.

A recipe is read (`load_yaml`), overridden (`apply_overrides`) and validated (`build`). `build`
reports the problems of all sections together. `build` never converts numbers, strings and booleans into one another,
and never evaluates a string as code.
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
from seqloom.core.words import WHOLE_NUMBERS, find_nearest, format_value, is_unicode

__all__ = ["Discriminator", "Kinds", "dump_yaml", "find_nearest", "load_yaml"]  # imported names to export

T = TypeVar("T")
Override = tuple[tuple[str, ...], Json]
DISCRIMINATORS = ("kind", "corpus")  # the keys that select the config of a section
PYDANTIC_CONFIG = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, alias_generator=key_of)


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT = _Absent()  # the value in `differences` of a key that one side lacks


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def config(cls: type[T]) -> type[T]:
    """Turn a class into a frozen, keyword-only dataclass; `build` rejects its unknown keys.

    Write a constraint on a single value in its annotation (`config/constraints.py`). For rules
    between fields, define a method `problems` that yields a sentence for each broken rule.
    """
    cls.__post_init__ = _validate  # type: ignore[attr-defined]
    config_class = dataclass(frozen=True, kw_only=True)(cls)
    config_class.__pydantic_config__ = PYDANTIC_CONFIG  # type: ignore[attr-defined]
    return config_class


@runtime_checkable
class _WithProblems(Protocol):
    def problems(self) -> Iterable[str]: ...


class ConfigError(ValueError):
    """All problems of a config, one per line: violated constraints, then broken rules between fields (`problems`)."""

    def __init__(self, violations: list[str], problems: list[str]):
        super().__init__("\n".join([*violations, *problems]))
        self.problems = problems


def _validate(self: object) -> None:
    """Raise a ConfigError if a constraint or rule is broken.

    If a rule raises ValueError, the message of this error is the last problem. If a rule cannot be computed because a
    value violates a constraint, this rule and all later rules are skipped.
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
    """Parse `["train.lr=2e-3"]` as `[(("train", "lr"), 0.002)]`; values are YAML scalars, [lists] or {mappings}."""
    overrides: list[Override] = []
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"An override must have the form key.path=value; got '{word}'.")
        path = tuple(part.strip() for part in name.split("."))
        if not all(path):
            raise UsageError(f"An override must begin with a key, such as train.lr=0.01; got '{word}'.")
        text = text.strip()
        # Lists, mappings and quoted texts are parsed as YAML; *.txt and "a: b" remain texts.
        is_yaml = text[:1] in ("[", "{", '"', "'")
        overrides.append((path, parse_yaml(text, f"the override '{word}'") if is_yaml else plain_scalar(text)))
    return overrides


def apply_overrides(mapping: Mapping[str, Json], overrides: Iterable[Override]) -> dict[str, Json]:
    """Return a copy of `mapping` to which the overrides are applied in order; missing sections are created.

    An override of `kind` or `corpus` clears the section, because the other keys belong to the old kind. These overrides
    are applied first, so the order of the overrides on the command line does not matter.
    """
    result: dict[str, Json] = copy.deepcopy(dict(mapping))
    for path, value in sorted(overrides, key=lambda override: override[0][-1] not in DISCRIMINATORS):
        section = result
        for depth, key in enumerate(path[:-1], start=1):
            if section.get(key) is None:
                section[key] = {}
            section = section[key]
            if not isinstance(section, dict):
                parent = ".".join(path[:depth])
                raise UsageError(
                    f"{'.'.join(path)} cannot be set: {parent} must be a section with keys, but it is "
                    f"{format_value(section)}."
                )
        if path[-1] in DISCRIMINATORS and section.get(path[-1]) != value:
            section.clear()
        section[path[-1]] = copy.deepcopy(value)
    return result


# --- building ---------------------------------------------------------------------------------------------------------


@overload
def build(cls: type[T], mapping: Mapping[str, Json], source: str = ...) -> T: ...
@overload
def build(cls: Annotation, mapping: Mapping[str, Json], source: str = ...) -> Any: ...
def build(cls: Annotation, mapping: Mapping[str, Json], source: str = "the recipe") -> Any:
    """Build an instance of `cls` from plain values; raise one `UsageError` with the problems of all sections.

    The rules between fields are checked in every section with valid keys and types, even if values violate constraints.

    The values are validated as JSON. For JSON, pydantic's strict mode accepts lists for tuples and strings for paths,
    but rejects a number for a string and a string for a number.
    """

    def to_json(value: object) -> Json:
        if (mapped := to_mapping(value)) is value:
            raise TypeError(f"a recipe cannot contain {format_value(value)}")
        return mapped

    problems = list(_unwritable_values(mapping))
    if not problems:
        text = json.dumps(complete_sections(cls, mapping), default=to_json)
        try:
            return adapter(cls).validate_json(text)
        except ValidationError as error:
            from seqloom.config.messages import explain  # imported here because valid recipes do not need it

            problems = explain(cls, json.loads(text), error.errors(include_url=False))
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    raise UsageError("\n".join([f"{source} has {count}:", *(f"  {problem}" for problem in problems)]))


def _unwritable_values(value: Json, path: str = "") -> Iterator[str]:
    """Report keys and strings that a recipe file cannot contain, and whole numbers of more than 64 bits."""
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        yield from (f"{path or 'the top level'}: keys must be a string; got {format_value(key)}" for key in wrong)
        for key, item in () if wrong else value.items():
            yield from _unwritable_values(item, join(path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _unwritable_values(item, f"{path}[{index}]")
    elif isinstance(value, str) and not is_unicode(value):
        yield f"{path}: must be valid UTF-8 text; got {format_value(value)}"
    elif isinstance(value, int) and value not in WHOLE_NUMBERS:
        yield f"{path}: must be a whole number of at most 64 bits; got {format_value(value)}"


def complete_sections(cls: Annotation, mapping: Mapping[str, Json]) -> dict[str, Json]:
    """Remove empty sections that have defaults, and add the default kind to a section if all keys belong to this kind.

    In YAML, `train:` is null if all its keys are commented out. A null that is a valid value is kept.
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
    """Convert a config to plain values for YAML and JSON; `build` converts them back to an equal config."""
    if is_dataclass(value) and not isinstance(value, type):
        return {key_of(entry.name): to_mapping(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_mapping(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_mapping(item) for item in value]
    return str(value) if isinstance(value, PurePath) else value


def differences(a: Json, b: Json, path: str = "") -> list[tuple[str, Json, Json]]:
    """Return every key path at which two recipes differ, with both values; ABSENT marks a missing key."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        keys = dict.fromkeys([*a, *b])
        return [line for key in keys for line in differences(a.get(key, ABSENT), b.get(key, ABSENT), join(path, key))]
    return [] if _are_equal(a, b) else [(path, a, b)]


def _are_equal(a: Json, b: Json) -> bool:
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_are_equal, a, b))
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)
