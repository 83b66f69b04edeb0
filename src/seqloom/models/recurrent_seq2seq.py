"""Recurrent encoder–decoder: p(y_1 … y_T | x) = Π_t p(y_t | y_1 … y_{t-1}, x), with or without attention.

    h_1 … h_S = encoder(x_1 … x_S)      encoder states; bidirectional: [→h_j; ←h_j]; residual: h_j + E x_j
    c   = h_S                           context vector, the final state; bidirectional: [→h_S; ←h_1]
    h_j = E x_j, c = mean of h_j        without an encoder (encoder_layers 0)
    s_0 = tanh(W c + b)                 one W per decoder layer and part of its state
    p(y_t) = softmax(W_o r_t + b_o)

    no attention, context start    s_t = f(s_{t-1}, y_{t-1})             r_t = s_t
    no attention, context first    as context start, but s_0 = f(0, W c + b): c is the first input (NIC)
    no attention, context every    s_t = f(s_{t-1}, [y_{t-1}; c])        r_t = tanh(W_r [y_{t-1}; s_t; c] + b_r)
    Bahdanau: c_t by s_{t-1}       s_t = f(s_{t-1}, [y_{t-1}; c_t])      r_t = tanh(W_r [y_{t-1}; s_t; c_t] + b_r)
    Luong: c_t by s_t              s_t = f(s_{t-1}, y_{t-1})             r_t = tanh(W_r [s_t; c_t] + b_r)
    Luong with input feeding       s_t = f(s_{t-1}, [y_{t-1}; r_{t-1}])  r_t as above, r_0 = 0

c_t = Σ_j α_tj h_j, α_t = softmax_j(score(s, h_j)) over the real tokens of the source. With hard attention, training
also uses c_t = h_j with a sampled position j; see `seqloom.models.hard_attention`. With attention and `context: every`,
f and W_r also read c. y_0 is END. With several decoder layers, s_t is the state of the top layer, and the bottom layer
reads the inputs.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import Fraction, NonNegativeInt, PositiveInt
from seqloom.core.errors import UsageError
from seqloom.core.tree import Tree
from seqloom.models.hard_attention import HardAttentionConfig, draw_gumbel, hard_attention_loss
from seqloom.models.seq2seq import Batch, HiddenState, Memory, Seq2Seq, SourceVectors, project_source
from seqloom.nn.attention import Attention
from seqloom.nn.bidirectional import BidirectionalStack, Combination, read_sequences
from seqloom.nn.cells import CellName
from seqloom.nn.masks import choose, hypotheses, make_dropout, mask_or_ones, reversal_indices, select_last_real
from seqloom.nn.pooling import mean_of_real
from seqloom.nn.recurrent import RecurrentOptions, Stack
from seqloom.nn.scores import DEFAULT_LOCATION_WIDTH, DEFAULT_MAX_LENGTH, Score, score_class
from seqloom.nn.softmax import FullSoftmax, at_least_float32


@config
class AttentionConfig:
    # luong: attend with the new decoder state; bahdanau: with the previous state
    order: Literal["luong", "bahdanau"] = "luong"
    score: str = "general"  # name of the score, such as additive or dot; `seqloom list attention` describes all scores
    input_feeding: bool = False  # luong: the decoder also reads r_{t-1}
    coverage: bool = False  # the score also depends on the sum of the previous attention weights
    # location-aware attention: number of filters of a convolution over the previous attention weights; null: none
    location_filters: PositiveInt | None = None
    location_width: PositiveInt | None = None  # kernel size of this convolution, which is odd; null: 15
    max_length: PositiveInt | None = None  # location score: maximum length of a source in tokens; null: 100
    # hard attention: training also samples one position of the source per target token; null: soft attention only
    hard: HardAttentionConfig | None = None

    def problems(self) -> Iterator[str]:
        if self.input_feeding and self.order == "bahdanau":
            yield "input_feeding needs order luong; with bahdanau the decoder reads the context vector"
        if self.location_width is not None and (self.location_filters is None or self.location_width % 2 == 0):
            yield f"location_width must be odd and needs location_filters; got {self.location_width}"
        score_class(self.score)  # raises an error if the name is unknown
        if self.max_length is not None and self.score != "location":
            yield f"max_length applies only to the location score; remove it for {self.score!r}"

    def build(self, query: int, memory: int) -> Score:
        options = {} if self.max_length is None else {"max_length": self.max_length}
        score = score_class(self.score)(query, memory, coverage=self.coverage, **options)
        if self.location_filters is not None:
            score.read_previous_weights(self.location_filters, self.location_width or DEFAULT_LOCATION_WIDTH)
        return score


@config
class RecurrentSeq2SeqConfig(RecurrentOptions):
    kind: Literal["recurrent-seq2seq"] = "recurrent-seq2seq"
    cell: CellName = "gru"  # cell of encoder and decoder; see `seqloom list cells`
    # number of encoder layers; 0: no encoder, and the decoder attends to the embeddings
    encoder_layers: NonNegativeInt = 1
    decoder_layers: PositiveInt = 1
    hidden: PositiveInt = 256  # size of the state of each layer and direction
    embedding: PositiveInt | None = None  # size of the token embeddings; null: the same as hidden
    bidirectional: bool | None = None  # use a bidirectional encoder; null: true with attention, else false
    combine: Combination = "concat"  # how to combine the two directions: concat, sum or mix
    residual: bool = False  # with attention, add the token embedding to the encoder states: h_j + E x_j
    reverse: bool = False  # read the source in reverse order
    # c sets only the initial state (start), is the first input of the decoder (first, only for images and clips), or is
    # also read at every step (every)
    context: Literal["start", "first", "every"] = "start"
    attention: AttentionConfig | None = AttentionConfig()  # attention of the decoder; null: no attention
    # dropout on the embeddings, between layers, on the encoder states and before the output layer
    dropout: Fraction = 0.0
    variational_dropout: bool = False  # use the same dropout mask at all steps of a sentence
    # decoder: share target and output embeddings; all: share all embeddings
    tied: Literal["none", "decoder", "all"] = "none"

    def problems(self) -> Iterator[str]:
        if self.residual and self.attention is not None and self.encoder_size != self.embedding_size:
            sizes = f"got {self.embedding_size} and {self.encoder_size}"
            yield f"residual needs embeddings and encoder states of equal size; {sizes}; set combine=sum"
        if self.bidirectional is False and self.combine != "concat":
            yield "combine needs a bidirectional encoder; set bidirectional=true, or remove combine"
        if self.context == "first" and self.attention is not None:
            yield "context first needs a decoder without attention: set attention to null"
        if self.encoder_layers == 0 and (self.bidirectional or self.combine != "concat" or self.residual):
            yield "bidirectional, combine and residual need an encoder: set encoder_layers to 1 or more, or remove them"
        yield from super().problems()

    @property
    def embedding_size(self) -> int:
        return self.hidden if self.embedding is None else self.embedding

    @property
    def is_bidirectional(self) -> bool:
        attends = self.attention is not None and self.encoder_layers > 0
        return attends if self.bidirectional is None else self.bidirectional

    @property
    def encoder_size(self) -> int:
        """The size of the encoder states and of the context vector."""
        if self.encoder_layers == 0:
            return self.embedding_size
        return 2 * self.hidden if self.is_bidirectional and self.combine == "concat" else self.hidden

    longest_key: ClassVar[str] = "attention.max_length"  # the option that limits the length of a source
    longest_target: ClassVar[None] = None  # no limit

    @property
    def longest_source(self) -> int | None:
        """The maximum number of source tokens, including END; None means no limit."""
        if self.attention is None or self.attention.score != "location":
            return None
        return self.attention.max_length or DEFAULT_MAX_LENGTH

    @property
    def reads_token(self) -> bool:
        """Whether r_t depends on y_{t-1}."""
        return self.context == "every" if self.attention is None else self.attention.order == "bahdanau"

    @property
    def has_hard_attention(self) -> bool:
        """Whether training samples positions of the source."""
        return self.attention is not None and self.attention.hard is not None

    @property
    def is_parallel(self) -> bool:
        """Whether the decoder states are independent of attention, so that all steps of a target run in one call."""
        attention = self.attention
        return attention is None or not (
            attention.order == "bahdanau"
            or attention.input_feeding
            or attention.coverage
            or attention.location_filters is not None
        )

    def encoder(self) -> Stack | BidirectionalStack | None:
        """Create the encoder. Return None if it has no layers."""
        if self.encoder_layers == 0:
            return None
        if not self.is_bidirectional:
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
        """Create the decoder, which reads y_{t-1} and, depending on the options, c, c_t or r_{t-1}."""
        inputs = self.embedding_size + (self.encoder_size if self.context == "every" else 0)
        if self.attention is not None and self.attention.order == "bahdanau":
            inputs += self.encoder_size
        if self.attention is not None and self.attention.input_feeding:
            inputs += self.hidden
        return self.stack(inputs, self.decoder_layers)

    def readout(self) -> nn.Linear | None:
        """Create W_r, or return None if r_t = s_t."""
        contexts = (self.attention is not None) + (self.context == "every")
        if contexts == 0:
            return None
        return nn.Linear(
            self.hidden + contexts * self.encoder_size + (self.embedding_size if self.reads_token else 0), self.hidden
        )

    def build(self, vocabulary: int, source: SourceVectors | None = None) -> "RecurrentSeq2Seq":
        """Create the model. If the sources are not texts, `source` maps them to vectors."""
        if self.context == "first" and source is None:
            raise UsageError("context first needs images or clips as sources; set model.context to start or every.")
        return RecurrentSeq2Seq(self, vocabulary, source)


class RecurrentSeq2Seq(Seq2Seq):
    """A recurrent encoder–decoder."""

    def __init__(self, config: RecurrentSeq2SeqConfig, vocabulary: int, source: SourceVectors | None = None) -> None:
        super().__init__()
        self.config = config
        self.target_embed = nn.Embedding(vocabulary, config.embedding_size)
        self.source_embed: nn.Module
        if source is not None:
            self.source_embed = project_source(source, config.embedding_size, deviation=1)
        elif config.tied == "all":
            self.source_embed = self.target_embed
        else:
            self.source_embed = nn.Embedding(vocabulary, config.embedding_size)
        self.encoder, self.decoder = config.encoder(), config.decoder()
        parts = sum(len(cell.state_names) for cell in self.decoder.cells)
        first = config.embedding_size if config.context == "first" else parts * config.hidden
        self.bridge = nn.Linear(config.encoder_size, first)
        score = None if config.attention is None else config.attention.build(config.hidden, config.encoder_size)
        self.attend = None if score is None else Attention(score)
        self.readout = config.readout()
        # With tied embeddings, r is projected to the embedding size: p(y_t) = softmax(E P r_t + b).
        tied = config.tied != "none"
        narrow = tied and config.embedding_size != config.hidden
        self.project = nn.Linear(config.hidden, config.embedding_size, bias=False) if narrow else nn.Identity()
        self.output = FullSoftmax(
            config.embedding_size if tied else config.hidden, vocabulary, self.target_embed.weight if tied else None
        )
        self.dropout = make_dropout(config.dropout, config.variational_dropout)
        self.needs_sequences = config.variational_dropout
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize with a zero output bias, so that all tokens are about equally probable.

        Embeddings are drawn from N(0, 1), because attention learns faster from clearly different embeddings. Embeddings
        that are tied to the output layer are small.
        """
        for embed in (self.source_embed, self.target_embed):
            if not isinstance(embed, nn.Embedding):
                continue  # a module that maps sources to vectors keeps its initialization
            if embed.weight is self.output.weight:
                nn.init.uniform_(embed.weight, -0.1, 0.1)
            else:
                nn.init.normal_(embed.weight)
        self.output.initialize()

    def notes(self) -> list[str]:
        """Return notes for the user on behaviour that the recipe does not show."""
        encoder = [] if self.encoder is None else self.encoder.notes()
        notes = [*encoder, *self.decoder.notes(), *self.config.dropout_notes()]
        if self.attend is not None:
            notes += self.attend.score.notes()
        if self.config.reverse and self.config.is_bidirectional:
            notes.append("reverse only swaps the two directions of a bidirectional encoder")
        return notes

    # Encoder

    def encode(self, source: Tree, mask: Tensor | None = None) -> Memory:
        """Compute the context vector (B, M) of sources. With attention, also compute the encoder states, keys and mask.

        Encoder states, keys and mask are in the order of the source, even with `reverse`.
        """
        mask = mask_or_ones(mask, source)
        states, context = self.read_source(source, mask)
        memory = {"context": self.dropout(context)}
        return memory if self.attend is None else memory | self.attend.prepare(self.dropout(states), mask)

    def encoder_states(self, source: Tree, mask: Tensor | None = None) -> Tensor:
        return self.read_source(source, mask_or_ones(mask, source))[0]

    def read_source(self, source: Tree, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the encoder states (B, S, M) and the context vector (B, M)."""
        order = reversal_indices(mask, fixed=1) if self.config.reverse else None  # END stays at the last position
        source = source if order is None else source.gather(1, order)
        words = self.dropout(self.source_embed(source))  # (B, S, D)
        if self.encoder is None:
            return words, mean_of_real(words, mask)
        states, context = read_sequences(self.encoder, words, mask)
        if self.config.residual and self.attend is not None:
            states = states + words
        return states if order is None else states.take_along_dim(order.unsqueeze(-1), dim=1), context

    def initial_hidden(self, memory: Memory) -> HiddenState:
        """Return s_0 = tanh(W c + b), or f(0, W c + b), and 0 for the readout and the coverage.

        The state of a hypothesis consists of the decoder state `layers`, the readout r (R, H) and, with coverage, the
        sum of its attention weights (R, S). Location-aware attention adds its last weights, `previous` (R, S).
        """
        context = memory["context"]
        if self.config.context == "first":
            layers = self.decoder(self.bridge(context).unsqueeze(1))[1]
        else:
            parts = iter(torch.tanh(self.bridge(context)).chunk(self.bridge.out_features // self.config.hidden, dim=-1))
            layers = tuple({name: next(parts) for name in cell.state_names} for cell in self.decoder.cells)
        hidden: HiddenState = {"layers": layers, "readout": context.new_zeros(len(context), self.config.hidden)}
        if self.config.attention is not None and self.config.attention.coverage:
            hidden["coverage"] = torch.zeros_like(memory["mask"], dtype=at_least_float32(context).dtype)
        if self.config.attention is not None and self.config.attention.location_filters is not None:
            hidden["previous"] = torch.zeros_like(memory["mask"], dtype=at_least_float32(context).dtype)
        return hidden

    # Decoder

    def decode(
        self, tokens: Tensor, hidden: HiddenState, memory: Memory, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, HiddenState, Memory]:
        """Read tokens (R, T). Return r (R, T, H), weights (R, T, S), and the state after the last real token."""
        y = self.dropout(self.target_embed(tokens))  # (R, T, D)
        if not self.config.is_parallel:
            return *self._decode_steps(y, hidden, memory, mask), memory
        context = self._repeat_context(y, memory)
        s, layers = self.decoder(torch.cat([y, *context], dim=-1), hidden["layers"], mask)  # (R, T, H)
        attended, weights = self._attend(s, memory)
        r = self._read_out(y, s, [*attended, *context])
        return r, weights, {"layers": layers, "readout": select_last_real(hidden["readout"], r, mask)}, memory

    def _decode_steps(
        self, y: Tensor, hidden: HiddenState, memory: Memory, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, HiddenState]:
        """Decode step by step. Padding does not change the state.

        The dropout masks between layers are drawn for all steps in advance. Variational dropout uses one mask for all
        steps.
        """
        noise: list[Tensor] = []
        if self.training and self.config.dropout > 0:
            ones = y.new_ones(*y.shape[:2], self.config.hidden)
            noise = [self.decoder.dropout(ones) for _ in self.decoder.cells[1:]]
        outputs, weights = [], []
        for t in range(y.shape[1]):
            step = slice(t, t + 1)
            read = memory | {"gumbel": memory["gumbel"][:, step]} if "gumbel" in memory else memory
            after, step_weights = self._decode_step(y[:, step], hidden, read, [layer[:, step] for layer in noise])
            hidden = after if mask is None else choose(mask[:, t].unsqueeze(1), after, hidden)
            outputs.append(hidden["readout"])
            weights.append(step_weights)
        return torch.stack(outputs, dim=1), torch.cat(weights, dim=1), hidden

    def _decode_step(
        self, y: Tensor, hidden: HiddenState, memory: Memory, noise: list[Tensor]
    ) -> tuple[HiddenState, Tensor]:
        """Read one token per row, y (R, 1, D). Return the next state and the attention weights (R, 1, S)."""
        attention = self.config.attention
        assert attention is not None
        layers, coverage, context = hidden["layers"], hidden.get("coverage"), self._repeat_context(y, memory)
        previous = hidden.get("previous")
        attended: list[Tensor] = []
        weights, inputs = None, [y]
        if attention.order == "bahdanau":
            attended, weights = self._attend(layers[-1]["h"].unsqueeze(1), memory, coverage, previous)
            inputs += attended
        elif attention.input_feeding:
            inputs.append(hidden["readout"].unsqueeze(1))
        x, after = torch.cat([*inputs, *context], dim=-1), []
        for depth, cell in enumerate(self.decoder.cells):
            x = x * noise[depth - 1] if noise and depth > 0 else x
            after.append(cell(x.squeeze(1), layers[depth]))
            x = after[-1]["h"].unsqueeze(1)
        if attention.order == "luong":
            attended, weights = self._attend(x, memory, coverage, previous)
        assert weights is not None
        hidden = {"layers": tuple(after), "readout": self._read_out(y, x, [*attended, *context]).squeeze(1)}
        if coverage is not None:
            hidden["coverage"] = coverage + weights.squeeze(1)
        if previous is not None:
            hidden["previous"] = weights.squeeze(1)
        return hidden, weights

    def _attend(
        self, s: Tensor, memory: Memory, coverage: Tensor | None = None, previous: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor | None]:
        """Compute c_t (R, T, M) and the weights (R, T, S) from states (R, T, H). Without attention, both are empty."""
        if self.attend is None:
            return [], None
        k = hypotheses(s, memory["mask"])
        query = s.reshape(-1, k, *s.shape[1:])  # (B, k, T, H)
        covered, before = (
            None if each is None else each.reshape(-1, k, 1, each.shape[-1]) for each in (coverage, previous)
        )  # (B, k, 1, S)
        context, weights = self.attend(query, memory, covered, before)
        return [context.flatten(0, 1)], weights.flatten(0, 1)

    def _repeat_context(self, y: Tensor, memory: Memory) -> list[Tensor]:
        """Return c repeated for every step (R, T, M) if the decoder reads it at every step."""
        if self.config.context != "every":
            return []
        context = memory["context"]
        k = hypotheses(y, context)
        return [context[:, None, None].expand(-1, k, y.shape[1], -1).flatten(0, 1)]

    def _read_out(self, y: Tensor, s: Tensor, contexts: list[Tensor]) -> Tensor:
        """Compute r (R, T, H)."""
        if self.readout is None:
            return s
        parts = [y, s, *contexts] if self.config.reads_token else [s, *contexts]
        return torch.tanh(self.readout(torch.cat(parts, dim=-1)))

    def before_output(self, r: Tensor) -> Tensor:
        projected: Tensor = self.project(self.dropout(r))
        return projected

    def forward(
        self, source: Tree, source_mask: Tensor | None, inputs: Tensor, target_mask: Tensor | None = None
    ) -> Tensor:
        """Compute the logits (B, T, V) of the next token from sources and inputs (B, T), whose first token is END."""
        memory = self.encode(source, source_mask)
        return self.output(self.before_output(self.decode(inputs, self.initial_hidden(memory), memory, target_mask)[0]))

    def teacher_force(self, batch: Batch, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        memory = self.encode(batch["source"], batch["source_mask"])
        return self.decode(batch["inputs"], self.initial_hidden(memory), memory)[:2]

    def loss(
        self, batch: Batch, label_smoothing: float = 0.0, consistency: float = 0.0, doubly_stochastic: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        attention = self.config.attention
        if attention is None or attention.hard is None or not self.training:
            return super().loss(batch, label_smoothing, consistency, doubly_stochastic)
        if consistency > 0:
            raise ValueError("consistency needs soft attention")
        return hard_attention_loss(self, batch, draw_gumbel(batch), attention.hard, label_smoothing, doubly_stochastic)
