"""Gradient flow through time in models with recurrent cells, by part.

    ‖∂L/∂h_t‖             the influence of the state at time t on the loss L, by autograd on the plain loop
    ‖∂h_t/∂h_k‖           the effect on time t of a small change at time k, for Elman cells as a product of
                          Jacobians:  ∂h_t/∂h_{t-1} = diag(g'(a_t)) W_hh
    (γ_W γ_g)^(t−k)       the upper bound of this effect: γ_W is the largest singular value of W_hh, γ_g bounds |g'|
    g · min(1, θ/‖g‖)     the clipped gradient g of all parameters

    gradients = gradient_parts(seqloom.load("runs/translate-gru"), "Sunday, November 15, 2026")
    gradients.parts["encoder-forwards"].layers[0]["h"]      (T,): ‖∂L/∂h_t‖ of each source token

L is −log p of one prediction, by default of the last prediction, or of all predictions: see `ReadText`. Everything is
computed in float64 on the CPU, on a copy of the model, without dropout. `gradient_trace`, `flows`, `clipping` and
`gradient_report` support only recurrent language models, which have one part.
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
MAX_SLOPES = {"tanh": 1.0, "relu": 1.0, "sigmoid": 0.25}  # γ_g, the largest |g'|
MAX_OPERATIONS = 5e10  # maximum number of operations for computing ‖∂h_t/∂h_k‖

# --- matrices and the bound -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecurrentMatrix:
    """A recurrent matrix (H, H), named by the value that it computes from h_{t-1}."""

    layer: int  # 0 is the lowest
    name: str
    singular_values: Array  # (H,), largest first
    spectral_radius: float  # |largest eigenvalue|: the long-term growth per step due to this matrix alone


def recurrent_matrices(source: Source) -> list[RecurrentMatrix]:
    """Return all recurrent matrices of a recurrent language model, separately for each gate."""
    return _matrices_of(recurrent_lm(source).stack.cells)


def part_matrices(source: Source) -> dict[str, list[RecurrentMatrix]]:
    """Return the recurrent matrices of every part."""
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
    """The effect of a change in h at time k on h at the last time t. The inputs of the layer are fixed."""

    layer: int
    gamma_w: float  # the largest singular value of W_hh
    gamma_g: float  # the bound of |g'|
    measured: Array  # spectral norm ‖∂h_t/∂h_k‖ (T,) for t − k = 0, 1, …

    @property
    def bound(self) -> Array:
        """The upper bound (γ_W γ_g)^(t−k), which is infinite on overflow."""
        with np.errstate(over="ignore"):
            return (self.gamma_w * self.gamma_g) ** np.arange(len(self.measured), dtype=np.float64)


@torch.no_grad()
def flow_of(depth: int, cell: Elman, hidden: Tensor, max_steps: int | None = None) -> Flow:
    """Compute the flow from the hidden states (T, H). The slope of g is computed from the value of g.

    `max_steps` limits the steps back in time; each step takes about 20 H³ operations. The default is all steps.
    """
    weight = cell.weight_h  # (H, H)
    product = torch.eye(cell.hidden, dtype=weight.dtype)
    norms = [1.0]
    for h_t in hidden[1:].flip(0)[:max_steps]:
        check_cancelled()
        product = product @ (slope(cell.activation, h_t).unsqueeze(1) * weight)  # ∂h_t/∂h_k · ∂h_k/∂h_{k-1}
        norms.append(torch.linalg.matrix_norm(product, ord=2).item())
    gamma_w = torch.linalg.matrix_norm(weight, ord=2).item()
    return Flow(depth, gamma_w, MAX_SLOPES[cell.activation], np.array(norms))


def slope(activation: str, h: Tensor) -> Tensor:
    """Return g'(a) for h = g(a)."""
    if activation == "tanh":
        return 1 - h**2
    if activation == "sigmoid":
        return h * (1 - h)
    return (h > 0).to(h.dtype)


# --- gradients with respect to states ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PartGradients:
    """The gradients with respect to the states of one part. `seqloom.inspect.views.cells` lists the parts."""

    name: str
    title: str
    cell: str
    tokens: list[str]  # T tokens, in text order
    order: list[int]  # step t reads tokens[order[t]]
    layers: tuple[dict[str, Array], ...]  # lowest layer first: ‖∂L/∂state‖ (T,) by state, in text order
    flows: list[Flow]  # only for Elman cells


