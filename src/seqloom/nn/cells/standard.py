"""The base class of recurrent cells, and cells of the literature.

The cells are Elman, LSTM, two forms of the GRU, and the mutations of Jozefowicz et al. (2015).

Weights have torch's layout, with the blocks of all gates stacked, so that fused kernels can use them unchanged:

    weight_x (G·H, D)   weight_h (G·H, H)   bias_x (G·H,)   bias_h (G·H,)

If a gate has no product with x or with h, `weight_x` or `weight_h` lacks the block of this gate (`x_blocks`,
`h_blocks`).
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = dict[str, Tensor]  # tensors (B, H) by name


class Cell(nn.Module, ABC):
    """One time step of a recurrent network.

    A cell maps inputs (B, D) and a state of tensors (B, H) to the next state.
    """

    name: ClassVar[str]  # value of the recipe key model.cell
    blocks: ClassVar[tuple[str, ...]]  # the row blocks of the weights, H rows each; "candidate" is h̃ in the equations
    x_blocks: ClassVar[tuple[str, ...]] = ()  # the blocks of weight_x, if it does not have all blocks
    h_blocks: ClassVar[tuple[str, ...]] = ()  # the blocks of weight_h, if it does not have all blocks
    adds_x_to_h: ClassVar[bool] = False  # x is added to h without a matrix, so x is projected if their sizes differ
    state_names: ClassVar[tuple[str, ...]] = ("h",)
    gates: ClassVar[dict[str, str]] = {}  # gate → the effect of the gate when it is near 1
    options: ClassVar[tuple[str, ...]] = ()  # settings of this cell other than its sizes
    two_biases: ClassVar[bool] = False  # whether there is a second bias, which is added with weight_h

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.inputs, self.hidden = inputs, hidden
        is_projected = self.adds_x_to_h and inputs != hidden
        rows, width = len(self.blocks) * hidden, hidden if is_projected else inputs
        self.weight_x = nn.Parameter(torch.empty(len(self.x_blocks or self.blocks) * hidden, width))
        self.weight_h = nn.Parameter(torch.empty(len(self.h_blocks or self.blocks) * hidden, hidden))
        self.bias_x = nn.Parameter(torch.empty(rows))
        self.bias_h = nn.Parameter(torch.empty(rows)) if self.two_biases else None
        self.weight_xp = nn.Parameter(torch.empty(hidden, inputs)) if is_projected else None
        self.reset_parameters()

    def reset_parameters(self, scale: float | None = None) -> None:
        """Draw every parameter uniformly from (-scale, scale). The default scale is 1/√H, as in torch."""
        scale = 1 / math.sqrt(self.hidden) if scale is None else scale
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -scale, scale)

    def recurrent_matrices(self) -> dict[str, Tensor]:
        """Return the blocks of W_h by name, each (H, H)."""
        names = self.h_blocks or self.blocks
        return dict(zip(names, self.weight_h.chunk(len(names)), strict=True))

    def notes(self) -> list[str]:
        """Return notes for the user on operations of this cell that its equations omit."""
        if self.weight_xp is None:
            return []
        return [f"{type(self).__name__} projects its input from {self.inputs} to {self.hidden} dimensions first (W_xp)"]

    def project(self, x_t: Tensor) -> Tensor:
        """Return x_t, or W_xp x_t (B, H) if the sizes of x and h differ."""
        return x_t if self.weight_xp is None else F.linear(x_t, self.weight_xp)

    def from_x(self, x_t: Tensor) -> Tensor:
        """Return W_x x_t + b (B, G·H) of all blocks."""
        return F.linear(x_t, self.weight_x, self.bias_x)

    def from_h(self, h: Tensor) -> Tensor:
        """Return W_h h_{t-1} (B, G·H) of all blocks, plus the second bias if present."""
        return F.linear(h, self.weight_h, self.bias_h)

    @abstractmethod
    def equations(self, x_t: Tensor, state: State) -> dict[str, Tensor]:
        """Return all values of this step by name, each (B, H), including the next state."""

    def forward(self, x_t: Tensor, state: State) -> State:
        values = self.equations(x_t, state)
        return {name: values[name] for name in self.state_names}

    def initial_state(self, rows: int) -> State:
        return {name: self.weight_h.new_zeros(rows, self.hidden) for name in self.state_names}

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.hidden}"


class Elman(Cell):
    """h_t = g(W_xh x_t + W_hh h_{t-1} + b_h), g = tanh, ReLU or σ

    b_h is stored as two vectors, bias_x and bias_h, because fused kernels need both.
    """

    name = "elman"
    blocks = ("h",)
    options = ("activation",)
    two_biases = True
    activations: ClassVar = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid}

    def __init__(self, inputs: int, hidden: int, activation: str = "tanh") -> None:
        if activation not in self.activations:
            raise ValueError(f"activation must be one of {', '.join(self.activations)}; got {activation!r}")
        super().__init__(inputs, hidden)
        self.activation = activation

    def equations(self, x_t: Tensor, state: State) -> dict[str, Tensor]:
        g = self.activations[self.activation]
        return {"h": g(self.from_x(x_t) + self.from_h(state["h"]))}  # (B, H)


class LSTM(Cell):
    """i, f, o = σ(W [h_{t-1}; x_t] + b)
    g       = tanh(W [h_{t-1}; x_t] + b)
    c_t     = f ⊙ c_{t-1} + i ⊙ g
    h_t     = o ⊙ tanh(c_t)

    W [h; x] is computed as W_h h + W_x x, and b is the sum of bias_x and bias_h. `forget_bias` is added to the
    initial bias of the forget gate, so that a new cell keeps its content; torch and Zaremba et al. (2014) use 0.
    """

    name = "lstm"
    blocks = ("i", "f", "g", "o")
    state_names = ("h", "c")
    gates: ClassVar = {
        "i": "near 1 adds the new content g to the cell",
        "f": "near 1 keeps the old content of the cell",
        "o": "near 1 passes the content of the cell to the output",
    }
    options = ("forget_bias",)
    two_biases = True

    def __init__(self, inputs: int, hidden: int, forget_bias: float = 1.0) -> None:
        self.forget_bias = forget_bias
        super().__init__(inputs, hidden)

    def reset_parameters(self, scale: float | None = None) -> None:
        super().reset_parameters(scale)
        with torch.no_grad():
            self.bias_x[self.hidden : 2 * self.hidden] += self.forget_bias

    def equations(self, x_t: Tensor, state: State) -> dict[str, Tensor]:
        i, f, g, o = (self.from_x(x_t) + self.from_h(state["h"])).chunk(4, dim=-1)  # (B, 4H) -> 4 × (B, H)
        i, f, o = torch.sigmoid(i), torch.sigmoid(f), torch.sigmoid(o)
        g = torch.tanh(g)
        c = f * state["c"] + i * g
        h = o * torch.tanh(c)
        return {"i": i, "f": f, "o": o, "g": g, "c": c, "h": h}


class GRU(Cell):
    """r, z = σ(W_x x_t + b_x + W_h h_{t-1} + b_h)
    h̃    = tanh(W_xh x_t + b_x + r ⊙ (W_hh h_{t-1} + b_h))
    h_t  = z ⊙ h_{t-1} + (1 - z) ⊙ h̃

    This is the form of cuDNN: the reset gate is applied after the matrix product, so that a step needs a single product
    with h. Both gates and the candidate h̃ have separate rows of the two biases b_x and b_h.
    """

    name = "gru"
    blocks = ("r", "z", "candidate")
    gates: ClassVar = {
        "r": "near 1 includes the old state in the candidate; near 0 excludes it",
        "z": "near 1 keeps the old state; near 0 takes the candidate",
    }
    two_biases = True

    def equations(self, x_t: Tensor, state: State) -> dict[str, Tensor]:
        h = state["h"]
        x_r, x_z, x_h = self.from_x(x_t).chunk(3, dim=-1)  # (B, 3H) -> 3 × (B, H)
        h_r, h_z, h_h = self.from_h(h).chunk(3, dim=-1)
        r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
        candidate = torch.tanh(x_h + r * h_h)
        h = z * h + (1 - z) * candidate
        return {"r": r, "z": z, "candidate": candidate, "h": h}


class GRUCho(Cell):
    """r, z = σ(W_x x_t + W_h h_{t-1} + b)
    h̃    = tanh(W_xh x_t + W_hh (r ⊙ h_{t-1}) + b_h)
    h_t  = z ⊙ h_{t-1} + (1 - z) ⊙ h̃

    This is the original form (Cho et al., 2014): the reset gate is applied before the matrix product. torch has no
    kernel for this form.
    """

    name = "gru-cho"
    blocks = ("r", "z", "candidate")
    gates: ClassVar = GRU.gates

    def equations(self, x_t: Tensor, state: State) -> dict[str, Tensor]:
        h = state["h"]
        x_r, x_z, x_h = self.from_x(x_t).chunk(3, dim=-1)  # (B, 3H) -> 3 × (B, H)
        w_r, w_z, w_h = self.weight_h.chunk(3)  # (3H, H) -> 3 × (H, H)
        r, z = torch.sigmoid(x_r + F.linear(h, w_r)), torch.sigmoid(x_z + F.linear(h, w_z))
        candidate = torch.tanh(x_h + F.linear(r * h, w_h))
        h = z * h + (1 - z) * candidate
        return {"r": r, "z": z, "candidate": candidate, "h": h}


class MUT1(Cell):
    """z   = σ(W_xz x_t + b_z)
    r   = σ(W_xr x_t + W_hr h_{t-1} + b_r)
    h̃   = tanh(W_hh (r ⊙ h_{t-1}) + tanh(x_t) + b_h)
    h_t = h̃ ⊙ z + h_{t-1} ⊙ (1 - z)

    z weights the new state and does not depend on h. x is added to h without a matrix: if their sizes differ, x_t is
    replaced by W_xp x_t, and `notes` reports this projection. torch has no kernel for this cell.
    """

    name = "mut1"
    blocks = ("r", "z", "candidate")
    x_blocks = ("r", "z")
    h_blocks = ("r", "candidate")
    gates: ClassVar = {"r": GRU.gates["r"], "z": "near 1 takes the candidate; near 0 keeps the old state"}
    adds_x_to_h = True

    def equations(self, x_t: Tensor, state: State) -> dict[str, Tensor]:
        h, x = state["h"], self.project(x_t)
        x_r, x_z = F.linear(x, self.weight_x).chunk(2, dim=-1)  # (B, 2H) -> 2 × (B, H)
        w_r, w_h = self.weight_h.chunk(2)  # (2H, H) -> 2 × (H, H)
        b_r, b_z, b_h = self.bias_x.chunk(3)
        z = torch.sigmoid(x_z + b_z)
        r = torch.sigmoid(x_r + F.linear(h, w_r, b_r))
        candidate = torch.tanh(F.linear(r * h, w_h, b_h) + torch.tanh(x))
        h = candidate * z + h * (1 - z)
        return {"r": r, "z": z, "candidate": candidate, "h": h}


class MUT2(Cell):
    """z   = σ(W_xz x_t + W_hz h_{t-1} + b_z)
    r   = σ(x_t + W_hr h_{t-1} + b_r)
    h̃   = tanh(W_hh (r ⊙ h_{t-1}) + W_xh x_t + b_h)
    h_t = h̃ ⊙ z + h_{t-1} ⊙ (1 - z)

    z weights the new state. x is added to h without a matrix: if their sizes differ, x_t is replaced by W_xp x_t, and
    `notes` reports this projection. torch has no kernel for this cell.
    """

    name = "mut2"
    blocks = ("r", "z", "candidate")
    x_blocks = ("z", "candidate")
    gates: ClassVar = MUT1.gates
    adds_x_to_h = True

    def equations(self, x_t: Tensor, state: State) -> dict[str, Tensor]:
        h, x = state["h"], self.project(x_t)
        x_z, x_h = F.linear(x, self.weight_x).chunk(2, dim=-1)  # (B, 2H) -> 2 × (B, H)
        w_r, w_z, w_h = self.weight_h.chunk(3)  # (3H, H) -> 3 × (H, H)
        b_r, b_z, b_h = self.bias_x.chunk(3)
        z = torch.sigmoid(x_z + F.linear(h, w_z, b_z))
        r = torch.sigmoid(x + F.linear(h, w_r, b_r))
        candidate = torch.tanh(F.linear(r * h, w_h, b_h) + x_h)
        h = candidate * z + h * (1 - z)
        return {"r": r, "z": z, "candidate": candidate, "h": h}


class MUT3(Cell):
    """z   = σ(W_xz x_t + W_hz tanh(h_{t-1}) + b_z)
    r   = σ(W_xr x_t + W_hr h_{t-1} + b_r)
    h̃   = tanh(W_hh (r ⊙ h_{t-1}) + W_xh x_t + b_h)
    h_t = h̃ ⊙ z + h_{t-1} ⊙ (1 - z)

    z weights the new state. torch has no kernel for this cell.
    """

    name = "mut3"
    blocks = ("r", "z", "candidate")
    gates: ClassVar = MUT1.gates

    def equations(self, x_t: Tensor, state: State) -> dict[str, Tensor]:
        h = state["h"]
        x_r, x_z, x_h = self.from_x(x_t).chunk(3, dim=-1)  # (B, 3H) -> 3 × (B, H)
        w_r, w_z, w_h = self.weight_h.chunk(3)  # (3H, H) -> 3 × (H, H)
        z = torch.sigmoid(x_z + F.linear(torch.tanh(h), w_z))
        r = torch.sigmoid(x_r + F.linear(h, w_r))
        candidate = torch.tanh(F.linear(r * h, w_h) + x_h)
        h = candidate * z + h * (1 - z)
        return {"r": r, "z": z, "candidate": candidate, "h": h}
