"""JSON for programs: one object a line, plain ASCII, and strictly JSON, which has no word for infinity."""

import json
import math
from collections.abc import Mapping
from typing import Any


def print_json(value: Mapping[str, Any]) -> None:
    """What is not finite becomes null; letters are escaped, so that no terminal can change them."""
    print(json.dumps(finite(value), allow_nan=False), flush=True)


def finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