@dataclass(frozen=True, eq=False)
class GradientParts:
    """The gradients of one loss with respect to the states of every part."""

    predictions: list[str]  # predicted tokens, tags or label
    prediction_kind: str  # the kind of prediction: token, label …
    at: int | None  # index of the prediction whose loss is L; None for all predictions
    loss: float  # L in nats
    norm: float  # ‖∂L̄/∂θ‖, where L̄ is the mean loss over all predictions and θ all parameters
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
    max_tokens: int | None = None,
    max_operations: float | None = MAX_OPERATIONS,
) -> GradientParts:
    """Compute ‖∂L/∂h_t‖ for every layer of every part at every step. The norm is 0 if L does not depend on the state.

    `at` is the index of the prediction whose loss is L, counted from 0. `max_operations` limits the computation of
    ‖∂h_t/∂h_k‖; None sets no limit.
    """
    read = read_text(source, text, target, allow_unknown=allow_unknown, max_tokens=max_tokens)
    at = len(read.predictions) - 1 if at is None else at
    if of == "last" and not 0 <= at < len(read.predictions):
        raise UsageError(
            f"`at` must be from 0 to {len(read.predictions) - 1}, the index of a {read.prediction_kind}; got {at}."
        )
    model = exact_copy(model_of(source))
    with capture(model, Cell) as captured:
        log_probs = read.log_probs(model)
    steps = {name: steps for name in cells_of(model) if (steps := captured.steps(name))}
    loss = -log_probs.total if of == "total" else -log_probs.each[at]
    states = {
        (name, state): [step.after[state] for step in cell_steps]
        for name, cell_steps in steps.items()
        for state in cell_steps[0].after
    }
    tensors = [tensor for by_step in states.values() for tensor in by_step]
    gradients = iter(torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True))
    norms: dict[str, dict[str, Array]] = {name: {} for name in steps}
    for (name, state), values in states.items():
        by_step = islice(gradients, len(values))
        norms[name][state] = np.array([0.0 if gradient is None else gradient.norm().item() for gradient in by_step])
    parts = {}
    for part, names in group_by_part({name: name for name in steps}).items():
        position, lowest = next(iter(names.items()))
        order = position.reading_order(read, len(steps[lowest]))
        by_tokens = np.argsort(order)
        layers, flows = [], []
        for depth, name in enumerate(names.values()):
            layers.append({state: values[by_tokens] for state, values in norms[name].items()})
            cell = cells_of(model)[name]
            if isinstance(cell, Elman):
                hidden = torch.stack([step.after["h"][0].detach() for step in steps[name]])
                max_steps = None if max_operations is None else max(8, int(max_operations / (20 * cell.hidden**3)))
                flows.append(flow_of(depth, cell, hidden, max_steps))
        tokens = [read.tokens[position.role][number] for number in sorted(order)]
        kind = cell_name(cells_of(model)[lowest])
        parts[part] = PartGradients(part, position.title, kind, tokens, order, tuple(layers), flows)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    by_weights = torch.autograd.grad(-log_probs.total / len(log_probs.each), weights, allow_unused=True)
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in by_weights if gradient is not None))
    index = None if of == "total" else at
    return GradientParts(
        read.predictions, read.prediction_kind, index, loss.item(), norm, parts, read.answer, read.notes
    )


def exact_copy(model: Model) -> Model:
    """Return a copy in float64 on the CPU. The copy is moved before its conversion, because MPS has no float64."""
    return copy.deepcopy(model).cpu().double().eval().requires_grad_()


# --- recurrent language models ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GradientTrace:
    """Gradient norms of a language model: row t is the state after token t, which predicts token t + 1."""

    tokens: list[str]  # T tokens, END first
    target: str  # the predicted token, if L is the loss of one token
    of: Of
    loss: float  # L in nats
    layers: tuple[dict[str, Array], ...]  # lowest layer first: ‖∂L/∂state_t‖ (T,) by state (h, for some cells also c)

    @property
    def distances(self) -> list[int]:
        """The number of steps from each state to the last prediction."""
        return list(range(len(self.tokens) - 1, -1, -1))

    def steps_per_tenth(self, layer: int = -1, name: str = "h") -> float | None:
        """Return the number of steps in which the norm falls to a tenth (log-linear fit), or None without a decay."""
        norms = self.layers[layer][name]
        is_valid = (norms > 0) & np.isfinite(norms)
        if is_valid.sum() < 2:
            return None
        slope = np.polyfit(np.array(self.distances)[is_valid], np.log10(norms[is_valid]), 1)[0]
        return float(-1 / slope) if slope < 0 else None


