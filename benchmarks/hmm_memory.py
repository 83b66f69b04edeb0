"""The memory of models: at most log2 N bits in a hidden Markov model of N states, more in a network with N units.

    python benchmarks/hmm_memory.py

Every text repeats one of 16 symbols, separated by dots. A model without memory of the symbol needs 4 bits to predict
it. The memory across eight dots is the reduction of these bits, given that a symbol follows. The hidden Markov models
are the best of ten restarts by likelihood. The networks are LSTMs with random seed 1. The script takes two minutes on a
CPU.
"""

import math
from typing import Any

import torch
from torch import Tensor

from seqloom.classical.hmm import HiddenMarkov, HMMConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig

END, DOT, FIRST, SYMBOLS = 0, 1, 2, 16
VOCABULARY = FIRST + SYMBOLS
TOKENS, BACK = 100, 40  # tokens in a text, and sequences per batch of a network


def texts(seed: int = 1) -> Tensor:
    """Return eight texts for each symbol (128, 101), with END at the last position."""
    dots = torch.rand(8, 1, TOKENS, generator=torch.Generator().manual_seed(seed)) < 0.7
    dots[:, :, 0] = False  # a text starts with its symbol
    rows = torch.where(dots, DOT, torch.arange(FIRST, VOCABULARY).unsqueeze(1)).flatten(0, 1)
    return torch.cat([rows, torch.full((len(rows), 1), END)], dim=1)


@torch.no_grad()
def remembered_bits(model: Any) -> float:
    """Return how many bits of information about the symbol a model carries across eight dots."""
    symbols = torch.arange(FIRST, VOCABULARY).unsqueeze(1)
    inputs = torch.cat([torch.full_like(symbols, END), symbols, torch.full((SYMBOLS, 8), DOT)], dim=1)
    log_probs = model.step(inputs, model.start(rows=SYMBOLS)).log_probs[:, FIRST:].double().log_softmax(dim=1)
    return math.log2(SYMBOLS) + log_probs.diagonal().mean().item() / math.log(2)


def markov(states: int, restarts: int = 10, iterations: int = 40) -> HiddenMarkov:
    stream, ends = texts().flatten(), []
    for restart in range(restarts):
        model = HMMConfig(states=states).build(VOCABULARY).draw_start(stream, 1, restart)
        for _ in range(iterations):
            model, value = model.improve(stream)
        ends.append((value, restart, model))
    return max(ends)[2]


def network(hidden: int, steps: int = 400) -> Any:
    torch.manual_seed(1)
    model = RecurrentLMConfig(cell="lstm", embedding=16, hidden=hidden).build(VOCABULARY)
    optimizer, rows = torch.optim.Adam(model.parameters(), lr=0.03), texts()
    inputs = torch.cat([torch.full((len(rows), 1), END), rows[:, :-1]], dim=1)
    for _ in range(steps):
        optimizer.zero_grad()
        model.loss(inputs[:, :BACK], rows[:, :BACK], None)[0].backward()
        optimizer.step()
    return model.eval()


def main() -> None:
    print(" N   Markov model   its limit   LSTM")
    for size in (2, 4, 8, 16):
        values = remembered_bits(markov(size)), math.log2(size), remembered_bits(network(size))
        print(f"{size:2}   {values[0]:.2f} bits      {values[1]:.0f} bits      {values[2]:.2f} bits", flush=True)


if __name__ == "__main__":
    main()
