"""Many to many, encoder–decoder: one GRU reads a word, then another writes it in reverse order.

Run it: python examples/topology_encoder_decoder.py

The last state of the encoder is the first state of the decoder and its only information about the word.
"""

import torch
from torch import Tensor, nn

from seqloom.nn.cells import CELLS
from seqloom.nn.recurrent import Stack

LETTERS, START, LENGTH = "abcdefgh", 8, 5


def stack() -> Stack:
    return Stack([CELLS["gru"](len(LETTERS) + 1, 96)])


def words(rows: int) -> Tensor:
    return torch.randint(len(LETTERS), (rows, LENGTH))


torch.manual_seed(1)
one_hot, encoder, decoder, output = torch.eye(len(LETTERS) + 1), stack(), stack(), nn.Linear(96, len(LETTERS))
optimizer = torch.optim.Adam(nn.ModuleList([encoder, decoder, output]).parameters(), lr=0.005)
for _ in range(500):
    word = words(64)
    _, state = encoder(one_hot[word])  # only the last state is used, not the outputs
    backwards = word.flip(1)
    read = torch.cat([torch.full((64, 1), START), backwards[:, :-1]], dim=1)  # teacher forcing
    hidden, _ = decoder(one_hot[read], state)
    loss = nn.functional.cross_entropy(output(hidden).flatten(0, 1), backwards.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

word = words(500)
_, state = encoder(one_hot[word])
letter, written = torch.full((500, 1), START), []
for _ in range(LENGTH):  # each step reads its own previous output
    hidden, state = decoder(one_hot[letter], state)
    letter = output(hidden).argmax(dim=-1)
    written.append(letter)
answer = torch.cat(written, dim=1)
for row, predicted in zip(word[:4].tolist(), answer[:4].tolist(), strict=True):
    print("".join(LETTERS[i] for i in row), "→", "".join(LETTERS[i] for i in predicted))
print(f"correct: {(answer == word.flip(1)).all(dim=1).float().mean():.3f} of new words")
