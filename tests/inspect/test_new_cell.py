"""A cell that is defined only in this file can be traced and drawn, and has a tour."""

import json
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.inspect.walk_checks import Trained, build_tokenizer, check_walk, randomize
from torch import Tensor, nn

from seqloom.inspect.equations import arithmetic, trace_equations
from seqloom.inspect.plots.cells import draw_gates, draw_unit
from seqloom.inspect.plots.figures import to_bytes
from seqloom.inspect.tours.tour import Follow, walk_through
from seqloom.inspect.values import to_plain
from seqloom.inspect.views.cells import cell_traces
from seqloom.models.recurrent_lm import RecurrentLMConfig
from seqloom.nn.cells import CELLS, Cell, State


class Peephole(Cell):
    """i   = σ(W_xi x_t + W_hi h_{t-1} + V c_{t-1} + b_i)
    g   = softsign(W_xg x_t + W_hg h_{t-1} + b_g)
    c_t = (1 - i) ⊙ c_{t-1} + i ⊙ g
    h_t = tanh(c_t)
    """

    blocks = ("i", "g")
    state_names = ("h", "c")
    gates: ClassVar = {"i": "near 1 replaces the content of the cell"}

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(inputs, hidden)
        self.V = nn.Parameter(torch.randn(hidden, hidden))

    def equations(self, x_t: Tensor, state: State) -> dict[str, Tensor]:
        x_i, x_g = self.from_x(x_t).chunk(2, dim=-1)
        h_i, h_g = self.from_h(state["h"]).chunk(2, dim=-1)
        i = torch.sigmoid(x_i + h_i + F.linear(state["c"], self.V))
        g = F.softsign(x_g + h_g)
        c = (1 - i) * state["c"] + i * g
        return {"i": i, "g": g, "c": c, "h": torch.tanh(c)}


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Trained:
    monkeypatch.setitem(CELLS, "peephole", Peephole)
    tokenizer = build_tokenizer()
    model = RecurrentLMConfig(cell="peephole", hidden=20, layers=2).build(len(tokenizer))
    return Trained(randomize(model), tokenizer, "recurrent-lm", "language-model")


def test_equations_are_derived_from_the_code_of_the_cell() -> None:
    torch.manual_seed(3)
    cell = Peephole(4, 5).double()
    x, state = torch.randn(4).double(), {name: torch.randn(5).double() for name in ("h", "c")}
    lines = trace_equations(cell, x, state)
    assert [line.formula for line in lines] == [
        "i = σ(W_xi x_t + W_hi h_{t-1} + V c_{t-1} + b_i)",
        "g = softsign(W_xg x_t + W_hg h_{t-1} + b_g)",
        "c_t = (1 − i) ⊙ c_{t-1} + i ⊙ g",
        "h_t = tanh(c_t)",
    ]
    values = cell.equations(x[None], {name: value[None] for name, value in state.items()})
    for line in lines:
        torch.testing.assert_close(line.value, values[line.name][0])
    assert arithmetic(cell, x, state, 2)["c"] == pytest.approx(values["c"][0, 2].item(), abs=1e-12)


def test_new_cell_is_traced_and_drawn(writer: Trained) -> None:
    part = cell_traces(writer, "the cat")["reader"]
    assert part.cell == "peephole"
    layer = part.layer(2)
    assert list(layer.values) == ["i", "g", "c", "h"]
    expected = writer.model.eval().trace(torch.tensor([[0, *writer.tokenizer.encode("the cat")]]))
    np.testing.assert_allclose(layer.values["c"], expected[1]["c"][0].detach(), atol=1e-12)
    for figure in (draw_gates(part, 2), draw_unit(part, 3, 2)):
        assert to_bytes(figure).startswith(b"\x89PNG")


def test_tour_explains_a_new_cell(writer: Trained) -> None:
    walk = walk_through(writer, "the cat", Follow(word=4, layer=2))
    check_walk(walk)
    assert walk.difference < 1e-9
    json.dumps(to_plain(walk), allow_nan=False)
    step = walk.stage("step")
    assert step.equation == (
        "i = σ(W xₜ + U hₜ₋₁ + V cₜ₋₁ + b)      g = softsign(W xₜ + U hₜ₋₁ + b)\n"
        "cₜ = (1 − i) ⊙ cₜ₋₁ + i ⊙ g      hₜ = tanh(cₜ)"
    )
    assert "near 1 replaces the content of the cell" in step.text
    assert [panel.kind for panel in step.panels] == ["matrix", "sum", "sum", "sum", "sum"]
