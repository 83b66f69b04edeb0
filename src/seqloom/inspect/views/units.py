"""Which units of a layer are worth a look: those that vary, that are large, or that go with a kind of token.

    rank(values, "variance")                             values (T, H) over a text, the most varying first
    rank(values, "correlation", classes["inside quotes"])    |Pearson's r| with being such a token, the largest first

A class marks tokens (T,) with 1 and the others with 0, by what they are or by where they stand; a place grows from
token to token. What is the same for all tokens tells nothing apart and is left out.

One step of one unit of a cell, with the real numbers: every line of its equations, term by term.

    step = arithmetic(cell, x_t, {"h": h, "c": c}, unit=7)
    step.lines[1].formula       f = σ(W_xf x_t + W_hf h_{t-1} + b_f)
    step.lines[1].terms         W_xf x_t = 0.41, W_hf h_{t-1} = −0.13, b_f = 1.02: their sum is 1.30
    step.lines[1].value         σ(1.30) = 0.786

A term that is a product with a matrix is one row of it times a vector: `summands` are the weight · input pairs it is
made of, the largest first. The lines are those of `seqloom.inspect.equations`, computed in float64.
"""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean
from seqloom.inspect.equations import Equation, Expression, trace_equations
from seqloom.nn.cells import Cell, State

Array = NDArray[np.floating[Any]]
By = Literal["variance", "size", "mean", "number", "correlation"]
OPENING, CLOSING = "([{⟨«“„", ")]}⟩»”"
QUOTES = "\"'`“”„«»"
SPACES = "▁Ġ "  # what tokenizers write for one


class Ranked(NamedTuple):
    units: list[int]  # all of them, first those that come first
    scores: Array  # (H,), by unit


def rank(values: Array, by: By = "variance", marks: Array | None = None) -> Ranked:
    """Order the units of values (T, H); with `correlation`, by how they go with the marked tokens."""
    if by not in get_args(By):
        raise UsageError(f"Units cannot be ordered by {by!r}: {did_you_mean(by, get_args(By))}.")
    if by == "correlation" and marks is None:
        raise UsageError("To order units by correlation, name a class of tokens.")
    values = values.astype(np.float64)
    if by == "number":
        return Ranked(list(range(values.shape[1])), np.arange(values.shape[1], dtype=np.float64))
    scores: Array = {
        "variance": lambda: values.var(axis=0),
        "size": lambda: np.abs(values).mean(axis=0),
        "mean": lambda: values.mean(axis=0),
        "correlation": lambda: correlations(values, marks),
    }[by]()
    keys = np.abs(scores) if by == "correlation" else scores
    return Ranked([int(unit) for unit in np.argsort(-keys, kind="stable")], scores)


def correlations(values: Array, marks: Array | None) -> Array:
    """Pearson's r (H,) of each unit's values (T, H) with being marked (T,); 0 where either never changes."""
    assert marks is not None
    centred = values - values.mean(axis=0)
    flags = marks - marks.mean()
    lengths = np.sqrt((centred**2).sum(axis=0) * (flags**2).sum())
    found: Array = np.divide(flags @ centred, lengths, out=np.zeros(values.shape[1]), where=lengths > 1e-12)
    return found


# --- classes of tokens ------------------------------------------------------------------------------------------------


def token_classes(tokens: Sequence[str], containing: str = "") -> dict[str, Array]:
    """The classes that tell these tokens apart, by name; with `containing`, also the tokens with that in them."""
    found = {name: np.array([_any(token, test) for token in tokens]) for name, test in LETTERS.items()}
    found["starts a word"] = _starts(tokens)
    found["inside brackets"] = _inside_brackets(tokens)
    found["inside quotes"] = _inside_quotes(tokens)
    found["place in the text"] = np.arange(len(tokens))
    found["place in the line"] = _since(tokens, "\n")
    if containing:
        found[f"contains {containing}"] = np.array([containing in token for token in tokens])
    if (found["place in the line"] == found["place in the text"]).all():  # there is but one line
        del found["place in the line"]
    return {name: marks.astype(np.float64) for name, marks in found.items() if len(set(marks.tolist())) > 1}


def _any(token: str, test: Callable[[str], bool]) -> bool:
    return not _special(token) and any(map(test, token))


def _special(token: str) -> bool:
    """</s>, <unk>, [CLS]: what stands for no text."""
    return len(token) > 2 and (token[0] + token[-1]) in ("<>", "[]")


LETTERS: dict[str, Callable[[str], bool]] = {
    "space": lambda letter: letter.isspace() or letter in SPACES,
    "letter": str.isalpha,
    "capital letter": str.isupper,
    "vowel": lambda letter: unicodedata.normalize("NFD", letter.lower())[0] in "aeiouy",
    "digit": str.isdigit,
    "punctuation": lambda letter: unicodedata.category(letter)[0] == "P",
}


def _since(tokens: Sequence[str], letter: str) -> Array:
    """How many tokens ago there was one with that letter in it."""
    found = [0]
    for before in tokens[:-1]:
        found.append(0 if letter in before else found[-1] + 1)
    return np.array(found[: len(tokens)])


