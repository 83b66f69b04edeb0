"""GPT (Radford et al. 2018): a causal Transformer, p(y_1 … y_T) = Π_t p(y_t | y_1 … y_{t-1}).

    x_j = E[y_j] + PE(j)
    x ← x + attention(norm(x)),  x ← x + FFN(norm(x))          L times, with a causal mask
    p(y_{j+1}) = softmax(E norm(x_j) + b)                      with tied embeddings

`seqloom.nn.backbone` computes the first two lines. The model reads at most `context` tokens. When the context is full,
the model drops the first half and reads the second half again from position 0. A text can therefore have any length,
and after the first context every token is predicted from at least half a context. The positions at which the context is
shortened do not depend on how a text is split into calls.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import NonNegativeInt, PositiveInt
from seqloom.core.errors import UsageError
from seqloom.core.protocols import DecodeState, StepOutput
from seqloom.core.tokens import EXTRA
from seqloom.models.backbones import NextTokenLayer, TransformerTextBackbone
from seqloom.models.language_model import LeftToRightModel
from seqloom.nn.backbone import BackboneOptions, Embedded, TransformerBackbone
from seqloom.nn.cache import Caches, empty_state
from seqloom.nn.masks import select_last_real
from seqloom.nn.positions import LEARNED
from seqloom.nn.softmax import FullSoftmax

HiddenState = dict[str, Any]  # state of R hypotheses; see `GPT.initial_state`
NO_TOKEN = -1  # padding among the tokens of the context


@config
class GPTConfig(BackboneOptions):
    kind: Literal["gpt"] = "gpt"
    context: int | None = None  # maximum number of tokens; null: the number of learned positions, or else 512
    # number of tokens that each position attends to, including itself; null: all
    sliding_window: PositiveInt | None = None
    tied: bool = True  # share one matrix between input and output embeddings
    output_bias: bool = False  # use a bias in the output layer; GPT-2 and Llama have none
    bos: NonNegativeInt | None = None  # id of the token before every text; null: END

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.window < 2:
            yield f"context must be at least 2; got {self.window}"
        if self.longest is not None and self.window > self.longest:
            yield (
                f"context must be at most {self.longest}, the number of learned positions; got {self.window}. "
                "Raise positions.max_length as well"
            )

    @property
    def window(self) -> int:
        """The maximum number of tokens of the context."""
        return (self.longest or LEARNED) if self.context is None else self.context

    def backbone(self, vocabulary: int) -> TransformerBackbone:
        """Create the backbone for `vocabulary` tokens."""
        return TransformerBackbone(self, vocabulary, causal=True, bos=self.bos, window=self.sliding_window)

    def build(self, vocabulary: int) -> "GPT":
        if self.bos is not None and self.bos >= vocabulary:
            raise UsageError(f"model.bos must be one of the {vocabulary:,} tokens of the vocabulary; got {self.bos}.")
        return GPT(self, vocabulary)


class GPT(LeftToRightModel):
    """A Transformer language model that predicts the next token."""

    def __init__(self, config: GPTConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.backbone = config.backbone(vocabulary)
        tied = self.backbone.embed.weight if config.tied else None
        self.output = FullSoftmax(config.d_model, vocabulary, tied, bias=config.output_bias)
        if not self.output.tied:
            nn.init.normal_(self.output.weight, std=config.init)
        self.output.initialize()

    def embedding_owner(self) -> Embedded:
        return self.backbone.embedded

    def notes(self) -> list[str]:
        """Return notes for the user on behaviour that the recipe does not show."""
        if self.config.positions.kind == "none":
            return ["without positions the model has little information about the order of the previous tokens"]
        return []

    # Reading all tokens of a text, at most `context`, in one call

    def forward(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        """Compute the logits (B, T, V) of the next token from tokens (B, T). See `TransformerBackbone.read`."""
        return self.output(self.backbone.read(tokens, documents=documents))

    def loss(
        self, inputs: Tensor, targets: Tensor, state: None = None, documents: Tensor | None = None
    ) -> tuple[Tensor, None]:
        """Return the mean loss of inputs and targets (B, T), and no state."""
        h = self.backbone.read(inputs, documents=documents)
        return self.output.total_loss(h.flatten(0, 1), targets.flatten()) / targets.numel(), None

    def attentions(self, tokens: Tensor) -> list[Tensor]:
        """Return the attention weights of every layer (B, N, T, T)."""
        return self.backbone.attentions(tokens)

    # Reading token by token

    def initial_state(self, rows: int) -> DecodeState:
        """Return the state before the first token.

        The state consists of `readout` (R, D), the last h; `text` (R, P), the tokens of the context; and the state of
        the cache. The memory contains keys and values, one row per source.
        """
        weight = self.output.weight
        text = torch.empty(rows, 0, dtype=torch.long, device=weight.device)
        return DecodeState(
            {"readout": weight.new_zeros(rows, self.config.d_model), "text": text, "cache": empty_state()},
            {"caches": self.backbone.blocks.empty_caches(rows)},
        )

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        """Read tokens and predict the next token. A row without real tokens keeps its state and prediction."""
        _, state = self.advance(tokens, state, mask)
        return StepOutput(self.output.log_probs(state.hidden["readout"]), state)

    def advance(self, tokens: Tensor, state: DecodeState, mask: Tensor | None) -> tuple[Tensor, DecodeState]:
        """Compute h (R, T, D) of tokens (R, T), in pieces that fit into the context, and the next state."""
        hidden, caches = state.hidden, state.memory["caches"]
        parts = [hidden["readout"].new_empty(len(tokens), 0, self.config.d_model)]
        done = 0
        while done < tokens.shape[1]:
            if hidden["cache"]["read"] >= self.config.window:
                hidden, caches = self._slide(hidden, caches)
            steps = slice(done, done + self.config.window - hidden["cache"]["read"])
            piece, real = tokens[:, steps], None if mask is None else mask[:, steps]
            h, cache, caches = self.backbone.advance(piece, hidden["cache"], caches, real)
            text = torch.cat([hidden["text"], piece if real is None else piece.masked_fill(~real, NO_TOKEN)], dim=1)
            hidden = {"readout": select_last_real(hidden["readout"], h, real), "text": text, "cache": cache}
            parts.append(h)
            done += piece.shape[1]
        return torch.cat(parts, dim=1) if len(parts) > 2 else parts[-1], DecodeState(hidden, {"caches": caches})

    def _slide(self, hidden: HiddenState, caches: Caches) -> tuple[HiddenState, Caches]:
        """Drop the first half of full contexts, and read the remaining tokens again from position 0."""
        text, real = drop_first_half(hidden["text"], self.config.window)
        mask = None if bool(real.all()) else real
        fresh = self.backbone.blocks.empty_caches(len(caches[0].buffer))
        _, cache, caches = self.backbone.advance(text.clamp(min=0), empty_state(), fresh, mask)
        return {**hidden, "text": text, "cache": cache}, caches


def drop_first_half(text: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Keep the last window/2 tokens in rows of `text` (R, P) that have `window` tokens, and all tokens in other rows.

    Padding may be at any position. The result contains the kept tokens (R, P') with padding last, and their mask.
    """
    real = text != NO_TOKEN
    length = real.sum(dim=1, keepdim=True)  # (R, 1)
    keep = torch.where(length < window, length, window // 2)
    longest = int(keep.max())
    packed = text.gather(1, (~real).to(torch.int8).argsort(dim=1, stable=True))  # real tokens first, order unchanged
    position = torch.arange(longest, device=text.device)
    kept = packed.gather(1, (length - keep + position).clamp(max=text.shape[1] - 1))
    return kept.masked_fill(position >= keep, NO_TOKEN), position < keep


class GPTBackbone(TransformerTextBackbone):
    """The backbone of GPT, optionally with its output layer."""

    form = "causal"
    pretrained_names: ClassVar[dict[str, str]] = {"transformer.": "backbone.", "output.": "output."}

    def __init__(self, config: GPTConfig, vocabulary: int, predicts: bool = False) -> None:
        super().__init__(vocabulary, predicts)
        self.output_size = config.d_model
        self.transformer = config.backbone(vocabulary + EXTRA)
        output = NextTokenLayer(config.d_model, vocabulary, config.tied, config.output_bias) if predicts else None
        self.output = output

    @classmethod
    def longest(cls, config: GPTConfig) -> int | None:
        return config.window

    @classmethod
    def can_predict(cls, config: GPTConfig) -> bool:
        return True

    def next_token_layer(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        if self.output is None:
            return super().next_token_layer(h)
        return h, *self.output.layer(self.transformer.embed.weight)
