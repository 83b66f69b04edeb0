"""Recurrent encoder–decoder: p(y_1 … y_T | x) = Π_t p(y_t | y_1 … y_{t-1}, x), with attention or without.

    h_1 … h_S = encoder(x_1 … x_S)      annotations; read both ways, h_j = [→h_j; ←h_j]; residual, h_j + E x_j
    c   = h_S                           the summary, where the encoder ended; both ways, [→h_S; ←h_1]
    s_0 = tanh(W c + b)                 one W for each layer of the decoder and each part of its state
    p(y_t) = softmax(W_o r_t + b_o)

    no attention, context start    s_t = f(s_{t-1}, y_{t-1})             r_t = s_t
    no attention, context every    s_t = f(s_{t-1}, [y_{t-1}; c])        r_t = tanh(W_r [y_{t-1}; s_t; c] + b_r)
    Bahdanau: c_t by s_{t-1}       s_t = f(s_{t-1}, [y_{t-1}; c_t])      r_t = tanh(W_r [y_{t-1}; s_t; c_t] + b_r)
    Luong: c_t by s_t              s_t = f(s_{t-1}, y_{t-1})             r_t = tanh(W_r [s_t; c_t] + b_r)
    Luong with input feeding       s_t = f(s_{t-1}, [y_{t-1}; r_{t-1}])  the same, r_0 = 0

c_t = Σ_j α_tj h_j, α_t = softmax_j(score(s, h_j)) over the real places of the source. With
attention and context every, f and W_r read c besides. y_0 is END. Of a deep decoder the top layer's
s attends and is read out, and the lowest layer is the one that is fed.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import Fraction, PositiveInt
from seqloom.models.seq2seq import Batch, Carry, Memory, Seq2Seq
from seqloom.nn.attention import Attention
from seqloom.nn.bidirectional import BidirectionalStack, Combination, read_sequences
from seqloom.nn.cells import CellName
from seqloom.nn.masks import choose, hypotheses, last_real, make_dropout, mask_or_ones, reversed_steps
from seqloom.nn.recurrent import RecurrentOptions, Stack
from seqloom.nn.scores import LOCATIONS, Score, score_class
from seqloom.nn.softmax import FullSoftmax, at_least_float32


@config
class AttentionConfig:
    order: Literal["luong", "bahdanau"] = "luong"  # attend with the new state, or with the one before
    score: str = "general"  # cosine, additive, location, general, dot or scaled-dot
    input_feeding: bool = False  # luong: the decoder also reads what the last output was made from
    coverage: bool = False  # the score also sees how much attention each place has had
    max_length: PositiveInt | None = None  # of the location score: the longest source, in tokens; None is 100

    def problems(self) -> Iterator[str]:
        if self.input_feeding and self.order == "bahdanau":
            yield "input_feeding belongs to luong's order: in bahdanau's the decoder reads its context already"
        score_class(self.score)  # a wrong name ends the list
        if self.max_length is not None and self.score != "location":
            yield f"max_length belongs to the location score only; leave it out for {self.score!r}"

    def build(self, query: int, memory: int) -> Score:
        options = {} if self.max_length is None else {"max_length": self.max_length}
        return score_class(self.score)(query, memory, coverage=self.coverage, **options)


@config
class RecurrentSeq2SeqConfig(RecurrentOptions):
    kind: Literal["recurrent-seq2seq"] = "recurrent-seq2seq"
    cell: CellName = "gru"  # of encoder and decoder; `seqloom list cells` shows them all
    encoder_layers: PositiveInt = 1  # cells stacked on each other
    decoder_layers: PositiveInt = 1
    hidden: PositiveInt = 256  # width of every layer's state, in each direction
    embedding: PositiveInt | None = None  # width of the token vectors; None is as wide as hidden
    bidirectional: bool | None = None  # the encoder reads from both ends; None is yes with attention, no without
    combine: Combination = "concat"  # its two directions, where it has them: concat, sum or mix
    residual: bool = False  # with attention, an annotation also holds its own token's vector: h_j + E x_j
    reverse: bool = False  # the encoder reads the source from its end
    # the encoder's end sets the first state only, or is read at every step
    context: Literal["start", "every"] = "start"
    attention: AttentionConfig | None = AttentionConfig()  # null for none
    dropout: Fraction = 0.0  # on the embeddings, between layers, on the annotations, and before the output layer
    variational_dropout: bool = False  # dropout drops the same at every step of a sentence
    tied: Literal["none", "decoder", "all"] = "none"  # target and output embeddings are one matrix; the source's too

    def problems(self) -> Iterator[str]:
        if self.residual and self.attention is not None and self.annotation != self.embedding_size:
            widths = f"embedding is {self.embedding_size} wide and an annotation {self.annotation}"
            yield f"residual adds token vectors to annotations, but {widths}; set combine to sum, leave embedding out"
        if self.bidirectional is False and self.combine != "concat":
            yield "combine is about two directions; set bidirectional to true, or leave it out"
        yield from super().problems()

    @property
    def embedding_size(self) -> int:
        return self.hidden if self.embedding is None else self.embedding

    @property
    def both_ways(self) -> bool:
        return self.attention is not None if self.bidirectional is None else self.bidirectional

    @property
    def annotation(self) -> int:
        """The width of an annotation, and of the summary."""
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
        """Whether the output is predicted from y_{t-1} too."""
        return self.context == "every" if self.attention is None else self.attention.order == "bahdanau"

    @property
    def at_once(self) -> bool:
        """Whether the decoder's states do not wait for attention, so that all steps of a known target run together."""
        attention = self.attention
        return attention is None or not (attention.order == "bahdanau" or attention.input_feeding or attention.coverage)

    def encoder(self) -> Stack | BidirectionalStack:
        """Create the encoder."""
        if not self.both_ways:
            return self.stack(self.embedding_size, self.encoder_layers)
        return BidirectionalStack(
            self.make_cell,
            self.embedding_size,
            self.hidden,
            self.encoder_layers,
            combine=self.combine,
            dropout=self.dropout,
            variational_dropout=self.variational_dropout,
        )

    def decoder(self) -> Stack:
        """Create the decoder, which reads y_{t-1} and, by its attention, c, c_t or r_{t-1}."""
        inputs = self.embedding_size + (self.annotation if self.context == "every" else 0)
        if self.attention is not None and self.attention.order == "bahdanau":
            inputs += self.annotation
        if self.attention is not None and self.attention.input_feeding:
            inputs += self.hidden
        return self.stack(inputs, self.decoder_layers)

    def readout(self) -> nn.Linear | None:
        """Create W_r; None where the output is predicted from s_t itself."""
        contexts = (self.attention is not None) + (self.context == "every")
        if contexts == 0:
            return None
        return nn.Linear(
            self.hidden + contexts * self.annotation + (self.embedding_size if self.reads_token else 0), self.hidden
        )

    def build(self, vocabulary: int) -> "RecurrentSeq2Seq":
        return RecurrentSeq2Seq(self, vocabulary)


