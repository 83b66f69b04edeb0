"""The Transformer (Vaswani et al. 2017): an encoder–decoder that reads by attention alone.

    x_j = √D · E[token] + PE(j)                                         D, the d_model
    encoder   x ← block(x), N times:   self-attention, feed-forward     each within a residual
    decoder   y ← block(y), N times:   self-attention to earlier tokens, attention to the encoder's x, feed-forward
    p(y_t) = softmax(W_o y_t + b_o)

`seqloom.nn.transformer` has the blocks. All steps of a known target run together; a target that is being generated is
read token by token, with a KV cache. Shapes: B batch, R = B·k hypotheses, S source and T target positions, N heads.
"""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import Fraction, PositiveInt
from seqloom.core.protocols import DecodeState
from seqloom.core.tree import Tree
from seqloom.models.seq2seq import Batch, Carry, Memory, Seq2Seq
from seqloom.nn.backbone import Embedded, SourceEncoder, TokenTransformerOptions
from seqloom.nn.cache import empty_state, extend_caches
from seqloom.nn.masks import AttentionMask, AttentionScope, hypotheses, last_real, mask_or_ones
from seqloom.nn.mixers import MixerKind, make_mixer, mixer_class, mixer_problems
from seqloom.nn.softmax import FullSoftmax
from seqloom.nn.transformer import Activation, Source, TransformerStack, Wanted, source_keys_values

Weights = dict[str, list[Tensor]]  # by layer: encoder (B, N, S, S), decoder (B, N, T, T), cross (B, N, T, S)


@config
class TransformerConfig(TokenTransformerOptions):
    kind: Literal["transformer"] = "transformer"
    encoder_layers: PositiveInt = 4  # blocks stacked on each other
    decoder_layers: PositiveInt = 4
    activation: Activation = "relu"  # of the feed-forward layers: relu, gelu, gelu-tanh, silu or swiglu
    norm_first: bool = False  # norms stand before each layer, and once more at the end; not after it, as in 2017
    residual: bool = True  # there is a way around each layer
    embed_scale: bool = True  # embeddings are multiplied by √d_model
    scale: bool = True  # scores of attention are divided by the square root of a head's d_model
    causal: bool = True  # the decoder does not look ahead; if it may, it learns to copy the answer
    activation_dropout: Fraction = 0.0  # inside the feed-forward layers
    encoder_layer: MixerKind = "self-attention"  # of the encoder: or windowed, recurrent, convolution, dilated
    window: int | None = None  # windowed: how many places it sees on either side; None is 16
    kernel: int | None = None  # convolution, dilated: how many places it sees at once; None is 3
    cell: str | None = None  # recurrent: `seqloom list cells` shows them all; None is lstm
    tied: Literal["none", "decoder", "all"] = "none"  # target and output embeddings are one matrix; the source's too
    align_layer: int | None = None  # the decoder layer, from 1, whose attention is shown as alignment; None is the last

    longest_key: ClassVar[str] = "positions.max_length"  # which sets how long a source and a target may be
    longest_source = longest_target = TokenTransformerOptions.longest  # tokens, END included; None for any number

    def problems(self) -> Iterator[str]:
        if self.align_layer is not None and not 1 <= self.align_layer <= self.decoder_layers:
            yield f"align_layer must be one of the {self.decoder_layers} decoder layers; got {self.align_layer}"
        yield from super().problems()
        yield from mixer_problems(self.encoder_layer, self.d_model, self.window, self.kernel, self.cell)

    def encoder(self) -> TransformerStack:
        """Create the encoder's blocks."""
        own = partial(make_mixer, window=self.window, kernel=self.kernel, cell=self.cell, **self.attention_options())
        return TransformerStack(
            self.block(own(self.encoder_layer, self.d_model, self.heads, depth=depth, rotary=self.positions.rotary()))
            for depth in range(self.encoder_layers)
        )

    def build(self, vocabulary: int, extra: int = 0) -> "Transformer":
        """`extra` tokens follow those of the tokenizer: sentinels of a denoiser, say."""
        return Transformer(self, vocabulary + extra)


