"""What a language model recalls from the text before: answers that the text has given, asked for once more.

An answer counts as right if each of its tokens is the likeliest one after all that stands before it: it is then what
the model would write there itself, token by token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seqloom.core.protocols import Steppable


@dataclass(frozen=True)
class Question:
    """The tokens of a document that are an answer, from the first to the one after the last, and its group."""

    start: int
    end: int
    group: str


def recall(
    model: Steppable,
    documents: Sequence[Sequence[int]],
    questions: Sequence[Sequence[Question]],
    *,
    end: int,
    rows: int = 256,
    device: torch.device | str = "cpu",
) -> dict[str, float]:
    """The share of the answers of each group that are right, groups in the order in which they first come."""
    right: dict[str, list[bool]] = {}
    for first in range(0, len(documents), rows):
        block = slice(first, first + rows)
        said = _likeliest(model, documents[block], end=end, device=device)
        for own, asked, guess in zip(documents[block], questions[block], said, strict=True):
            for one in asked:
                same = guess[one.start : one.end] == list(own[one.start : one.end])
                right.setdefault(one.group, []).append(same)
    return shares(right)


def shares(right: Mapping[str, Sequence[bool]]) -> dict[str, float]:
    return {group: sum(answers) / len(answers) for group, answers in right.items()}


@torch.no_grad()
def _likeliest(
    model: Steppable, documents: Sequence[Sequence[int]], *, end: int, device: torch.device | str
) -> list[list[int]]:
    """The likeliest token at each place of each document, given all before it; documents side by side."""
    inputs = pad_sequence([torch.tensor([end, *own[:-1]]) for own in documents], batch_first=True, padding_value=end)
    state, said = model.start(rows=len(documents)), list[Tensor]()
    for tokens in inputs.to(device).split(1, dim=1):  # (B, 1)
        output = model.step(tokens, state)
        state = output.state
        said.append(output.log_probs.argmax(dim=1).cpu())
    return torch.stack(said, dim=1).tolist()
