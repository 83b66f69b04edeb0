"""What a walk through a model is made of: stages, and the panels that show their numbers.

A panel holds real numbers, which add up to what it says. Vectors may be cut to their first numbers: then `of` says how
many there are, and where a sum runs over all of them, `rest` is what those that are not shown add to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from seqloom.inspect.tours.symbols import explained
from seqloom.inspect.views.alignment import SELF_ATTENTION, AxisTitles

Array = NDArray[np.float64]
TOP = 8  # tokens of a vocabulary that are shown, the likeliest ones


def array(tensor: Tensor) -> Array:
    """As float64, so that nothing is lost on the way to the reader."""
    found: Array = tensor.detach().double().cpu().numpy()
    return found


class Link(NamedTuple):
    """To a view of the studio that shows more of it."""

    view: str
    text: str
    parameters: Mapping[str, Any] = {}


@dataclass(frozen=True, eq=False, kw_only=True)
class Panel:
    """One drawing."""

    kind: ClassVar[str]
    title: str
    note: str = ""  # how to read it, in a sentence

    def to_json(self) -> dict[str, Any]:
        found = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(self).items()}
        return {"kind": self.kind, **found}


@dataclass(frozen=True, eq=False, kw_only=True)
class Tokens(Panel):
    """Pieces of text, each with its number."""

    kind = "tokens"
    tokens: Sequence[str]
    ids: Sequence[int]
    followed: int | None = None  # the place of the one that is followed, from 0
    said: int | None = None  # how many of them were there before the last was added


@dataclass(frozen=True, eq=False, kw_only=True)
class Matrix(Panel):
    """Rows of numbers: a vector each, or how much each row looks at each column."""

    kind = "matrix"
    rows: Sequence[str]
    columns: Sequence[str]  # empty where they are only numbered
    values: Array  # (rows, columns)
    of: int  # how many numbers a row has in all
    marked: int | None = None  # the row that is followed, from 0
    shares: bool = False  # attention: between 0 and 1, each row sums to 1
    gates: bool = False  # values of gates, from 0, closed, to 1, open
    units: Sequence[int] = ()  # which of a row's numbers these are, from 1, where they are not the first ones
    row_title: str = "token"
    column_title: str = "number"


class Term(NamedTuple):
    """A vector in a sum: what stands before it, what it is called, and its numbers."""

    sign: str  # "", "+", "×", "="
    name: str
    values: Array


@dataclass(frozen=True, eq=False, kw_only=True)
class Sum(Panel):
    """Vectors under each other that are put together number by number; the last is the result."""

    kind = "sum"
    terms: Sequence[Term]
    of: int
    units: Sequence[int] = ()  # as of a `Matrix`
    gate: int | None = None  # the term that is a gate, from 0

    def to_json(self) -> dict[str, Any]:
        terms = [{**term._asdict(), "values": term.values.tolist()} for term in self.terms]
        return {**super().to_json(), "terms": terms}


@dataclass(frozen=True, eq=False, kw_only=True)
class Dot(Panel):
    """Two vectors multiplied number by number, and the sum of that; then perhaps scaled, or something added."""

    kind = "dot"
    names: tuple[str, str]
    a: Array
    b: Array
    products: Array
    rest: float  # Σ of the products that are not shown
    of: int
    total: float
    after: Sequence[tuple[str, float]] = ()  # what is done with the total, in words, and what comes of it


@dataclass(frozen=True, eq=False, kw_only=True)
class Shares(Panel):
    """A softmax: scores to shares of 1."""

    kind = "shares"
    labels: Sequence[str]
    scores: Array
    powers: Array  # e^(score − largest)
    shares: Array
    rest: tuple[str, float, float] | None = None  # what is not shown: its name, its powers and its shares in all
    followed: int | None = None  # the row that is meant
    of: str = "token"  # what the rows are

    @property
    def total(self) -> float:
        return float(self.powers.sum()) + (self.rest[1] if self.rest else 0.0)

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "total": self.total}


@dataclass(frozen=True, eq=False, kw_only=True)
class Mix(Panel):
    """One vector made of several, each with a weight."""

    kind = "mix"
    labels: Sequence[str]
    weights: Array
    vectors: Array  # (labels, numbers)
    result: Array
    of: int
    names: tuple[str, str] = ("value", "mixture")


class Stop(NamedTuple):
    """A box of the map: its name, a few words, and the stage that begins there."""

    name: str
    words: str
    stage: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Map(Panel):
    """The whole way at a glance, from left to right."""

    kind = "map"
    stops: Sequence[Stop]
    back: tuple[int, str] | None = None  # from the last stop the way leads back to this one, and why

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "stops": [stop._asdict() for stop in self.stops]}


@dataclass(frozen=True, eq=False, kw_only=True)
class Lines(Panel):
    """A small table of words and numbers."""

    kind = "lines"
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
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
    panels: Sequence[Panel] = ()
    links: Sequence[Link] = ()
    output: Array | None = field(default=None, repr=False)  # all of what goes out, uncut; not shown
    letters: Mapping[str, str] = field(default_factory=dict)  # what letters of the equation mean, those of this stage

    @property
    def symbols(self) -> list[list[str]]:
        """Every sign of the equation, and what it means."""
        return explained(self.equation, self.letters) if self.equation else []

    def to_json(self) -> dict[str, Any]:
        plain = {
            name: value for name, value in vars(self).items() if name not in ("panels", "links", "output", "letters")
        }
        plain["words"] = self.words.strip()  # which is put together from several
        links = [{"view": link.view, "text": link.text, "parameters": dict(link.parameters)} for link in self.links]
        panels = [panel.to_json() for panel in self.panels]
        return {**plain, "symbols": self.symbols, "panels": panels, "links": links}


# --- making panels ----------------------------------------------------------------------------------------------------


def matrix(
    title: str, rows: Sequence[str], values: Tensor, numbers: int, units: Sequence[int] = (), **options: Any
) -> Matrix:
    """Vectors (rows, D), of each the first numbers, or those of `units`, from 0."""
    shown = values[:, list(units)] if units else values[:, :numbers]
    named = [unit + 1 for unit in units]
    return Matrix(title=title, rows=rows, columns=(), values=array(shown), of=values.shape[1], units=named, **options)


def looks(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    weights: Tensor,
    axes: AxisTitles = SELF_ATTENTION,
    **options: Any,
) -> Matrix:
    """Attention weights (rows, columns), whole. `axes` says what rows and columns are; columns are tokens."""
    return Matrix(
        title=title,
        rows=rows,
        columns=[quoted(token) for token in columns],
        values=array(weights),
        of=weights.shape[1],
        shares=True,
        row_title=axes.row,
        column_title=axes.column,
        **options,
    )


def added(
    title: str, terms: Sequence[tuple[str, str, Tensor]], numbers: int, units: Sequence[int] = (), **options: Any
) -> Sum:
    """Vectors (D,) put together number by number; of each the first numbers, or those of `units`, from 0."""
    shown = [
        Term(sign, name, array(values[list(units)] if units else values[:numbers])) for sign, name, values in terms
    ]
    return Sum(title=title, terms=shown, of=len(terms[0][2]), units=[unit + 1 for unit in units], **options)


def dot(title: str, a: tuple[str, Tensor], b: tuple[str, Tensor], numbers: int, **options: Any) -> Dot:
    """a · b of two vectors (D,)."""
    products = array(a[1]) * array(b[1])
    return Dot(
        title=title,
        names=(a[0], b[0]),
        a=array(a[1][:numbers]),
        b=array(b[1][:numbers]),
        products=products[:numbers],
        rest=float(products[numbers:].sum()),
        of=len(products),
        total=float(products.sum()),
        **options,
    )


HIGHEST = "The highest score is taken off all of them first: the shares stay the same, and no number gets too large."


def softmax(title: str, labels: Sequence[str], scores: Tensor, **options: Any) -> Shares:
    """All scores (n,) to their shares."""
    found = array(scores)
    powers = np.exp(found - found.max())
    shares = powers / powers.sum()
    return Shares(title=title, labels=labels, scores=found, powers=powers, shares=shares, note=HIGHEST, **options)


def top_shares(
    title: str, labels: Sequence[str], scores: Tensor, chosen: int | None, top: int = TOP, **options: Any
) -> Shares:
    """Of many scores (V,) the highest, and the one that is chosen; the others are summed up."""
    found = array(scores)
    order = [int(place) for place in np.argsort(-found, kind="stable")[:top]]
    if chosen is not None and chosen not in order:
        order[-1] = chosen
    powers = np.exp(found - found.max())
    total = powers.sum()
    others = len(found) - len(order)
    rest = total - powers[order].sum()
    return Shares(
        title=title,
        labels=[labels[place] for place in order],
        scores=found[order],
        powers=powers[order],
        shares=powers[order] / total,
        rest=(f"the other {others:,}", float(rest), float(rest / total)) if others else None,
        followed=None if chosen is None else order.index(chosen),
        note=HIGHEST,
        **options,
    )


def mixture(
    title: str, labels: Sequence[str], weights: Tensor, vectors: Tensor, result: Tensor, numbers: int, **options: Any
) -> Mix:
    """Σ_j weight_j · vector_j of weights (n,) and vectors (n, D)."""
    return Mix(
        title=title,
        labels=labels,
        weights=array(weights),
        vectors=array(vectors[:, :numbers]),
        result=array(result[:numbers]),
        of=vectors.shape[1],
        **options,
    )


def size(count: int, what: str, width: int | None = None) -> str:
    """`7 tokens × 64 numbers`, `1 vector`"""
    many = f"{count:,} {what}{'' if count == 1 else 's'}"
    return many if width is None else f"{many} × {width:,} numbers"


def visible(token: str) -> str:
    """A token whose spaces and line breaks can be seen."""
    return token.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥") or "∅"


def quoted(token: str) -> str:
    """A token in a sentence."""
    return f"“{visible(token)}”"
