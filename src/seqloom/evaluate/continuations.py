"""Which of several continuations a language model finds likeliest: log p(c | prompt) = Σ_t log p(c_t | prompt, c_<t).

Long continuations are unlikely for their length alone. So they are compared by the mean over their tokens, or by the
sum where all are of one length, or where length shall count. What the model would say in any case, whatever it is
asked, can be taken off: log p(c | prompt) − log p(c | a prompt with a blank text).
"""

from collections.abc import Sequence
from itertools import takewhile

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seqloom.core.protocols import DecodeState, LanguageModel, select

ROWS = 32
CHUNK = 256  # tokens of a row that are read at once


def in_common(rows: Sequence[Sequence[int]]) -> int:
    """How many tokens all rows begin with."""
    alike = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*rows, strict=False))
    return sum(1 for _ in alike)


@torch.no_grad()
def continuation_log_probs(
    model: LanguageModel,
    rows: Sequence[Sequence[int]],
    starts: Sequence[int],
    *,
    end: int,
    at_once: int = ROWS,
    device: torch.device | str = "cpu",
) -> list[Tensor]:
    """log p of the tokens of each row from its start on, given END and those before: (length − start,), on the CPU.

    What all rows begin with is read once, the shots of a prompt say. Rows of like length are read together.
    """
    shared = min([in_common(rows) + 1, *starts])  # of the inputs, which begin with END
    inputs = torch.tensor([[end, *rows[0][: shared - 1]]], device=device)
    state = model.start(rows=1)
    for piece in inputs.split(CHUNK, dim=1) if shared else ():
        state = model.step(piece, state).state
    order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
    found: dict[int, Tensor] = {}
    for first in range(0, len(order), at_once):
        places = order[first : first + at_once]
        scores = _score(model, state, [[end, *rows[place]][shared:] for place in places], end=end, device=device)
        for place, row in zip(places, scores, strict=True):
            found[place] = row[starts[place] - shared : len(rows[place]) - shared]
    return [found[place] for place in range(len(rows))]


def _score(
    model: LanguageModel, state: DecodeState, rows: Sequence[Sequence[int]], *, end: int, device: torch.device | str
) -> Tensor:
    """log p (B, T) of all tokens but the first of each row; they go on from one state, that of a single row."""
    tokens = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=end).to(device)
    repeated = torch.zeros(len(rows), dtype=torch.long, device=device)
    state = select(state, repeated, repeated)
    parts = []
    for inputs, targets in zip(tokens[:, :-1].split(CHUNK, dim=1), tokens[:, 1:].split(CHUNK, dim=1), strict=True):
        log_probs, state = model.score(inputs, targets, state)
        parts.append(log_probs)
    return torch.cat(parts, dim=1).cpu()
