"""Results of predictors: lists, which notebooks display as tables, and iterators for streaming."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from seqloom.core import Json
from seqloom.core.notebook import table_html

A = ParamSpec("A")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)
INPUT_KEYS = (
    "text",
    "source",
    "first",
    "second",
    "question",
    "image",
)  # keys of the inputs of a prediction


class Predictions(list[T]):
    """A list of predictions, which a notebook displays as a table."""

    def _repr_html_(self) -> str:
        return table_html([row_of(prediction) for prediction in self])


class Metrics(dict[str, float]):
    """The metrics of an evaluation by name. A notebook displays the metrics as a table."""

    def _repr_html_(self) -> str:
        return table_html([{"metric": name, "value": value} for name, value in self.items()])


class Streamable(Protocol[A, R_co, T_co]):
    """A method that returns all its results, or an iterator over them if `stream=True`."""

    @overload
    def __call__(self, *args: Any, stream: Literal[True], **options: Any) -> Iterator[T_co]: ...
    @overload
    def __call__(self, *args: A.args, **options: A.kwargs) -> R_co: ...
    def __call__(self, *args: Any, **options: Any) -> Any: ...
    def __get__(self, instance: Any, owner: Any = None) -> "Streamable[A, R_co, T_co]": ...


def returns_list(method: Callable[Concatenate[Any, A], Iterator[T]]) -> Streamable[A, Predictions[T], T]:
    """Make a method return a list instead of an iterator, unless it is called with `stream=True`."""
    return _collect(method, Predictions)


def returns_text(method: Callable[Concatenate[Any, A], Iterator[str]]) -> Streamable[A, str, str]:
    """Make a method return one text instead of an iterator over its pieces, unless it is called with `stream=True`."""
    return _collect(method, "".join)


def _collect(method: Callable[..., Iterator[Any]], collect: Callable[[Iterable[Any]], Any]) -> Any:
    @wraps(method)
    def call(self: Any, *args: Any, stream: bool = False, **options: Any) -> Any:
        results = method(self, *args, **options)
        return results if stream else collect(results)

    return call


def row_of(result: Any) -> dict[str, Json]:
    """Return the inputs and the output columns of a prediction, or the string and number fields of any other result."""
    if hasattr(result, "to_json") and hasattr(result, "to_columns"):
        content = result.to_json()
        return {name: content[name] for name in INPUT_KEYS if name in content} | result.to_columns()
    values = {field.name: getattr(result, field.name) for field in fields(result)} if is_dataclass(result) else {}
    return {name: value for name, value in values.items() if isinstance(value, str | int | float)}
