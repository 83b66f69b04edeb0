"""Ways around a layer of a stack: x is what the layer was given, h what it made of it, y what the next one is given.

    none      y = h
    residual  y = h + x
    highway   y = T ⊙ h + (1 - T) ⊙ x,  T = σ(W_T x + b_T)
    dense     y = h, and each layer is given the stack's input and the outputs of all layers below, side by side

Residual and highway add x to h: where their sizes differ (embeddings narrower than the layers, say), x goes around
through a matrix, x ← W_a x, and `notes` says so.
"""

from typing import Literal

import torch
from torch import Tensor, nn

Connections = Literal["none", "residual", "highway", "dense"]


class Residual(nn.Module):
    """y = h + x"""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.inputs, self.hidden = inputs, hidden
        self.project = nn.Linear(inputs, hidden, bias=False) if inputs != hidden else None

    def reset_parameters(self, scale: float | None = None) -> None:
        """Draw every parameter uniformly from (-scale, scale); torch's own habit unless told otherwise."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
        if scale is not None:
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -scale, scale)

    def around(self, x: Tensor) -> Tensor:
        return x if self.project is None else self.project(x)

    def forward(self, x: Tensor, h: Tensor) -> dict[str, Tensor]:
        """Everything computed on the way around by name, each (B, T, H); y is what goes on."""
        return {"y": h + self.around(x)}

    def notes(self) -> list[str]:
        if self.project is None:
            return []
        kind = type(self).__name__.lower()
        return [f"the {kind} connection projects its {self.inputs}-wide input to {self.hidden} on the way around"]


class Highway(Residual):
    """T = σ(W_T x + b_T)
    y = T ⊙ h + (1 - T) ⊙ x

    b_T starts at -1, so that a fresh network passes most of x on, and learns where to transform it.
    """

    first_bias = -1.0

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(inputs, hidden)
        self.gate = nn.Linear(inputs, hidden)
        self.reset_parameters()

    def reset_parameters(self, scale: float | None = None) -> None:
        super().reset_parameters(scale)
        with torch.no_grad():
            self.gate.bias.add_(self.first_bias)

    def forward(self, x: Tensor, h: Tensor) -> dict[str, Tensor]:
        t = torch.sigmoid(self.gate(x))
        return {"T": t, "y": t * h + (1 - t) * self.around(x)}


def connect(connections: Connections, widths: list[tuple[int, int]]) -> nn.ModuleList:
    """What goes around each layer, given its (input, hidden) sizes; nothing for `none` and `dense`."""
    kinds: dict[str, type[Residual]] = {"residual": Residual, "highway": Highway}
    if connections not in kinds:
        return nn.ModuleList()
    return nn.ModuleList(kinds[connections](inputs, hidden) for inputs, hidden in widths)


def input_widths(connections: Connections, inputs: int, hidden: int, layers: int) -> list[int]:
    """How wide the input of each layer must be, the lowest first."""
    if connections == "dense":
        return [inputs + depth * hidden for depth in range(layers)]
    return [inputs if depth == 0 else hidden for depth in range(layers)]
