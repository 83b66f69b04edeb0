"""One LSTM cell, step by step: all values of its equations, and the meaning of each gate.

Run it: python examples/cell_by_hand.py
"""

import torch

from seqloom.nn.cells import LSTM
from seqloom.nn.recurrent import Recurrent

torch.manual_seed(1)
cell = LSTM(inputs=2, hidden=3)
print("An LSTM cell:")
print("    " + (LSTM.__doc__ or "").partition("\n\n")[0])
for gate, meaning in LSTM.gates.items():
    print(f"gate {gate}: {meaning}")

inputs = torch.randn(1, 4, 2)  # one sequence of four steps
state = cell.initial_state(rows=1)
with torch.no_grad():
    for t, x_t in enumerate(inputs.unbind(dim=1), start=1):
        values = cell.equations(x_t, state)
        print(f"\nstep {t}, x = {[round(v, 3) for v in x_t[0].tolist()]}")
        for name, value in values.items():
            print(f"  {name} = {[round(v, 3) for v in value[0].tolist()]}")
        state = {name: values[name] for name in cell.state_names}  # the state is a value, passed to the next step

    _, last = Recurrent(cell)(inputs)  # the same computation, with a fused kernel if available
difference = max((last[name] - state[name]).abs().max().item() for name in state)
print(f"\nlargest difference from the fused kernel: {difference:.1e}")
