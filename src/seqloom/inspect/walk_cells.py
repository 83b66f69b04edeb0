"""One step of a recurrent cell in a walk: from a token's vector and the memory before to the memory after."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.inspect.walk_parts import Link, Panel, Stage, added, array, matrix, quoted, size
from seqloom.nn.bidirectional import BidirectionalStack
from seqloom.nn.cells import LSTM, Cell, Elman, State

NAMES = {"elman": "simple recurrent network", "lstm": "LSTM", "gru": "GRU", "gru-cho": "GRU"}
GATES = {
    "f": "f: keep the old?",
    "i": "i: let the new in?",
    "o": "o: show it?",
    "r": "r: use the old for the new?",
    "z": "z: keep or change?",
}


class Step(NamedTuple):
    """What a cell did at one token; each (H,)."""

    cell: Cell
    x: Tensor  # (D,)
    before: State
    values: State  # all of its equations

    @property
    def h(self) -> Tensor:
        return self.values["h"]

    @property
    def state(self) -> State:
        return {name: self.values[name] for name in self.cell.state_names}


def take_step(cell: Cell, x: Tensor, state: State) -> Step:
    """A cell's own equations for an input (D,) and a state of vectors (H,)."""
    rows = cell.equations(x.unsqueeze(0), {name: value.unsqueeze(0) for name, value in state.items()})
    return Step(cell, x, state, {name: value[0] for name, value in rows.items()})


def take_steps(cell: Cell, x: Tensor, state: State | None = None) -> list[Step]:
    """One after another, over inputs (T, D); from no memory where none is given."""
    state = {name: value[0] for name, value in cell.initial_state(1).items()} if state is None else state
    steps = []
    for each in x:
        steps.append(take_step(cell, each, state))
        state = steps[-1].state
    return steps


def states(steps: Sequence[Step], name: str = "h") -> Tensor:
    """(T, H)"""
    return torch.stack([step.values[name] for step in steps])


class Climbed(NamedTuple):
    """What the layers of an encoder did, each in the order in which it read."""

    right: list[list[Step]]  # → of each layer
    left: list[list[Step]]  # ← of each layer, the last token first; empty where it reads one way
    top: Tensor  # the outputs (S, M)
    ends: Tensor  # where the reading ended (M,)

    def left_at(self, place: int) -> Step:
        """← of the top layer at a place."""
        return self.left[-1][len(self.top) - 1 - place]


def climb(stack: Any, x: Tensor) -> Climbed:
    """x (S, D) through a `Stack` or a `BidirectionalStack`, from no memory."""
    right: list[list[Step]] = []
    left: list[list[Step]] = []
    if not isinstance(stack, BidirectionalStack):
        for cell in stack.cells:
            right.append(take_steps(cell, x))
            x = states(right[-1])
        return Climbed(right, left, x, x[-1])
    if stack.depth == "each":
        for layer in stack.layers:
            right.append(take_steps(layer.forwards.cell, x))  # type: ignore[union-attr, arg-type]
            left.append(take_steps(layer.backwards.cell, x.flip(0)))  # type: ignore[union-attr, arg-type]
            combine: Any = layer.combine
            x = combine(states(right[-1])[None], states(left[-1]).flip(0)[None])[0]
    else:
        ways = [climb(way, each) for way, each in zip(stack.directions, (x, x.flip(0)), strict=True)]
        right, left, combine = ways[0].right, ways[1].right, stack.combine
        x = combine(ways[0].top[None], ways[1].top.flip(0)[None])[0]
    return Climbed(right, left, x, combine(right[-1][-1].h[None], left[-1][-1].h[None])[0])


def memory_stage(key: str, chapter: str, step: Step, token: str, first: bool, numbers: int) -> Stage:
    """What the network remembers before it reads the token."""
    H = step.cell.hidden
    two = len(step.cell.state_names) > 1
    what = "the state h, and the cell c beside it, which lasts longer" if two else "the state h"
    words = (
        "This model reads one token after another, from left to right, and keeps what it has read in a memory. The "
        f"memory is a list of {H} numbers, {what}. It is all that the model knows of everything before. "
        + ("Nothing has been read yet, so all of it is 0." if first else f"This is the memory when {token} arrives.")
    )
    rows = {"h": "state h before", "c": "cell c before"}
    panel = matrix(
        "The memory before",
        [rows[name] for name in step.cell.state_names],
        torch.stack([step.before[name] for name in step.cell.state_names]),
        numbers,
        row_title="memory",
        column_title="unit",
    )
    shape = size(len(step.cell.state_names), "vector", H)
    return Stage(
        key,
        chapter,
        "The memory",
        words,
        "h₀ = 0" if first else "hₜ₋₁",
        shape,
        shape,
        (panel,),
        output=array(step.before["h"]),
    )


