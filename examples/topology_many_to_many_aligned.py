"""Many to many, aligned: one output per step. An Elman network adds binary numbers, digit by digit.

Run it: python examples/topology_many_to_many_aligned.py

Each step reads two bits, lowest first, and predicts one bit. The state needs to store only the carry, so a network
trained on short numbers can add long ones.
"""

import torch
from torch import Tensor, nn

from seqloom.nn.cells import CELLS
from seqloom.nn.recurrent import Recurrent


def sums(rows: int, digits: int) -> tuple[Tensor, Tensor]:
    """Return pairs of bits (B, T, 2) and the bits of their sums (B, T)."""
    x, carry, bits = torch.randint(2, (rows, digits, 2)), torch.zeros(rows, dtype=torch.long), []
    for pair in x.unbind(dim=1):
        total = pair.sum(dim=1) + carry
        bits.append(total % 2)
        carry = total // 2
    return x.float(), torch.stack(bits, dim=1).float()


torch.manual_seed(1)
network, output = Recurrent(CELLS["elman"](inputs=2, hidden=16)), nn.Linear(16, 1)
optimizer = torch.optim.Adam([*network.parameters(), *output.parameters()], lr=0.01)
for _ in range(500):
    x, bits = sums(rows=64, digits=8)
    hidden, _ = network(x)  # (B, T, H): every step is used
    loss = nn.functional.binary_cross_entropy_with_logits(output(hidden).squeeze(2), bits)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

for digits in (8, 64):
    x, bits = sums(rows=500, digits=digits)
    is_correct = ((output(network(x)[0]).squeeze(2) > 0) == bits.bool()).all(dim=1)
    print(f"sums of {digits} digits, correct: {is_correct.float().mean():.3f}")
