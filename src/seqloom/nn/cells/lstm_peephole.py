"""The LSTM with peephole connections (Gers, Schraudolph and Schmidhuber 2002)."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from seqloom.nn.cells.standard import LSTM, Cell, State


class PeepholeLSTM(Cell):
    """i, f = σ(W [h_{t-1}; x_t] + b + p ⊙ c_{t-1})
    g    = tanh(W [h_{t-1}; x_t] + b)
    c_t  = f ⊙ c_{t-1} + i ⊙ g
    o    = σ(W [h_{t-1}; x_t] + b + p_o ⊙ c_t)
    h_t  = o ⊙ tanh(c_t)

    Each gate also reads the cell: p_i, p_f and p_o are vectors, so a gate of a unit reads only its own cell. The
    gates can then depend on the content even if the output gate is closed. torch has no kernel for this cell.
    """

    name = "lstm-peephole"
    blocks = ("i", "f", "g", "o")
    state_names = ("h", "c")
    gates: ClassVar = LSTM.gates

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(inputs, hidden)
        self.peepholes = nn.Parameter(torch.empty(3 * hidden))  # p_i, p_f and p_o
        self.reset_parameters()

    def equations(self, x_t: Tensor, state: State) -> dict[str, Tensor]:
        i, f, g, o = (self.from_x(x_t) + self.from_h(state["h"])).chunk(4, dim=-1)  # (B, 4H) -> 4 × (B, H)
        p_i, p_f, p_o = self.peepholes.chunk(3)  # (3H,) -> 3 × (H,)
        i, f = torch.sigmoid(i + p_i * state["c"]), torch.sigmoid(f + p_f * state["c"])
        g = torch.tanh(g)
        c = f * state["c"] + i * g
        o = torch.sigmoid(o + p_o * c)
        h = o * torch.tanh(c)
        return {"i": i, "f": f, "o": o, "g": g, "c": c, "h": h}
