"""What is wrong with a recipe, in our words: pydantic finds the problems, this file says them.

Pydantic's locations carry labels of its own (the tag of a union member, the name of a type);
following them along the annotations gives back the key path as it stands in the recipe, and the
type that was expected there.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import TypeAdapter, ValidationError

from seqloom.config import ConfigError
from seqloom.config.constraints import (
    BOUNDS,
    Annotation,
    Options,
    field_types,
    item_type,
    join,
    key_of,
    options,
    origin,
    tags,
)
from seqloom.core import Json
from seqloom.core.words import did_you_mean, nearest, shown

NO_SUCH_KEY = "no such key"
CONSTRAINTS = {*BOUNDS, "too_short", "too_long", "string_too_short", "string_too_long"}  # pydantic's names of breaches
PLAIN_TYPES = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    dict: "a section",
}


@dataclass(frozen=True)
class ProblemLocation:
    """Where a problem lies: its key path, the annotation there (None for an unknown key), the section around it with
    its path and values, and what that section was chosen from by which name, where it comes in kinds."""

    path: str
    annotation: Annotation
    section: Annotation
    section_path: str
    section_values: Json
    kinds: Options | None = None
    kind: str = ""

    @property
    def name(self) -> str:
        return self.path or "the top level"


def locate(annotation: Annotation, values: Json, labels: Sequence[int | str]) -> ProblemLocation:
    """Follow one of pydantic's locations from `annotation` and its values down to the key it means."""
    path, section, chosen, kind = "", None, None, ""
    section_path, section_values = "", values
    kinds: Options | None = None
    for label in labels:
        allowed = options(annotation)
        only = allowed.fixed[0] if allowed.fixed else None
        if allowed.kinds is not None or len(allowed.fixed) > 1:
            chosen = allowed.choose(label)
            if chosen is None:
                break
            annotation, kinds, kind = chosen, allowed, str(label)
        elif isinstance(label, int):
            path += f"[{label}]"
            annotation = item_type(only, label)
            values = values[label] if isinstance(values, list) and label < len(values) else None
        elif is_dataclass(only):
            section, section_path, section_values = only, path, values
            values = values.get(label) if isinstance(values, Mapping) else None
            kinds = kinds if section is chosen else None
            path = join(path, label)
            annotation = field_types(section).get(label)
            if annotation is None:
                break
        elif (origin(only) or only) is dict:
            path = join(path, label)
            annotation = (*get_args(only), Any, Any)[1]
        else:
            break
    return ProblemLocation(path, annotation, section, section_path, section_values, kinds, kind)


def describe(annotation: Annotation) -> str:
    """What a value of this type is, as the end of 'must be …'."""
    allowed = options(annotation)
    words = ["a section"] if allowed.kinds is not None else []
    for member in allowed.fixed:
        kind, arguments = origin(member) or member, get_args(member)
        if is_dataclass(member):
            words.append("a section")
        elif kind is tuple and ... not in arguments and arguments:
            words.append(f"a list of {len(arguments)}")
        elif kind in (tuple, list, set, frozenset):
            words.append("a list")
        elif kind is not Literal:
            words.append(PLAIN_TYPES.get(kind, kind.__name__ if isinstance(kind, type) else str(kind)))
    if choices := literals(allowed):
        listed = ", ".join(choice if isinstance(choice, str) else shown(choice) for choice in choices)
        words.append(f"one of {listed}" if len(choices) > 1 else listed)
    if allowed.nullable:
        words.append("null")
    return " or ".join(dict.fromkeys(words))


def literals(allowed: Options) -> list[Json]:
    """The values that are allowed by name."""
    return [choice for member in allowed.fixed if origin(member) is Literal for choice in get_args(member)]


def explain(annotation: Annotation, values: Json, errors: Iterable[Mapping[str, Json]]) -> list[str]:
    """One line for each problem pydantic found, and for each broken rule that it did not check; without repeats."""
    lines: dict[str, None] = {}
    constrained: dict[tuple[str, Annotation], ProblemLocation] = {}  # sections in which values violate constraints
    incomplete = set()  # sections with other problems: their rules cannot be checked
    for error in errors:
        labels, kind, value = list(error["loc"]), error["type"], error["input"]
        if kind == "missing" and labels and isinstance(labels[-1], int):
            labels.pop()  # too short a list: the problem is the list, not the entry that is not there
        location = locate(annotation, values, labels)
        section = location.section_path, location.section
        if kind in CONSTRAINTS or (kind == "value_error" and not options(location.annotation).is_section):
            constrained.setdefault(section, location)
        else:
            incomplete.add(section)
        if kind in ("value_error", "assertion_error"):  # a line of it for each problem
            problems = [line.rstrip(".") for line in str(error["ctx"]["error"]).splitlines()]
            lines.update((f"{location.path}: {line}" if location.path else line, None) for line in problems)
        elif location.annotation is None:
            lines[f"{location.path}: {explain_unknown_key(annotation, location)}"] = None
        elif kind in ("union_tag_invalid", "union_tag_not_found"):
            lines[explain_kind(location, value)] = None
        elif kind == "missing" and isinstance(error["loc"][-1], str):
            lines[f"{location.path}: missing; it must be {describe(location.annotation)}"] = None
        else:
            lines[f"{location.name}: {explain_value(location, kind, value, error.get('ctx', {}))}"] = None
    checked = [location for section, location in constrained.items() if section not in incomplete]
    for location in checked:
        path = location.section_path
        if [other.section_path for other in checked].count(path) == 1:  # else it is not clear which section is meant
            rules = [rule for rule in broken_rules(location) if not any(line.endswith(f": {rule}") for line in lines)]
            lines.update((f"{path}: {rule}" if path else rule, None) for rule in rules)
    return list(lines)


