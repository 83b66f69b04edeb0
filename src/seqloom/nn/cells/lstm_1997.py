"""The LSTM without a forget gate (Hochreiter and Schmidhuber 1997)."""

from typing import ClassVar

import torch
from torch import Tensor

from seqloom.nn.cells.standard import Cell, State


class LSTM1997(Cell):
    """i, o = σ(W [h_{t-1}; x_t] + b)
    g    = tanh(W [h_{t-1}; x_t] + b)
    c_t  = c_{t-1} + i ⊙ g
    h_t  = o ⊙ tanh(c_t)

    The cell can only add to its content, so the gradient along c is exactly 1, but old content is never removed. The
    paper squashes g to (−2, 2) and truncates gradients at the gates; this cell uses tanh and complete gradients. torch
    has no kernel for this cell.
    """

    name = "lstm-1997"
    blocks = ("i", "g", "o")
    state_names = ("h", "c")
    gates: ClassVar = {
        "i": "near 1 adds the new content g to the cell",
        "o": "near 1 passes the content of the cell to the output",
    }

    def equations(self, x_t: Tensor, state: State) -> dict[str, Tensor]:
        i, g, o = (self.from_x(x_t) + self.from_h(state["h"])).chunk(3, dim=-1)  # (B, 3H) -> 3 × (B, H)
        i, g, o = torch.sigmoid(i), torch.tanh(g), torch.sigmoid(o)
        c = state["c"] + i * g
        h = o * torch.tanh(c)
        return {"i": i, "o": o, "g": g, "c": c, "h": h}
