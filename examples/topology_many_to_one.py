"""Many to one: a GRU reads a noisy wave and predicts its shape.

Run it: python examples/topology_many_to_one.py
"""

import math

import torch
from torch import Tensor, nn

from seqloom.nn.cells import CELLS
from seqloom.nn.recurrent import Recurrent

SHAPES = ["sine", "square", "sawtooth"]


def waves(rows: int) -> tuple[Tensor, Tensor]:
    """Return noisy waves (B, 40, 1) of random frequency, phase and amplitude, and their shapes (B,)."""
    turns = torch.linspace(0, 1, 40) * (2 + 2 * torch.rand(rows, 1)) + torch.rand(rows, 1)  # (B, T)
    sine = torch.sin(2 * math.pi * turns)
    shapes = torch.stack([sine, sine.sign(), 2 * (turns % 1) - 1])  # (3, B, T)
    answer = torch.randint(3, (rows,))
    clean = shapes[answer, torch.arange(rows)] * (0.5 + torch.rand(rows, 1))
    return (clean + 0.1 * torch.randn(rows, 40)).unsqueeze(2), answer


torch.manual_seed(1)
reader, output = Recurrent(CELLS["gru"](inputs=1, hidden=32)), nn.Linear(32, 3)
optimizer = torch.optim.Adam([*reader.parameters(), *output.parameters()], lr=0.01)
for step in range(301):
    x, answer = waves(64)
    hidden, _ = reader(x)
    loss = nn.functional.cross_entropy(output(hidden[:, -1]), answer)  # only the last state is used
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step}: loss {loss:.3f}")

x, answer = waves(1000)
predicted = output(reader(x)[0][:, -1]).argmax(dim=1)
for shape, name in enumerate(SHAPES):
    print(f"{name}: {(predicted[answer == shape] == shape).float().mean():.1%} recognized")
print(f"correct: {(predicted == answer).float().mean():.3f} of new waves")
