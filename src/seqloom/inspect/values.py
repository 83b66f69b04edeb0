"""Views as plain values that JSON can represent."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import UsageError

Array = NDArray[np.floating]


def to_plain(value: object) -> Any:
    """Convert a value to JSON types: dataclasses and named tuples become objects, and arrays become lists.

    A nonfinite number becomes None. A lone surrogate, which UTF-8 cannot encode, is written as \\ud800.
    Dataclass fields whose metadata has `json: False` are omitted.
    """
    match value:
        case str():
            return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
        case float() | np.floating():
            return float(value) if math.isfinite(value) else None
        case np.integer() | np.bool_():
            return value.item()
        case np.ndarray():
            return to_plain(value.tolist())
        case Mapping():
            return {to_plain(str(key)): to_plain(item) for key, item in value.items()}
        case tuple() if fields_of_tuple := getattr(type(value), "_fields", None):
            return {name: to_plain(item) for name, item in zip(fields_of_tuple, value, strict=True)}
        case list() | tuple() | set():
            return [to_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in fields(value) if each.metadata.get("json", True)]
        return {name: to_plain(getattr(value, name)) for name in names}
    return value


def check_choices(subject: str, suffix: str = "", **choices: Sequence[object]) -> None:
    """Reject a list of choices that is empty or has duplicates."""
    for name, values in choices.items():
        if not values:
            raise UsageError(f"{subject} needs at least one of {name}; got none.")
        if len(set(values)) < len(values):
            listed = ", ".join(map(str, values))
            raise UsageError(f"The {name}{suffix} must differ from each other; got {listed}.")
