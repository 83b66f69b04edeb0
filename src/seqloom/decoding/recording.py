"""What can be watched of a beam search while it goes on."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class SearchStep:
    """The continuations that were compared at one step, (b, C) of the b sources still searched, best first.

    One whose `total` is −∞ is an empty place. Nodes are numbered as they come, those of the sources first, which are
    their roots.
    """

    length: int  # of every continuation, in tokens
    source: Tensor  # (b,) their places in the batch
    parent: Tensor  # the node that is continued
    token: Tensor
    own: Tensor  # log p of the token
    total: Tensor  # Σ log p
    score: Tensor  # what the continuation would be ranked by, did it end here
    node: Tensor  # what it is in the tree if it goes on; −1 if it does not
    ended: Tensor  # whether it ended and was set aside


class Recorder(Protocol):
    def step(self, step: SearchStep, /) -> None:
        """Is called after each step of a search, with everything that was compared in it."""
        ...
