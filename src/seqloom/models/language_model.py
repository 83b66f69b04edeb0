"""The base class of left-to-right language models: p(y_1 … y_T) = Π_t p(y_t | y_1 … y_{t-1})."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from seqloom.core.errors import UsageError
from seqloom.core.protocols import DecodeState
from seqloom.core.tree import Tree
from seqloom.nn.softmax import SampledSoftmax, score_in_pieces


class LeftToRightModel(nn.Module, ABC):
    """A language model that predicts the next token. The first input of a text is END."""

    output: Any  # an output layer of `seqloom.nn.softmax`

    @abstractmethod
    def initial_state(self, rows: int) -> DecodeState:
        """Return the state before the first token, for `rows` rows."""

    @abstractmethod
    def advance(self, tokens: Tensor, state: DecodeState, mask: Tensor | None) -> tuple[Tensor, DecodeState]:
        """Read tokens (R, T). Return the argument of `before_output` (R, T, …) and the next state."""

    def embedding_owner(self) -> Any:
        """Return the module whose attribute `embed` is the token embedding."""
        return self

    def before_output(self, hidden: Tensor) -> Tensor:
        """Compute the input of the output layer (…, H)."""
        return hidden

    def set_counts(self, counts: Tensor) -> None:
        """Set the token counts (V,) of the training text, which some sampled softmax layers use."""
        if isinstance(self.output, SampledSoftmax):
            self.output.set_counts(counts)

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        """Return the state before the first token. A language model takes no source."""
        if source is not None:
            raise UsageError("A language model takes no source; pass the text to `step`.")
        return self.initial_state(1 if rows is None else rows)

    def score(
        self, inputs: Tensor, targets: Tensor, state: DecodeState, mask: Tensor | None = None
    ) -> tuple[Tensor, DecodeState]:
        """Return log p of each target (B, T), 0 where masked. Logits are computed in pieces to save memory."""
        hidden, state = self.advance(inputs, state, mask)
        flat = hidden.flatten(0, 1), targets.flatten().contiguous()
        scores = score_in_pieces(self.output, *flat, self.before_output).view_as(targets)  # (B, T)
        return scores if mask is None else scores.where(mask, 0), state
