"""A recurrent language model that is unrolled by hand in plain torch, independently of the tested code."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from seqloom.models.recurrent_lm import RecurrentLM, RecurrentLMConfig
from seqloom.nn.cells import Cell

VOCABULARY = 11
IDS = [3, 7, 7, 2, 10, 5, 1, 4, 9]
Step = Callable[[Any, Tensor, dict[str, Tensor], dict[str, Tensor]], dict[str, Tensor]]
ACTIVATIONS: dict[str, Any] = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid}


def parts(cell: Cell, name: str, names: Sequence[str]) -> dict[str, Tensor]:
    weights = getattr(cell, name)
    return dict(zip(names, weights.split(cell.hidden), strict=True))


# Each step adds a zero tensor to its new state: the gradient with respect to this tensor is the gradient with respect
# to the state.


def elman(cell: Any, x: Tensor, state: dict[str, Tensor], add: dict[str, Tensor]) -> dict[str, Tensor]:
    total = cell.weight_x @ x + cell.bias_x + cell.weight_h @ state["h"] + cell.bias_h
    return {"h": ACTIVATIONS[cell.activation](total) + add["h"]}


def lstm(cell: Any, x: Tensor, state: dict[str, Tensor], add: dict[str, Tensor]) -> dict[str, Tensor]:
    wx, wh, bx, bh = (parts(cell, name, "ifgo") for name in ("weight_x", "weight_h", "bias_x", "bias_h"))
    total = {k: wx[k] @ x + bx[k] + wh[k] @ state["h"] + bh[k] for k in "ifgo"}
    i, f, o = (1 / (1 + torch.exp(-total[k])) for k in "ifo")
    g = torch.tanh(total["g"])
    c = f * state["c"] + i * g + add["c"]
    return {"i": i, "f": f, "o": o, "g": g, "c": c, "h": o * torch.tanh(c) + add["h"]}


def gru(cell: Any, x: Tensor, state: dict[str, Tensor], add: dict[str, Tensor]) -> dict[str, Tensor]:
    wx, wh, bx, bh = (parts(cell, name, "rzh") for name in ("weight_x", "weight_h", "bias_x", "bias_h"))
    h = state["h"]
    r, z = (torch.sigmoid(wx[k] @ x + bx[k] + wh[k] @ h + bh[k]) for k in "rz")
    new = torch.tanh(wx["h"] @ x + bx["h"] + r * (wh["h"] @ h + bh["h"]))
    return {"r": r, "z": z, "candidate": new, "h": z * h + (1 - z) * new + add["h"]}


def gru_cho(cell: Any, x: Tensor, state: dict[str, Tensor], add: dict[str, Tensor]) -> dict[str, Tensor]:
    wx, wh, b = (parts(cell, name, "rzh") for name in ("weight_x", "weight_h", "bias_x"))
    h = state["h"]
    r, z = (torch.sigmoid(wx[k] @ x + b[k] + wh[k] @ h) for k in "rz")
    new = torch.tanh(wx["h"] @ x + b["h"] + wh["h"] @ (r * h))
    return {"r": r, "z": z, "candidate": new, "h": z * h + (1 - z) * new + add["h"]}


def mutant(cell: Any, x: Tensor, state: dict[str, Tensor], add: dict[str, Tensor]) -> dict[str, Tensor]:
    """Compute one step of MUT1, MUT2 or MUT3, which differ in the functions applied to x and h."""
    number = type(cell).__name__[-1]
    wx = parts(cell, "weight_x", {"1": "rz", "2": "zh", "3": "rzh"}[number])
    wh = parts(cell, "weight_h", {"1": "rh", "2": "rzh", "3": "rzh"}[number])
    b = parts(cell, "bias_x", "rzh")
    h, x = state["h"], x if cell.weight_xp is None else cell.weight_xp @ x
    seen = {"1": torch.zeros_like(h), "2": h, "3": torch.tanh(h)}[number]
    z = torch.sigmoid(wx["z"] @ x + (wh["z"] @ seen if "z" in wh else 0) + b["z"])
    r = torch.sigmoid((wx["r"] @ x if "r" in wx else x) + wh["r"] @ h + b["r"])
    new = torch.tanh(wh["h"] @ (r * h) + (wx["h"] @ x if "h" in wx else torch.tanh(x)) + b["h"])
    return {"r": r, "z": z, "candidate": new, "h": new * z + h * (1 - z) + add["h"]}


STEPS: dict[str, Step] = {
    "elman": elman,
    "lstm": lstm,
    "gru": gru,
    "gru-cho": gru_cho,
    "mut1": mutant,
    "mut2": mutant,
    "mut3": mutant,
}


@dataclass(frozen=True)
class Unrolled:
    log_probs: Tensor  # (T,)
    values: list[list[dict[str, Tensor]]]  # by time, then layer, then name: (H,)
    added: list[list[dict[str, Tensor]]]  # the zero tensors added to the states


def unroll(model: RecurrentLM, ids: Sequence[int]) -> Unrolled:
    """Run all layers and steps one by one, without batching, stacking or fused kernels."""
    cells, step = model.stack.cells, STEPS[model.config.cell]
    states = [{name: torch.zeros(cell.hidden, dtype=torch.float64) for name in cell.state_names} for cell in cells]
    log_probs, values, added = [], [], []
    for token, target in zip([0, *ids[:-1]], ids, strict=True):
        x, now, zeros = model.embed.weight[token], [], []
        for depth, cell in enumerate(cells):
            zero = {
                name: torch.zeros(cell.hidden, dtype=torch.float64, requires_grad=True) for name in cell.state_names
            }
            found = step(cell, x, states[depth], zero)
            states[depth] = {name: found[name] for name in cell.state_names}
            x = found["h"] + x if model.config.connections == "residual" else found["h"]
            now.append(found)
            zeros.append(zero)
        output: Any = model.output
        logits = output.weight @ x + output.bias
        log_probs.append(logits[target] - torch.logsumexp(logits, 0))
        values.append(now)
        added.append(zeros)
    return Unrolled(torch.stack(log_probs), values, added)


@pytest.fixture
def by_hand() -> Callable[[RecurrentLM, Sequence[int]], Unrolled]:
    return unroll


@pytest.fixture
def ids() -> list[int]:
    return list(IDS)


@pytest.fixture
def make() -> Callable[..., RecurrentLM]:
    """Return a function that builds float64 models with weights large enough for all gates to vary."""

    def build(cell: str, layers: int = 2, **options: Any) -> RecurrentLM:
        torch.manual_seed(3)
        settings: dict[str, Any] = {"hidden": 5, "embedding": 4, "init": 0.9, "dropout": 0.3, **options}
        return RecurrentLMConfig(cell=cell, layers=layers, **settings).build(VOCABULARY).double()

    return build
