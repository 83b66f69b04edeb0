"""Rendering of tour stages from Markdown templates.

Each section of a template is a stage. Jinja inserts the values of the tour; all other text is Markdown:

    ## scores: Attention scores            key and title
    input shape: 1 query and 7 keys        also: chapter, output shape, output, link
                                           paragraphs are the text of the stage; indented lines are its equation
    - q: the query of “cat”                the meaning of a symbol of the equation

    ### dot: The score of “the”            a panel: its kind and title, then its options
    - q_vector: query of “cat”             the name of a value of the tour, and its label
    > This key has the highest score.      a note

The options of a panel are the fields of its class in `panels.py`. A field of type `str` takes the text itself; any
other field takes the name of a value of the tour.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, StrictUndefined, Template
from torch import Tensor

from seqloom.core.words import format_count
from seqloom.inspect.tours.panels import (
    DotPanel,
    Link,
    MapPanel,
    MapStop,
    MatrixPanel,
    Panel,
    SoftmaxPanel,
    Stage,
    SumPanel,
    SumTerm,
    TablePanel,
    TokensPanel,
    WeightedSumPanel,
)
from seqloom.inspect.values import Array

Values = Mapping[str, Any]
TOP_SCORES = 8  # number of entries shown of a large softmax
MAX_NOTE = (
    "The maximum is first subtracted from all scores. The result stays the same, and no number becomes too large."
)


# --- functions for templates ------------------------------------------------------------------------------------------


def format_size(count: int, what: str, width: int | None = None) -> str:
    """Format a shape: `7 tokens × 64 numbers`, `1 vector`."""
    amount = format_count(count, what)
    return amount if width is None else f"{amount} × {width:,} numbers"


def mark_whitespace(token: str) -> str:
    """Make the white space of a token visible."""
    return token.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥") or "∅"


def quote(token: str) -> str:
    """Quote a token within a sentence."""
    return f"“{mark_whitespace(token)}”"


def format_root(root: float) -> str:
    """Format the value of a root: `= 8`, `≈ 11.3`."""
    return f"= {root:.0f}" if root == round(root) else f"≈ {root:.1f}"


def subscript(number: int) -> str:
    """Write a number as a subscript: `₁₂`."""
    return str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def residual_equation(layer: str, residual: bool, normed_after: bool) -> str:
    """Return the equation of a layer that may have a residual connection and a norm."""
    inside = f"x + {layer}" if residual else layer
    return f"x ← norm({inside})" if normed_after else f"x ← {inside}"


def residual_terms(
    before: str, update: str, label: str, total: str, after: str, residual: bool, normed_after: bool
) -> str:
    """Return the terms of a sum panel for `residual_equation`."""
    lines = [f"- {before}: before", f"- + {update}: {label}"] if residual else [f"- {update}: {label}"]
    lines += [f"- = {total}: after"] + ([f"- → {after}: normalized"] if normed_after else [])
    return "\n".join(lines)


def explain_function(symbol: str) -> str:
    """Return the meaning of an activation function."""
    return next((words for _, name, words in SYMBOLS if name == symbol), "is applied to every number")


@cache
def _sections() -> dict[str, Template]:
    """Return the sections of all templates by `file/key`."""
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True
    )
    functions = (format_size, quote, format_root, subscript, residual_equation, residual_terms, explain_function)
    environment.globals |= {function.__name__: function for function in functions}
    environment.tests["contains"] = lambda text, part: part in text
    sections = {}
    for file in files(__package__).joinpath("templates").iterdir():
        for text in re.split(r"^## ", file.read_text("utf-8"), flags=re.MULTILINE)[1:]:
            sections[f"{file.name.removesuffix('.md')}/{text.partition(':')[0]}"] = environment.from_string(text)
    return sections


# --- Markdown to stages -----------------------------------------------------------------------------------------------


def render_stage(section: str, values: Values, key: str | None = None) -> Stage:
    """Render a section `file/key` with the values of a tour. `key` replaces the key of the section."""
    heading, *lines = _sections()[section].render(values).split("\n")
    name, _, title = heading.partition(": ")
    header: dict[str, str] = {}
    links, sentences, equation, letters, panels = [], [], [], {}, list[PanelText]()
    is_header = True
    for line in lines:
        if line.startswith("### "):
            kind, _, panel_title = line.removeprefix("### ").partition(": ")
            panels.append(PanelText(kind, panel_title, values))
        elif panels:
            panels[-1].add(line)
        elif is_header and line.strip():
            option, _, value = line.partition(": ")
            if option == "link":
                view, label, *parameters = value.split(" | ")  # for example `view | text | part=attention_part layer`
                pairs = [each.partition("=") for each in " ".join(parameters).split()]
                links.append(Link(view, label, {name: values[source or name] for name, _, source in pairs}))
            else:
                header[option] = value
        elif not line.strip():
            is_header = False
        elif line.startswith("    "):
            equation.append(line.strip())
        elif line.startswith("- "):
            letter, _, explanation = line.removeprefix("- ").partition(": ")
            letters[letter] = explanation
        else:
            sentences.append(line.strip())
    formula = "\n".join(equation)
    return Stage(
        key=key or name,
        chapter=header["chapter"],
        title=title,
        text=" ".join(sentences),
        equation=formula,
        input_shape=header.get("input shape", ""),
        output_shape=header["output shape"],
        symbols=explain_symbols(formula, letters) if formula else (),
        panels=[panel.build() for panel in panels],
        links=links,
        output=to_array(values[header["output"]]) if "output" in header else None,
    )


def to_array(values: Tensor | Sequence[float]) -> Array:
    """Convert values to a float64 array without loss."""
    array: Array = torch.as_tensor(values).detach().double().cpu().numpy()
    return array


@dataclass
class PanelText:
    """The parsed panel of a template, with its options, `-` items, `*` operations after the items, and `>` notes."""

    kind: str
    title: str
    values: Values
    options: dict[str, str] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=lambda: {"-": [], "*": [], ">": []})

    def add(self, line: str) -> None:
        """Parse a line of the template."""
        if line[:2] in ("- ", "* ", "> "):
            self.lines[line[0]].append(line[2:])
        elif line.strip():
            option, _, value = line.partition(":")
            self.options[option.replace(" ", "_")] = value.strip()

    def get(self, option: str, default: Any = None) -> Any:
        """Return the value whose name an option contains."""
        return self.values[self.options[option]] if option in self.options else default

    def items(self) -> Iterator[tuple[str, Any, str]]:
        """Yield sign, value and label of each item."""
        for item in self.lines["-"]:
            reference, _, label = item.partition(": ")
            sign, _, name = reference.strip().rpartition(" ")
            yield sign, self.values[name], label

    def cut(self, values: Tensor) -> Array:
        """Return the displayed numbers of the last dimension: the first numbers, or those of the units in `units`."""
        units = list(self.get("units", ()))
        return to_array(values[..., units] if units else values[..., : self.get("numbers", self.values["numbers"])])

    def build(self) -> Panel:
        """Build the panel from its computed fields and its options."""
        panel, compute = PANELS[self.kind]
        arguments: dict[str, Any] = {"title": self.title, "note": " ".join(self.lines[">"]), **compute(self)}
        for each in fields(panel):
            if each.name in self.options and each.name not in arguments:
                arguments[each.name] = self.options[each.name] if each.type is str else self.get(each.name)
        if "units" in self.options:
            arguments["units"] = [unit + 1 for unit in self.get("units")]
        return panel(**arguments)


# --- computed fields of panels ----------------------------------------------------------------------------------------


def _matrix(text: PanelText) -> dict[str, object]:
    values = text.get("values")
    computed: dict[str, object] = {name: name in text.options for name in ("probabilities", "gates")}
    if values is None:
        _, vectors, labels = zip(*text.items(), strict=True)
        values, computed["rows"] = torch.stack(vectors), labels
    return {**computed, "of": values.shape[1], "values": to_array(values) if text.get("columns") else text.cut(values)}


def _sum(text: PanelText) -> dict[str, object]:
    terms: list[tuple[str, Tensor, str]] = text.get("terms") or list(text.items())
    cut = [SumTerm(sign, label, text.cut(vector)) for sign, vector, label in terms]
    gate = int(text.options["gate"]) if "gate" in text.options else None
    return {"terms": cut, "of": len(terms[0][1]), "gate": gate}


def _dot(text: PanelText) -> dict[str, object]:
    (_, a, first), (_, b, second) = text.items()
    products = to_array(a) * to_array(b)
    shown, after = len(text.cut(a)), [item.partition(": ") for item in text.lines["*"]]
    return {
        "names": (first, second),
        "a": text.cut(a),
        "b": text.cut(b),
        "products": products[:shown],
        "rest": float(products[shown:].sum()),
        "of": len(products),
        "total": float(products.sum()),
        "after": [(words, float(text.values[name])) for name, _, words in after],
    }


def _softmax(text: PanelText) -> dict[str, object]:
    """Return all scores. With the option `chosen`, return the highest scores and the sum of the remaining scores."""
    scores, labels, chosen = to_array(text.get("scores")), text.get("labels"), text.get("chosen")
    exponentials = np.exp(scores - scores.max())
    total = float(exponentials.sum())
    order, followed, rest = list(range(len(scores))), text.get("followed"), None
    if chosen is not None:
        order = np.argsort(-scores, kind="stable")[:TOP_SCORES].tolist()
        if chosen not in order:
            order[-1] = chosen
        followed, others = order.index(chosen), len(scores) - len(order)
        left = float(total - exponentials[order].sum())
        rest = (f"the other {others:,}", left, left / total) if others else None
    return {
        "labels": [labels[index] for index in order],
        "scores": scores[order],
        "exponentials": exponentials[order],
        "probabilities": exponentials[order] / total,
        "total": total,
        "rest": rest,
        "followed": followed,
        "note": MAX_NOTE,
    }


def _weighted_sum(text: PanelText) -> dict[str, object]:
    vectors = text.get("vectors")
    return {
        "weights": to_array(text.get("weights")),
        "vectors": text.cut(vectors),
        "result": text.cut(text.get("result")),
        "of": vectors.shape[1],
        "names": text.options["names"].split(" | "),
    }


def _table(text: PanelText) -> dict[str, object]:
    rows = [item.split(" | ", 1) for item in text.lines["-"]] or text.get("rows")
    return {"rows": rows, "columns": [name.strip() for name in text.options.get("columns", "|").split("|")]}


def _map(text: PanelText) -> dict[str, object]:
    stops = []
    for item in text.lines["-"]:
        stage, _, content = item.partition(": ")
        name, _, description = content.partition(" | ")
        stops.append(MapStop(name, description, stage))
    index, _, reason = text.options.get("back", "").partition(" | ")
    return {"stops": stops, "back": (int(index), reason) if index else None}


PANELS: dict[str, tuple[type[Panel], Callable[[PanelText], dict[str, object]]]] = {
    "tokens": (TokensPanel, lambda text: {}),
    "matrix": (MatrixPanel, _matrix),
    "sum": (SumPanel, _sum),
    "dot": (DotPanel, _dot),
    "softmax": (SoftmaxPanel, _softmax),
    "weighted-sum": (WeightedSumPanel, _weighted_sum),
    "table": (TablePanel, _table),
    "map": (MapPanel, _map),
}


# --- symbols ----------------------------------------------------------------------------------------------------------

WEIGHTS = "learned weights: each output is a weighted sum of all inputs"
BIAS = "learned biases, one added to each of these sums"
INDICES = (("ᵢ", "i"), ("ⱼ", "j"), ("ₜ", "t"))
SOFT = ("GELU", "SiLU", "SwiGLU")
SYMBOLS: list[tuple[str, str, str]] = [  # pattern in an equation, symbol, meaning for beginners
    (r"E\[", "E[id]", "row id of the lookup table"),
    (r"PE\(", "PE(j)", "the positional encoding of position j"),
    (r"ⱼ", "ⱼ", "of token number j: 1, 2, 3 …"),
    (r"ₜ₋₁", "ₜ, ₜ₋₁", "at the current and at the previous token"),
    (r"W₁", "W₁, W₂", WEIGHTS),
    (r"W(?!₁|₂)", "W", WEIGHTS),
    (r"\bb₁", "b₁, b₂", BIAS),
    (r"\bb\b", "b", BIAS),
    (r"\[[^\]]*;", "[a; b]", "the concatenation of two vectors"),
    (r"⊙", "⊙", "element-wise multiplication: the first number with the first, the second with the second …"),
    (r" · ", "a · b", "the dot product: multiply the two vectors element by element and add up the products"),
    *((f"Σ{index}", f"Σ{index}", f"the sum over all {letter}") for index, letter in INDICES),
    (r"Σ(?![ᵢⱼₜ])", "Σ", "the sum over all of them"),
    (r"exp\(", "exp(score)", "2.718… to the power of the score: always positive, and larger for a higher score"),
    (r"tanh", "tanh", "maps every number to a value between −1 and 1"),
    (r"σ|sigmoid", "σ", "maps every number to a value between 0 and 1"),
    (r"(?i)relu", "ReLU", "replaces negative numbers by 0"),
    *((name, name, "passes positive numbers and suppresses negative numbers") for name in SOFT),
    (r"norm\(", "norm", "normalization: shifts and scales a vector to mean 0 and standard deviation 1"),
    (r" ← ", "x ← …", "x is replaced by the right-hand side"),
]


def explain_symbols(equation: str, letters: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the symbols of an equation with their meanings: first the `letters` of the stage, then general symbols."""
    explained = {letter for names in letters for letter in names.split(", ")}
    if any(letter.startswith("W") for letter in letters):
        explained.add("W")
    if any("ⱼ" in letter for letter in letters):
        explained.add("ⱼ")
    return list(letters.items()) + [
        (name, words) for pattern, name, words in SYMBOLS if name not in explained and re.search(pattern, equation)
    ]
