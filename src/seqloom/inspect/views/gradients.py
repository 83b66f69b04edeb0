"""How the gradient flows back through time in a model with recurrent cells, part by part.

    ‖∂L/∂h_t‖             how much the state at time t matters for the loss L, by autograd on the plain loop
    ‖∂h_t/∂h_k‖           how much of a small change at time k arrives at time t, for Elman cells as a product of
                          Jacobians:  ∂h_t/∂h_{t-1} = diag(g'(a_t)) W_hh
    (γ_W γ_g)^(t−k)       what that can be at most: γ_W the largest singular value of W_hh, γ_g the bound of |g'|
    g · min(1, θ/‖g‖)     what clipping makes of the gradient g by all parameters

    found = gradient_parts(seqloom.load("runs/translate-gru"), "Sunday, November 15, 2026")
    found.parts["encoder-forwards"].layers[0]["h"]      (T,): ‖∂L/∂h_t‖ of each token of the source

L is −log p of one of the model's predictions, the last if none is named, or of all of them: see
`ReadText`. Everything is computed in float64 on the CPU, on a copy of the model, without dropout.
`gradient_trace`, `flows`, `clipping` and `gradient_report` are of recurrent language models alone,
which have one part.
"""

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from seqloom.core.errors import UsageError
from seqloom.core.progress import check_cancelled
from seqloom.inspect.capture import Source, TrainedModel, capture, cells_of, model_of
from seqloom.inspect.values import Array
from seqloom.inspect.views.cells import cell_name, group_by_part
from seqloom.inspect.views.texts import Text, read_text, recurrent_lm
from seqloom.nn.cells import Cell, Elman
from seqloom.runs.run import Run

Of = Literal["last", "total"]
Model = TypeVar("Model", bound=nn.Module)
SLOPES = {"tanh": 1.0, "relu": 1.0, "sigmoid": 0.25}  # γ_g, the largest |g'|
PATIENCE = 5e10  # operations that measuring ‖∂h_t/∂h_k‖ may take

# --- matrices and the bound -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecurrentMatrix:
    """A recurrent matrix (H, H), by what its product with h_{t-1} is for."""

    layer: int  # 0 is the lowest
    name: str
    singular_values: Array  # (H,), the largest first
    spectral_radius: float  # of the largest eigenvalue: the growth per step in the long run, where it acts alone


def recurrent_matrices(source: Source) -> list[RecurrentMatrix]:
    """Every recurrent matrix of every layer of a recurrent language model, the blocks of the gates apart."""
    return _matrices_of(recurrent_lm(source).stack.cells)


def part_matrices(source: Source) -> dict[str, list[RecurrentMatrix]]:
    """The recurrent matrices of every part."""
    return {name: _matrices_of(cells.values()) for name, cells in group_by_part(cells_of(model_of(source))).items()}


def _matrices_of(cells: Iterable[Cell]) -> list[RecurrentMatrix]:
    matrices = []
    for depth, cell in enumerate(cells):
        for name, weight in cell.recurrent_matrices().items():
            exact = weight.detach().cpu().double()
            radius = torch.linalg.eigvals(exact).abs().max().item()
            matrices.append(RecurrentMatrix(depth, name, torch.linalg.svdvals(exact).numpy(), radius))
    return matrices


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
            return (self.gamma_w * self.gamma_g) ** np.arange(len(self.measured), dtype=np.float64)


@torch.no_grad()
def flow_of(depth: int, cell: Elman, hidden: Tensor, most: int | None = None) -> Flow:
    """From the hidden states (T, H) alone: the slope of each g can be read off its value. `most` is how many steps back
    it is followed, each of which takes some 20 H³ operations; all of them, if it is not given."""
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


# --- gradients by the states ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PartGradients:
    """The gradients by the states of one part; `seqloom.inspect.views.cells` says what parts there are."""

    name: str
    title: str
    cell: str
    tokens: list[str]  # T of them, as they stand in the text
    order: list[int]  # step t reads tokens[order[t]]
    layers: tuple[dict[str, Array], ...]  # lowest first: state → ‖∂L/∂state‖ (T,), by tokens
    flows: list[Flow]  # of Elman cells only


@dataclass(frozen=True, eq=False)
class GradientParts:
    """The gradients of one loss by the states of every part."""

    predictions: list[str]  # what the model predicts: tokens, tags or a label
    prediction_kind: str  # the word for one of them
    at: int | None  # which of them L is of; None for all
    loss: float  # L in nats
    norm: float  # ‖∂L̄/∂θ‖ of the mean loss over all predictions, by all parameters θ together
    parts: dict[str, PartGradients]
    answer: str
    notes: tuple[str, ...]


