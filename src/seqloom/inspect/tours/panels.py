"""Stages of a tour, and the panels that show their numbers.

The displayed sums are exact. A vector may be truncated to its first numbers: `of` is the full length of the vector, and
`rest` is the contribution of the omitted numbers to a sum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from seqloom.inspect.values import Array


class Link(NamedTuple):
    """A link to a view of the studio that shows more details."""

    view: str
    text: str
    parameters: Mapping[str, object] = {}


@dataclass(frozen=True, eq=False, kw_only=True)
class Panel:
    """A figure or a table of a stage."""

    kind: str = field(default="", init=False)
    title: str
    note: str = ""  # a caption


@dataclass(frozen=True, eq=False, kw_only=True)
class TokensPanel(Panel):
    """Tokens with their ids."""

    kind: str = field(default="tokens", init=False)
    tokens: Sequence[str]
    ids: Sequence[int]
    followed: int | None = None  # index of the followed token


@dataclass(frozen=True, eq=False, kw_only=True)
class MatrixPanel(Panel):
    """A matrix with vectors as rows, or with attention weights from rows to columns."""

    kind: str = field(default="matrix", init=False)
    rows: Sequence[str]
    values: Array  # (rows, columns)
    of: int  # full length of a row
    columns: Sequence[str] = ()  # empty if columns are numbered
    marked: int | None = None  # index of the followed row
    probabilities: bool = False  # whether each row contains probabilities, which sum to 1
    gates: bool = False  # whether values are gates, from 0 (closed) to 1 (open)
    units: Sequence[int] = ()  # numbers of the shown units, counted from 1; empty if the first units are shown
    row_title: str = "token"
    column_title: str = "number"


class SumTerm(NamedTuple):
    """A vector in a sum with its sign and its name."""

    sign: str  # "", "+", "×", "="
    name: str
    values: Array


@dataclass(frozen=True, eq=False, kw_only=True)
class SumPanel(Panel):
    """Vectors that are combined element by element. The last vector is the result."""

    kind: str = field(default="sum", init=False)
    terms: Sequence[SumTerm]
    of: int
    units: Sequence[int] = ()  # as in `MatrixPanel`
    gate: int | None = None  # index of the term that is a gate


@dataclass(frozen=True, eq=False, kw_only=True)
class DotPanel(Panel):
    """A dot product, optionally followed by further operations on the sum."""

    kind: str = field(default="dot", init=False)
    names: tuple[str, str]
    a: Array
    b: Array
    products: Array
    rest: float  # sum of the omitted products
    of: int
    total: float
    after: Sequence[tuple[str, float]] = ()  # operations on the total with their results


@dataclass(frozen=True, eq=False, kw_only=True)
class SoftmaxPanel(Panel):
    """A softmax from scores to probabilities."""

    kind: str = field(default="softmax", init=False)
    labels: Sequence[str]
    scores: Array
    exponentials: Array  # exp(score − max)
    probabilities: Array
    total: float  # sum of all exponentials
    rest: tuple[str, float, float] | None = None  # omitted entries: name, sum of exponentials, sum of probabilities
    followed: int | None = None
    of: str = "token"  # kind of the entries


@dataclass(frozen=True, eq=False, kw_only=True)
class WeightedSumPanel(Panel):
    """A weighted sum of vectors."""

    kind: str = field(default="weighted-sum", init=False)
    labels: Sequence[str]
    weights: Array
    vectors: Array  # (labels, numbers)
    result: Array
    of: int
    names: tuple[str, str] = ("value", "result")


class MapStop(NamedTuple):
    """A box of the overview with a name, a short description, and the stage that it opens."""

    name: str
    description: str
    stage: str


@dataclass(frozen=True, eq=False, kw_only=True)
class MapPanel(Panel):
    """An overview of the stages from left to right."""

    kind: str = field(default="map", init=False)
    stops: Sequence[MapStop]
    back: tuple[int, str] | None = None  # index of the stop to which the last stop returns, and the reason


@dataclass(frozen=True, eq=False, kw_only=True)
class TablePanel(Panel):
    """A small table with texts and numbers."""

    kind: str = field(default="table", init=False)
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    marked: int | None = None


@dataclass(frozen=True, eq=False)
class Stage:
    """One step of a tour."""

    key: str
    chapter: str
    title: str
    text: str  # two to six sentences
    equation: str
    input_shape: str  # a text such as "7 tokens × 64 numbers"
    output_shape: str
    symbols: Sequence[tuple[str, str]] = ()  # the symbols of the equation and their meanings
    panels: Sequence[Panel] = ()
    links: Sequence[Link] = ()
    # The complete values, which tests use
    output: Array | None = field(default=None, repr=False, metadata={"json": False})
