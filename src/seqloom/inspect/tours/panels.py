"""What a tour is made of: stages, and the panels that show their numbers.

A panel holds real numbers, which add up to what it says. Vectors may be cut to their first numbers:
then `of` says how many there are, and where a sum runs over all of them, `rest` is what those that
are not shown add to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from seqloom.inspect.values import Array


class Link(NamedTuple):
    """To a view of the studio that shows more of it."""

    view: str
    text: str
    parameters: Mapping[str, object] = {}


@dataclass(frozen=True, eq=False, kw_only=True)
class Panel:
    """One drawing."""

    kind: str = field(default="", init=False)
    title: str
    note: str = ""  # how to read it, in a sentence


@dataclass(frozen=True, eq=False, kw_only=True)
class TokensPanel(Panel):
    """Pieces of text, each with its number."""

    kind: str = field(default="tokens", init=False)
    tokens: Sequence[str]
    ids: Sequence[int]
    followed: int | None = None  # the place of the one that is followed, from 0


@dataclass(frozen=True, eq=False, kw_only=True)
class MatrixPanel(Panel):
    """Rows of numbers: a vector each, or how much each row attends to each column."""

    kind: str = field(default="matrix", init=False)
    rows: Sequence[str]
    values: Array  # (rows, columns)
    of: int  # how many numbers a row has in all
    columns: Sequence[str] = ()  # empty where they are only numbered
    marked: int | None = None  # the row that is followed, from 0
    shares: bool = False  # attention: between 0 and 1, each row sums to 1
    gates: bool = False  # values of gates, from 0, closed, to 1, open
    units: Sequence[int] = ()  # which of a row's numbers these are, from 1, where they are not the first ones
    row_title: str = "token"
    column_title: str = "number"


class SumTerm(NamedTuple):
    """A vector in a sum: what stands before it, what it is called, and its numbers."""

    sign: str  # "", "+", "×", "="
    name: str
    values: Array


@dataclass(frozen=True, eq=False, kw_only=True)
class SumPanel(Panel):
    """Vectors under each other that are put together number by number; the last is the result."""

    kind: str = field(default="sum", init=False)
    terms: Sequence[SumTerm]
    of: int
    units: Sequence[int] = ()  # as of a `MatrixPanel`
    gate: int | None = None  # the term that is a gate, from 0


@dataclass(frozen=True, eq=False, kw_only=True)
class DotPanel(Panel):
    """Two vectors multiplied number by number, and the sum of that; then perhaps scaled, or something added."""

    kind: str = field(default="dot", init=False)
    names: tuple[str, str]
    a: Array
    b: Array
    products: Array
    rest: float  # Σ of the products that are not shown
    of: int
    total: float
    after: Sequence[tuple[str, float]] = ()  # what is done with the total, in words, and what comes of it


@dataclass(frozen=True, eq=False, kw_only=True)
class SoftmaxPanel(Panel):
    """A softmax: scores to shares of 1."""

    kind: str = field(default="shares", init=False)
    labels: Sequence[str]
    scores: Array
    powers: Array  # e^(score − largest)
    shares: Array
    total: float  # of all powers
    rest: tuple[str, float, float] | None = None  # what is not shown: its name, its powers and its shares in all
    followed: int | None = None
    of: str = "token"  # what gets a share


@dataclass(frozen=True, eq=False, kw_only=True)
class WeightedSumPanel(Panel):
    """One vector made of several, each with a weight."""

    kind: str = field(default="mix", init=False)
    labels: Sequence[str]
    weights: Array
    vectors: Array  # (labels, numbers)
    result: Array
    of: int
    names: tuple[str, str] = ("value", "mixture")


class MapStop(NamedTuple):
    """A box of the map: its name, a few words, and the stage that begins there."""

    name: str
    words: str
    stage: str


@dataclass(frozen=True, eq=False, kw_only=True)
class MapPanel(Panel):
    """The whole way at a glance, from left to right."""

    kind: str = field(default="map", init=False)
    stops: Sequence[MapStop]
    back: tuple[int, str] | None = None  # from the last stop the way leads back to this one, and why


@dataclass(frozen=True, eq=False, kw_only=True)
class TablePanel(Panel):
    """A small table of words and numbers."""

    kind: str = field(default="lines", init=False)
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    marked: int | None = None


@dataclass(frozen=True, eq=False)
class Stage:
    """One station of the way."""

    key: str
    chapter: str
    title: str
    words: str  # two to four sentences
    equation: str
    takes: str  # the shape of what comes in: "7 tokens × 64 numbers"
    gives: str  # and of what goes out
    symbols: Sequence[tuple[str, str]] = ()  # every sign of the equation, and what it means
    panels: Sequence[Panel] = ()
    links: Sequence[Link] = ()
    output: Array | None = field(default=None, repr=False, metadata={"json": False})  # all of what goes out, uncut