def step_stage(
    key: str,
    chapter: str,
    step: Step,
    token: str,
    numbers: int,
    *,
    who: str = "",
    links: Sequence[Link] = (),
    title: str = "",
) -> Stage:
    """The cell's equations with the real numbers. `who` says whose cell it is, in a sentence."""
    cell = step.cell
    panels = _panels(step, numbers)
    return Stage(
        key,
        chapter,
        title or f"{token} is read: a new memory is made",
        f"{who}{_words(cell)}",
        _equation(cell),
        f"a token’s {cell.inputs} numbers and a memory of {cell.hidden}",
        size(len(cell.state_names), "vector", cell.hidden),
        panels,
        links,
        output=array(step.h),
    )


def _words(cell: Cell) -> str:
    if isinstance(cell, Elman):
        return (
            "The new memory is made from two things: the token that is read, and the memory before. Of each, weighted "
            "sums are made, by weights that the model has learned. They are added up, number by number, and "
            f"{_bend(cell.activation)}."
        )
    if isinstance(cell, LSTM):
        return (
            "An LSTM does not make its memory anew each time. Gates, numbers between 0 (closed) and 1 (open), decide "
            "for every number: f, how much of the old cell is kept; i, how much of the new content g is let in; o, "
            "how much of the cell is shown to the rest of the model. They are computed from the token and the state "
            "before."
        )
    return (
        "The memory is not made anew each time. From the token and the memory before, the model makes a proposal h̃. "
        "Gates, numbers between 0 (closed) and 1 (open), decide for every number: r, how much of the old the "
        "proposal may use; z, how much of the old stays where it is."
    )


def _bend(activation: str) -> str:
    return {
        "tanh": "tanh squeezes every number between −1 and 1",
        "sigmoid": "σ squeezes every number between 0 and 1",
        "relu": "ReLU sets every negative number to 0",
    }[activation]


def _equation(cell: Cell) -> str:
    if isinstance(cell, Elman):
        return f"hₜ = {cell.activation}(Wₓ xₜ + Wₕ hₜ₋₁ + b)"
    if isinstance(cell, LSTM):
        return "cₜ = f ⊙ cₜ₋₁ + i ⊙ g      hₜ = o ⊙ tanh(cₜ)"
    return "hₜ = z ⊙ hₜ₋₁ + (1 − z) ⊙ h̃" if _keeps(cell) else "hₜ = (1 − z) ⊙ hₜ₋₁ + z ⊙ h̃"


def _keeps(cell: Cell) -> bool:
    """Whether z near 1 keeps the old state, as in a GRU; in the others it lets the new in."""
    return cell.gates["z"].startswith("near 1 keeps")


def _panels(step: Step, numbers: int) -> list[Panel]:
    if isinstance(step.cell, Elman):
        return [_elman(step, numbers)]
    gates = [name for name in ("f", "i", "o", "r", "z") if name in step.values]
    fresh = "g" if "g" in step.values else "candidate"
    opened = matrix(
        "The gates: 0 is closed, 1 is open",
        [GATES[name] for name in gates],
        torch.stack([step.values[name] for name in gates]),
        numbers,
        row_title="gate",
        column_title="unit",
    )
    return [opened, *_kept(step, numbers, fresh)]


def _elman(step: Step, numbers: int) -> Panel:
    cell, x, h = step.cell, step.x.unsqueeze(0), step.before["h"].unsqueeze(0)
    from_x, from_h = cell.from_x(x)[0], cell.from_h(h)[0]
    assert isinstance(cell, Elman)
    terms = [("", "from the token", from_x), ("+", "from the memory", from_h), ("=", "sum", from_x + from_h)]
    return added("The new memory", [*terms, ("→", f"{cell.activation}: state h", step.h)], numbers)


