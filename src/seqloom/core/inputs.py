"""Checks of arguments from Python: lists, arrays and columns of texts, words, labels or numbers.

Errors are `TypeError` and `ValueError`. Each message names the argument and the index of the item, and states what to
do.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

from seqloom.core.words import did_you_mean, format_count, is_unicode

TO_LIST = ("tolist", "to_pylist", "to_list")  # methods of numpy and pandas, of pyarrow, and of polars


def is_missing(value: object) -> bool:
    """Return whether a value is None, NaN, or the missing value of pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # the value is an array
        return False


def check_items(values: Any, name: str, of: str = "texts") -> Iterable[Any]:
    """Return `values` if it is a list, an iterator, a one-dimensional array or a column of a table.

    Raise an error for any other value.
    """
    if isinstance(values, str | bytes | bytearray):
        received = "one string" if isinstance(values, str) else "bytes"
        advice = "split it into words" if of == "words" else f"write [{name}]"
        raise TypeError(f"{name} must be a list of {of}; got {received}: {advice}")
    shape = getattr(values, "shape", None)
    if shape is not None and hasattr(values, "columns"):
        columns = list(values.columns)
        advice = f": select a column, such as table[{columns[0]!r}]" if columns else ""
        received = format_count(len(columns), "column")
        raise TypeError(f"{name} must be one column; got a table with {received}{advice}")
    if isinstance(values, Mapping | Set) or not isinstance(values, Iterable):
        order = ", which has no order" if isinstance(values, Set) else ""
        raise TypeError(f"{name} must be a list of {of}; got {type(values).__name__}{order}")
    if shape is not None and len(shape) != 1:
        raise ValueError(f"{name} must have one dimension; got an array of shape {tuple(shape)}")
    convert = next((getattr(values, method) for method in TO_LIST if hasattr(values, method)), None)
    items: Iterable[Any] = values if convert is None else convert()
    return items


def check_list(values: Any, name: str, of: str = "texts") -> list[Any]:
    """Return values as a list; see `check_items`."""
    return list(check_items(values, name, of))


def check_text(value: object, name: str) -> str:
    """Return `value` if it is a string; otherwise raise an error."""
    if isinstance(value, str):
        if not value.isascii() and not is_unicode(value):
            raise ValueError(f"{name} must be valid Unicode; got an unpaired surrogate: {value!r}")
        return value
    if is_missing(value):
        raise ValueError(f"{name} must be a string; got {value!r}: drop or fill missing values first")
    hint = "; join its words with spaces" if isinstance(value, list | tuple) else ""
    hint = "; decode it first" if isinstance(value, bytes | bytearray) else hint
    raise TypeError(f"{name} must be a string; got {type(value).__name__}{hint}")


def iterate_texts(values: Any, name: str = "texts", of: str = "texts") -> Iterator[str]:
    """Return an iterator over texts; each text is checked when it is read."""
    return (check_text(item, f"{name}[{index}]") for index, item in enumerate(check_items(values, name, of)))


def check_texts(values: Any, name: str = "texts", of: str = "texts") -> list[str]:
    """Return texts as a list."""
    return list(iterate_texts(values, name, of))


def check_words(values: Any, name: str) -> list[str]:
    """Return the words of a sentence as a list; raise an error if a word contains spaces."""
    words = check_texts(values, name, "words")
    for index, word in enumerate(words):
        if len(word.split()) != 1 or word.strip() != word:
            raise ValueError(f"{name}[{index}] must be a word without spaces; got {word!r}")
    return words


def check_pairs(pairs: Any, name: str, of: str) -> Iterator[tuple[str, Any]]:
    """Return an iterator over pairs whose first item is a text; `of` describes a pair."""

    def check(index: int, pair: Any) -> tuple[str, Any]:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            received = f"{len(pair)} items" if isinstance(pair, list | tuple) else type(pair).__name__
            raise TypeError(f"{name}[{index}] must be {of}; got {received}")
        return check_text(pair[0], f"{name}[{index}][0]"), pair[1]

    return (check(index, pair) for index, pair in enumerate(check_items(pairs, name, "pairs")))


def check_whole(**values: object) -> None:
    """Raise TypeError unless all values are whole numbers."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"{name} must be a whole number; got {value!r}")


def check_options(kind: Any, options: Mapping[str, object]) -> None:
    """Raise TypeError for an option that is not a field of the dataclass `kind`, or is a string instead of a number."""
    defaults = {field.name: field.default for field in fields(kind)}
    for name, value in options.items():
        if name not in defaults:
            raise TypeError(f"there is no option {name!r}: {did_you_mean(name, defaults)}")
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if isinstance(defaults[name], int | float | None) and value is not None and not is_number:
            raise TypeError(f"{name} must be a number; got {value!r}")


def check_lengths(**values: Sequence[object]) -> None:
    """Raise ValueError unless all lists have the same length and are not empty."""
    lengths = {name: len(items) for name, items in values.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(" and ".join(f"{name} ({length})" for name, length in lengths.items()) + " differ in length")
    if 0 in lengths.values():
        raise ValueError(f"{next(iter(lengths))} must not be empty")
