"""Constraints on single values, written in the annotation of a field: `layers: PositiveInt = 2`.

`build` checks them when a recipe is read, `violations` when a config is created in Python. A rule between several
fields belongs to the config's method `problems`.
"""

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen

from seqloom.config.messages import field_types, key_of
from seqloom.core.words import shown

__all__ = [
    "Fraction",
    "Ge",
    "Gt",
    "Le",
    "Lt",
    "MinLen",
    "NonNegativeFloat",
    "NonNegativeInt",
    "PositiveFloat",
    "PositiveInt",
    "Probability",
    "bounds",
    "violations",
]

PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Probability = Annotated[float, Ge(0), Le(1)]
Fraction = Annotated[float, Ge(0), Lt(1)]  # a share that is never the whole, such as the rate of dropout

_BOUNDS: dict[type, tuple[str, Callable[[Any, Any], bool], str]] = {
    Ge: ("ge", operator.ge, "at least"),
    Gt: ("gt", operator.gt, "greater than"),
    Le: ("le", operator.le, "at most"),
    Lt: ("lt", operator.lt, "less than"),
}


@dataclass(frozen=True)
class _Annotation:
    """The constraints of a value, and the annotation of its items if it is a tuple."""

    constraints: tuple[Any, ...]
    items: Any = None


def violations(instance: Any) -> Iterator[str]:
    """One sentence for each field whose value violates a constraint of its annotation."""
    cls: Any = type(instance)
    for name, annotation in _constrained_fields(cls):
        yield from _check(name, getattr(instance, name), annotation)


def _check(name: str, value: Any, annotation: _Annotation) -> Iterator[str]:
    if value is None:
        return
    for constraint in annotation.constraints:
        if broken := _broken_rule(constraint, value):
            yield f"{name} must {broken}; got {shown(value)}"
            break
    if annotation.items is not None and isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from _check(f"{name}[{index}]", item, annotation.items)


def _broken_rule(constraint: Any, value: Any) -> str | None:
    if isinstance(constraint, MinLen):
        return None if len(value) >= constraint.min_length else f"have at least {constraint.min_length} entries"
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    attribute, holds, words = _BOUNDS[type(constraint)]
    bound = getattr(constraint, attribute)
    return None if holds(value, bound) else f"be {words} {shown(bound)}"


def bounds(annotation: Any) -> list[str]:
    """The bounds of a number in words: `["at least 0", "less than 1"]`."""
    found = _read(annotation)
    numeric = [constraint for constraint in found.constraints if type(constraint) in _BOUNDS] if found else []
    return [
        f"{words} {shown(getattr(constraint, attribute))}"
        for constraint in numeric
        for attribute, _, words in (_BOUNDS[type(constraint)],)
    ]


@cache
def _constrained_fields(cls: type) -> list[tuple[str, _Annotation]]:
    types = field_types(cls)
    found = ((field.name, _read(types[key_of(field.name)])) for field in fields(cls) if field.init)
    return [(name, annotation) for name, annotation in found if annotation is not None]


def _read(annotation: Any) -> _Annotation | None:
    """Read the constraints of an annotation: its own, those of its items and those of the members of a union."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        own = tuple(entry for entry in metadata if isinstance(entry, Ge | Gt | Le | Lt | MinLen))
        below = _read(inner)
        items = below.items if below else None
        return _Annotation(own, items) if own or items else None
    if get_origin(annotation) is tuple:
        items = next(filter(None, map(_read, get_args(annotation))), None)
        return _Annotation((), items) if items else None
    members = [found for member in get_args(annotation) if (found := _read(member))]
    return members[0] if members else None


Difference = Literal["none", "step", "season"]


def lag_of(difference: Difference | None, season: int) -> int:
    """How many steps back lies what is subtracted; 0 for nothing. None is a season, or one step where there is none."""
    return season if difference is None else {"none": 0, "step": 1, "season": season}[difference]