def _kept(step: Step, numbers: int, fresh: str) -> list[Panel]:
    values, before = step.values, step.before
    if isinstance(step.cell, LSTM):
        kept, new = values["f"] * before["c"], values["i"] * values["g"]
        cell_terms = [("", "kept: f × old c", kept), ("+", "new: i × g", new), ("=", "cell c", values["c"])]
        shown = [("", "o", values["o"]), ("×", "tanh(c)", torch.tanh(values["c"])), ("=", "state h", values["h"])]
        return [
            added("The cell: what is kept, and what is new", cell_terms, numbers),
            added("The state: what is shown of the cell", shown, numbers),
        ]
    z, keeps = values["z"], _keeps(step.cell)
    kept = (z if keeps else 1 - z) * before["h"]
    new = (1 - z if keeps else z) * values[fresh]
    names = ("kept: z × old h", "new: (1 − z) × h̃") if keeps else ("kept: (1 − z) × old h", "new: z × h̃")
    terms = [("", names[0], kept), ("+", names[1], new), ("=", "state h", values["h"])]
    return [added("The new memory: what is kept, and what is new", terms, numbers)]


def carried_stage(
    key: str,
    chapter: str,
    tokens: Sequence[str],
    h: Tensor,
    row: int,
    numbers: int,
    words: str,
    links: Sequence[Link] = (),
) -> Stage:
    """The states (T, H) over time."""
    panel = matrix(
        "The state h after each token",
        tokens,
        h,
        max(numbers, 12),
        marked=row,
        row_title="after",
        column_title="unit",
        note="Read it from top to bottom: a column is one number of the memory over time.",
    )
    shape = size(len(tokens), "state", h.shape[1])
    return Stage(
        key,
        chapter,
        "The memory is handed on",
        words,
        "h₁ → h₂ → … → hₜ",
        size(len(tokens), "token"),
        shape,
        (panel,),
        links,
        output=array(h),
    )


def both_stage(
    climbed: Climbed,
    tokens: Sequence[str],
    row: int,
    combine: str,
    numbers: int,
    *,
    own: Tensor | None,
    last: str,
    place: int,
    known: Tensor,
) -> Stage:
    """What is known at each token once all was read: `known` (S, M). `place` is where the followed token stood in the
    order of reading, `own` its own vector, where that is added."""
    name = quoted(tokens[row])
    right = climbed.right[-1][place].h
    panels: list[Panel] = []
    words, equation = "This is done for every token. ", "hⱼ = →hⱼ"
    terms: list[tuple[str, str, Tensor]] = [("", "from reading", right)]
    if climbed.left:
        left = climbed.left_at(place).h
        words = (
            f"A second network does the same from the other end. So at {name} there are two memories: one knows what "
            "stands before it, the other what comes after. "
        )
        words += {"sum": "They are added. ", "concat": "They are put side by side. "}.get(
            combine, "They are mixed by one more table. "
        )
        equation = {"sum": "hⱼ = →hⱼ + ←hⱼ", "concat": "hⱼ = [→hⱼ; ←hⱼ]"}.get(combine, "hⱼ = tanh(W [→hⱼ; ←hⱼ] + b)")
        terms = [("", "from the left", right), ("+", "from the right", left)]
        if combine != "sum":
            both = torch.stack([right, left])
            panels.append(
                matrix(
                    f"The two memories at {name}",
                    ["from the left", "from the right"],
                    both,
                    numbers,
                    row_title="memory",
                    column_title="unit",
                )
            )
            terms = [("", "from both", climbed.top[place])]
    if own is not None:
        words += "The token’s own vector is added, too, so that the word itself is not forgotten. "
        terms.append(("+", "the token itself", own))
        equation += " + eⱼ"
    if len(terms) > 1:
        panels.append(added(f"What is known at {name}", [*terms, ("=", "together", known[row])], numbers))
    panels.append(matrix("What is known at each token", tokens, known, numbers, marked=row))
    shape = size(len(tokens), "token", known.shape[1])
    return Stage(
        "annotations",
        "Reading",
        "What is known at each token",
        words + last,
        equation,
        shape,
        shape,
        panels,
        output=array(known),
    )
