"""Recurrent encoder–decoder: p(y_1 … y_T | x) = Π_t p(y_t | y_1 … y_{t-1}, x), with attention or without.

    h_1 … h_S = encoder(x_1 … x_S)      annotations; read both ways, h_j = [→h_j; ←h_j]; residual, h_j + E x_j
    c   = h_S                           the summary: where the encoder ended; both ways, [→h_S; ←h_1]
    s_0 = tanh(W c + b)                 one W for each layer of the decoder and each part of its state
    p(y_t) = softmax(W_o r_t + b_o)

    no attention, context start    s_t = f(s_{t-1}, y_{t-1})             r_t = s_t
    no attention, context every    s_t = f(s_{t-1}, [y_{t-1}; c])        r_t = tanh(W_r [y_{t-1}; s_t; c] + b_r)
    Bahdanau: c_t by s_{t-1}       s_t = f(s_{t-1}, [y_{t-1}; c_t])      r_t = tanh(W_r [y_{t-1}; s_t; c_t] + b_r)
    Luong: c_t by s_t              s_t = f(s_{t-1}, y_{t-1})             r_t = tanh(W_r [s_t; c_t] + b_r)
    Luong with input feeding       s_t = f(s_{t-1}, [y_{t-1}; r_{t-1}])  the same, r_0 = 0

c_t = Σ_j α_tj h_j, α_t = softmax_j(score(s, h_j)) over the real places of the source. With attention and context every,
f and W_r read c besides. y_0 is END. Of a deep decoder the top layer's s attends and is read out, and the lowest layer
is the one that is fed.
"""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.core.protocols import BestOutput, DecodeState, StepOutput
from seqloom.models.seq2seq import Batch, Carry, Seq2Seq
from seqloom.nn.attention import Attention
from seqloom.nn.bidirectional import BidirectionalStack, Combination, read_sequences
from seqloom.nn.cells import cell_problems, make_cell
from seqloom.nn.dropout import dropout_notes, make_dropout
from seqloom.nn.masks import choose, hypotheses, last_real, reversal
from seqloom.nn.recurrent import Stack, StackState
from seqloom.nn.scores import LOCATIONS, Score, score_class
from seqloom.nn.softmax import FullSoftmax, at_least_float32


@config
class AttentionConfig:
    order: Literal["luong", "bahdanau"] = "luong"  # attend with the new state, or with the one before
    score: str = "general"  # cosine, additive, location, general, dot or scaled-dot
    input_feeding: bool = False  # luong: the decoder also reads what the last output was made from
    coverage: bool = False  # the score also sees how much attention each place has had
    max_length: int | None = None  # of the location score: the longest source, in tokens; None is 100

    def problems(self) -> Iterator[str]:
        if self.input_feeding and self.order == "bahdanau":
            yield "input_feeding belongs to luong's order: in bahdanau's the decoder reads its context already"
        if self.max_length is not None and self.max_length < 1:
            yield f"max_length must be at least 1; got {self.max_length}"
        score_class(self.score)  # a wrong name ends the list
        if self.max_length is not None and self.score != "location":
            yield f"max_length belongs to the location score only; leave it out for {self.score!r}"

    def build(self, query: int, memory: int) -> Score:
        options = {} if self.max_length is None else {"max_length": self.max_length}
        return score_class(self.score)(query, memory, coverage=self.coverage, **options)