class RecurrentSeq2Seq(Seq2Seq):
    """Reads a source whole, then predicts its target token by token."""

    def __init__(self, config: RecurrentSeq2SeqConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.target_embed = nn.Embedding(vocabulary, config.embedding_size)
        self.source_embed = (
            self.target_embed if config.tied == "all" else nn.Embedding(vocabulary, config.embedding_size)
        )
        self.encoder, self.decoder = config.encoder(), config.decoder()
        parts = sum(len(cell.state_names) for cell in self.decoder.cells)
        self.bridge = nn.Linear(config.annotation, parts * config.hidden)
        score = None if config.attention is None else config.attention.build(config.hidden, config.annotation)
        self.attend = None if score is None else Attention(score)
        self.readout = config.readout()
        # Where the output layer is the target's embeddings, it is met in their width: p(y_t) = softmax(E P r_t + b).
        tied = config.tied != "none"
        narrow = tied and config.embedding_size != config.hidden
        self.project = nn.Linear(config.hidden, config.embedding_size, bias=False) if narrow else nn.Identity()
        self.output = FullSoftmax(
            config.embedding_size if tied else config.hidden, vocabulary, self.target_embed.weight if tied else None
        )
        self.dropout = make_dropout(config.dropout, config.variational_dropout)
        self.whole_sentences = config.variational_dropout
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """An unbiased output, so that a fresh model thinks all tokens nearly equally likely.

        Embeddings begin large, N(0, 1), for attention finds words sooner the better it can tell
        them apart; but small where the output layer shares them.
        """
        for embed in (self.source_embed, self.target_embed):
            if embed.weight is self.output.weight:
                nn.init.uniform_(embed.weight, -0.1, 0.1)
            else:
                nn.init.normal_(embed.weight)
        self.output.initialise()

    def notes(self) -> list[str]:
        """What the model does beyond what its recipe says, for whoever trains it."""
        notes = [*self.encoder.notes(), *self.decoder.notes(), *self.config.dropout_notes()]
        if self.attend is not None:
            notes += self.attend.score.notes()
        if self.config.reverse and self.config.both_ways:
            notes.append("reverse only swaps the encoder's two directions, since it reads from both ends")
        return notes

    # Reading the source.

    def encode(self, tokens: Tensor, mask: Tensor | None = None) -> Memory:
        """A source (B, S) to what decoding needs of it: summary (B, M); with attention also annotations, keys and mask.

        All of it is in the source's own order, reversed or not.
        """
        mask = mask_or_ones(mask, tokens)
        annotations, summary = self.read_source(tokens, mask)
        memory = {"summary": self.dropout(summary)}
        return memory if self.attend is None else memory | self.attend.prepare(self.dropout(annotations), mask)

    def annotations(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.read_source(tokens, mask_or_ones(mask, tokens))[0]

    def read_source(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The annotations (B, S, M), and where the reading ended (B, M)."""
        order = reversed_steps(mask, fixed=1) if self.config.reverse else None  # END stays last
        tokens = tokens if order is None else tokens.gather(1, order)
        words = self.dropout(self.source_embed(tokens))  # (B, S, D)
        annotations, summary = read_sequences(self.encoder, words, mask)
        if self.config.residual and self.attend is not None:
            annotations = annotations + words
        return annotations if order is None else annotations.take_along_dim(order.unsqueeze(-1), dim=1), summary

    def first(self, memory: Memory) -> Carry:
        """s_0 = tanh(W c + b), with no output and no coverage yet.

        Of each hypothesis: layers, the decoder's state; readout r (R, H); coverage (R, S) if it is
        wanted.
        """
        summary = memory["summary"]
        parts = iter(torch.tanh(self.bridge(summary)).chunk(self.bridge.out_features // self.config.hidden, dim=-1))
        layers = tuple({name: next(parts) for name in cell.state_names} for cell in self.decoder.cells)
        carry: Carry = {"layers": layers, "readout": summary.new_zeros(len(summary), self.config.hidden)}
        if self.config.attention is not None and self.config.attention.coverage:
            carry["coverage"] = torch.zeros_like(memory["mask"], dtype=at_least_float32(summary).dtype)
        return carry

    # Predicting the target.

    def decode(
        self, tokens: Tensor, carry: Carry, memory: Memory, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Carry, Memory]:
        """Tokens (R, T) to r (R, T, H), attention weights (R, T, S), and the carry after the last real token."""
        y = self.dropout(self.target_embed(tokens))  # (R, T, D)
        if not self.config.at_once:
            return *self._decode_steps(y, carry, memory, mask), memory
        summary = self._summary(y, memory)
        s, layers = self.decoder(torch.cat([y, *summary], dim=-1), carry["layers"], mask)  # (R, T, H)
        context, weights = self._attend(s, memory, None)
        r = self._read_out(y, s, [*context, *summary])
        return r, weights, {"layers": layers, "readout": last_real(carry["readout"], r, mask)}, memory

    def _decode_steps(
        self, y: Tensor, carry: Carry, memory: Memory, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Carry]:
        """Decode step by step; at padding the carry does not change.

        Dropout between layers is drawn for all steps before the first, so that it can be the same
        at all of them.
        """
        noise: list[Tensor] = []
        if self.training and self.config.dropout > 0:
            ones = y.new_ones(*y.shape[:2], self.config.hidden)
            noise = [self.decoder.dropout(ones) for _ in self.decoder.cells[1:]]
        outputs, weights = [], []
        for t in range(y.shape[1]):
            step = slice(t, t + 1)
            after, step_weights = self._decode_step(y[:, step], carry, memory, [layer[:, step] for layer in noise])
            carry = after if mask is None else choose(mask[:, t].unsqueeze(1), after, carry)
            outputs.append(carry["readout"])
            weights.append(step_weights)
        return torch.stack(outputs, dim=1), torch.cat(weights, dim=1), carry

    def _decode_step(self, y: Tensor, carry: Carry, memory: Memory, noise: list[Tensor]) -> tuple[Carry, Tensor]:
        """One step of one token each, y (R, 1, D): the carry after it, and its attention weights (R, 1, S)."""
        attention = self.config.attention
        assert attention is not None
        layers, coverage, summary = carry["layers"], carry.get("coverage"), self._summary(y, memory)
        context: list[Tensor] = []
        weights, inputs = None, [y]
        if attention.order == "bahdanau":
            context, weights = self._attend(layers[-1]["h"].unsqueeze(1), memory, coverage)
            inputs += context
        elif attention.input_feeding:
            inputs.append(carry["readout"].unsqueeze(1))
        x, after = torch.cat([*inputs, *summary], dim=-1), []
        for depth, cell in enumerate(self.decoder.cells):
            x = x * noise[depth - 1] if noise and depth > 0 else x
            after.append(cell(x.squeeze(1), layers[depth]))
            x = after[-1]["h"].unsqueeze(1)
        if attention.order == "luong":
            context, weights = self._attend(x, memory, coverage)
        assert weights is not None
        carry = {"layers": tuple(after), "readout": self._read_out(y, x, [*context, *summary]).squeeze(1)}
        if coverage is not None:
            carry["coverage"] = coverage + weights.squeeze(1)
        return carry, weights

    def _attend(self, s: Tensor, memory: Memory, coverage: Tensor | None) -> tuple[list[Tensor], Tensor | None]:
        """States (R, T, H) to contexts (R, T, M) and weights (R, T, S); nothing without attention."""
        if self.attend is None:
            return [], None
        k = hypotheses(s, memory["mask"])
        query = s.reshape(-1, k, *s.shape[1:])  # (B, k, T, H)
        covered = None if coverage is None else coverage.reshape(-1, k, 1, coverage.shape[-1])  # (B, k, 1, S)
        context, weights = self.attend(query, memory, covered)
        return [context.flatten(0, 1)], weights.flatten(0, 1)

    def _summary(self, y: Tensor, memory: Memory) -> list[Tensor]:
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
        parts = [y, s, *contexts] if self.config.reads_token else [s, *contexts]
        return torch.tanh(self.readout(torch.cat(parts, dim=-1)))

    def before_output(self, r: Tensor) -> Tensor:
        projected: Tensor = self.project(self.dropout(r))
        return projected

    def forward(
        self, source: Tensor, source_mask: Tensor | None, inputs: Tensor, target_mask: Tensor | None = None
    ) -> Tensor:
        """Sources (B, S) and inputs (B, T), END first, to the logits (B, T, V) of the token after each input."""
        memory = self.encode(source, source_mask)
        return self.output(self.before_output(self.decode(inputs, self.first(memory), memory, target_mask)[0]))

    def teacher_force(self, batch: Batch, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        memory = self.encode(batch["source"], batch["source_mask"])
        return self.decode(batch["inputs"], self.first(memory), memory)[:2]
