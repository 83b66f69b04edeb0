"""The base class of language models that read from left to right: p(y_1 … y_T) = Π_t p(y_t | y_1 … y_{t-1})."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from seqloom.core.errors import UsageError
from seqloom.core.protocols import DecodeState
from seqloom.core.tree import Tree
from seqloom.nn.softmax import SampledSoftmax, score_in_pieces


class LeftToRightModel(nn.Module, ABC):
    """Feed END before the first token: there is no prediction from nothing."""

    output: Any  # an output layer of `seqloom.nn.softmax`

    @abstractmethod
    def initial_state(self, rows: int) -> DecodeState:
        """The state before the first token of each row."""

    @abstractmethod
    def advance(self, tokens: Tensor, state: DecodeState, mask: Tensor | None) -> tuple[Tensor, DecodeState]:
        """Read tokens (R, T): what `before_output` takes of each (R, T, …), and the state after the last real one."""

    def embedding_owner(self) -> Any:
        """The module whose attribute `embed` holds the token vectors."""
        return self

    def before_output(self, hidden: Tensor) -> Tensor:
        """The input of the output layer (…, H)."""
        return hidden

    def set_counts(self, counts: Tensor) -> None:
        """How often each token (V,) is in the training text: some samplers of the softmax draw by it."""
        if isinstance(self.output, SampledSoftmax):
            self.output.set_counts(counts)

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        """The state before any token; a language model takes no source."""
        if source is not None:
            raise UsageError("A language model continues tokens and takes no source; feed the text to step instead.")
        return self.initial_state(1 if rows is None else rows)

    def score(
        self, inputs: Tensor, targets: Tensor, state: DecodeState, mask: Tensor | None = None
    ) -> tuple[Tensor, DecodeState]:
        """log p of each target (B, T), zero where masked. Logits are computed for a few positions at a time."""
        hidden, state = self.advance(inputs, state, mask)
        flat = hidden.flatten(0, 1), targets.flatten().contiguous()
        scores = score_in_pieces(self.output, *flat, self.before_output).view_as(targets)  # (B, T)
        return scores if mask is None else scores.where(mask, 0), state
