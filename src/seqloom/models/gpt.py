"""GPT (Radford et al. 2018): p(y_1 … y_T) = Π_t p(y_t | y_1 … y_{t-1}), attending to the past.

    x_j = E[y_j] + PE(j)
    x ← x + attention(norm(x)),  x ← x + FFN(norm(x))          L times, attending to earlier positions only
    p(y_{j+1}) = softmax(E norm(x_j) + b)                      E once more, where it is tied

`seqloom.nn.backbone` has all but the last line. The model sees `context` tokens at most. When these
are full it continues with the later half of them, read anew from position 0: so a text may be of
any length, and beyond the first context every token is predicted from half a context at least.
Where that happens depends on a token's position alone, not on how the text is cut.
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
from seqloom.nn.masks import last_real
from seqloom.nn.positions import LEARNED
from seqloom.nn.softmax import FullSoftmax

Carry = dict[str, Any]  # of R hypotheses, see `start`
NO_TOKEN = -1  # stands for padding among the tokens that were read


@config
class GPTConfig(BackboneOptions):
    kind: Literal["gpt"] = "gpt"
    context: int | None = None  # the most tokens it sees at once; None is all learned positions, or else 512
    sliding_window: PositiveInt | None = None  # tokens each position attends to, itself included; None is all before it
    tied: bool = True  # one matrix for input and output embeddings
    output_bias: bool = False  # b of the output; no GPT-2 or Llama has one
    bos: NonNegativeInt | None = None  # this token, not END, stands before every text

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.window < 2:
            yield f"context must be at least 2, so that half of it is something; got {self.window}"
        if self.longest is not None and self.window > self.longest:
            yield (
                f"context must be at most the {self.longest} learned positions; got {self.window}. "
                "Raise positions.max_length too"
            )

    @property
    def window(self) -> int:
        """The most tokens it sees at once."""
        return (self.longest or LEARNED) if self.context is None else self.context

    def backbone(self, rows: int) -> TransformerBackbone:
        """Create its backbone, for so many tokens."""
        return TransformerBackbone(self, rows, causal=True, bos=self.bos, window=self.sliding_window)

    def build(self, vocabulary: int) -> "GPT":
        if self.bos is not None and self.bos >= vocabulary:
            raise UsageError(f"model.bos must be one of the {vocabulary:,} tokens of the vocabulary; got {self.bos}.")
        return GPT(self, vocabulary)


class GPT(LeftToRightModel):
    """Reads tokens from left to right and predicts the next one."""

    def __init__(self, config: GPTConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.backbone = config.backbone(vocabulary)
        tied = self.backbone.embed.weight if config.tied else None
        self.output = FullSoftmax(config.d_model, vocabulary, tied, bias=config.output_bias)
        if not self.output.tied:
            nn.init.normal_(self.output.weight, std=config.init)
        self.output.initialise()

    def embedding_owner(self) -> Embedded:
        return self.backbone.embedded

    def notes(self) -> list[str]:
        """What the model does beyond what its recipe says, for whoever trains it."""
        if self.config.positions.kind == "none":
            return ["without positions the model knows which tokens came before, and hardly in which order"]
        return []

    # All tokens of a text at once; no longer than the context.

    def forward(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        """Tokens (B, T) to the logits (B, T, V) of the token after each. See `TransformerBackbone.read`."""
        return self.output(self.backbone.read(tokens, documents=documents))

    def loss(
        self, inputs: Tensor, targets: Tensor, state: None = None, documents: Tensor | None = None
    ) -> tuple[Tensor, None]:
        """The training loss, a mean over inputs and targets (B, T). No state is carried on."""
        h = self.backbone.read(inputs, documents=documents)
        return self.output.total_loss(h.flatten(0, 1), targets.flatten()) / targets.numel(), None

    def attentions(self, tokens: Tensor) -> list[Tensor]:
        """The attention weights of every layer (B, N, T, T)."""
        return self.backbone.attentions(tokens)

    # Token by token.

    def initial_state(self, rows: int) -> DecodeState:
        """Of each hypothesis: readout (R, D), the last h; text (R, P), the tokens in its context; and the state of its
        cache. Keys and values are the memory's, one row for each text that was begun."""
        weight = self.output.weight
        text = torch.empty(rows, 0, dtype=torch.long, device=weight.device)
        return DecodeState(
            {"readout": weight.new_zeros(rows, self.config.d_model), "text": text, "cache": empty_state()},
            {"caches": self.backbone.blocks.empty_caches(rows)},
        )

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        """A row without any real token keeps its carry, and predicts what it predicted before."""
        _, state = self.advance(tokens, state, mask)
        return StepOutput(self.output.log_probs(state.carry["readout"]), state)

    def advance(self, tokens: Tensor, state: DecodeState, mask: Tensor | None) -> tuple[Tensor, DecodeState]:
        """Tokens (R, T) to h (R, T, D), and the state after them: as many at a time as the context has room for."""
        carry, caches = state.carry, state.memory["caches"]
        parts = [carry["readout"].new_empty(len(tokens), 0, self.config.d_model)]
        done = 0
        while done < tokens.shape[1]:
            if carry["cache"]["read"] >= self.config.window:
                carry, caches = self._slide(carry, caches)
            some = slice(done, done + self.config.window - carry["cache"]["read"])
            piece, real = tokens[:, some], None if mask is None else mask[:, some]
            h, cache, caches = self.backbone.advance(piece, carry["cache"], caches, real)
            text = torch.cat([carry["text"], piece if real is None else piece.masked_fill(~real, NO_TOKEN)], dim=1)
            carry = {"readout": last_real(carry["readout"], h, real), "text": text, "cache": cache}
            parts.append(h)
            done += piece.shape[1]
        return torch.cat(parts, dim=1) if len(parts) > 2 else parts[-1], DecodeState(carry, {"caches": caches})

    def _slide(self, carry: Carry, caches: Caches) -> tuple[Carry, Caches]:
        """Rows whose context is full forget its earlier half. The rest is read anew, from position 0."""
        text, real = latest(carry["text"], self.config.window)
        mask = None if bool(real.all()) else real
        fresh = self.backbone.blocks.empty_caches(len(caches[0].buffer))
        _, cache, caches = self.backbone.advance(text.clamp(min=0), empty_state(), fresh, mask)
        return {**carry, "text": text, "cache": cache}, caches


def latest(text: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Of the tokens in each row of `text` (R, P), which is padded anywhere, the last window/2 where there are `window`,
    otherwise all: first in their row (R, P'), padding after them, and which of them are real."""
    real = text != NO_TOKEN
    length = real.sum(dim=1, keepdim=True)  # (R, 1)
    keep = torch.where(length < window, length, window // 2)
    most = int(keep.max())
    packed = text.gather(1, (~real).to(torch.int8).argsort(dim=1, stable=True))  # real tokens first, in their order
    position = torch.arange(most, device=text.device)
    kept = packed.gather(1, (length - keep + position).clamp(max=text.shape[1] - 1))
    return kept.masked_fill(position >= keep, NO_TOKEN), position < keep


class GPTBackbone(TransformerTextBackbone):
    """A causal Transformer, without its output layer or with it."""

    form = "causal"
    names: ClassVar[dict[str, str]] = {"transformer.": "backbone.", "output.": "output."}

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