class Transformer(SourceEncoder, Seq2Seq):
    """Reads a source whole, then predicts its target token by token."""

    def __init__(self, config: TransformerConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        target = nn.Embedding(vocabulary, config.d_model)
        source = target if config.tied == "all" else nn.Embedding(vocabulary, config.d_model)
        self.source_embed, self.target_embed = Embedded(config, source, "source"), Embedded(config, target, "target")
        self.encoder = config.encoder()
        self.decoder = TransformerStack(config.block(cross_attention=True) for _ in range(config.decoder_layers))
        self.encoder_norm, self.decoder_norm = config.final_norm(), config.final_norm()
        self.output = FullSoftmax(config.d_model, vocabulary, target.weight if config.tied != "none" else None)
        self.aligned = (config.align_layer or config.decoder_layers) - 1
        for embed in (source, target):
            nn.init.normal_(embed.weight, std=config.d_model**-0.5)  # of length 1 or so, √D with their scale
        if not self.output.tied:
            nn.init.xavier_uniform_(self.output.weight)
        self.output.initialise()

    def notes(self) -> list[str]:
        """What the model does beyond what its recipe says, for whoever trains it."""
        config, attends = self.config, mixer_class(self.config.encoder_layer).attends
        notes = list(dict.fromkeys(note for block in self.encoder for note in block.mixer.notes()))
        if not config.causal:
            notes.append("causal is off: the decoder sees the tokens it is to predict, so its loss says nothing")
        if config.positions.kind == "none" and attends:
            notes.append("without positions the encoder takes its source for a set of tokens")
        if config.positions.kind == "rotary" and not attends:
            layers = f"{config.encoder_layer} layers"
            notes.append(f"rotary positions turn queries and keys, and the encoder's {layers} have none")
        return notes

    # The source.

    def encode(self, tokens: Tensor, mask: Tensor | None = None) -> Memory:
        """A source (B, S) to its mask (B, S), and the keys and values (B, Nkv, S, d) it has for each decoder layer."""
        mask = mask_or_ones(mask, tokens)
        return {"mask": mask, "layers": source_keys_values(self.decoder, self.run_encoder(tokens, mask)[0])}

    def annotations(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.run_encoder(tokens, mask_or_ones(mask, tokens))[0]

    # Decoding token by token.

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        """The memory also has the KV caches, one for each layer, which the hypotheses of a source share."""
        state = super().start(source, rows)
        caches = self.decoder.empty_caches(len(state.memory["mask"]))
        return DecodeState(state.carry, {**state.memory, "caches": caches})

    def first(self, memory: Memory) -> Carry:
        """No token yet. Of each hypothesis: readout (R, D), the last y, and the state of its cache."""
        readout = self.output.weight.new_zeros(len(memory["mask"]), self.config.d_model)
        return {"readout": readout, "cache": empty_state()}

    def decode(
        self, tokens: Tensor, carry: Carry, memory: Memory, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Carry, Memory]:
        """Tokens (R, T) to y (R, T, D), weights (R, T, N, S) of the aligned layer, and carry and memory after them.

        The k hypotheses of a source are read side by side, as k·T tokens of one row.
        """
        (R, T), B = tokens.shape, len(memory["mask"])
        k = hypotheses(tokens, memory["mask"])
        caches, update = extend_caches(memory["caches"], carry["cache"], tokens, mask, B)
        y = self.target_embed(tokens.reshape(B, k * T), update.positions, update.state["read"], update.lengths)
        output = self.decoder(y, update.scope, caches, sources_of(memory), {self.aligned: ("cross",)})
        y, weights = self.decoder_norm(output.x).view(R, T, -1), output.cross_weights[0]  # (B, N, k·T, S)
        weights = weights.transpose(1, 2).reshape(R, T, *weights.shape[1::2])
        carry = {"readout": last_real(carry["readout"], y, mask), "cache": update.state}
        return y, weights, carry, {**memory, "caches": output.caches}

    # All steps of a known target at once.

    def forward(
        self, source: Tensor, source_mask: Tensor | None, inputs: Tensor, target_mask: Tensor | None = None
    ) -> Tensor:
        """Sources (B, S) and inputs (B, T), END first, to the logits (B, T, V) of the token after each input."""
        memory = self.encode(source, source_mask)
        return self.output(self.run_decoder(inputs, memory, target_mask, padding_last=target_mask is None)[0])

    def run_decoder(
        self,
        inputs: Tensor,
        memory: Memory,
        mask: Tensor | None,
        wanted: Wanted | None = None,
        padding_last: bool = False,
    ) -> tuple[Tensor, Weights]:
        """Inputs (B, T) to y (B, T, D) and the weights wanted.

        A causal decoder never attends to padding that comes last: then attention needs no mask, and is faster.
        """
        T, mask = inputs.shape[1], mask_or_ones(mask, inputs)
        if padding_last and self.config.causal:
            keys, positions = None, torch.arange(T, device=inputs.device)
        else:
            keys, positions = mask[:, None, None, :], mask.cumsum(dim=1) - 1
        y = self.target_embed(inputs, positions, T, mask.sum(dim=1))
        scope = AttentionScope(keys, self.config.causal, positions)
        output = self.decoder(y, scope, sources=sources_of(memory), wanted=wanted)
        return self.decoder_norm(output.x), {"decoder": output.self_weights, "cross": output.cross_weights}

    def teacher_force(self, batch: Batch, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        memory = self.encode(batch["source"], batch["source_mask"])
        wanted: Wanted | None = {self.aligned: ("cross",)} if weights else None
        y, layers = self.run_decoder(batch["inputs"], memory, batch["target_mask"], wanted, padding_last=True)
        return y, layers["cross"][0].mean(dim=1) if weights else None

    def attentions(self, batch: Batch) -> Weights:
        """The attention weights of all layers, 0 at padding; an encoder whose layers do not attend has none."""
        mask, target_mask = batch["source_mask"], batch["target_mask"]
        x, encoder = self.run_encoder(batch["source"], mask, weights=True)
        wanted: Wanted = dict.fromkeys(range(len(self.decoder)), ("self", "cross"))
        memory = {"mask": mask, "layers": source_keys_values(self.decoder, x)}
        _, weights = self.run_decoder(batch["inputs"], memory, target_mask, wanted)
        padding = ~target_mask[:, None, :, None]
        decoder = {name: [layer.masked_fill(padding, 0) for layer in layers] for name, layers in weights.items()}
        return {"encoder": encoder, **decoder}


def sources_of(memory: Memory) -> list[Source]:
    """What each block of the decoder attends to."""
    mask = AttentionMask(memory["mask"][:, None, None, :])
    return [Source(keys_values, mask) for keys_values in memory["layers"]]
