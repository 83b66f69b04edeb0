"""The LSTM with coupled input and forget gates (Greff et al. 2017)."""

from typing import ClassVar

import torch
from torch import Tensor

from seqloom.nn.cells.standard import Cell, State


class CoupledLSTM(Cell):
    """f, o = σ(W [h_{t-1}; x_t] + b)
    g    = tanh(W [h_{t-1}; x_t] + b)
    c_t  = f ⊙ c_{t-1} + (1 − f) ⊙ g
    h_t  = o ⊙ tanh(c_t)

    The cell adds new content only where it forgets old content, as a GRU does, so |c_t| never exceeds 1. Without a
    separate input gate, the cell has three quarters of the weights of an LSTM. torch has no kernel for this cell.
    """

    name = "lstm-coupled"
    blocks = ("f", "g", "o")
    state_names = ("h", "c")
    gates: ClassVar = {
        "f": "near 1 keeps the old content of the cell; near 0 replaces it by the new content g",
        "o": "near 1 passes the content of the cell to the output",
    }

    def equations(self, x_t: Tensor, state: State) -> dict[str, Tensor]:
        f, g, o = (self.from_x(x_t) + self.from_h(state["h"])).chunk(3, dim=-1)  # (B, 3H) -> 3 × (B, H)
        f, g, o = torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        c = f * state["c"] + (1 - f) * g
        h = o * torch.tanh(c)
        return {"f": f, "o": o, "g": g, "c": c, "h": h}
