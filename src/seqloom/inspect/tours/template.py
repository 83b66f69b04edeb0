"""Stages of a tour from Markdown templates.

A section of a template is one stage. Jinja fills in the values of the tour; the rest is Markdown:

    ## scores: Who fits whom?              key and title
    takes: 1 query and 7 keys              chapter, takes, gives, output, link
                                           paragraphs: the words of the stage; indented: its equation
    - q: the query of “cat”                what a symbol of the equation means

    ### dot: The score of “the”            a panel: its kind and title, then its options
    - q_vector: query of “cat”             a value of the tour by its name, and its label
    > This is the key that fits best.      a note

An option of a panel is a field of its class in `panels.py`: a text as it is, else the name of a
value of the tour.
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
TOP = 8  # tokens of a vocabulary that are shown, the likeliest ones
HIGHEST = "The highest score is taken off all of them first: the shares stay the same, and no number gets too large."


# --- what templates can call ------------------------------------------------------------------------------------------


def format_size(count: int, what: str, width: int | None = None) -> str:
    """`7 tokens × 64 numbers`, `1 vector`"""
    many = f"{count:,} {what}{'' if count == 1 else 's'}"
    return many if width is None else f"{many} × {width:,} numbers"


def mark_whitespace(token: str) -> str:
    """A token whose spaces and line breaks can be seen."""
    return token.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥") or "∅"


def quote(token: str) -> str:
    """A token in a sentence."""
    return f"“{mark_whitespace(token)}”"


def format_root(root: float) -> str:
    """A root as people write it: `= 8`, `≈ 11.3`."""
    return f"= {root:.0f}" if root == round(root) else f"≈ {root:.1f}"


def subscript(number: int) -> str:
    """`₁₂`"""
    return str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def residual_equation(layer: str, residual: bool, normed_after: bool) -> str:
    """The equation of a layer within a residual."""
    inside = f"x + {layer}" if residual else layer
    return f"x ← norm({inside})" if normed_after else f"x ← {inside}"


def residual_terms(
    before: str, made: str, label: str, total: str, after: str, residual: bool, normed_after: bool
) -> str:
    """The lines of a sum panel for the same."""
    lines = [f"- {before}: before", f"- + {made}: {label}"] if residual else [f"- {made}: {label}"]
    lines += [f"- = {total}: after"] + ([f"- → {after}: normed"] if normed_after else [])
    return "\n".join(lines)


def explain_function(symbol: str) -> str:
    """What a sign that is the same everywhere means; nothing for one that is not."""
    return next((words for _, name, words in SIGNS if name == symbol), "changes every number by itself")


@cache
def _sections() -> dict[str, Template]:
    """The sections of all templates by `file/key`."""
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
    """Fill in a section, `file/key`, with the values of a tour. The key of the stage is that of the section."""
    heading, *lines = _sections()[section].render(values).split("\n")
    name, _, title = heading.partition(": ")
    header: dict[str, str] = {}
    links, words, equation, letters, panels = [], [], [], {}, list[PanelText]()
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
                links.append(_read_link(value, values))
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
            words.append(line.strip())
    formula = "\n".join(equation)
    return Stage(
        key=key or name,
        chapter=header["chapter"],
        title=title,
        words=" ".join(words),
        equation=formula,
        takes=header.get("takes", ""),
        gives=header["gives"],
        symbols=explain_symbols(formula, letters) if formula else (),
        panels=[panel.build() for panel in panels],
        links=links,
        output=to_array(values[header["output"]]) if "output" in header else None,
    )


def _read_link(text: str, values: Values) -> Link:
    """`view | words | part=attention_part layer`: parameters by the names of their values."""
    view, words, *parameters = text.split(" | ")
    names = [each.partition("=") for each in " ".join(parameters).split()]
    return Link(view, words, {name: values[value or name] for name, _, value in names})


def to_array(values: Tensor | Sequence[float]) -> Array:
    """As float64, so that nothing is lost on the way to the reader."""
    array: Array = torch.as_tensor(values).detach().double().cpu().numpy()
    return array


@dataclass
class PanelText:
    """A panel as a template writes it: options, `-` items, `*` lines after them, `>` notes."""

    kind: str
    title: str
    values: Values
    options: dict[str, str] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=lambda: {"-": [], "*": [], ">": []})

    def add(self, line: str) -> None:
        """Read a line of the template."""
        if line[:2] in ("- ", "* ", "> "):
            self.lines[line[0]].append(line[2:])
        elif line.strip():
            option, _, value = line.partition(":")
            self.options[option.replace(" ", "_")] = value.strip()

    def get(self, option: str, default: Any = None) -> Any:
        """The value that an option names."""
        return self.values[self.options[option]] if option in self.options else default

    def items(self) -> Iterator[tuple[str, Any, str]]:
        """Sign, value and label of each."""
        for item in self.lines["-"]:
            reference, _, label = item.partition(": ")
            sign, _, name = reference.strip().rpartition(" ")
            yield sign, self.values[name], label

    def cut(self, values: Tensor) -> Array:
        """The numbers that are shown: the first of the last dimension, or those of `units`."""
        units = list(self.get("units", ()))
        return to_array(values[..., units] if units else values[..., : self.get("numbers", self.values["numbers"])])

    def build(self) -> Panel:
        """Make the panel: some of its fields are computed, the others are options."""
        panel, compute = PANELS[self.kind]
        given: dict[str, Any] = {"title": self.title, "note": " ".join(self.lines[">"]), **compute(self)}
        for each in fields(panel):
            if each.name in self.options and each.name not in given:
                given[each.name] = self.options[each.name] if each.type is str else self.get(each.name)
        if "units" in self.options:
            given["units"] = [unit + 1 for unit in self.get("units")]
        return panel(**given)


# --- computed fields of panels ----------------------------------------------------------------------------------------


def _matrix(text: PanelText) -> dict[str, object]:
    values = text.get("values")
    computed: dict[str, object] = {name: name in text.options for name in ("shares", "gates")}
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
    """All scores; or the highest, and the one that is chosen, the others summed up."""
    scores, labels, chosen = to_array(text.get("scores")), text.get("labels"), text.get("chosen")
    powers = np.exp(scores - scores.max())
    total = float(powers.sum())
    order, followed, rest = list(range(len(scores))), text.get("followed"), None
    if chosen is not None:
        order = np.argsort(-scores, kind="stable")[:TOP].tolist()
        if chosen not in order:
            order[-1] = chosen
        followed, others = order.index(chosen), len(scores) - len(order)
        left = float(total - powers[order].sum())
        rest = (f"the other {others:,}", left, left / total) if others else None
    return {
        "labels": [labels[place] for place in order],
        "scores": scores[order],
        "powers": powers[order],
        "shares": powers[order] / total,
        "total": total,
        "rest": rest,
        "followed": followed,
        "note": HIGHEST,
    }


def _mix(text: PanelText) -> dict[str, object]:
    vectors = text.get("vectors")
    return {
        "weights": to_array(text.get("weights")),
        "vectors": text.cut(vectors),
        "result": text.cut(text.get("result")),
        "of": vectors.shape[1],
        "names": text.options["names"].split(" | "),
    }


def _lines(text: PanelText) -> dict[str, object]:
    rows = [item.split(" | ", 1) for item in text.lines["-"]] or text.get("rows")
    return {"rows": rows, "columns": [name.strip() for name in text.options.get("columns", "|").split("|")]}


def _map(text: PanelText) -> dict[str, object]:
    stops = []
    for item in text.lines["-"]:
        stage, _, words = item.partition(": ")
        name, _, explanation = words.partition(" | ")
        stops.append(MapStop(name, explanation, stage))
    number, _, why = text.options.get("back", "").partition(" | ")
    return {"stops": stops, "back": (int(number), why) if number else None}


PANELS: dict[str, tuple[type[Panel], Callable[[PanelText], dict[str, object]]]] = {
    "tokens": (TokensPanel, lambda text: {}),
    "matrix": (MatrixPanel, _matrix),
    "sum": (SumPanel, _sum),
    "dot": (DotPanel, _dot),
    "softmax": (SoftmaxPanel, _softmax),
    "mix": (WeightedSumPanel, _mix),
    "lines": (TablePanel, _lines),
    "map": (MapPanel, _map),
}


# --- symbols ----------------------------------------------------------------------------------------------------------

WEIGHTS = (
    "weights: a grid of numbers that the model has learned (a matrix). Each number that comes out is a weighted sum of "
    "all that go in"
)
BIAS = "one more learned number for each of these sums, added to it"
INDICES = (("ᵢ", "i"), ("ⱼ", "j"), ("ₜ", "t"))
SOFT = ("GELU", "SiLU", "SwiGLU")
# What the signs of a formula mean, in words: a beginner has seen none of them.
SIGNS: list[tuple[str, str, str]] = [  # what gives it away in a formula, how it is shown, what it means
    (r"E\[", "E[id]", "the row of the lookup table that has this number"),
    (r"PE\(", "PE(j)", "the vector of place j"),
    (r"ⱼ", "ⱼ", "of token number j: 1, 2, 3 …"),
    (r"ₜ₋₁", "ₜ, ₜ₋₁", "now, at this token; and before, at the one before it"),
    (r"W₁", "W₁, W₂", WEIGHTS),
    (r"W(?!₁|₂)", "W", WEIGHTS),
    (r"\bb₁", "b₁, b₂", BIAS),
    (r"\bb\b", "b", BIAS),
    (r"\[[^\]]*;", "[a; b]", "one list of numbers put behind the other"),
    (r"⊙", "⊙", "multiply number by number: the first with the first, the second with the second …"),
    (r" · ", "a · b", "multiply number by number and add up all products: one number comes out"),
    *((f"Σ{index}", f"Σ{index}", f"add up what follows for every {letter}") for index, letter in INDICES),
    (r"Σ(?![ᵢⱼₜ])", "Σ", "add this up for all of them"),
    (r"exp\(", "exp(score)", "2.718… to the power of the score: never negative, and larger for a higher score"),
    (r"tanh", "tanh", "squeezes every number between −1 and 1"),
    (r"σ|sigmoid", "σ", "squeezes every number between 0 and 1"),
    (r"(?i)relu", "ReLU", "sets every negative number to 0"),
    *((name, name, "lets positive numbers through and nearly silences negative ones") for name in SOFT),
    (r"norm\(", "norm", "shifts and stretches a list of numbers until its mean is 0 and its spread 1"),
    (r" ← ", "x ← …", "x is replaced by what stands on the right"),
]


def explain_symbols(equation: str, letters: Mapping[str, str]) -> list[tuple[str, str]]:
    """What each sign of a formula means: `letters` of this stage first, then those that are the same everywhere."""
    own = {letter for letters_ in letters for letter in letters_.split(", ")}
    found = list(letters.items())
    if any(letter.startswith("W") for letter in letters):
        own.add("W")
    if any("ⱼ" in letter for letter in letters):
        own.add("ⱼ")  # its words say it
    return found + [(name, words) for sign, name, words in SIGNS if name not in own and re.search(sign, equation)]