@dataclass(frozen=True)
class Clipping:
    """The effect of clipping at θ on a gradient with this norm."""

    norm: float  # ‖g‖
    clip: float | None  # θ, or None without clipping

    @property
    def factor(self) -> float:
        """The factor of the clipped gradient, min(1, θ/‖g‖)."""
        return 1.0 if self.clip is None or self.norm <= self.clip else self.clip / self.norm

    @property
    def clipped(self) -> float:
        return self.norm * self.factor


@dataclass(frozen=True)
class GradientReport:
    """The gradients of one model on one text and during its training."""

    name: str
    cell: str
    trace: GradientTrace
    matrices: list[RecurrentMatrix]
    flows: list[Flow]  # only for Elman models
    clipping: Clipping
    training: list[tuple[int, float]]  # logged ‖g‖ before clipping

    @property
    def clipped_fraction(self) -> float | None:
        """The fraction of the logged steps that were clipped."""
        clip = self.clipping.clip
        if clip is None or not self.training:
            return None
        return sum(norm > clip for _, norm in self.training) / len(self.training)


def gradient_trace(source: Source, text: Text, *, of: Of = "last", allow_unknown: bool = False) -> GradientTrace:
    """Compute ‖∂L/∂h_t‖ for every layer of a recurrent language model at every step.

    L is −log p of the last token of the text (`last`), or the sum over all tokens (`total`). `source` is the result of
    `seqloom.load`, or a `RecurrentLM`, whose text is given as ids.
    """
    return _report(source, text, of, allow_unknown).trace


def flows(source: Source, text: Text, *, allow_unknown: bool = False) -> list[Flow]:
    """Compute Jacobian norms and their bound for each layer of an Elman model. Other models have no flows."""
    return _report(source, text, "last", allow_unknown).flows


def clipping(source: Source, text: Text, clip: float | None, *, allow_unknown: bool = False) -> Clipping:
    """Compute the gradient norm of a text's mean loss with respect to all parameters, and the effect of clipping."""
    if clip is not None and clip <= 0:
        raise UsageError(f"clip must be above 0, or None for no clipping; got {clip}.")
    return Clipping(_report(source, text, "total", allow_unknown).clipping.norm, clip)


def gradient_report(
    trained: TrainedModel, text: Text, *, of: Of = "last", allow_unknown: bool = False, name: str | None = None
) -> GradientReport:
    """Compute a `GradientReport` for a trained model. The clipping threshold is the threshold in the recipe."""
    report, run = _report(trained, text, of, allow_unknown), trained.run
    return replace(
        report,
        name=name or run.path.name,
        matrices=recurrent_matrices(trained),
        clipping=Clipping(report.clipping.norm, run.recipe["train"].get("clip_norm")),
        training=training_norms(run),
    )


def _report(source: Source, text: Text, of: Of, allow_unknown: bool) -> GradientReport:
    """Report the gradients without matrices and logged training norms."""
    model = recurrent_lm(source)
    gradients = gradient_parts(source, text, of=of, allow_unknown=allow_unknown, max_operations=None)
    part = gradients.parts["reader"]
    trace = GradientTrace(part.tokens, gradients.predictions[-1], of, gradients.loss, part.layers)
    elman_flows = part.flows if all(isinstance(cell, Elman) for cell in model.stack.cells) else []
    return GradientReport("", model.config.cell, trace, [], elman_flows, Clipping(gradients.norm, None), [])


def training_norms(run: Run) -> list[tuple[int, float]]:
    """Return (step, ‖g‖ before clipping) from the training log."""
    logged = [entry for entry in run.log() if entry["event"] == "progress"]
    norms = [(entry["step"], entry["values"].get("gradient_norm")) for entry in logged]
    return [(step, norm) for step, norm in norms if isinstance(norm, float) and math.isfinite(norm)]
