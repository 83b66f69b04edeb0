"""The base class of recurrent cells.

Weights are laid out as torch lays them, the blocks of all gates stacked, so that a fused kernel takes them as they are:

    weight_x (G·H, D)   weight_h (G·H, H)   bias_x (G·H,)   bias_h (G·H,)

Where a gate has no product with x, or none with h, that matrix has no block for it (`x_blocks`, `h_blocks`).
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = dict[str, Tensor]  # by name, each (B, H)


class Cell(nn.Module, ABC):
    """One time step of a recurrent network: inputs (B, D) and a state of tensors (B, H) to the next state."""

    name: ClassVar[str]  # in recipes: model.cell
    blocks: ClassVar[tuple[str, ...]]  # what the rows of the weights are for, H rows each
    x_blocks: ClassVar[tuple[str, ...]] = ()  # those weight_x has, where it has not all
    h_blocks: ClassVar[tuple[str, ...]] = ()  # those weight_h has, where it has not all
    projects: ClassVar[bool] = False  # adds x to h without a matrix, and so needs one where their sizes differ
    state_names: ClassVar[tuple[str, ...]] = ("h",)
    gates: ClassVar[dict[str, str]] = {}  # gate -> what it does when it is near 1
    options: ClassVar[tuple[str, ...]] = ()  # settings of this cell beyond its sizes
    two_biases: ClassVar[bool] = False  # a second bias, beside weight_h

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.inputs, self.hidden = inputs, hidden
        projected = self.projects and inputs != hidden
        rows, width = len(self.blocks) * hidden, hidden if projected else inputs
        self.weight_x = nn.Parameter(torch.empty(len(self.x_blocks or self.blocks) * hidden, width))
        self.weight_h = nn.Parameter(torch.empty(len(self.h_blocks or self.blocks) * hidden, hidden))
        self.bias_x = nn.Parameter(torch.empty(rows))
        self.bias_h = nn.Parameter(torch.empty(rows)) if self.two_biases else None
        self.weight_p = nn.Parameter(torch.empty(hidden, inputs)) if projected else None
        self.reset_parameters()

    def reset_parameters(self, scale: float | None = None) -> None:
        """Draw every parameter uniformly from (-scale, scale); as in torch, 1/√H unless told otherwise."""
        scale = 1 / math.sqrt(self.hidden) if scale is None else scale
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -scale, scale)

    def recurrent_matrices(self) -> dict[str, Tensor]:
        """W_h by what it is for: each (H, H)."""
        names = self.h_blocks or self.blocks
        return dict(zip(names, self.weight_h.chunk(len(names)), strict=True))

    def notes(self) -> list[str]:
        """What this cell does beyond its equations, in words for whoever trains it."""
        if self.weight_p is None:
            return []
        return [f"{type(self).__name__} projects its {self.inputs}-wide input to {self.hidden} first (W_xp)"]

    def project(self, x_t: Tensor) -> Tensor:
        """x_t, or W_xp x_t where x could not meet h otherwise (B, H)."""
        return x_t if self.weight_p is None else F.linear(x_t, self.weight_p)

    def from_x(self, x_t: Tensor) -> Tensor:
        """W_x x_t + b for all blocks at once (B, G·H)."""
        return F.linear(x_t, self.weight_x, self.bias_x)

    def from_h(self, h: Tensor) -> Tensor:
        """W_h h_{t-1} (+ the second bias) for all blocks at once (B, G·H)."""
        return F.linear(h, self.weight_h, self.bias_h)

    @abstractmethod
    def equations(self, x_t: Tensor, state: State) -> dict[str, Tensor]:
        """Everything computed in this step by name, each (B, H); the next state is among it."""

    def forward(self, x_t: Tensor, state: State) -> State:
        values = self.equations(x_t, state)
        return {name: values[name] for name in self.state_names}

    def initial_state(self, rows: int) -> State:
        return {name: self.weight_h.new_zeros(rows, self.hidden) for name in self.state_names}

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.hidden}"
