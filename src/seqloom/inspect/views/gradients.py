"""How the gradient flows back through time in a recurrent language model.

    ‖∂L/∂h_t‖             how much the state at time t matters for the loss L, by autograd on the plain loop
    ‖∂h_t/∂h_k‖           how much of a small change at time k arrives at time t, for Elman cells as a product of
                          Jacobians:  ∂h_t/∂h_{t-1} = diag(g'(a_t)) W_hh
    (γ_W γ_g)^(t−k)       what that can be at most: γ_W the largest singular value of W_hh, γ_g the bound of |g'|
    g · min(1, θ/‖g‖)     what clipping makes of the gradient g by all parameters

Everything is computed in float64 on the CPU, on a copy of the model, without dropout.

How the gradient flows back through time in any model with recurrent cells, part by part.

    found = gradient_parts(seqloom.load("runs/translate-gru"), "Sunday, November 15, 2026")
    found.parts["encoder-forwards"].layers[0]["h"]      (T,): ‖∂L/∂h_t‖ of each token of the source

L is −log p of one of the things the model tells, the last if none is named, or of all of them: see
`inspect.views.read_texts`. As in `inspect.views.gradients`, which does the same for language models alone, all of
it is autograd through the plain loop, in float64 on the CPU, on a copy of the model, without dropout.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from seqloom.core.cancellation import check_cancelled
from seqloom.core.errors import UsageError
from seqloom.inspect.capture import CellStep, capture, cells_of, model_of
from seqloom.inspect.views.cells import Place, cell_name, grouped, part_title, reading_order
from seqloom.inspect.views.texts import ReadText, Text, Told, read_text, recurrent_lm
from seqloom.nn.cells import Cell, Elman
from seqloom.runs.run import Run

Array = NDArray[np.floating[Any]]
Of = Literal["last", "total"]
Model = TypeVar("Model", bound=nn.Module)
SLOPES = {"tanh": 1.0, "relu": 1.0, "sigmoid": 0.25}  # γ_g, the largest |g'|


@dataclass(frozen=True)
class GradientTrace:
    """Row t belongs to the state after reading token t; the loss is of predicting what follows."""

    tokens: list[str]  # T of them; the first is END
    target: str  # the token whose loss it is, where it is of one
    of: Of
    loss: float  # L in nats
    layers: tuple[dict[str, Array], ...]  # lowest first: state (h, and c where there is one) → ‖∂L/∂state_t‖ (T,)

    @property
    def distances(self) -> list[int]:
        """How many steps each state stands before the last prediction."""
        return list(range(len(self.tokens) - 1, -1, -1))

    def steps_per_tenth(self, layer: int = -1, name: str = "h") -> float | None:
        """Over how many steps back the norm falls to a tenth, fitted to its logarithm; None where it does not fall."""
        norms = self.layers[layer][name]
        seen = (norms > 0) & np.isfinite(norms)
        if seen.sum() < 2:
            return None
        slope = np.polyfit(np.array(self.distances)[seen], np.log10(norms[seen]), 1)[0]
        return float(-1 / slope) if slope < 0 else None


def gradient_trace(source: Any, text: Text, *, of: Of = "last", allow_unknown: bool = False) -> GradientTrace:
    """‖∂L/∂h_t‖ of every layer of a recurrent language model at every step, through all that comes after t.

    L is −log p of the text's last token given all before it (`last`), or summed over all its tokens (`total`).
    `source` is what `seqloom.load` gives, or a `RecurrentLM`, whose text is then given as ids.
    """
    return _language_model_gradients(source, text, of, allow_unknown)[0]


def _language_model_gradients(
    source: Any, text: Text, of: Of, allow_unknown: bool
) -> tuple[GradientTrace, list["Flow"], float]:
    """The trace, the flows where all cells are Elman cells, and the norm of the gradient of the mean loss."""
    cells = recurrent_lm(source).stack.cells
    found = gradient_parts(source, text, of=of, allow_unknown=allow_unknown, patience=None)
    part = found.parts["reader"]
    trace = GradientTrace(part.tokens, found.told[-1], of, found.loss, part.layers)
    return trace, part.flows if all(isinstance(cell, Elman) for cell in cells) else [], found.norm


def exact_copy(model: Model) -> Model:
    """A copy in float64 on the CPU. MPS has no float64, so it moves first."""
    return copy.deepcopy(model).cpu().double().eval().requires_grad_()


# --- matrices and the bound -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Matrix:
    """A recurrent matrix (H, H), by what its product with h_{t-1} is for."""

    layer: int  # 0 is the lowest
    name: str
    singular_values: Array  # (H,), the largest first
    spectral_radius: float  # of the largest eigenvalue: the growth per step in the long run, where it acts alone


def recurrent_matrices(source: Any) -> list[Matrix]:
    """Every recurrent matrix of every layer, the blocks of the gates apart."""
    return matrices_of(recurrent_lm(source).stack.cells)


def matrices_of(cells: Sequence[Cell]) -> list[Matrix]:
    """Those of the cells of a stack, the lowest first."""
    found = []
    for depth, cell in enumerate(cells):
        for name, weight in cell.recurrent_matrices().items():
            exact = weight.detach().cpu().double()
            radius = torch.linalg.eigvals(exact).abs().max().item()
            found.append(Matrix(depth, name, torch.linalg.svdvals(exact).numpy(), radius))
    return found


@dataclass(frozen=True)
class Flow:
    """How much of a change of h at time k arrives at time t = the last, with the layer's inputs held fixed."""

    layer: int
    gamma_w: float  # the largest singular value of W_hh
    gamma_g: float  # the bound of |g'|
    measured: Array  # (T,): ‖∂h_t/∂h_k‖, the spectral norm, for t − k = 0, 1, …

    @property
    def bound(self) -> Array:
        """(γ_W γ_g)^(t−k); infinite where it is too large for a number."""
        with np.errstate(over="ignore"):
            found: Array = (self.gamma_w * self.gamma_g) ** np.arange(len(self.measured), dtype=np.float64)
        return found


