"""The Transformer (Vaswani et al. 2017): an encoder–decoder based on attention.

    x_j = √D · E[token] + PE(j)                                         D = d_model
    encoder   x ← block(x), N times:   self-attention, feed-forward     each with a residual connection
    decoder   y ← block(y), N times:   causal self-attention, cross-attention to the encoder's x, feed-forward
    p(y_t) = softmax(W_o y_t + b_o)

`seqloom.nn.transformer` defines the blocks. Training computes all steps of a target in one call. Decoding reads one
token at a time and uses a KV cache. Shapes: B is the batch size, R = B·k the number of hypotheses, S and T the numbers
of source and target positions, and N the number of heads.
"""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import Fraction, NonNegativeInt, PositiveInt
from seqloom.core.protocols import DecodeState
from seqloom.core.tree import Tree
from seqloom.models.seq2seq import Batch, HiddenState, Memory, Seq2Seq, SourceVectors, project_source
from seqloom.nn.backbone import Embedded, EmbeddedSource, InputLayer, SourceEncoder, TokenTransformerOptions
from seqloom.nn.cache import empty_state, extend_caches
from seqloom.nn.masks import AttentionMask, AttentionScope, hypotheses, mask_or_ones, select_last_real
from seqloom.nn.mixers import MixerKind, make_mixer, mixer_class, mixer_problems
from seqloom.nn.softmax import FullSoftmax
from seqloom.nn.transformer import Activation, Source, TransformerStack, WeightRequests, source_keys_values

Weights = dict[str, list[Tensor]]  # by layer: encoder (B, N, S, S), decoder (B, N, T, T), cross (B, N, T, S)


@config
class TransformerConfig(TokenTransformerOptions):
    kind: Literal["transformer"] = "transformer"
    encoder_layers: NonNegativeInt = 4  # number of blocks; 0: the decoder attends to the embeddings
    decoder_layers: PositiveInt = 4
    activation: Activation = "relu"  # activation of the feed-forward layers: relu, gelu, gelu-tanh, silu or swiglu
    norm_first: bool = False  # normalize before each sublayer and after the last block, instead of after each sublayer
    residual: bool = True  # use residual connections around the sublayers
    embed_scale: bool = True  # multiply the embeddings by √d_model
    scale: bool = True  # divide attention scores by the square root of the head size
    causal: bool = True  # mask later positions in the decoder; without the mask the decoder learns to copy its input
    activation_dropout: Fraction = 0.0  # dropout inside the feed-forward layers
    # type of the encoder layers: self-attention, windowed, recurrent, convolution or dilated
    encoder_layer: MixerKind = "self-attention"
    window: int | None = None  # windowed: number of positions on either side; null: 16
    kernel: int | None = None  # convolution, dilated: kernel size; null: 3
    cell: str | None = None  # recurrent: name of a cell, see `seqloom list cells`; null: lstm
    # decoder: share target and output embeddings; all: share all embeddings
    tied: Literal["none", "decoder", "all"] = "none"
    # decoder layer, counted from 1, whose attention is the alignment; null: the last layer
    align_layer: int | None = None

    longest_key: ClassVar[str] = "positions.max_length"  # the option that limits the length of source and target
    longest_source = longest_target = TokenTransformerOptions.longest  # in tokens, END included; None means no limit

    def problems(self) -> Iterator[str]:
        if self.align_layer is not None and not 1 <= self.align_layer <= self.decoder_layers:
            yield f"align_layer must be one of the {self.decoder_layers} decoder layers; got {self.align_layer}"
        yield from super().problems()
        yield from mixer_problems(self.encoder_layer, self.d_model, self.window, self.kernel, self.cell)

    def encoder(self) -> TransformerStack:
        """Create the encoder's blocks."""
        mixer = partial(make_mixer, window=self.window, kernel=self.kernel, cell=self.cell, **self.attention_options())
        return TransformerStack(
            self.block(mixer(self.encoder_layer, self.d_model, self.heads, depth=depth, rotary=self.positions.rotary()))
            for depth in range(self.encoder_layers)
        )

    def build(self, vocabulary: int, extra: int = 0, source: SourceVectors | None = None) -> "Transformer":
        """Create the model.

        `extra` is the number of additional tokens. If the sources are not texts, `source` maps them to vectors.
        """
        return Transformer(self, vocabulary + extra, source)


