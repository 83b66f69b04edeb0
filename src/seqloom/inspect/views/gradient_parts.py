"""How the gradient flows back through time in any model with recurrent cells, part by part.

    found = gradient_parts(seqloom.load("runs/translate-gru"), "Sunday, November 15, 2026")
    found.parts["encoder-forwards"].layers[0]["h"]      (T,): ‖∂L/∂h_t‖ of each token of the source

L is −log p of one of the things the model tells, the last if none is named, or of all of them: see
`inspect.views.read_texts`. As in `inspect.views.gradients`, which does the same for language models alone, all of
it is autograd through the plain loop, in float64 on the CPU, on a copy of the model, without dropout.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.inspect.capture import Step, capture, cells_of
from seqloom.inspect.views.cell_traces import Place, cell_name, grouped, part_title, reading_order
from seqloom.inspect.views.gradients import Array, Flow, Matrix, Of, exact_copy, flow_of, matrices_of
from seqloom.inspect.views.read_texts import ReadText, Told, read_text
from seqloom.inspect.views.reading import Text, model_of
from seqloom.nn.cells import Cell, Elman

PATIENCE = 5e10  # operations


@dataclass(frozen=True, eq=False)
class PartGradients:
    """Of the cells of one part: `seqloom.inspect.views.cell_traces` says what parts there are."""

    name: str
    title: str
    cell: str
    tokens: list[str]  # T of them, as they stand in the text
    order: list[int]  # step t reads tokens[order[t]]
    layers: tuple[dict[str, Array], ...]  # lowest first: state → ‖∂L/∂state‖ (T,), by tokens
    flows: list[Flow]  # of Elman cells only


@dataclass(frozen=True, eq=False)
class GradientParts:
    told: list[str]  # what the model tells: tokens, tags or a label
    what: str  # the word for one of them
    at: int | None  # which of them L is of; None for all
    loss: float  # L in nats
    norm: float  # ‖∂L̄/∂θ‖ of the mean loss over all that is told, by all parameters θ together
    parts: dict[str, PartGradients]
    answer: str
    notes: tuple[str, ...]


def gradient_parts(
    source: Any,
    text: Text,
    target: str | None = None,
    *,
    of: Of = "last",
    at: int | None = None,
    allow_unknown: bool = False,
    longest: int | None = None,
) -> GradientParts:
    """‖∂L/∂h_t‖ of every layer of every part at every step. L is of what is told at place `at`, counted from 0."""
    read = read_text(source, text, target, allow_unknown=allow_unknown, longest=longest)
    at = _place(read, of, at)
    model = exact_copy(model_of(source))
    with capture(model, Cell) as captured:
        told = read.log_probs(model)
    steps = {name: captured.steps(name) for name in cells_of(model)}
    cells = {name: cell for name, cell in cells_of(model).items() if steps[name]}
    loss = -told.total if at is None else -told.each[at]
    norms = _state_norms(loss, {name: steps[name] for name in cells})
    layers = {name: (cell, norms[name], steps[name]) for name, cell in cells.items()}
    parts = {name: _part(name, own, read) for name, own in grouped(layers).items()}
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return GradientParts(read.told, read.what, at, loss.item(), _norm_by(told, weights), parts, read.answer, read.notes)


def _place(read: ReadText, of: Of, at: int | None) -> int | None:
    if of == "total":
        return None
    at = len(read.told) - 1 if at is None else at
    if not 0 <= at < len(read.told):
        raise UsageError(f"There is no {read.what} at place {at}: {len(read.told)} are told, counted from 0.")
    return at


Layer = tuple[Cell, dict[str, Array], list[Step]]


def _part(name: str, layers: dict[Place, Layer], read: ReadText) -> PartGradients:
    place, (cell, _, steps) = next(iter(layers.items()))
    order = reading_order(place, read, len(steps))
    return PartGradients(
        name,
        part_title(place.role, place.way),
        cell_name(cell),
        [read.tokens[place.role][number] for number in sorted(order)],
        order,
        tuple({state: _by_tokens(norms, order) for state, norms in own.items()} for _, own, _ in layers.values()),
        [
            flow_of(depth, cell, torch.stack([step.after["h"][0].detach() for step in steps]), _followed(cell.hidden))
            for depth, (cell, _, steps) in enumerate(layers.values())
            if isinstance(cell, Elman)
        ],
    )


def _followed(hidden: int) -> int:
    """Over how many steps back ‖∂h_t/∂h_k‖ is measured, so that nobody waits for it longer than some seconds."""
    return max(8, int(PATIENCE / (20 * hidden**3)))


def _by_tokens(norms: Array, order: Sequence[int]) -> Array:
    found: Array = np.zeros(len(norms))
    found[order] = norms
    return found


def _state_norms(loss: Tensor, steps: dict[str, list[Step]]) -> dict[str, dict[str, Array]]:
    """Of each cell and state ‖∂loss/∂state_t‖ (T,), in the order of reading; 0 where nothing depends on it."""
    named = [
        (name, state, value)
        for name, own in steps.items()
        for state in own[0].after
        for value in (step.after[state] for step in own)
    ]
    gradients = torch.autograd.grad(loss, [value for *_, value in named], retain_graph=True, allow_unused=True)
    found: dict[str, dict[str, list[float]]] = {}
    for (name, state, _), gradient in zip(named, gradients, strict=True):
        found.setdefault(name, {}).setdefault(state, []).append(_norm(gradient))
    return {name: {state: np.array(norms) for state, norms in own.items()} for name, own in found.items()}


def _norm_by(told: Told, weights: Sequence[Tensor]) -> float:
    gradients = torch.autograd.grad(-told.total / len(told.each), weights, allow_unused=True)
    return math.sqrt(sum(_norm(gradient) ** 2 for gradient in gradients))


def _norm(gradient: Tensor | None) -> float:
    return 0.0 if gradient is None else gradient.norm().item()


def part_matrices(source: Any) -> dict[str, list[Matrix]]:
    """The recurrent matrices of every part, the blocks of the gates apart; see `recurrent_matrices`."""
    return {name: matrices_of(list(cells.values())) for name, cells in grouped(cells_of(model_of(source))).items()}