@config
class RecurrentSeq2SeqConfig:
    kind: Literal["recurrent-seq2seq"] = "recurrent-seq2seq"
    cell: str = "gru"  # of encoder and decoder; `seqloom list cells` shows them all
    activation: Literal["tanh", "relu", "sigmoid"] = "tanh"  # of the elman cell; the others have their own
    forget_bias: float | None = None  # of the lstm cell: how far its forget gate starts open; None is 1.0
    encoder_layers: int = 1  # cells stacked on each other
    decoder_layers: int = 1
    hidden: int = 256  # width of every layer's state, in each direction
    embedding: int | None = None  # width of the token vectors; None is as wide as hidden
    bidirectional: bool | None = None  # the encoder reads from both ends; None is yes with attention, no without
    combine: Combination = "concat"  # its two directions, where it has them: concat, sum or mix
    residual: bool = False  # with attention, an annotation also holds its own token's vector: h_j + E x_j
    reverse: bool = False  # the encoder reads the source from its end
    context: Literal["start", "every"] = (
        "start"  # the encoder's end sets the first state only, or is read at every step
    )
    attention: AttentionConfig | None = AttentionConfig()  # null for none
    dropout: float = 0.0  # on the embeddings, between layers, on the annotations, and before the output layer
    variational: bool = False  # dropout drops the same at every step of a sentence
    tied: Literal["none", "decoder", "all"] = "none"  # target and output embeddings are one matrix; the source's too

    def problems(self) -> Iterator[str]:
        sizes = ("encoder_layers", "decoder_layers", "hidden")
        for name, value in (*((name, getattr(self, name)) for name in sizes), ("embedding", self.width)):
            if value < 1:
                yield f"{name} must be at least 1; got {value}"
        if not 0 <= self.dropout < 1:
            yield f"dropout must be at least 0 and below 1; got {self.dropout}"
        if self.residual and self.attention is not None and self.annotation != self.width:
            widths = f"embedding is {self.width} wide and an annotation {self.annotation}"
            yield f"residual adds token vectors to annotations, but {widths}; set combine to sum, leave embedding out"
        if self.bidirectional is False and self.combine != "concat":
            yield "combine is about two directions; set bidirectional to true, or leave it out"
        yield from cell_problems(self)

    @property
    def width(self) -> int:
        return self.hidden if self.embedding is None else self.embedding

    @property
    def both_ways(self) -> bool:
        return self.attention is not None if self.bidirectional is None else self.bidirectional

    @property
    def annotation(self) -> int:
        """How wide an annotation is, and so the summary."""
        return 2 * self.hidden if self.both_ways and self.combine == "concat" else self.hidden

    longest_key: ClassVar[str] = "attention.max_length"  # which sets how long a source may be
    longest_target: ClassVar[None] = None  # a target may have any length

    @property
    def longest_source(self) -> int | None:
        """The most source tokens it can read, END included; None for any number."""
        if self.attention is None or self.attention.score != "location":
            return None
        return self.attention.max_length or LOCATIONS

    @property
    def reads_token(self) -> bool:
        """Whether the output is made from y_{t-1} too."""
        return self.context == "every" if self.attention is None else self.attention.order == "bahdanau"

    @property
    def at_once(self) -> bool:
        """Whether the decoder's states do not wait for attention, so that all steps of a known target run together."""
        attention = self.attention
        return attention is None or not (attention.order == "bahdanau" or attention.input_feeding or attention.coverage)

    def encoder(self) -> Stack | BidirectionalStack:
        if self.both_ways:
            return BidirectionalStack(
                partial(make_cell, self),
                self.width,
                self.hidden,
                self.encoder_layers,
                combine=self.combine,
                dropout=self.dropout,
                variational=self.variational,
            )
        return self._stack(self.width, self.encoder_layers)

    def decoder(self) -> Stack:
        inputs = self.width + (self.annotation if self.context == "every" else 0)
        if self.attention is not None and self.attention.order == "bahdanau":
            inputs += self.annotation
        if self.attention is not None and self.attention.input_feeding:
            inputs += self.hidden
        return self._stack(inputs, self.decoder_layers)

    def _stack(self, inputs: int, layers: int) -> Stack:
        cells = [make_cell(self, inputs if depth == 0 else self.hidden, self.hidden) for depth in range(layers)]
        return Stack(cells, self.dropout, variational=self.variational)

    def readout(self) -> nn.Linear | None:
        """W_r, or None where the output is made from s_t as it stands."""
        contexts = (self.attention is not None) + (self.context == "every")
        if contexts == 0:
            return None
        seen = self.hidden + contexts * self.annotation + (self.width if self.reads_token else 0)
        return nn.Linear(seen, self.hidden)

    def build(self, vocabulary: int) -> "RecurrentSeq2Seq":
        return RecurrentSeq2Seq(self, vocabulary)