def _starts(tokens: Sequence[str]) -> Array:
    """A letter or digit after something that is none, or with a space of its own before it."""
    found, inside = [], False
    for token in tokens:
        bare = token.lstrip(SPACES)
        word = not _special(token) and any(map(str.isalnum, bare))
        found.append(word and (not inside or bare != token))
        inside = word and bare[-1:].isalnum()
    return np.array(found)


def _inside_brackets(tokens: Sequence[str]) -> Array:
    depth, found = 0, []
    for token in tokens:
        letters = "" if _special(token) else token
        depth += sum(letter in OPENING for letter in letters)
        found.append(depth > 0)
        depth = max(0, depth - sum(letter in CLOSING for letter in letters))
    return np.array(found)


def _inside_quotes(tokens: Sequence[str]) -> Array:
    """From a quotation mark to the next; an apostrophe between letters is none."""
    inside, found, before = False, [], " "
    for place, token in enumerate(tokens):
        after = tokens[place + 1][:1] if place + 1 < len(tokens) else " "
        marks = 0 if _special(token) else _quotes(before + token + after)
        found.append(inside or marks > 0)
        inside ^= marks % 2 == 1
        before = token[-1:] or " "
    return np.array(found)


def _quotes(around: str) -> int:
    """How many quotation marks there are between the first and the last letter of these."""
    triples = zip(around, around[1:], around[2:], strict=False)
    return sum(
        letter in QUOTES and not (letter == "'" and left.isalnum() and right.isalnum())
        for left, letter, right in triples
    )


# ---------------------------------------------------------------------------------------------------------------------

SUMMANDS = 12  # of a product with a matrix


class Summand(NamedTuple):
    """weight · input, one of those that a product with a matrix adds up."""

    place: int  # of the input in its vector
    weight: float
    input: float
    product: float


class Factor(NamedTuple):
    symbol: str
    value: float


@dataclass(frozen=True)
class Term:
    """One of the numbers that a line adds up."""

    symbol: str  # W_xf x_t, b_f, f ⊙ c_{t-1}
    value: float
    factors: tuple[Factor, ...] = ()  # where it is a product of numbers
    vector: str = ""  # where it is a row of a matrix times a vector: x_t, h_{t-1}, r ⊙ h_{t-1}
    length: int = 0  # how many summands it has
    summands: tuple[Summand, ...] = ()  # the largest of them, by size
    rest: float = 0.0  # what the others add up to


@dataclass(frozen=True)
class Line:
    """value = function(Σ terms)"""

    name: str  # as in `Cell.equations`; of an intermediate result, its symbol
    symbol: str
    formula: str
    terms: tuple[Term, ...]
    function: str  # σ, tanh, ReLU or nothing
    total: float  # Σ terms
    value: float
    does: str = ""  # what it is for, in words


@dataclass(frozen=True)
class Arithmetic:
    """One step of one unit."""

    unit: int
    before: dict[str, float]  # the unit's state before the step
    lines: tuple[Line, ...]  # in the order of computing

    def __getitem__(self, name: str) -> float:
        return next(line.value for line in self.lines if line.name == name)


def arithmetic(cell: Cell, x_t: Tensor, state: State, unit: int) -> Arithmetic:
    """Compute one unit of a step with inputs (D,) and a state of (H,) each."""
    if not 0 <= unit < cell.hidden:
        raise UsageError(f"There is no unit {unit}: the layer has {cell.hidden}, from 0 to {cell.hidden - 1}.")
    lines = [
        Line(
            name=equation.name,
            symbol=equation.symbol,
            formula=equation.formula,
            terms=tuple(_term(term, unit) for term in equation.terms),
            function=equation.function,
            total=equation.total[unit].item(),
            value=equation.value[unit].item(),
            does=_purpose(cell, equation),
        )
        for equation in trace_equations(cell, x_t, state)
    ]
    before = {name: value.detach().cpu().double()[unit].item() for name, value in state.items()}
    return Arithmetic(unit, before, tuple(lines))


def _purpose(cell: Cell, equation: Equation) -> str:
    """What a line is for, in words; nothing for an intermediate result."""
    name, other_states = equation.name, set(cell.state_names) - {"h"}
    if name in cell.gates:
        return cell.gates[name]
    if name == "h":
        return "the new state, which the next step goes on from"
    if name in other_states:
        return "the new content of the cell"
    is_intermediate = equation.symbol in ("x'_t", name) and name not in cell.blocks
    return "" if is_intermediate else f"new content, offered to the {'cell' if other_states else 'state'}"


def _term(term: Expression, unit: int) -> Term:
    value = term.value[unit].item()
    factors = term.parts("product")
    if len(factors) > 1:
        return Term(str(term), value, tuple(Factor(str(factor), factor.value[unit].item()) for factor in factors))
    if term.symbol or term.operation != "matrix":
        return Term(str(term), value)
    weight, vector = term.arguments
    row = weight.value[unit]
    products = row * vector.value
    largest = products.abs().topk(min(SUMMANDS, len(products))).indices.tolist()
    summands = tuple(Summand(k, row[k].item(), vector.value[k].item(), products[k].item()) for k in largest)
    total = products.sum().item()
    rest = total - sum(summand.product for summand in summands)
    return Term(str(term), total, (), str(vector), len(products), summands, rest)