def flows(source: Any, text: Text, *, allow_unknown: bool = False) -> list[Flow]:
    """Jacobian norms and their bound for each layer; the bound is for Elman cells, so other models give none."""
    return _language_model_gradients(source, text, "last", allow_unknown)[1]


@torch.no_grad()
def flow_of(depth: int, cell: Cell, hidden: Tensor, most: int | None = None) -> Flow:
    """From the hidden states (T, H) alone: the slope of each g can be read off its value. `most` is how many steps back
    it is followed, each of which takes some 20 H³ operations; all of them, if it is not given."""
    assert isinstance(cell, Elman)
    weight = cell.weight_h  # (H, H)
    product = torch.eye(cell.hidden, dtype=weight.dtype)
    norms = [1.0]
    for h_t in hidden[1:].flip(0)[:most]:
        check_cancelled()
        product = product @ (slope(cell.activation, h_t).unsqueeze(1) * weight)  # ∂h_t/∂h_k · ∂h_k/∂h_{k-1}
        norms.append(torch.linalg.matrix_norm(product, ord=2).item())
    gamma_w = torch.linalg.matrix_norm(weight, ord=2).item()
    return Flow(depth, gamma_w, SLOPES[cell.activation], np.array(norms))


def slope(activation: str, h: Tensor) -> Tensor:
    """g'(a) for h = g(a)."""
    if activation == "tanh":
        return 1 - h**2
    if activation == "sigmoid":
        return h * (1 - h)
    return (h > 0).to(h.dtype)


# --- clipping -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clipping:
    """What clipping at θ makes of a gradient of this norm."""

    norm: float  # ‖g‖
    clip: float | None  # θ; None clips nothing

    @property
    def factor(self) -> float:
        """min(1, θ/‖g‖)"""
        return 1.0 if self.clip is None or self.norm <= self.clip else self.clip / self.norm

    @property
    def clipped(self) -> float:
        return self.norm * self.factor


def clipping(source: Any, text: Text, clip: float | None, *, allow_unknown: bool = False) -> Clipping:
    """The gradient of the mean loss over a text by all parameters together, and what clipping would make of it."""
    if clip is not None and clip <= 0:
        raise UsageError(f"clip must be above 0, or nothing for no clipping; got {clip}.")
    return Clipping(_language_model_gradients(source, text, "total", allow_unknown)[2], clip)