def gradient_parts(
    source: Source,
    text: Text,
    target: str | None = None,
    *,
    of: Of = "last",
    at: int | None = None,
    allow_unknown: bool = False,
    longest: int | None = None,
    max_operations: float | None = PATIENCE,
) -> GradientParts:
    """‖∂L/∂h_t‖ of every layer of every part at every step; 0 where nothing depends on a state.

    L is of the prediction at position `at`, counted from 0. `max_operations` is how many operations
    ‖∂h_t/∂h_k‖ may take; None is any number.
    """
    read = read_text(source, text, target, allow_unknown=allow_unknown, longest=longest)
    at = len(read.predictions) - 1 if at is None else at
    if of == "last" and not 0 <= at < len(read.predictions):
        raise UsageError(
            f"There is no {read.prediction_kind} at place {at}: {len(read.predictions)} are told, counted from 0."
        )
    model = exact_copy(model_of(source))
    with capture(model, Cell) as captured:
        log_probs = read.log_probs(model)
    steps = {name: steps for name in cells_of(model) if (steps := captured.steps(name))}
    loss = -log_probs.total if of == "total" else -log_probs.each[at]
    states = {
        (name, state): [step.after[state] for step in own] for name, own in steps.items() for state in own[0].after
    }
    tensors = [tensor for own in states.values() for tensor in own]
    gradients = iter(torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True))
    norms: dict[str, dict[str, Array]] = {name: {} for name in steps}
    for (name, state), own in states.items():
        by_step = islice(gradients, len(own))
        norms[name][state] = np.array([0.0 if each is None else each.norm().item() for each in by_step])
    parts = {}
    for part, names in group_by_part({name: name for name in steps}).items():
        position, lowest = next(iter(names.items()))
        order = position.reading_order(read, len(steps[lowest]))
        by_tokens = np.argsort(order)
        layers, flows = [], []
        for depth, name in enumerate(names.values()):
            layers.append({state: own[by_tokens] for state, own in norms[name].items()})
            cell = cells_of(model)[name]
            if isinstance(cell, Elman):
                hidden = torch.stack([step.after["h"][0].detach() for step in steps[name]])
                most = None if max_operations is None else max(8, int(max_operations / (20 * cell.hidden**3)))
                flows.append(flow_of(depth, cell, hidden, most))
        tokens = [read.tokens[position.role][number] for number in sorted(order)]
        kind = cell_name(cells_of(model)[lowest])
        parts[part] = PartGradients(part, position.title, kind, tokens, order, tuple(layers), flows)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    by_weights = torch.autograd.grad(-log_probs.total / len(log_probs.each), weights, allow_unused=True)
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in by_weights if gradient is not None))
    which = None if of == "total" else at
    return GradientParts(
        read.predictions, read.prediction_kind, which, loss.item(), norm, parts, read.answer, read.notes
    )


def exact_copy(model: Model) -> Model:
    """A copy in float64 on the CPU. MPS has no float64, so it moves first."""
    return copy.deepcopy(model).cpu().double().eval().requires_grad_()


# --- recurrent language models ----------------------------------------------------------------------------------------


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
        usable = (norms > 0) & np.isfinite(norms)
        if usable.sum() < 2:
            return None
        slope = np.polyfit(np.array(self.distances)[usable], np.log10(norms[usable]), 1)[0]
        return float(-1 / slope) if slope < 0 else None


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


@dataclass(frozen=True)
class GradientReport:
    """Everything about one model's gradients on one text."""

    name: str
    cell: str
    trace: GradientTrace
    matrices: list[RecurrentMatrix]
    flows: list[Flow]  # of Elman models only
    clipping: Clipping
    training: list[tuple[int, float]]  # ‖g‖ as logged, before clipping

    @property
    def clipped_fraction(self) -> float | None:
        """Of the logged steps."""
        clip = self.clipping.clip
        if clip is None or not self.training:
            return None
        return sum(norm > clip for _, norm in self.training) / len(self.training)


def gradient_trace(source: Source, text: Text, *, of: Of = "last", allow_unknown: bool = False) -> GradientTrace:
    """‖∂L/∂h_t‖ of every layer of a recurrent language model at every step, through all that comes after t.

    L is −log p of the text's last token given all before it (`last`), or summed over all its tokens
    (`total`). `source` is what `seqloom.load` gives, or a `RecurrentLM`, whose text is then given
    as ids.
    """
    return _report(source, text, of, allow_unknown).trace


def flows(source: Source, text: Text, *, allow_unknown: bool = False) -> list[Flow]:
    """Jacobian norms and their bound for each layer; the bound is for Elman cells, so other models give none."""
    return _report(source, text, "last", allow_unknown).flows


def clipping(source: Source, text: Text, clip: float | None, *, allow_unknown: bool = False) -> Clipping:
    """The gradient of the mean loss over a text by all parameters together, and what clipping would make of it."""
    if clip is not None and clip <= 0:
        raise UsageError(f"clip must be above 0, or nothing for no clipping; got {clip}.")
    return Clipping(_report(source, text, "total", allow_unknown).clipping.norm, clip)


def gradient_report(
    trained: TrainedModel, text: Text, *, of: Of = "last", allow_unknown: bool = False, name: str | None = None
) -> GradientReport:
    """All of the above for what `seqloom.load` gives, with the clipping of its own recipe."""
    report, run = _report(trained, text, of, allow_unknown), trained.run
    return replace(
        report,
        name=name or run.path.name,
        matrices=recurrent_matrices(trained),
        clipping=Clipping(report.clipping.norm, run.recipe["train"].get("clip_norm")),
        training=training_norms(run),
    )


def _report(source: Source, text: Text, of: Of, allow_unknown: bool) -> GradientReport:
    """What the gradients say, without matrices and what only a run knows."""
    model = recurrent_lm(source)
    found = gradient_parts(source, text, of=of, allow_unknown=allow_unknown, max_operations=None)
    part = found.parts["reader"]
    trace = GradientTrace(part.tokens, found.predictions[-1], of, found.loss, part.layers)
    of_elman = part.flows if all(isinstance(cell, Elman) for cell in model.stack.cells) else []
    return GradientReport("", model.config.cell, trace, [], of_elman, Clipping(found.norm, None), [])


def training_norms(run: Run) -> list[tuple[int, float]]:
    """(step, ‖g‖ before clipping) as the training logged them."""
    logged = [entry for entry in run.log() if entry["event"] == "progress"]
    norms = [(entry["step"], entry["values"].get("gradient_norm")) for entry in logged]
    return [(step, norm) for step, norm in norms if isinstance(norm, float) and math.isfinite(norm)]
