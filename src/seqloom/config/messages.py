"""What is wrong with a recipe, in our words: pydantic finds the problems, this file says them.

Pydantic's locations carry labels of its own (the tag of a union member, the name of a type); following them along the
annotations gives back the key path as it stands in the recipe, and the type that was expected there.
"""

import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from seqloom.config.kinds import Kinds
from seqloom.core.words import did_you_mean, nearest, shown

NO_SUCH_KEY = "no such key"
_PLAIN = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    dict: "a section",
}
BOUNDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
    "multiple_of": ("multiple_of", "a multiple of"),
}


@dataclass(frozen=True)
class Options:
    """An annotation taken apart: the types it allows, what tells them apart, and whether null is one of them."""

    fixed: tuple[Any, ...]
    discriminator: str | None = None
    nullable: bool = False
    kinds: Kinds | None = None  # sections to choose from besides, which are not imported yet

    @property
    def members(self) -> tuple[Any, ...]:
        """All types it allows, imported."""
        return self.fixed if self.kinds is None else (*self.fixed, *self.kinds.members())

    @property
    def is_section(self) -> bool:
        """Whether it allows sections and, perhaps, null."""
        return self.kinds is not None or all(map(is_dataclass, self.fixed))

    def names(self) -> list[str]:
        """The names that the sections to choose from answer to."""
        if self.kinds is not None:
            return self.kinds.names()
        sections = filter(is_dataclass, self.fixed)
        return [tag for section in sections for tag in get_args(field_types(section).get(self.discriminator or "kind"))]

    def choose(self, label: int | str) -> Any:
        """The section that a label of pydantic's means: its name, or that of its class."""
        if self.kinds is not None:
            return self.kinds.find(label)
        sections: list[Any] = [member for member in self.fixed if is_dataclass(member)]
        if self.discriminator:
            return next((one for one in sections if label in tags(one, self.discriminator)), None)
        return next((one for one in sections if one.__name__ == label), None)


@dataclass(frozen=True)
class Place:
    """Where a problem lies: its key path, the annotation there (None for an unknown key), the section around it, and
    what that section was chosen from by which name, where it comes in kinds."""

    path: str
    annotation: Any
    section: Any
    kinds: Options | None = None
    kind: str = ""


def key_of(name: str) -> str:
    """The key of a field. One that Python keeps for itself has a _ after it there: `from_` is `from` in a recipe."""
    return name.removesuffix("_")


def field_types(section: Any) -> dict[str, Any]:
    """The keys a section may have, each with its annotation."""
    return _field_types(section)


@cache
def _field_types(section: type) -> dict[str, Any]:
    hints = typing.get_type_hints(section, include_extras=True)
    return {key_of(field.name): hints[field.name] for field in fields(section) if field.init}


def options(annotation: Any) -> Options:
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        if kinds := next((entry for entry in metadata if isinstance(entry, Kinds)), None):
            return Options((), kinds.discriminator, kinds=kinds)
        found = options(inner)
        names = (getattr(entry, "discriminator", None) for entry in metadata)
        name = next((name for name in names if isinstance(name, str)), found.discriminator)
        return Options(found.fixed, name, found.nullable, found.kinds)
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [options(part) for part in get_args(annotation)]
        members = tuple(member for part in parts for member in part.fixed)
        name = next((part.discriminator for part in parts if part.discriminator), None)
        kinds = next((part.kinds for part in parts if part.kinds is not None), None)
        return Options(members, name, any(part.nullable for part in parts), kinds)
    if annotation is type(None):
        return Options((), nullable=True)
    return Options((annotation,))


def tags(section: Any, discriminator: str) -> tuple[str, ...]:
    """The names a union member answers to."""
    return get_args(field_types(section)[discriminator])


def locate(annotation: Any, location: Sequence[int | str]) -> Place:
    """Follow one of pydantic's locations from `annotation` down to the key it means."""
    path, section, chosen = "", None, None
    kinds: Options | None = None
    kind: str = ""
    for part in location:
        found = options(annotation)
        if found.kinds is not None or len(found.fixed) > 1:
            chosen = found.choose(part)
            if chosen is None:
                break
            annotation, kinds, kind = chosen, found, str(part)
        elif isinstance(part, int):
            path += f"[{part}]"
            annotation = _item(found.fixed[0], part)
        elif found.fixed and is_dataclass(found.fixed[0]):
            section = found.fixed[0]
            kinds = kinds if section is chosen else None
            path = join(path, part)
            annotation = field_types(section).get(part)
            if annotation is None:
                break
        elif found.fixed and (get_origin(found.fixed[0]) or found.fixed[0]) is dict:
            path = join(path, part)
            annotation = (*get_args(found.fixed[0]), Any, Any)[1]
        else:
            break
    return Place(path, annotation, section, kinds, kind)


def _item(annotation: Any, index: int) -> Any:
    arguments = [argument for argument in get_args(annotation) if argument is not ...]
    return arguments[min(index, len(arguments) - 1)] if arguments else Any


def join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def describe(annotation: Any) -> str:
    """What a value of this type is, as the end of 'must be …'."""
    found = options(annotation)
    choices = [choice for member in found.fixed if get_origin(member) is Literal for choice in get_args(member)]
    words = ["a section"] if found.kinds is not None else []
    words += [_describe_one(member) for member in found.fixed if get_origin(member) is not Literal]
    if choices:
        listed = ", ".join(choice if isinstance(choice, str) else shown(choice) for choice in choices)
        words.append(f"one of {listed}" if len(choices) > 1 else listed)
    if found.nullable:
        words.append("null")
    return " or ".join(dict.fromkeys(words))