def training_norms(run: Run) -> list[tuple[int, float]]:
    """(step, ‖g‖ before clipping) as the training logged them."""
    logged = [entry for entry in run.log() if entry["event"] == "progress"]
    found = [(entry["step"], entry["values"].get("gradient_norm")) for entry in logged]
    return [(step, norm) for step, norm in found if isinstance(norm, float) and math.isfinite(norm)]


# --- all of it for one run ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """Everything about one model's gradients on one text."""

    name: str
    cell: str
    trace: GradientTrace
    matrices: list[Matrix]
    flows: list[Flow]  # of Elman models only
    clipping: Clipping
    training: list[tuple[int, float]]  # ‖g‖ as logged, before clipping

    @property
    def share_clipped(self) -> float | None:
        """Of the logged steps."""
        clip = self.clipping.clip
        if clip is None or not self.training:
            return None
        return sum(norm > clip for _, norm in self.training) / len(self.training)


def report(
    trained: Any, text: Text, *, of: Of = "last", allow_unknown: bool = False, name: str | None = None
) -> Report:
    """All of the above for what `seqloom.load` gives, with the clipping of its own recipe."""
    run = trained.run
    trace, flows, norm = _language_model_gradients(trained, text, of, allow_unknown)
    return Report(
        name or run.path.name,
        recurrent_lm(trained).config.cell,
        trace,
        recurrent_matrices(trained),
        flows,
        Clipping(norm, run.recipe["train"].get("clip")),
        training_norms(run),
    )


# ---------------------------------------------------------------------------------------------------------------------

PATIENCE = 5e10  # operations


@dataclass(frozen=True, eq=False)
class PartGradients:
    """Of the cells of one part: `seqloom.inspect.views.cells` says what parts there are."""

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
    patience: float | None = PATIENCE,
) -> GradientParts:
    """‖∂L/∂h_t‖ of every layer of every part at every step. L is of what is told at place `at`, counted from 0.
    `patience` is how many operations ‖∂h_t/∂h_k‖ may take; None is any number."""
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
    parts = {name: _part(name, own, read, patience) for name, own in grouped(layers).items()}
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return GradientParts(read.told, read.what, at, loss.item(), _norm_by(told, weights), parts, read.answer, read.notes)


def _place(read: ReadText, of: Of, at: int | None) -> int | None:
    if of == "total":
        return None
    at = len(read.told) - 1 if at is None else at
    if not 0 <= at < len(read.told):
        raise UsageError(f"There is no {read.what} at place {at}: {len(read.told)} are told, counted from 0.")
    return at


Layer = tuple[Cell, dict[str, Array], list[CellStep]]


def _part(name: str, layers: dict[Place, Layer], read: ReadText, patience: float | None) -> PartGradients:
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
            flow_of(
                depth,
                cell,
                torch.stack([step.after["h"][0].detach() for step in steps]),
                _steps_within(patience, cell.hidden),
            )
            for depth, (cell, _, steps) in enumerate(layers.values())
            if isinstance(cell, Elman)
        ],
    )


def _steps_within(patience: float | None, hidden: int) -> int | None:
    """Over how many steps back ‖∂h_t/∂h_k‖ is measured."""
    return None if patience is None else max(8, int(patience / (20 * hidden**3)))


def _by_tokens(norms: Array, order: Sequence[int]) -> Array:
    found: Array = np.zeros(len(norms))
    found[order] = norms
    return found


def _state_norms(loss: Tensor, steps: dict[str, list[CellStep]]) -> dict[str, dict[str, Array]]:
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


def _norm(gradient: Tensor | None) -> float:
    return 0.0 if gradient is None else gradient.norm().item()


def _norm_by(told: Told, weights: Sequence[Tensor]) -> float:
    gradients = torch.autograd.grad(-told.total / len(told.each), weights, allow_unused=True)
    return math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients if gradient is not None))


def part_matrices(source: Any) -> dict[str, list[Matrix]]:
    """The recurrent matrices of every part, the blocks of the gates apart; see `recurrent_matrices`."""
    return {name: matrices_of(list(cells.values())) for name, cells in grouped(cells_of(model_of(source))).items()}
