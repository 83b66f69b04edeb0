"""The Transformer (Vaswani et al. 2017): an encoder–decoder that reads by attention alone.

    x_j = √D · E[token] + PE(j)                                         D, the width
    encoder   x ← block(x), N times:   self-attention, feed-forward     each within a residual
    decoder   y ← block(y), N times:   self-attention to earlier tokens, attention to the encoder's x, feed-forward
    p(y_t) = softmax(W_o y_t + b_o)

`seqloom.nn.transformer` has the blocks, `seqloom.nn.multihead` attention, `seqloom.nn.positions` PE. All steps of a
known target run together; a target that is being generated is read token by token, and its keys and values are cached,
as `seqloom.nn.cache` says.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import Fraction, NonNegativeInt, PositiveInt
from seqloom.core.errors import UsageError
from seqloom.core.protocols import BestOutput, DecodeState, StepOutput
from seqloom.core.tree import Tree
from seqloom.models.seq2seq import Batch, Carry, Seq2Seq
from seqloom.nn.cache import AttentionScope, empty_state, extend_caches
from seqloom.nn.embedded import Embedded, TokenTransformerOptions
from seqloom.nn.masks import AttentionMask, hypotheses, last_real
from seqloom.nn.mixers import MixerKind, Setting, mixer_class, mixer_problems
from seqloom.nn.softmax import FullSoftmax
from seqloom.nn.transformer import (
    Activation,
    Source,
    TransformerBlock,
    TransformerStack,
    Wanted,
    source_keys_values,
)

Weights = dict[str, list[Tensor]]  # by layer: encoder (B, N, S, S), decoder (B, N, T, T), cross (B, N, T, S)
START_TOKENS = ("begin", "source_begin", "target_begin")  # the keys that name tokens which the model adds to texts


@config
class TransformerConfig(TokenTransformerOptions):
    kind: Literal["transformer"] = "transformer"
    encoder_layers: PositiveInt = 4  # blocks stacked on each other
    decoder_layers: PositiveInt = 4
    activation: Activation = "relu"  # of the feed-forward layers: relu, gelu, gelu-tanh, silu or swiglu
    norm_first: bool = False  # norms stand before each layer, and once more at the end; not after it, as in 2017
    residual: bool = True  # there is a way around each layer
    embed_scale: bool = True  # embeddings are multiplied by √width
    scale: bool = True  # scores of attention are divided by the square root of a head's width
    causal: bool = True  # the decoder does not look ahead; if it may, it learns to copy the answer
    activation_dropout: Fraction = 0.0  # inside the feed-forward layers
    encoder_layer: MixerKind = "self-attention"  # of the encoder: or windowed, recurrent, convolution, dilated
    window: int | None = None  # windowed: how many places it sees on either side; None is 16
    kernel: int | None = None  # convolution, dilated: how many places it sees at once; None is 3
    cell: str | None = None  # recurrent: `seqloom list cells` shows them all; None is lstm
    tied: Literal["none", "decoder", "all"] = "none"  # target and output embeddings are one matrix; the source's too
    align_layer: int | None = None  # the decoder layer, from 1, whose attention is shown as alignment; None is the last
    begin: NonNegativeInt | None = None  # this token, not END, stands before every target
    source_begin: NonNegativeInt | None = None  # this token stands before every source
    target_begin: NonNegativeInt | None = None  # this token stands between END, or `begin`, and every target

    def problems(self) -> Iterator[str]:
        if self.align_layer is not None and not 1 <= self.align_layer <= self.decoder_layers:
            yield f"align_layer must be one of the {self.decoder_layers} decoder layers; got {self.align_layer}"
        yield from super().problems()
        yield from mixer_problems(self.encoder_layer, self.width, self.window, self.kernel, self.cell)

    longest_key: ClassVar[str] = "positions.max_length"  # which sets how long a source and a target may be

    @property
    def longest_source(self) -> int | None:
        """The most source tokens it can read, END included; None for any number."""
        return None if self.longest is None else self.longest - (self.source_begin is not None)

    @property
    def longest_target(self) -> int | None:
        """The most target tokens it can generate, END included; None for any number."""
        return None if self.longest is None else self.longest - (self.target_begin is not None)

    def encoder_block(self, depth: int) -> TransformerBlock:
        setting = Setting(self.width, self.attention, depth, self.window, self.kernel, self.cell, self.bias)
        return self.block(mixer_class(self.encoder_layer).make(setting))

    def build(self, vocabulary: int, extra: int = 0) -> "Transformer":
        """`extra` tokens follow those of the tokenizer: what noise stands for, say."""
        from seqloom.models.start_tokens import StartTokenTransformer

        tokens = {name: getattr(self, name) for name in START_TOKENS if getattr(self, name) is not None}
        for name, token in tokens.items():
            if token >= vocabulary:
                raise UsageError(
                    f"model.{name} must be one of the {vocabulary:,} tokens of the vocabulary; got {token}."
                )
        return (StartTokenTransformer if tokens else Transformer)(self, vocabulary + extra)


class Transformer(Seq2Seq):
    """Reads a source whole, then predicts its target token by token."""

    def __init__(self, config: TransformerConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        target = nn.Embedding(vocabulary, config.width)
        source = target if config.tied == "all" else nn.Embedding(vocabulary, config.width)
        self.source_embed, self.target_embed = Embedded(config, source, "source"), Embedded(config, target, "target")
        self.encoder = TransformerStack(config.encoder_block(depth) for depth in range(config.encoder_layers))
        self.decoder = TransformerStack(config.block(cross_attention=True) for _ in range(config.decoder_layers))
        self.encoder_norm, self.decoder_norm = config.final_norm(), config.final_norm()
        self.output = FullSoftmax(config.width, vocabulary, target.weight if config.tied != "none" else None)
        self.aligned = (config.align_layer or config.decoder_layers) - 1
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Embeddings of length 1 or so, √D with their scale; an unbiased output; the blocks have seen to themselves."""
        for embed in (self.source_embed.embed, self.target_embed.embed):
            nn.init.normal_(embed.weight, std=self.config.width**-0.5)
        if not self.output.tied:
            nn.init.xavier_uniform_(self.output.weight)
        self.output.initialise()

    @property
    def longest_target(self) -> int | None:
        """The most tokens of a target, END included; None for any number."""
        return self.config.longest_target

    def notes(self) -> list[str]:
        """What the model does beyond what its recipe says, in words for whoever trains it."""
        config = self.config
        notes = list(dict.fromkeys(note for block in self.encoder for note in block.mixer.notes()))
        attends = mixer_class(config.encoder_layer).attends
        if not config.causal:
            notes.append("causal is off: the decoder sees the tokens it is to predict, so its loss says nothing")
        if config.positions.kind == "none" and attends:
            notes.append("without positions the encoder takes its source for a set of tokens")
        if config.positions.kind == "rotary" and not attends:
            notes.append(
                f"rotary positions turn queries and keys, and the encoder's {config.encoder_layer} layers have none"
            )
        return notes

    # The encoder.

    def encode(self, tokens: Tensor, mask: Tensor | None = None) -> dict[str, Any]:
        """A source (B, S) to its mask (B, S), and the keys and values (B, Nkv, S, d) it has for each decoder layer."""
        x, mask, _ = self.run_encoder(tokens, mask)
        return self._memory(x, mask)

    def annotations(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.run_encoder(tokens, mask)[0]

    def run_encoder(
        self, tokens: Tensor, mask: Tensor | None, weights: bool = False
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The encoder's x (B, S, D), its mask (B, S), and if wanted the weights of each layer that has them."""
        mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        S = tokens.shape[1]
        x = self.source_embed(tokens, torch.arange(S, device=tokens.device), S, mask.sum(dim=1))
        wanted = self.encoder.all_self_weights() if weights else None
        output = self.encoder(x, AttentionScope.within(mask), wanted=wanted)
        return self.encoder_norm(output.x), mask, output.self_weights

    def _memory(self, x: Tensor, mask: Tensor) -> dict[str, Any]:
        return {"mask": mask, "layers": source_keys_values(self.decoder, x)}

    # Decoding token by token.

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        """The memory also has the caches, one for each layer: what the hypotheses of a source have read is its own."""
        state = super().start(source, rows)
        caches = self.decoder.empty_caches(len(state.memory["mask"]))
        return DecodeState(state.carry, {**state.memory, "caches": caches})

    def first(self, memory: dict[str, Any]) -> Carry:
        """Nothing said yet. Of each hypothesis: readout (R, D), the last y, and the state of its cache."""
        readout = self.output.weight.new_zeros(len(memory["mask"]), self.config.width)
        return {"readout": readout, "cache": empty_state()}

    def input_tokens(self, tokens: Tensor) -> Tensor:
        """Target tokens, END first, as they are embedded."""
        return tokens

    def decode(
        self, tokens: Tensor, carry: Carry, memory: dict[str, Any], mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Carry, dict[str, Any]]:
        """Tokens (R, T) to y (R, T, D), weights (R, T, N, S) of the aligned layer, and carry and memory after them.

        The k hypotheses of a source are read side by side, as k·T tokens of one row.
        """
        (R, T), B = tokens.shape, len(memory["mask"])
        k = hypotheses(tokens, memory["mask"])
        caches, update = extend_caches(memory["caches"], carry["cache"], tokens, mask, B)
        y = self.target_embed(tokens.reshape(B, k * T), update.positions, update.state["read"], update.lengths)
        output = self.decoder(y, update.scope, caches, _sources(memory), {self.aligned: ("cross",)})
        y, weights = self.decoder_norm(output.x).view(R, T, -1), output.cross_weights[0]  # (B, N, k·T, S)
        weights = weights.transpose(1, 2).reshape(R, T, *weights.shape[1::2])
        carry = {"readout": last_real(carry["readout"], y, mask), "cache": update.state}
        return y, weights, carry, {**memory, "caches": output.caches}

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        """A row without any real token keeps its carry, predicts what it predicted before, and attends to nothing."""
        _, weights, carry, memory = self.decode(tokens, state.carry, state.memory, mask)
        weights = weights.mean(dim=2)
        last = last_real(torch.zeros_like(weights[:, 0]), weights, mask)  # (R, S)
        return StepOutput(self.next_log_probs(carry["readout"]), DecodeState(carry, memory), last)

    def step_best(self, tokens: Tensor, state: DecodeState, count: int) -> BestOutput:
        """The `count` most probable tokens after a step of one token each (R, 1)."""
        _, weights, carry, memory = self.decode(tokens, state.carry, state.memory)
        values, ids = self.next_best(carry["readout"], count)
        return BestOutput(values, ids, DecodeState(carry, memory), weights[:, 0])

    # All steps of a known target at once.

    def forward(
        self, source: Tensor, source_mask: Tensor | None, inputs: Tensor, target_mask: Tensor | None = None
    ) -> Tensor:
        """Sources (B, S) and inputs (B, T), END first, to the logits (B, T, V) of the token after each input."""
        memory = self.encode(source, source_mask)
        y, _ = self.run_decoder(inputs, memory, target_mask, padding_last=target_mask is None)
        return self.output(y)

    def run_decoder(
        self,
        inputs: Tensor,
        memory: dict[str, Any],
        mask: Tensor | None,
        wanted: Wanted | None = None,
        padding_last: bool = False,
    ) -> tuple[Tensor, Weights]:
        """Inputs (B, T) to y (B, T, D) and the weights wanted.

        A causal decoder never attends to padding that comes last: then attention needs no mask, and is faster.
        """
        mask = torch.ones_like(inputs, dtype=torch.bool) if mask is None else mask
        T = inputs.shape[1]
        if padding_last and self.config.causal:
            keys, positions = None, torch.arange(T, device=inputs.device)
        else:
            keys, positions = mask[:, None, None, :], mask.cumsum(dim=1) - 1
        y = self.target_embed(inputs, positions, T, mask.sum(dim=1))
        scope = AttentionScope(keys, self.config.causal, positions)
        output = self.decoder(y, scope, sources=_sources(memory), wanted=wanted)
        return self.decoder_norm(output.x), {"decoder": output.self_weights, "cross": output.cross_weights}

    def taught(self, batch: Batch, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        memory = self.encode(batch["source"], batch["source_mask"])
        wanted: Wanted | None = {self.aligned: ("cross",)} if weights else None
        y, found = self.run_decoder(batch["inputs"], memory, batch["target_mask"], wanted, padding_last=True)
        return y, found["cross"][0].mean(dim=1) if weights else None

    def attentions(self, batch: Batch) -> Weights:
        """The attention weights of all layers: encoder (B, N, S, S), decoder (B, N, T, T), cross (B, N, T, S).

        Zero at padding. An encoder whose layers do not attend has none.
        """
        x, mask, encoder = self.run_encoder(batch["source"], batch["source_mask"], weights=True)
        wanted: Wanted = dict.fromkeys(range(len(self.decoder)), ("self", "cross"))
        _, weights = self.run_decoder(batch["inputs"], self._memory(x, mask), batch["target_mask"], wanted)
        real = {"encoder": mask, "decoder": batch["target_mask"], "cross": batch["target_mask"]}
        return {
            name: [layer.masked_fill(~real[name][:, None, :, None], 0) for layer in layers]
            for name, layers in {"encoder": encoder, **weights}.items()
        }


def _sources(memory: dict[str, Any]) -> list[Source]:
    """What each block of the decoder attends to."""
    mask = AttentionMask(memory["mask"][:, None, None, :])
    return [Source(keys_values, mask) for keys_values in memory["layers"]]
