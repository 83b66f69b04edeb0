"""One step of a recurrent cell in a walk: from a token's vector and the memory before to the memory after."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.inspect.tours.panels import Link, Panel, Stage, added, array, matrix, quoted, size
from seqloom.nn.bidirectional import BidirectionalStack
from seqloom.nn.cells import GRU, LSTM, Cell, Elman, GRUCho, State

NAMES = {"elman": "simple recurrent network", "lstm": "LSTM", "gru": "GRU", "gru-cho": "GRU"}
CARRIED = 12  # units of a memory over time that are shown, at least
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


def lively(step: Step, numbers: int) -> list[int]:
    """The units whose state this step changes most, in their order: there the gates have something to tell. Empty
    where all of them are shown, or where there are no gates: then the first ones do as well."""
    if not step.cell.gates or numbers >= step.cell.hidden:
        return []
    moved = (step.h - step.before["h"]).abs()
    return sorted(moved.topk(numbers).indices.tolist())


def _chosen_words(units: Sequence[int], of: int) -> str:
    return f"Shown are the {len(units)} of {of} numbers that change most in this step." if units else ""


def memory_stage(key: str, chapter: str, step: Step, token: str, first: bool, numbers: int) -> Stage:
    """What the network remembers before it reads the token."""
    H = step.cell.hidden
    two = len(step.cell.state_names) > 1
    what = (
        f"two lists of {H} numbers: the state h, and the cell c, which lasts longer"
        if two
        else f"a list of {H} numbers, the state h"
    )
    words = (
        "This model reads one token after another, from left to right, and keeps what it has read in a memory. The "
        f"memory is {what}. It is all that the model knows of everything before. "
        + ("Nothing has been read yet, so all of it is 0." if first else f"This is the memory when {token} arrives.")
    )
    rows = {"h": "state h before", "c": "cell c before"}
    units = lively(step, numbers)
    panel = matrix(
        "The memory before",
        [rows[name] for name in step.cell.state_names],
        torch.stack([step.before[name] for name in step.cell.state_names]),
        numbers,
        units,
        row_title="memory",
        column_title="unit",
        note=f"Each number of the memory is called a unit. {_chosen_words(units, H)}",
    )
    equation = "h₀ = 0" if first else "hₜ₋₁"
    letters = {"h₀" if first else "hₜ₋₁": "the state before this token"}
    if two:
        equation += "      c₀ = 0" if first else "      cₜ₋₁"
        letters["c₀" if first else "cₜ₋₁"] = "the cell before this token"
    shape = size(len(step.cell.state_names), "vector", H)
    return Stage(
        key,
        chapter,
        "The memory",
        words,
        equation,
        shape,
        shape,
        (panel,),
        output=array(step.before["h"]),
        letters=letters,
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
    state: str = "h",
    x: tuple[str, str] = ("xₜ", "the vector of the token that is read"),
    came: str = "the token",
) -> Stage:
    """The cell's equations with the real numbers. `who` says whose cell it is, in a sentence; `state` is the letter of
    its memory, `x` that of what it reads, and what that is; `came` says it in a word."""
    cell = step.cell
    equation, letters = _equation(cell), {"xₜ": x[1], **_letters(cell)}
    for plain, own in (("h̃", f"{state}̃"), ("hₜ", f"{state}ₜ"), ("xₜ", x[0])):
        equation = equation.replace(plain, own)
        letters = {letter.replace(plain, own): words.replace(plain, own) for letter, words in letters.items()}
    return Stage(
        key,
        chapter,
        title or f"{token} is read: a new memory is made",
        f"{who}{_words(cell, came).replace('h̃', f'{state}̃')}",
        equation,
        f"the {cell.inputs} numbers of {came}, and a memory of {cell.hidden}",
        size(len(cell.state_names), "vector", cell.hidden),
        _panels(step, numbers, state, came),
        links,
        output=array(step.h),
        letters=letters,
    )


def _words(cell: Cell, came: str) -> str:
    if isinstance(cell, Elman):
        return (
            f"The new memory is made from two things: {came}, and the memory before. Of each, weighted sums are "
            "made, by weights that the model has learned. They are added up, number by number, and "
            f"{_bend(cell.activation)}."
        )
    if isinstance(cell, LSTM):
        return (
            f"An LSTM does not make its memory anew each time. From {came} and the state before, it makes weighted "
            "sums: new content g, squeezed by tanh between −1 and 1, and three gates, squeezed by σ between 0 (closed) "
            "and 1 (open). The gates decide for every number: f, how much of the old cell is kept; i, how much of the "
            "new content is let in; o, how much of the cell is shown to the rest of the model."
        )
    return (
        f"The memory is not made anew each time. From {came} and the memory before, weighted sums are made: a "
        "proposal h̃ for the new memory, squeezed by tanh between −1 and 1, and two gates, squeezed by σ between 0 "
        "(closed) and 1 (open). The gates decide for every number: r, how much of the old the proposal may use; z, "
        f"how much of the old {'stays' if _keeps(cell) else 'gives way to the new'}."
    )


def _bend(activation: str) -> str:
    return {
        "tanh": "tanh squeezes every number between −1 and 1",
        "sigmoid": "σ squeezes every number between 0 and 1",
        "relu": "ReLU sets every negative number to 0",
    }[activation]


GATED = "σ(W xₜ + U hₜ₋₁ + b)"


def _equation(cell: Cell) -> str:
    if isinstance(cell, Elman):
        return f"hₜ = {cell.activation}(W xₜ + U hₜ₋₁ + b)"
    if isinstance(cell, LSTM):
        made = f"f, i, o = {GATED}      g = tanh(W xₜ + U hₜ₋₁ + b)"
        return f"{made}\ncₜ = f ⊙ cₜ₋₁ + i ⊙ g      hₜ = o ⊙ tanh(cₜ)"
    last = "hₜ = z ⊙ hₜ₋₁ + (1 − z) ⊙ h̃" if _keeps(cell) else "hₜ = (1 − z) ⊙ hₜ₋₁ + z ⊙ h̃"
    if isinstance(cell, GRU):
        return f"r, z = {GATED}      h̃ = tanh(W xₜ + b + r ⊙ (U hₜ₋₁ + b))\n{last}"
    if isinstance(cell, GRUCho):
        return f"r, z = {GATED}      h̃ = tanh(W xₜ + U (r ⊙ hₜ₋₁) + b)\n{last}"
    return last  # the others make their gates in ways of their own


def _letters(cell: Cell) -> dict[str, str]:
    grids = "weights that the model has learned: each number that comes out is a weighted sum of all that go in"
    each = (
        ""
        if isinstance(cell, Elman)
        else f". {'Each gate, and g,' if isinstance(cell, LSTM) else 'Each gate, and the proposal,'} has its own"
    )
    own = {"W, U": f"{grids}{each}"} if isinstance(cell, Elman | LSTM | GRU | GRUCho) else {}
    if isinstance(cell, LSTM):
        return {"hₜ, cₜ": "the new state, the new cell", "f, i, o": "the gates", "g": "the new content", **own}
    return {
        "hₜ": "the new memory",
        **({} if isinstance(cell, Elman) else {"r, z": "the gates", "h̃": "the proposal"}),
        **own,
    }


def _keeps(cell: Cell) -> bool:
    """Whether z near 1 keeps the old state, as in a GRU; in the others it lets the new in."""
    return cell.gates["z"].startswith("near 1 keeps")


def _panels(step: Step, numbers: int, state: str, came: str) -> list[Panel]:
    if isinstance(step.cell, Elman):
        return [_elman(step, numbers, state, came)]
    gates = [name for name in ("f", "i", "o", "r", "z") if name in step.values]
    units = lively(step, numbers)
    opened = matrix(
        "The gates: 0 is closed, 1 is open",
        [GATES[name] for name in gates],
        torch.stack([step.values[name] for name in gates]),
        numbers,
        units,
        gates=True,
        row_title="gate",
        column_title="unit",
        note=_chosen_words(units, step.cell.hidden),
    )
    return [opened, *_kept(step, numbers, units, state)]


def _elman(step: Step, numbers: int, state: str, came: str) -> Panel:
    cell, x, h = step.cell, step.x.unsqueeze(0), step.before["h"].unsqueeze(0)
    from_x, from_h = cell.from_x(x)[0], cell.from_h(h)[0]
    assert isinstance(cell, Elman)
    terms = [("", f"from {came}", from_x), ("+", "from the memory", from_h), ("=", "sum", from_x + from_h)]
    return added("The new memory", [*terms, ("→", f"{cell.activation}: state {state}", step.h)], numbers)


def _kept(step: Step, numbers: int, units: Sequence[int], state: str) -> list[Panel]:
    values, before = step.values, step.before
    if isinstance(step.cell, LSTM):
        f, i, g, o, c = (values[name] for name in "figoc")
        kept = [("", "f: keep the old?", f), ("×", "old cell c", before["c"]), ("=", "kept", f * before["c"])]
        new = [("", "i: let the new in?", i), ("×", "new content g", g), ("=", "new", i * g)]
        cell = [("", "kept", f * before["c"]), ("+", "new", i * g), ("=", "cell c", c)]
        shown = [("", "o: show it?", o), ("×", "tanh(c)", torch.tanh(c)), ("=", f"state {state}", values["h"])]
        return [
            added("What is kept of the old cell", kept, numbers, units, gate=0),
            added("What is new", new, numbers, units, gate=0),
            added("The cell: kept and new together", cell, numbers, units),
            added("The state: what is shown of the cell", shown, numbers, units, gate=0),
        ]
    z, keeps = values["z"], _keeps(step.cell)
    fresh = values["candidate"]
    old, new_ = ("z", "(1 − z)") if keeps else ("(1 − z)", "z")
    kept_, taken = (z if keeps else 1 - z), (1 - z if keeps else z)
    proposal = matrix(
        "The memory before, and the proposal for a new one",
        [f"old {state}", f"proposal {state}̃"],
        torch.stack([before["h"], fresh]),
        numbers,
        units,
        row_title="memory",
        column_title="unit",
    )
    terms = [
        ("", f"kept: {old} × old {state}", kept_ * before["h"]),
        ("+", f"new: {new_} × {state}̃", taken * fresh),
        ("=", f"state {state}", values["h"]),
    ]
    return [proposal, added("The new memory: what is kept, and what is new", terms, numbers, units)]


def carried_stage(
    key: str,
    chapter: str,
    tokens: Sequence[str],
    h: Tensor,
    row: int,
    numbers: int,
    words: str,
    links: Sequence[Link] = (),
    units: Sequence[int] = (),
) -> Stage:
    """The states (T, H) over time, of the first units or of those named, from 0."""
    panel = matrix(
        "The state h after each token",
        tokens,
        h,
        max(numbers, CARRIED),
        units,
        marked=row,
        row_title="after",
        column_title="unit",
        note="Read it from top to bottom: a column is one number of the memory over time. "
        + (f"Shown are the {len(units)} that change most at the last token." if units else ""),
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
        letters={"h₁, h₂": "the state after the first token, after the second", "hₜ": "the state now"},
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
    words, equation = "This is done for every token. ", "knownⱼ = →hⱼ"
    terms: list[tuple[str, str, Tensor]] = [("", "from reading", right)]
    if climbed.left:
        left = climbed.left_at(place).h
        words = (
            f"A second network does the same from the other end. So at {name} there are two memories: one knows what "
            "stands before it, the other what comes after. "
        )
        words += {"sum": "They are added. ", "concat": "They are put side by side. "}.get(
            combine, "They are mixed by weighted sums. "
        )
        equation = {"sum": "knownⱼ = →hⱼ + ←hⱼ", "concat": "knownⱼ = [→hⱼ; ←hⱼ]"}.get(
            combine, "knownⱼ = tanh(W [→hⱼ; ←hⱼ] + b)"
        )
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
        equation += " + xⱼ"
    if len(terms) > 1:
        panels.append(added(f"What is known at {name}", [*terms, ("=", "together", known[row])], numbers))
    panels.append(matrix("What is known at each token", tokens, known, numbers, marked=row))
    letters = {"→hⱼ": "the state of the network that reads from the left, at token j"}
    if climbed.left:
        letters["←hⱼ"] = "that of the network that reads from the right"
    if own is not None:
        letters["xⱼ"] = "the vector of token j itself"
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
        letters=letters,
    )
