"""A Transformer with start tokens, as BART and Marian have them; batches, searches and scores know END alone.

    source   source_begin, x_1 … x_n, END
    target   begin (in place of END), target_begin, y_1 … y_m, END

Each is added only where the config names a token for it, and left out of the attention weights that are returned.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.protocols import DecodeState
from seqloom.core.tree import Tree
from seqloom.models.seq2seq import Batch, Carry
from seqloom.models.transformer import Transformer, Weights
from seqloom.nn.transformer import Wanted

END = 0  # as in seqloom.text.base


class StartTokenTransformer(Transformer):
    @property
    def _source_added(self) -> int:
        """How many tokens are added before a source."""
        return int(self.config.source_begin is not None)

    @property
    def _first(self) -> int:
        """The token that every target is read after."""
        return END if self.config.begin is None else self.config.begin

    def input_tokens(self, tokens: Tensor) -> Tensor:
        """END stands only before a target, where another token is read in its place."""
        token = self._first if self.config.target_begin is None else self.config.target_begin
        return tokens if token == END else tokens.masked_fill(tokens == END, token)

    def run_encoder(
        self, tokens: Tensor, mask: Tensor | None, weights: bool = False
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The position of `source_begin` is included."""
        if self.config.source_begin is not None:
            mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
            tokens, mask = F.pad(tokens, (1, 0), value=self.config.source_begin), F.pad(mask, (1, 0), value=True)
        return super().run_encoder(tokens, mask, weights)

    def annotations(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().annotations(tokens, mask)[:, self._source_added :]

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        """With `target_begin`, which END is read as, the token before it has been read already."""
        state = super().start(source, rows)
        if self.config.target_begin is None:
            return state
        mask = state.memory["mask"]
        first = torch.full((len(mask), 1), self._first, device=mask.device)
        _, _, carry, memory = super().decode(first, state.carry, state.memory)
        return DecodeState(carry, memory)

    def decode(
        self, tokens: Tensor, carry: Carry, memory: dict[str, Any], mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Carry, dict[str, Any]]:
        y, weights, carry, memory = super().decode(self.input_tokens(tokens), carry, memory, mask)
        return y, weights[..., self._source_added :], carry, memory

    def run_decoder(
        self,
        inputs: Tensor,
        memory: dict[str, Any],
        mask: Tensor | None,
        wanted: Wanted | None = None,
        padding_last: bool = False,
    ) -> tuple[Tensor, Weights]:
        """What stands before a target counts as one token in the attention weights."""
        inputs = self.input_tokens(inputs)
        if self.config.target_begin is None:
            y, weights = super().run_decoder(inputs, memory, mask, wanted, padding_last)
        else:
            mask = torch.ones_like(inputs, dtype=torch.bool) if mask is None else mask
            inputs, mask = F.pad(inputs, (1, 0), value=self._first), F.pad(mask, (1, 0), value=True)
            y, weights = super().run_decoder(inputs, memory, mask, wanted, padding_last)
            y, weights = y[:, 1:], {name: [layer[:, :, 1:] for layer in layers] for name, layers in weights.items()}
            weights["decoder"] = [
                torch.cat([layer[..., :2].sum(dim=-1, keepdim=True), layer[..., 2:]], dim=-1)
                for layer in weights["decoder"]
            ]
        return y, {**weights, "cross": [layer[..., self._source_added :] for layer in weights["cross"]]}

    def attentions(self, batch: Batch) -> Weights:
        weights, added = super().attentions(batch), self._source_added
        return {**weights, "encoder": [layer[:, :, added:, added:] for layer in weights["encoder"]]}
