"""The Transformer (Vaswani et al. 2017): an encoder–decoder that reads by attention alone.

    x_j = √D · E[token] + PE(j)                                         D, the width
    encoder   x ← block(x), N times:   self-attention, feed-forward     each with a way around it and a norm
    decoder   y ← block(y), N times:   self-attention to what was said, attention to the encoder's x, feed-forward
    p(y_t) = softmax(W_o y_t + b_o)

`seqloom.nn.blocks` has the blocks, `seqloom.nn.multihead` attention, `seqloom.nn.positions` PE. All steps of a known
target run together; one that is being made is read token by token, and its keys and values are kept, as
`seqloom.nn.cache` says.

Models made elsewhere may want other tokens around their texts: a token before every source, another than END before
every target, or one more after that. Here they are added, so that nobody else need know of them; what is shown of
attention leaves them out.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import config
from seqloom.core.errors import UsageError
from seqloom.core.protocols import BestOutput, DecodeState, StepOutput
from seqloom.core.tree import Growing, Tree
from seqloom.models.seq2seq import Batch, Carry, Seq2Seq
from seqloom.nn.blocks import Activation, DecoderBlock, EncoderBlock, FeedForward, Frame, Norm, Past, make_norm
from seqloom.nn.cache import FixedReading, Reading, empty_cache, fixed_cache, nothing, with_room
from seqloom.nn.decoder_step import decoder_step, fits
from seqloom.nn.embedded import Embedded
from seqloom.nn.encoder_pass import encoder_pass, keys_values, keys_values_pay, pays
from seqloom.nn.masks import Allowed, hypotheses, last_real
from seqloom.nn.mixers import MixerKind, make_mixer, mixer_class, mixer_problems
from seqloom.nn.multihead import MultiHeadAttention, choose_kernels, each_of, head_problems
from seqloom.nn.packed import packed_once
from seqloom.nn.positions import PositionsConfig
from seqloom.nn.softmax import FullSoftmax

Weights = dict[str, list[Tensor]]  # by layer: encoder (B, N, S, S), decoder (B, N, T, T), cross (B, N, T, S)
ADDED = ("begin", "source_begin", "target_begin")  # the keys that name tokens which the model adds to texts
END = 0  # as in seqloom.text.base
Wanted = Mapping[int, Collection[str]]  # which weights to return, by layer of the decoder


@config
class TransformerConfig:
    kind: Literal["transformer"] = "transformer"
    width: int = 128  # of every token's vector, from the embedding to the output
    heads: int = 4  # of each attention; each is width / heads wide
    kv_heads: int | None = None  # keys and values are shared by groups of heads; None is as many as heads
    encoder_layers: int = 4  # blocks stacked on each other
    decoder_layers: int = 4
    feed_forward: int | None = None  # width inside the feed-forward layers; None is 4 × width
    activation: Activation = "relu"  # of the feed-forward layers: relu, gelu, gelu-tanh, silu or swiglu
    norm: Norm = "layer"  # layer, rms or none
    norm_first: bool = False  # norms stand before each layer, and once more at the end; not after it, as in 2017
    embed_norm: bool = False  # the embeddings are normed too
    residual: bool = True  # there is a way around each layer
    positions: PositionsConfig = PositionsConfig()
    embed_scale: bool = True  # embeddings are multiplied by √width
    scale: bool = True  # scores of attention are divided by the square root of a head's width
    causal: bool = True  # the decoder does not look ahead; if it may, it learns to copy the answer
    bias: bool = True  # of the layers in the blocks
    dropout: float = 0.1  # on the embeddings, and on what each layer adds
    attention_dropout: float = 0.0  # on the weights of attention
    activation_dropout: float = 0.0  # inside the feed-forward layers
    encoder_layer: MixerKind = "self-attention"  # of the encoder: or windowed, recurrent, convolution, dilated
    window: int | None = None  # windowed: how many places it sees on either side; None is 16
    kernel: int | None = None  # convolution, dilated: how many places it sees at once; None is 3
    cell: str | None = None  # recurrent: `seqloom list cells` shows them all; None is lstm
    tied: Literal["none", "decoder", "all"] = "none"  # target and output embeddings are one matrix; the source's too
    align_layer: int | None = None  # the decoder layer, from 1, whose attention is shown as alignment; None is the last
    begin: int | None = None  # this token, not END, stands before every target
    source_begin: int | None = None  # this token stands before every source
    target_begin: int | None = None  # this token stands between END, or `begin`, and every target

    def problems(self) -> Iterator[str]:
        for name in ("width", "encoder_layers", "decoder_layers", "inner"):
            if getattr(self, name) < 1:
                yield f"{'feed_forward' if name == 'inner' else name} must be at least 1; got {getattr(self, name)}"
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) < 1:
                yield f"{name} must be at least 0 and below 1; got {getattr(self, name)}"
        if self.align_layer is not None and not 1 <= self.align_layer <= self.decoder_layers:
            yield f"align_layer must be one of the {self.decoder_layers} decoder layers; got {self.align_layer}"
        for name in ADDED:
            if (getattr(self, name) or 0) < 0:
                yield f"{name} must be a token of the vocabulary, at least 0; got {getattr(self, name)}"
        if self.embed_norm and self.norm == "none":
            yield "embed_norm needs a norm: set norm to layer or rms"
        yield from head_problems(self.width, self.heads, self.kv_heads)
        if self.heads >= 1:
            yield from self.positions.width_problems(self.width, self.heads)
        yield from mixer_problems(self.encoder_layer, self.width, self.window, self.kernel, self.cell)

    @property
    def inner(self) -> int:
        return 4 * self.width if self.feed_forward is None else self.feed_forward

    longest_key: ClassVar[str] = "positions.max_length"  # which sets how long a source and a target may be

    @property
    def longest_source(self) -> int | None:
        """The most source tokens it can read, END included; None for any number."""
        return self._longest_beside(self.source_begin)

    @property
    def longest_target(self) -> int | None:
        """The most target tokens it can say, END included; None for any number."""
        return self._longest_beside(self.target_begin)

    def _longest_beside(self, added: int | None) -> int | None:
        longest = self.positions.longest
        return longest if longest is None or added is None else longest - 1

    def attention(self, *, own: bool) -> MultiHeadAttention:
        """Of a target to itself, turned by its places where they are rotary, or to its source."""
        return MultiHeadAttention(self.width, self.heads, **self._heads(own))

    def _heads(self, own: bool) -> dict[str, Any]:
        rotary = self.positions.rotary() if own else None
        dropout = self.attention_dropout
        return {"kv_heads": self.kv_heads, "bias": self.bias, "scale": self.scale, "dropout": dropout, "rotary": rotary}

    def encoder_block(self, depth: int) -> EncoderBlock:
        own = {"window": self.window, "kernel": self.kernel, "cell": self.cell, **self._heads(own=True)}
        mixer = make_mixer(self.encoder_layer, self.width, self.heads, depth=depth, **own)
        return EncoderBlock(mixer, self._fed_forward(), self._frame())

    def decoder_block(self) -> DecoderBlock:
        own, source = self.attention(own=True), self.attention(own=False)
        return DecoderBlock(own, source, self._fed_forward(), self._frame())

    def _fed_forward(self) -> FeedForward:
        return FeedForward(self.width, self.inner, self.activation, bias=self.bias, dropout=self.activation_dropout)

    def _frame(self) -> Frame:
        return Frame(self.width, self.norm, self.norm_first, self.residual, self.dropout)

    def build(self, vocabulary: int, extra: int = 0) -> "Transformer":
        """`extra` tokens follow those of the tokenizer: what noise stands for, say."""
        for name in ADDED:
            if (token := getattr(self, name) or 0) >= vocabulary:
                raise UsageError(
                    f"model.{name} must be one of the {vocabulary:,} tokens of the vocabulary; got {token}."
                )
        return Transformer(self, vocabulary + extra)


class Transformer(Seq2Seq):
    """Reads a source whole, then predicts its target token by token."""

    encoder: Sequence[EncoderBlock]
    decoder: Sequence[DecoderBlock]

    def __init__(self, config: TransformerConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        target = nn.Embedding(vocabulary, config.width)
        source = target if config.tied == "all" else nn.Embedding(vocabulary, config.width)
        self.source_embed, self.target_embed = Embedded(config, source, "source"), Embedded(config, target, "target")
        self.encoder = nn.ModuleList(  # type: ignore[assignment]
            config.encoder_block(depth) for depth in range(config.encoder_layers)
        )
        self.decoder = nn.ModuleList(  # type: ignore[assignment]
            config.decoder_block() for _ in range(config.decoder_layers)
        )
        final = config.norm if config.norm_first else "none"
        self.encoder_norm, self.decoder_norm = make_norm(final, config.width), make_norm(final, config.width)
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

    # The tokens that stand around texts.

    @property
    def _before_source(self) -> int:
        """How many tokens the model puts before a source."""
        return int(self.config.source_begin is not None)

    @property
    def _before_target(self) -> int:
        """How many tokens stand before a target, the one that END is read as not counted."""
        return int(self.config.target_begin is not None)

    @property
    def _first(self) -> int:
        """What a target is read after."""
        return END if self.config.begin is None else self.config.begin

    def _placed(self, tokens: Tensor) -> Tensor:
        """Tokens with what stands in the place of END, which nobody reads but before a target."""
        stands = self._first if self.config.target_begin is None else self.config.target_begin
        return tokens if stands == END else tokens.masked_fill(tokens == END, stands)

    # Reading the source.

    def encode(self, tokens: Tensor, mask: Tensor | None = None) -> dict[str, Any]:
        """A source (B, S) to its mask (B, S), and the keys and values (B, Nkv, S, d) it has for each decoder layer."""
        x, mask, _ = self._read(tokens, mask)
        return self._memory(x, mask)

    def annotations(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._read(tokens, mask)[0][:, self._before_source :]

    def _read(self, tokens: Tensor, mask: Tensor | None, weights: bool = False) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The encoder's x (B, S, D), its mask (B, S), and if wanted the weights of each layer that has them; of
        `source_begin` too, where there is one."""
        mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        if self.config.source_begin is not None:
            tokens, mask = F.pad(tokens, (1, 0), value=self.config.source_begin), F.pad(mask, (1, 0), value=True)
        S, looked = tokens.shape[1], list[Tensor]()
        choose_kernels(tokens)
        x = self.source_embed(tokens, torch.arange(S, device=tokens.device), S, mask.sum(dim=1))
        if not weights and pays(self.encoder):
            return self.encoder_norm(encoder_pass(self.encoder)(x, mask)), mask, looked
        for block in self.encoder:
            x, own = block(x, mask, weights)
            looked += [] if own is None else [own]
        return self.encoder_norm(x), mask, looked

    def _memory(self, x: Tensor, mask: Tensor) -> dict[str, Any]:
        if keys_values_pay(self.decoder):
            return {"mask": mask, "layers": keys_values(self.decoder, x)}
        attentions = [block.cross_attention for block in self.decoder]
        made = each_of([layer for attention in attentions for layer in (attention.k, attention.v)], x)
        layers = tuple(a.as_keys_values(*made[2 * i : 2 * i + 2]) for i, a in enumerate(attentions))
        if not torch.is_grad_enabled():  # a decoder comes back to them at every step
            layers = tuple((k.contiguous(), v.contiguous()) for k, v in layers)
        return {"mask": mask, "layers": layers}

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        """The memory also has the caches, one for each layer: what the hypotheses of a source have read is its own."""
        state = super().start(source, rows)
        B = len(state.memory["mask"])
        caches = tuple(empty_cache(block.self_attention, B) for block in self.decoder)
        carry, memory = state.carry, {**state.memory, "caches": caches}
        if self.config.target_begin is not None:  # which is what END, when it comes, is read as
            first = torch.full((B, 1), self._first, device=memory["mask"].device)
            _, _, carry, memory = self._decode(first, carry, memory)
        return DecodeState(carry, memory)

    def first(self, memory: dict[str, Any]) -> Carry:
        """Nothing said yet. Of each hypothesis: readout (R, D), the last y, and what is known of its tokens."""
        readout = self.output.weight.new_zeros(len(memory["mask"]), self.config.width)
        return {"readout": readout, "known": nothing()}

    # Making the target.

    def decode(
        self, tokens: Tensor, carry: Carry, memory: dict[str, Any], mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Carry, dict[str, Any]]:
        """Tokens (R, T) to y (R, T, D), weights (R, T, N, S) of the aligned layer, and carry and memory after them.

        The k hypotheses of a source are read side by side, as k·T tokens of one row.
        """
        return self._decode(self._placed(tokens), carry, memory, mask)

    def _decode(
        self, tokens: Tensor, carry: Carry, memory: dict[str, Any], mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Carry, dict[str, Any]]:
        """The same of tokens as they are."""
        (R, T), B = tokens.shape, len(memory["mask"])
        k = hypotheses(tokens, memory["mask"])
        caches, known = with_room(memory["caches"], carry["known"], tokens, B)
        reading = Reading.of(tokens, mask, known, B)
        past = Past(reading.allowed, reading.allowed is None, reading.places, reading)
        y = self.target_embed(tokens.reshape(B, k * T), reading.places, carry["known"]["read"] + T, reading.lengths)
        after: tuple[Growing | None, ...]
        if T == 1 and mask is None and tokens.device.type == "cpu" and fits(self.decoder):
            y, after, looked = self._step(y.view(R, -1), memory, reading, caches)
        else:
            y, after, weights = self._climb(y, memory, past, caches, {self.aligned: ("cross",)})
            looked = weights["cross"][0]  # (B, N, k·T, S)
        y, looked = y.view(R, T, -1), looked.transpose(1, 2).reshape(R, T, *looked.shape[1::2])
        carry = {"readout": last_real(carry["readout"], y, mask), "known": reading.known}
        return y, looked[..., self._before_source :], carry, {**memory, "caches": after}

    def _step(
        self, y: Tensor, memory: dict[str, Any], reading: Reading, caches: tuple[Growing, ...]
    ) -> tuple[Tensor, tuple[Growing, ...], Tensor]:
        """The way through all blocks of one token each, y (R, D), in fewer passes."""
        source = Allowed(memory["mask"][:, None, None, :])
        step = decoder_step(self.decoder)
        y, after, looked = step(y, memory["layers"], source, caches, reading, self.aligned)
        return self.decoder_norm(y), after, looked

    def _climb(
        self,
        y: Tensor,
        memory: dict[str, Any],
        past: Past,
        caches: tuple[Growing | None, ...] | None = None,
        wanted: Wanted | None = None,
    ) -> tuple[Tensor, tuple[Growing | None, ...], Weights]:
        """Through all blocks; `wanted` names the weights to return, by layer."""
        after: list[Growing | None] = []
        looked: Weights = {"decoder": [], "cross": []}
        source_mask = Allowed(memory["mask"][:, None, None, :])
        for depth, block in enumerate(self.decoder):
            cache = None if caches is None else caches[depth]
            names = (wanted or {}).get(depth, ())
            y, cache, own = block(y, memory["layers"][depth], source_mask, past, cache, names)
            after.append(cache)
            for name, found in own.items():
                looked[name].append(found)
        return self.decoder_norm(y), tuple(after), looked

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        """A row without any real token keeps its carry, predicts what it predicted before, and attends to nothing."""
        _, weights, carry, memory = self.decode(tokens, state.carry, state.memory, mask)
        weights = weights.mean(dim=2)
        looked = last_real(torch.zeros_like(weights[:, 0]), weights, mask)  # (R, S)
        return StepOutput(self.next_log_probs(carry["readout"]), DecodeState(carry, memory), looked)

    def step_best(self, tokens: Tensor, state: DecodeState, count: int) -> BestOutput:
        """The `count` most probable tokens after a step of one token each (R, 1)."""
        _, weights, carry, memory = self.decode(tokens, state.carry, state.memory)
        values, ids = self.next_best(carry["readout"], count)
        return BestOutput(values, ids, DecodeState(carry, memory), weights[:, 0])

    # Steps that all have one shape.

    @property
    def fixable(self) -> bool:
        return self.config.target_begin is None and fits(self.decoder)

    def fixed(self, state: DecodeState, k: int, steps: int) -> DecodeState:
        """Of each hypothesis: own (R, P), which of the P = k · steps places of its source are its own."""
        memory, mask = state.memory, state.memory["mask"]
        caches = tuple(fixed_cache(block.self_attention, len(mask), k * steps) for block in self.decoder)
        added = Allowed(mask[:, None, None, :], each=True).added
        own = torch.zeros(len(mask) * k, k * steps, dtype=torch.bool, device=mask.device)
        return DecodeState({"own": own}, {"layers": memory["layers"], "added": added, "caches": caches})

    def fixed_room(self, state: DecodeState, k: int, steps: int) -> DecodeState:
        own, memory = state.carry["own"], state.memory
        more = k * steps - own.shape[1]
        caches = tuple(Growing(F.pad(cache.buffer, (0, 0, 0, more)), cache.length) for cache in memory["caches"])
        return DecodeState({"own": F.pad(own, (0, more))}, {**memory, "caches": caches})

    def fixed_step(self, tokens: Tensor, state: DecodeState, at: Tensor, count: int) -> tuple[Tensor, Tensor, Carry]:
        memory, own = state.memory, state.carry["own"]
        B = len(memory["added"])
        reading = FixedReading(own, at, len(tokens) // B)
        y = self.target_embed(self._placed(tokens).view(B, -1), reading.places, 0, at)
        step = decoder_step(self.decoder)
        y, _, _ = step(y.flatten(0, 1), memory["layers"], memory["added"], memory["caches"], reading)
        return *packed_once(self.output).ranked(self.decoder_norm(y), count), {"own": own}

    # All steps of a known target at once.

    def forward(
        self, source: Tensor, source_mask: Tensor | None, inputs: Tensor, target_mask: Tensor | None = None
    ) -> Tensor:
        """Sources (B, S) and inputs (B, T), END first, to the logits (B, T, V) of the token after each input."""
        y, _ = self._at_once(inputs, self.encode(source, source_mask), target_mask, padding_last=target_mask is None)
        return self.output(y)

    def _at_once(
        self,
        inputs: Tensor,
        memory: dict[str, Any],
        mask: Tensor | None,
        wanted: Wanted | None = None,
        padding_last: bool = False,
    ) -> tuple[Tensor, Weights]:
        """Inputs (B, T) to y (B, T, D) and the weights wanted. Padding that stands last is heard by nobody who does not
        look ahead: then attention needs no mask, and is faster."""
        mask = torch.ones_like(inputs, dtype=torch.bool) if mask is None else mask
        inputs = self._placed(inputs)
        if before := self._before_target:
            inputs, mask = F.pad(inputs, (before, 0), value=self._first), F.pad(mask, (before, 0), value=True)
        T = inputs.shape[1]
        choose_kernels(inputs)
        if padding_last and self.config.causal:
            keys, places = None, torch.arange(T, device=inputs.device)
        else:
            keys, places = mask[:, None, None, :], mask.cumsum(dim=1) - 1
        lengths = mask.sum(dim=1)
        past = Past(keys, self.config.causal, places)
        y, _, looked = self._climb(self.target_embed(inputs, places, T, lengths), memory, past, wanted=wanted)
        return y[:, before:], self._shown(looked)

    def _shown(self, looked: Weights) -> Weights:
        """Weights by the tokens that others know: what was given to `source_begin` is left out, and what stands before
        a target counts as one token."""
        target, source = self._before_target, self._before_source
        cross = [layer[:, :, target:, source:] for layer in looked["cross"]]
        if not target:
            return {"decoder": looked["decoder"], "cross": cross}
        rows = [layer[:, :, target:] for layer in looked["decoder"]]
        both = [torch.cat([row[..., :2].sum(dim=-1, keepdim=True), row[..., 2:]], dim=-1) for row in rows]
        return {"decoder": both, "cross": cross}

    def taught(self, batch: Batch, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        memory = self.encode(batch["source"], batch["source_mask"])
        wanted: Wanted | None = {self.aligned: ("cross",)} if weights else None
        y, looked = self._at_once(batch["inputs"], memory, batch["target_mask"], wanted, padding_last=True)
        return y, looked["cross"][0].mean(dim=1) if weights else None

    def attentions(self, batch: Batch) -> Weights:
        """Where every head of every layer looked: encoder (B, N, S, S), decoder (B, N, T, T), cross (B, N, T, S).

        Zero at padding. An encoder whose layers do not attend has none.
        """
        x, mask, encoder = self._read(batch["source"], batch["source_mask"], weights=True)
        wanted: Wanted = dict.fromkeys(range(len(self.decoder)), ("decoder", "cross"))
        _, looked = self._at_once(batch["inputs"], self._memory(x, mask), batch["target_mask"], wanted)
        before = self._before_source
        found = {"encoder": [layer[:, :, before:, before:] for layer in encoder], **looked}
        real = {"encoder": mask[:, before:], "decoder": batch["target_mask"], "cross": batch["target_mask"]}
        return {
            name: [layer.masked_fill(~real[name][:, None, :, None], 0) for layer in layers]
            for name, layers in found.items()
        }
