"""One to many: a vector that represents a number sets the first state of a GRU, which writes the number in words.

Run it: python examples/topology_one_to_many.py

Each step reads the previous letter. The names of held-out numbers must be composed from those of the others.
"""

import torch
from torch import nn

from seqloom.nn.cells import CELLS
from seqloom.nn.recurrent import Recurrent

ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
NAMES = {10 * t + u: ten + (f"-{ONES[u]}" if u else "") for t, ten in enumerate(TENS, 2) for u in range(10)}
ALPHABET = [".", *sorted({letter for name in NAMES.values() for letter in name})]  # . is start and end

torch.manual_seed(1)
numbers = [list(NAMES)[index] for index in torch.randperm(len(NAMES)).tolist()]
seen, unseen = numbers[8:], sorted(numbers[:8])
spelled = [[0, *map(ALPHABET.index, NAMES[number]), 0] for number in seen]
letters = torch.tensor([ids + [0] * (16 - len(ids)) for ids in spelled])  # (B, 16), padded with ends
eye, first, output = torch.eye(len(ALPHABET)), nn.Linear(20, 64), nn.Linear(64, len(ALPHABET))
writer = Recurrent(CELLS["gru"](len(ALPHABET), 64))


def start(numbers: list[int]) -> dict[str, torch.Tensor]:
    """Return the state before the first letter (B, H) from one-hot tens and ones."""
    pair = torch.tensor([[number // 10, 10 + number % 10] for number in numbers])
    return {"h": torch.tanh(first(nn.functional.one_hot(pair, 20).sum(dim=1).float()))}


optimizer = torch.optim.Adam(nn.ModuleList([first, writer, output]).parameters(), lr=0.003)
for _ in range(300):
    hidden, _ = writer(eye[letters[:, :-1]], start(seen))
    loss = nn.functional.cross_entropy(output(hidden).flatten(0, 1), letters[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

state, written = start(unseen), torch.zeros(8, 1, dtype=torch.long)
for _ in range(15):
    hidden, state = writer(eye[written[:, -1:]], state)
    written = torch.cat([written, output(hidden).argmax(dim=-1)], dim=1)
names = ["".join(ALPHABET[letter] for letter in row).strip(".") for row in written.tolist()]
print("\n".join(f"{number} {name}" for number, name in zip(unseen, names, strict=True)))
print(
    f"correct: {sum(name == NAMES[number] for number, name in zip(unseen, names, strict=True))} of 8 held-out numbers"
)
