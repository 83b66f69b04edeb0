"""Views as plain values: what JSON can carry."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def to_plain(value: Any) -> Any:
    """The same as lists, numbers and words that JSON has: dataclasses and named tuples become objects, arrays lists.

    A number that is not finite is None. A lone surrogate, which UTF-8 has no bytes for, is written as \\ud800. A field
    of a dataclass whose metadata says `json: False` is left out.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.integer | np.bool_):
        return value.item()
    if isinstance(value, np.ndarray):
        return to_plain(value.tolist())
    if is_dataclass(value) and not isinstance(value, type):
        kept = [each.name for each in fields(value) if each.metadata.get("json", True)]
        return {name: to_plain(getattr(value, name)) for name in kept}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return to_plain(value._asdict())
    if isinstance(value, Mapping):
        return {to_plain(str(key)): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [to_plain(item) for item in value]
    return value