def _describe_one(member: Any) -> str:
    if is_dataclass(member):
        return "a section"
    kind = get_origin(member) or member
    if kind is tuple and ... not in get_args(member) and get_args(member):
        return f"a list of {len(get_args(member))}"
    if kind in (tuple, list, set, frozenset):
        return "a list"
    return _PLAIN.get(kind, getattr(kind, "__name__", str(kind)))


def explain(annotation: Any, errors: Iterable[Mapping[str, Any]]) -> list[str]:
    """One line for each problem pydantic found, without repeats."""
    lines: dict[str, None] = {}
    for error in errors:
        location = list(error["loc"])
        if error["type"] == "missing" and location and isinstance(location[-1], int):
            location.pop()  # too short a list: the problem is the list, not the place that is not there
        place = locate(annotation, location)
        if error["type"] in ("value_error", "assertion_error"):  # a line of it for each problem
            found = [line.rstrip(".") for line in str(error["ctx"]["error"]).splitlines()]
            lines.update((f"{place.path}: {line}" if place.path else line, None) for line in found)
        else:
            lines[_line(annotation, place, error)] = None
    return list(lines)


def _line(root: Any, place: Place, error: Mapping[str, Any]) -> str:
    kind, value = error["type"], error["input"]
    if place.annotation is None:
        return f"{place.path}: {_unknown_key(root, place)}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _wrong_tag(place, value)
    if kind == "missing" and isinstance(error["loc"][-1], str):
        return f"{place.path}: missing; it must be {describe(place.annotation)}"
    return f"{place.path or 'the top level'}: {_wrong_value(place, kind, value, error.get('ctx', {}))}"


def _wrong_value(place: Place, kind: str, value: Any, context: Mapping[str, Any]) -> str:
    if kind in BOUNDS:
        key, words = BOUNDS[kind]
        return f"must be {words} {shown(context[key])}, got {shown(value)}"
    if kind == "finite_number":
        return f"must be a finite number, got {shown(value)}"
    if kind in ("too_short", "too_long", "string_too_short", "string_too_long"):
        low, high = context.get("min_length"), context.get("max_length")
        bound = f"at least {low}" if low is not None else f"at most {high}"
        return f"must have {bound} {'characters' if kind.startswith('string') else 'entries'}, got {shown(value)}"
    expected = describe(place.annotation)
    literals = [str(choice) for member in options(place.annotation).fixed for choice in _choices(member)]
    close = nearest(value, literals) if isinstance(value, str) else None
    hint = f"; did you mean {close}?" if close else _meant_kind(place, value)
    if expected == "text" and isinstance(value, int | float):
        hint = "; put it in quotes"
    return f"must be {expected}, got {shown(value)}{hint}"


def _choices(member: Any) -> tuple[Any, ...]:
    return get_args(member) if get_origin(member) is Literal else ()


def _wrong_tag(place: Place, value: Any) -> str:
    found = options(place.annotation)
    name = str(found.discriminator)
    path = join(place.path, name)
    known = found.names()
    if not isinstance(value, Mapping):
        return f"{place.path or 'the top level'}: must be a section, got {shown(value)}{_meant_kind(place, value)}"
    if name in value:
        close = nearest(value[name], known) if isinstance(value[name], str) else None
        hint = f"; did you mean {close}?" if close else ""
        return f"{path}: must be one of {', '.join(known)}, got {shown(value[name])}{hint}"
    valid = {key for member in found.members for key in field_types(member)}
    misspelt = nearest(name, [key for key in value if key not in valid])
    if misspelt:
        return f"{join(place.path, misspelt)}: {NO_SUCH_KEY}; did you mean {path}?"
    fitting = [member for member in found.members if value.keys() <= field_types(member).keys()]
    if len(fitting) == 1 and value:
        (tag, *_), keys = tags(fitting[0], name), ", ".join(value)
        return f"{path}: missing; {keys} {'belongs' if len(value) == 1 else 'belong'} to {tag}: set {path}={tag} too"
    return f"{path}: missing; it must be one of {', '.join(known)}"


def _meant_kind(place: Place, value: Any) -> str:
    """`positions=learned` where `positions.kind=learned` was meant."""
    found = options(place.annotation)
    name = found.discriminator or "kind"
    return f"; did you mean {join(place.path, name)}={value}?" if value in found.names() else ""


def _unknown_key(root: Any, place: Place) -> str:
    prefix, _, key = place.path.rpartition(".")
    known = field_types(place.section)
    close = nearest(key, known)
    if owners := _owners(place, key):
        name = place.kinds.discriminator if place.kinds else ""
        advice = f"did you mean {join(prefix, close)}?" if close else "leave it out"
        return f"is a key of {name} {' and '.join(owners)}, not of {place.kind}; {advice}"
    if close:
        return f"{NO_SUCH_KEY}; did you mean {join(prefix, close)}?"
    elsewhere = sorted({path for path in _paths(root) if path.rpartition(".")[2] == key} - {place.path})
    if elsewhere:
        return f"{NO_SUCH_KEY}; did you mean {' or '.join(elsewhere)}?"
    return f"{NO_SUCH_KEY}; {did_you_mean(key, known)}"


def _owners(place: Place, key: str) -> list[str]:
    """The other kinds of the section that have this key."""
    if place.kinds is None or not (name := place.kinds.discriminator):
        return []
    return [tag for member in place.kinds.members if key in field_types(member) for tag in tags(member, name)]


def _paths(annotation: Any, prefix: str = "") -> Iterator[str]:
    """Every key path a recipe of this type may have."""
    for member in options(annotation).members:
        if is_dataclass(member) and isinstance(member, type):
            for key, inner in field_types(member).items():
                yield join(prefix, key)
                yield from _paths(inner, join(prefix, key))