class RecurrentSeq2Seq(Seq2Seq):
    """Reads a source whole, then predicts its target token by token."""

    def __init__(self, config: RecurrentSeq2SeqConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.target_embed = nn.Embedding(vocabulary, config.width)
        self.source_embed = self.target_embed if config.tied == "all" else nn.Embedding(vocabulary, config.width)
        self.encoder, self.decoder = config.encoder(), config.decoder()
        parts = sum(len(cell.state_names) for cell in self.decoder.cells)
        self.bridge = nn.Linear(config.annotation, parts * config.hidden)
        self.attend = (
            None if config.attention is None else Attention(config.attention.build(config.hidden, config.annotation))
        )
        self.readout = config.readout()
        # Where the output layer is the target's embeddings, it is met in their width: p(y_t) = softmax(E P r_t + b).
        tied = config.tied != "none"
        narrow = tied and config.width != config.hidden
        self.project = nn.Linear(config.hidden, config.width, bias=False) if narrow else nn.Identity()
        self.output = FullSoftmax(
            config.width if tied else config.hidden, vocabulary, self.target_embed.weight if tied else None
        )
        self.dropout = make_dropout(config.dropout, config.variational)
        self.whole_sentences = config.variational
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """An unbiased output, so that a fresh model thinks all tokens nearly equally likely.

        Embeddings begin large, N(0, 1), for attention finds words sooner the better it can tell them apart; but small
        where the output layer shares them.
        """
        for embed in (self.source_embed, self.target_embed):
            nn.init.uniform_(embed.weight, -0.1, 0.1) if embed.weight is self.output.weight else nn.init.normal_(
                embed.weight
            )
        self.output.initialise()

    def notes(self) -> list[str]:
        """What the model does beyond what its recipe says, in words for whoever trains it."""
        notes = [*self.encoder.notes(), *self.decoder.notes()]
        notes += dropout_notes(self.config.dropout, self.config.variational)
        if self.attend is not None:
            notes += self.attend.score.notes()
        if self.config.reverse and self.config.both_ways:
            notes.append("reverse only swaps the encoder's two directions, since it reads from both ends")
        return notes

    # Reading the source.

    def encode(self, tokens: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """A source (B, S) to what decoding needs of it: summary (B, M); with attention also annotations, keys and mask.

        All of it is in the source's own order, reversed or not.
        """
        mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        annotations, summary = self._read(tokens, mask)
        memory = {"summary": self.dropout(summary)}
        return memory if self.attend is None else memory | self.attend.prepare(self.dropout(annotations), mask)

    def annotations(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._read(tokens, torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask)[0]

    def _read(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The annotations (B, S, M), and where the reading ended (B, M)."""
        order = reversal(mask) if self.config.reverse else None
        tokens = tokens if order is None else tokens.gather(1, order)
        words = self.dropout(self.source_embed(tokens))  # (B, S, D)
        annotations, summary = read_sequences(self.encoder, words, mask)
        if self.config.residual and self.attend is not None:
            annotations = annotations + words
        return annotations if order is None else annotations.take_along_dim(order.unsqueeze(-1), dim=1), summary

    def first(self, memory: dict[str, Tensor]) -> Carry:
        """s_0 = tanh(W c + b), and nothing said or looked at yet.

        Of each hypothesis: layers, the decoder's state; readout r (R, H); coverage (R, S) if it is wanted.
        """
        summary = memory["summary"]
        parts = iter(torch.tanh(self.bridge(summary)).chunk(self.bridge.out_features // self.config.hidden, dim=-1))
        layers = tuple({name: next(parts) for name in cell.state_names} for cell in self.decoder.cells)
        carry: Carry = {"layers": layers, "readout": summary.new_zeros(len(summary), self.config.hidden)}
        if self.config.attention is not None and self.config.attention.coverage:
            carry["coverage"] = torch.zeros_like(memory["mask"], dtype=at_least_float32(summary).dtype)
        return carry

    # Making the target.

    def decode(
        self, tokens: Tensor, carry: Carry, memory: dict[str, Tensor], mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Carry]:
        """Tokens (R, T) to r (R, T, H), attention weights (R, T, S) and the carry after the last real token."""
        y = self.dropout(self.target_embed(tokens))  # (R, T, D)
        return (self._at_once if self.config.at_once else self._one_by_one)(y, carry, memory, mask)

    def _at_once(
        self, y: Tensor, carry: Carry, memory: dict[str, Tensor], mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Carry]:
        """The decoder over all steps, then attention over all steps."""
        summary = self._summary(y, memory)
        s, layers = self.decoder(torch.cat([y, *summary], dim=-1), carry["layers"], mask)  # (R, T, H)
        context, weights = self._look(s, memory, None)
        r = self._read_out(y, s, [*context, *summary])
        return r, weights, {"layers": layers, "readout": last_real(carry["readout"], r, mask)}

    def _one_by_one(
        self, y: Tensor, carry: Carry, memory: dict[str, Tensor], mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Carry]:
        """Step by step; at padding the carry stands still."""
        noise = self._noise(y)
        outputs, looks = [], []
        for t in range(y.shape[1]):
            after, weights = self._tick(y[:, t : t + 1], carry, memory, [one[:, t : t + 1] for one in noise])
            if mask is not None:
                after = choose(mask[:, t].unsqueeze(1), after, carry)
            carry = after
            outputs.append(carry["readout"])
            looks.append(weights)
        return torch.stack(outputs, dim=1), torch.cat(looks, dim=1), carry

    def _tick(self, y: Tensor, carry: Carry, memory: dict[str, Tensor], noise: list[Tensor]) -> tuple[Carry, Tensor]:
        """One step of one token each, y (R, 1, D): the carry after it, and where it looked (R, 1, S)."""
        attention = self.config.attention
        assert attention is not None
        before, coverage, summary = carry["layers"], carry.get("coverage"), self._summary(y, memory)
        if attention.order == "bahdanau":
            context, weights = self._look(before[-1]["h"].unsqueeze(1), memory, coverage)
            layers = self._climb(torch.cat([y, *context, *summary], dim=-1), before, noise)
            s = layers[-1]["h"].unsqueeze(1)
        else:
            fed = [carry["readout"].unsqueeze(1)] if attention.input_feeding else []
            layers = self._climb(torch.cat([y, *fed, *summary], dim=-1), before, noise)
            s = layers[-1]["h"].unsqueeze(1)
            context, weights = self._look(s, memory, coverage)
        assert weights is not None
        after: Carry = {"layers": layers, "readout": self._read_out(y, s, [*context, *summary]).squeeze(1)}
        if coverage is not None:
            after["coverage"] = coverage + weights.squeeze(1)
        return after, weights

    def _climb(self, x: Tensor, before: StackState, noise: list[Tensor]) -> StackState:
        """One step of every layer, the lowest reading x (R, 1, D); what a layer hands on is multiplied by `noise`."""
        after = []
        for depth, cell in enumerate(self.decoder.cells):
            x = x * noise[depth - 1] if noise and depth > 0 else x
            after.append(cell(x.squeeze(1), before[depth]))
            x = after[-1]["h"].unsqueeze(1)
        return tuple(after)

    def _noise(self, y: Tensor) -> list[Tensor]:
        """Dropout between layers, drawn for all steps before the first, so that it can be the same at all of them."""
        if not self.training or self.config.dropout == 0:
            return []
        ones = y.new_ones(*y.shape[:2], self.config.hidden)
        return [self.decoder.dropout(ones) for _ in self.decoder.cells[1:]]

    def _look(
        self, s: Tensor, memory: dict[str, Tensor], coverage: Tensor | None
    ) -> tuple[list[Tensor], Tensor | None]:
        """States (R, T, H) to contexts (R, T, M) and weights (R, T, S); nothing without attention."""
        if self.attend is None:
            return [], None
        k = hypotheses(s, memory["mask"])
        query = s.reshape(-1, k, *s.shape[1:])  # (B, k, T, H)
        seen = None if coverage is None else coverage.reshape(-1, k, 1, coverage.shape[-1])  # (B, k, 1, S)
        context, weights = self.attend(query, memory, seen)
        return [context.flatten(0, 1)], weights.flatten(0, 1)

    def _summary(self, y: Tensor, memory: dict[str, Tensor]) -> list[Tensor]:
        """c at every step (R, T, M), where it is read at every step."""
        if self.config.context == "start":
            return []
        summary = memory["summary"]
        k = hypotheses(y, summary)
        return [summary[:, None, None].expand(-1, k, y.shape[1], -1).flatten(0, 1)]

    def _read_out(self, y: Tensor, s: Tensor, contexts: list[Tensor]) -> Tensor:
        """r (R, T, H)"""
        if self.readout is None:
            return s
        seen = [y, s, *contexts] if self.config.reads_token else [s, *contexts]
        return torch.tanh(self.readout(torch.cat(seen, dim=-1)))

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        """A row without any real token keeps its carry, predicts what it predicted before, and attends to nothing."""
        _, weights, carry = self.decode(tokens, state.carry, state.memory, mask)
        log_probs = self.next_log_probs(carry["readout"])
        if weights is not None:
            weights = last_real(torch.zeros_like(weights[:, 0]), weights, mask)  # (R, S)
        return StepOutput(log_probs, DecodeState(carry, state.memory), weights)

    def step_best(self, tokens: Tensor, state: DecodeState, count: int) -> BestOutput:
        """The `count` most probable tokens after a step of one token each (R, 1)."""
        _, weights, carry = self.decode(tokens, state.carry, state.memory)
        values, ids = self.next_best(carry["readout"], count)
        return BestOutput(values, ids, DecodeState(carry, state.memory), None if weights is None else weights[:, 0])

    def before_output(self, r: Tensor) -> Tensor:
        seen: Tensor = self.project(self.dropout(r))
        return seen

    def forward(
        self, source: Tensor, source_mask: Tensor | None, inputs: Tensor, target_mask: Tensor | None = None
    ) -> Tensor:
        """Sources (B, S) and inputs (B, T), END first, to the logits (B, T, V) of the token after each input."""
        memory = self.encode(source, source_mask)
        r, _, _ = self.decode(inputs, self.first(memory), memory, target_mask)
        return self.output(self.before_output(r))

    def taught(self, batch: Batch, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        memory = self.encode(batch["source"], batch["source_mask"])
        r, looked, _ = self.decode(batch["inputs"], self.first(memory), memory)
        return r, looked