def broken_rules(location: ProblemLocation) -> list[str]:
    """The broken rules between the fields of a section whose values have the right types.

    Pydantic does not create a section in which a value violates a constraint, so its rules are not
    checked. Here it is created with these values.
    """
    values: dict[str, Json] = {}
    for entry in fields(location.section):
        key = key_of(entry.name)
        if not entry.init or key not in location.section_values:
            continue
        value = location.section_values[key]
        try:
            value = TypeAdapter(field_types(location.section)[key]).validate_json(json.dumps(value))
        except ValidationError:
            if isinstance(value, Mapping):
                return []  # a section with problems of its own, which the rules may need
            value = tuple(value) if isinstance(value, list) else value
        values[entry.name] = value
    try:
        location.section(**values)
    except Exception as error:  # not only a ConfigError: such values may make a rule impossible to compute
        problems = error.problems if isinstance(error, ConfigError) else []
        return [line.rstrip(".") for problem in problems for line in problem.splitlines()]
    return []


def explain_value(location: ProblemLocation, kind: str, value: Json, context: Mapping[str, Json]) -> str:
    """What is wrong with a value."""
    if kind in BOUNDS:
        return f"must be {BOUNDS[kind].words} {shown(context[BOUNDS[kind].attribute])}, got {shown(value)}"
    if kind == "finite_number":
        return f"must be a finite number, got {shown(value)}"
    if kind in ("too_short", "too_long", "string_too_short", "string_too_long"):
        low, high = context.get("min_length"), context.get("max_length")
        bound = f"at least {low}" if low is not None else f"at most {high}"
        return f"must have {bound} {'characters' if kind.startswith('string') else 'entries'}, got {shown(value)}"
    expected = describe(location.annotation)
    names = [str(choice) for choice in literals(options(location.annotation))]
    close = nearest(value, names) if isinstance(value, str) else None
    hint = f"; did you mean {close}?" if close else suggest_kind(location, value)
    if expected == "text" and isinstance(value, int | float):
        hint = "; put it in quotes"
    return f"must be {expected}, got {shown(value)}{hint}"


def suggest_kind(location: ProblemLocation, value: Json) -> str:
    """`positions=learned` where `positions.kind=learned` was meant."""
    allowed = options(location.annotation)
    key = join(location.path, allowed.discriminator or "kind")
    return f"; did you mean {key}={value}?" if value in allowed.names() else ""


def explain_kind(location: ProblemLocation, value: Json) -> str:
    """What is wrong with the choice of a section, or why it is none."""
    if not isinstance(value, Mapping):
        return f"{location.name}: must be a section, got {shown(value)}{suggest_kind(location, value)}"
    allowed = options(location.annotation)
    name, known = str(allowed.discriminator), allowed.names()
    path = join(location.path, name)
    if name in value:
        close = nearest(value[name], known) if isinstance(value[name], str) else None
        hint = f"; did you mean {close}?" if close else ""
        return f"{path}: must be one of {', '.join(known)}, got {shown(value[name])}{hint}"
    valid = {key for member in allowed.members for key in field_types(member)}
    misspelt = nearest(name, [key for key in value if key not in valid])
    if misspelt:
        return f"{join(location.path, misspelt)}: {NO_SUCH_KEY}; did you mean {path}?"
    fitting = [member for member in allowed.members if value.keys() <= field_types(member).keys()]
    if len(fitting) == 1 and value:
        (tag, *_), keys = tags(fitting[0], name), ", ".join(value)
        return f"{path}: missing; {keys} {'belongs' if len(value) == 1 else 'belong'} to {tag}: set {path}={tag} too"
    return f"{path}: missing; it must be one of {', '.join(known)}"


def explain_unknown_key(root: Annotation, location: ProblemLocation) -> str:
    """What a key that does not exist may have meant: one of another kind, a similar one, one of another section."""
    prefix, _, key = location.path.rpartition(".")
    known, kinds = field_types(location.section), location.kinds
    close = nearest(key, known)
    if kinds is not None and (name := kinds.discriminator):
        owners = [tag for member in kinds.members if key in field_types(member) for tag in tags(member, name)]
        if owners:
            advice = f"did you mean {join(prefix, close)}?" if close else "leave it out"
            return f"is a key of {name} {' and '.join(owners)}, not of {location.kind}; {advice}"
    if close:
        return f"{NO_SUCH_KEY}; did you mean {join(prefix, close)}?"
    elsewhere = sorted({path for path in key_paths(root) if path.rpartition(".")[2] == key} - {location.path})
    if elsewhere:
        return f"{NO_SUCH_KEY}; did you mean {' or '.join(elsewhere)}?"
    return f"{NO_SUCH_KEY}; {did_you_mean(key, known)}"


def key_paths(annotation: Annotation, prefix: str = "") -> Iterator[str]:
    """Every key path a recipe of this type may have."""
    for member in filter(is_dataclass, options(annotation).members):
        for key, inner in field_types(member).items():
            yield join(prefix, key)
            yield from key_paths(inner, join(prefix, key))
