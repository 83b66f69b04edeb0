"""The fraction of predictions that are valid Python."""

import ast
import warnings
from collections.abc import Sequence


def python_validity(predictions: Sequence[str]) -> dict[str, float]:
    """Return the fraction of predictions that Python can parse, from 0 to 1."""
    return {"valid_python": sum(map(is_python, predictions)) / max(len(predictions), 1)}


def is_python(text: str) -> bool:
    """Return whether a text is Python code. The header of a block, such as `def f(x):`, needs no body."""
    code = text.strip()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ast.parse warns about escapes such as "\\d"
        try:
            ast.parse(f"{code} ..." if code.endswith(":") else code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # null characters, and deeply nested brackets
            return False
    return bool(code)