class Transformer(SourceEncoder, Seq2Seq):
    """An encoder–decoder Transformer."""

    def __init__(self, config: TransformerConfig, vocabulary: int, source: SourceVectors | None = None) -> None:
        super().__init__()
        self.config = config
        target = nn.Embedding(vocabulary, config.d_model)
        embed = target if config.tied == "all" else nn.Embedding(vocabulary, config.d_model)
        self.source_embed: InputLayer = Embedded(config, embed, "source")
        if source is not None:
            self.source_embed = EmbeddedSource(config, project_source(source, config.d_model, config.d_model**-0.5))
        self.target_embed = Embedded(config, target, "target")
        self.encoder = config.encoder()
        self.decoder = TransformerStack(config.block(cross_attention=True) for _ in range(config.decoder_layers))
        self.encoder_norm, self.decoder_norm = config.final_norm(), config.final_norm()
        self.output = FullSoftmax(config.d_model, vocabulary, target.weight if config.tied != "none" else None)
        self.aligned = (config.align_layer or config.decoder_layers) - 1
        for table in (embed, target):
            nn.init.normal_(table.weight, std=config.d_model**-0.5)  # a norm of about 1, or √D with `embed_scale`
        if not self.output.tied:
            nn.init.xavier_uniform_(self.output.weight)
        self.output.initialize()

    def notes(self) -> list[str]:
        """Return notes for the user on behaviour that the recipe does not show."""
        config, attends = self.config, mixer_class(self.config.encoder_layer).attends
        notes = list(dict.fromkeys(note for block in self.encoder for note in block.mixer.notes()))
        if not config.causal:
            notes.append("causal is off: the decoder reads the tokens that it predicts, so the loss is meaningless")
        if config.positions.kind == "none" and attends:
            notes.append("without positions the encoder ignores the order of the source tokens")
        if config.positions.kind == "rotary" and not attends:
            notes.append(f"rotary positions need queries and keys, which {config.encoder_layer} layers do not have")
        return notes

    def encode(self, source: Tree, mask: Tensor | None = None) -> Memory:
        """Compute the mask (B, S) of sources, and the keys and values (B, Nkv, S, d) of each decoder layer."""
        mask = mask_or_ones(mask, source)
        return {"mask": mask, "layers": source_keys_values(self.decoder, self.run_encoder(source, mask)[0])}

    def encoder_states(self, source: Tree, mask: Tensor | None = None) -> Tensor:
        return self.run_encoder(source, mask_or_ones(mask, source))[0]

    # Decoder: reading token by token

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        """Return the initial state. Its memory includes a KV cache per layer, shared by the hypotheses of a source."""
        state = super().start(source, rows)
        caches = self.decoder.empty_caches(len(state.memory["mask"]))
        return DecodeState(state.hidden, {**state.memory, "caches": caches})

    def initial_hidden(self, memory: Memory) -> HiddenState:
        """Return the state before the first token: readout (R, D), the last y, and the state of the cache."""
        readout = self.output.weight.new_zeros(len(memory["mask"]), self.config.d_model)
        return {"readout": readout, "cache": empty_state()}

    def decode(
        self, tokens: Tensor, hidden: HiddenState, memory: Memory, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, HiddenState, Memory]:
        """Read tokens (R, T). Return y (R, T, D), the weights (R, T, N, S) of the aligned layer, and the next state.

        The k hypotheses of a source are read as k·T tokens of one row.
        """
        (R, T), B = tokens.shape, len(memory["mask"])
        k = hypotheses(tokens, memory["mask"])
        caches, update = extend_caches(memory["caches"], hidden["cache"], tokens, mask, B)
        y = self.target_embed(tokens.reshape(B, k * T), update.positions, update.state["read"], update.lengths)
        output = self.decoder(y, update.scope, caches, sources_of(memory), {self.aligned: ("cross",)})
        y, weights = self.decoder_norm(output.x).view(R, T, -1), output.cross_weights[0]  # (B, N, k·T, S)
        weights = weights.transpose(1, 2).reshape(R, T, *weights.shape[1::2])
        hidden = {"readout": select_last_real(hidden["readout"], y, mask), "cache": update.state}
        return y, weights, hidden, {**memory, "caches": output.caches}

    # Decoder: reading all steps of a target in one call

    def forward(
        self, source: Tree, source_mask: Tensor | None, inputs: Tensor, target_mask: Tensor | None = None
    ) -> Tensor:
        """Compute the logits (B, T, V) of the next token from sources and inputs (B, T), whose first token is END."""
        memory = self.encode(source, source_mask)
        return self.output(self.run_decoder(inputs, memory, target_mask, padding_last=target_mask is None)[0])

    def run_decoder(
        self,
        inputs: Tensor,
        memory: Memory,
        mask: Tensor | None,
        return_weights: WeightRequests | None = None,
        padding_last: bool = False,
    ) -> tuple[Tensor, Weights]:
        """Compute y (B, T, D) and the requested attention weights from inputs (B, T).

        With `padding_last`, a causal decoder does not apply the padding mask, which is faster.
        """
        T, mask = inputs.shape[1], mask_or_ones(mask, inputs)
        if padding_last and self.config.causal:
            keys, positions = None, torch.arange(T, device=inputs.device)
        else:
            keys, positions = mask[:, None, None, :], mask.cumsum(dim=1) - 1
        y = self.target_embed(inputs, positions, T, mask.sum(dim=1))
        scope = AttentionScope(keys, self.config.causal, positions)
        output = self.decoder(y, scope, sources=sources_of(memory), return_weights=return_weights)
        return self.decoder_norm(output.x), {"decoder": output.self_weights, "cross": output.cross_weights}

    def teacher_force(self, batch: Batch, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        memory = self.encode(batch["source"], batch["source_mask"])
        return_weights: WeightRequests | None = {self.aligned: ("cross",)} if weights else None
        y, layers = self.run_decoder(batch["inputs"], memory, batch["target_mask"], return_weights, padding_last=True)
        return y, layers["cross"][0].mean(dim=1) if weights else None

    def attentions(self, batch: Batch) -> Weights:
        """Return the attention weights of all layers with attention, 0 at padding."""
        mask, target_mask = batch["source_mask"], batch["target_mask"]
        x, encoder = self.run_encoder(batch["source"], mask, weights=True)
        return_weights: WeightRequests = dict.fromkeys(range(len(self.decoder)), ("self", "cross"))
        memory = {"mask": mask, "layers": source_keys_values(self.decoder, x)}
        _, weights = self.run_decoder(batch["inputs"], memory, target_mask, return_weights)
        padding = ~target_mask[:, None, :, None]
        decoder = {name: [layer.masked_fill(padding, 0) for layer in layers] for name, layers in weights.items()}
        return {"encoder": encoder, **decoder}


def sources_of(memory: Memory) -> list[Source]:
    """Return the keys, values and mask of the source for each decoder block."""
    mask = AttentionMask(memory["mask"][:, None, None, :])
    return [Source(keys_values, mask) for keys_values in memory["layers"]]
