"""One to one: a vector in, a label out. One step of a cell is a feed-forward network.

Run it: python examples/topology_one_to_one.py

The input has four bits; the label says whether the number of ones is odd. A linear model cannot learn this parity.
"""

import torch
from torch import nn

from seqloom.nn.cells import CELLS

torch.manual_seed(1)
bits = torch.cartesian_prod(*[torch.arange(2.0)] * 4)  # (16, 4): all inputs
odd = bits.sum(dim=1) % 2

cell, output = CELLS["elman"](inputs=4, hidden=16), nn.Linear(16, 1)
optimizer = torch.optim.Adam([*cell.parameters(), *output.parameters()], lr=0.02)
for _ in range(400):
    state = cell(bits, cell.initial_state(rows=16))  # h_1 = tanh(W_xh x + W_hh 0 + b)
    loss = nn.functional.binary_cross_entropy_with_logits(output(state["h"]).squeeze(1), odd)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

answers = (output(cell(bits, cell.initial_state(rows=16))["h"]).squeeze(1) > 0).float()
for row, answer in zip(bits[:4].int().tolist(), answers.tolist(), strict=False):
    print("".join(map(str, row)), "odd" if answer else "even")
print(f"correct: {(answers == odd).sum()} of 16")
