"""Transformers with start tokens, such as BART and Marian. Batches and searches use only END.

    source   source_bos, x_1 … x_n, END
    target   begin (in place of END), target_bos, y_1 … y_m, END

Each start token is added only if the config sets it. The attention weights of start tokens are removed from the
returned weights.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import NonNegativeInt
from seqloom.core import END
from seqloom.core.errors import UsageError
from seqloom.core.protocols import DecodeState
from seqloom.core.tree import Tree
from seqloom.models.encoder_backbone import EncoderBackbone
from seqloom.models.seq2seq import Batch, HiddenState, Memory, SourceVectors
from seqloom.models.transformer import Transformer, TransformerConfig, Weights
from seqloom.nn.backbone import Embedded
from seqloom.nn.masks import mask_or_ones
from seqloom.nn.transformer import WeightRequests


@config
class StartTokenConfig(TransformerConfig):
    kind: Literal["start-token-transformer"] = "start-token-transformer"  # type: ignore[assignment]
    bos: NonNegativeInt | None = None  # id of the token before every target, instead of END
    source_bos: NonNegativeInt | None = None  # id of the token before every source
    target_bos: NonNegativeInt | None = None  # id of a token between END or `bos` and every target

    @property
    def longest_source(self) -> int | None:
        """The maximum number of source tokens, END included, or None if unlimited."""
        return None if self.longest is None else self.longest - (self.source_bos is not None)

    @property
    def longest_target(self) -> int | None:
        """The maximum number of target tokens, END included, or None if unlimited."""
        return None if self.longest is None else self.longest - (self.target_bos is not None)

    def build(self, vocabulary: int, extra: int = 0, source: SourceVectors | None = None) -> Transformer:
        tokens = {"bos": self.bos, "source_bos": self.source_bos, "target_bos": self.target_bos}
        for name, token in tokens.items():
            if token is not None and token >= vocabulary:
                raise UsageError(
                    f"model.{name} must be one of the {vocabulary:,} tokens of the vocabulary; got {token}."
                )
        if tokens == dict.fromkeys(tokens):
            return Transformer(self, vocabulary + extra, source)
        if source is not None:
            raise UsageError("model.bos, model.source_bos and model.target_bos need a text as the source; remove them.")
        kind = StartTokenTransformer if self.target_bos is None else ForcedStartTransformer
        return kind(self, vocabulary + extra)


class StartTokenTransformer(Transformer):
    """A Transformer that reads `source_bos` before a source, and `bos` in place of END before a target."""

    source_embed: Embedded

    def __init__(self, config: StartTokenConfig, vocabulary: int) -> None:
        super().__init__(config, vocabulary)
        self.source_bos, self.added = config.source_bos, int(config.source_bos is not None)
        self.target_embed.bos = config.bos

    def add_start(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Add the start token to a source (B, S) and to its mask."""
        mask = mask_or_ones(mask, tokens)
        if self.source_bos is None:
            return tokens, mask
        return F.pad(tokens, (1, 0), value=self.source_bos), F.pad(mask, (1, 0), value=True)

    def encode(self, tokens: Tensor, mask: Tensor | None = None) -> Memory:
        return super().encode(*self.add_start(tokens, mask))

    def encoder_states(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().encoder_states(*self.add_start(tokens, mask))[:, self.added :]

    def decode(
        self, tokens: Tensor, hidden: HiddenState, memory: Memory, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, HiddenState, Memory]:
        y, weights, hidden, memory = super().decode(tokens, hidden, memory, mask)
        return y, weights[..., self.added :], hidden, memory

    def run_decoder(
        self,
        inputs: Tensor,
        memory: Memory,
        mask: Tensor | None,
        return_weights: WeightRequests | None = None,
        padding_last: bool = False,
    ) -> tuple[Tensor, Weights]:
        y, weights = super().run_decoder(inputs, memory, mask, return_weights, padding_last)
        return y, {**weights, "cross": [layer[..., self.added :] for layer in weights["cross"]]}

    def attentions(self, batch: Batch) -> Weights:
        source, mask = self.add_start(batch["source"], batch["source_mask"])
        weights = super().attentions({**batch, "source": source, "source_mask": mask})
        return {**weights, "encoder": [layer[:, :, self.added :, self.added :] for layer in weights["encoder"]]}


class ForcedStartTransformer(StartTokenTransformer):
    """A `StartTokenTransformer` that also reads `target_bos` after END or `bos`."""

    def __init__(self, config: StartTokenConfig, vocabulary: int) -> None:
        super().__init__(config, vocabulary)
        self.target_bos = config.target_bos or END

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        """Read the first token; the END with which a search begins is then read as `target_bos`."""
        state = super().start(source, rows)
        first = torch.full_like(state.memory["mask"][:, :1], END, dtype=torch.long)
        _, _, hidden, memory = super().decode(first, state.hidden, state.memory)
        return DecodeState(hidden, memory)

    def decode(
        self, tokens: Tensor, hidden: HiddenState, memory: Memory, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, HiddenState, Memory]:
        return super().decode(tokens.masked_fill(tokens == END, self.target_bos), hidden, memory, mask)

    def run_decoder(
        self,
        inputs: Tensor,
        memory: Memory,
        mask: Tensor | None,
        return_weights: WeightRequests | None = None,
        padding_last: bool = False,
    ) -> tuple[Tensor, Weights]:
        """Run the decoder, and merge the attention weights of the two tokens before a target."""
        mask = F.pad(mask_or_ones(mask, inputs), (1, 0), value=True)
        inputs = F.pad(inputs.masked_fill(inputs == END, self.target_bos), (1, 0), value=END)
        y, weights = super().run_decoder(inputs, memory, mask, return_weights, padding_last)
        weights = {name: [layer[:, :, 1:] for layer in layers] for name, layers in weights.items()}
        weights["decoder"] = [
            torch.cat([layer[..., :2].sum(dim=-1, keepdim=True), layer[..., 2:]], dim=-1)
            for layer in weights["decoder"]
        ]
        return y[:, 1:], weights


class StartTokenBackbone(EncoderBackbone):
    """The encoder of this Transformer, which reads `source_bos` in place of the first END."""

    def __init__(self, config: StartTokenConfig, vocabulary: int, predicts: bool = False) -> None:
        super().__init__(config, vocabulary, predicts)
        self.source_embed.bos = config.source_bos
