"""What GPT and BERT have in common: tokens to vectors, and blocks of self-attention over them.

    x_j = norm(√D · E[token_j] + PE(j) + G[segment_j])          each part only where the model has it
    x ← block(x), L times:   self-attention, feed-forward       each with a way around it and a norm
    h = norm(x)                                                 where norms stand first

A causal body looks back only, with a sliding window no further than that; another one to both sides. Several documents
may be packed into a row: none looks across a border, and places begin anew at each. `seqloom.nn.embedded` has x,
`seqloom.nn.blocks` the blocks.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.core.tree import Growing
from seqloom.nn.blocks import Activation, FeedForward, Frame, Norm, Past, TextBlock, make_norm
from seqloom.nn.cache import Known, Reading, empty_cache, with_room
from seqloom.nn.embedded import Embedded
from seqloom.nn.masks import Allowed, causal_mask
from seqloom.nn.multihead import MultiHeadAttention, choose_kernels, head_problems
from seqloom.nn.positions import PositionsConfig

Caches = tuple[Growing, ...]  # of keys and values, one for each layer
END = 0  # as in seqloom.text.base


@config
class BodyShape:
    """The keys that the configs of GPT and BERT share."""

    kind: str = ""
    width: int = 128  # of every token's vector, from the embedding to the output
    heads: int = 4  # of each attention; each is width / heads wide
    kv_heads: int | None = None  # keys and values are shared by groups of heads; None is as many as heads
    layers: int = 4  # blocks stacked on each other
    feed_forward: int | None = None  # width inside the feed-forward layers; None is 4 × width
    activation: Activation = "gelu"  # of the feed-forward layers: relu, gelu, gelu-tanh, silu or swiglu
    norm: Norm = "layer"  # layer, rms or none
    norm_epsilon: float | None = None  # ε of the norms; None is 1e-5 of layer, 1e-6 of rms
    norm_first: bool = True  # norms stand before each layer, and once more at the end; not after it
    embed_norm: bool = False  # the embeddings are normed too
    positions: PositionsConfig = PositionsConfig(kind="learned")
    embed_scale: bool = False  # embeddings are multiplied by √width
    bias: bool = True  # of the layers in the blocks
    dropout: float = 0.1  # on the embeddings, and on what each layer adds
    attention_dropout: float = 0.0  # on the weights of attention
    init: float = 0.02  # weights begin as draws from N(0, init²)

    def problems(self) -> Iterator[str]:
        for name, value in (("width", self.width), ("layers", self.layers), ("feed_forward", self.inner)):
            if value < 1:
                yield f"{name} must be at least 1; got {value}"
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                yield f"{name} must be at least 0 and below 1; got {getattr(self, name)}"
        if self.init <= 0:
            yield f"init must be above 0; got {self.init:g}"
        if self.norm_epsilon is not None and not 0 < self.norm_epsilon < 1:
            yield f"norm_epsilon must be above 0 and below 1; got {self.norm_epsilon:g}"
        if self.embed_norm and self.norm == "none":
            yield "embed_norm needs a norm: set norm to layer or rms"
        yield from head_problems(self.width, self.heads, self.kv_heads)
        if self.heads >= 1:
            yield from self.positions.width_problems(self.width, self.heads)

    @property
    def inner(self) -> int:
        return 4 * self.width if self.feed_forward is None else self.feed_forward

    @property
    def longest(self) -> int | None:
        """The most tokens of a text it can read, specials included; None for any number."""
        return self.positions.longest

    def block(self) -> TextBlock:
        dropout, rotary = self.attention_dropout, self.positions.rotary()
        attention = MultiHeadAttention(
            self.width, self.heads, self.kv_heads, bias=self.bias, dropout=dropout, rotary=rotary
        )
        feed_forward = FeedForward(self.width, self.inner, self.activation, bias=self.bias)
        frame = Frame(self.width, self.norm, self.norm_first, dropout=self.dropout, epsilon=self.norm_epsilon)
        return TextBlock(attention, feed_forward, frame)


class TransformerBody(nn.Module):
    """Tokens (B, S) to h (B, S, D). `rows` is how many tokens have a vector, `segments` how many segments. An END that
    stands first is read as the token `begin`, where there is one. A causal body may have a sliding `window`: each
    position then attends to that many positions, itself included.

    In `read` the real tokens of a row stand first; its padding last, where nobody hears of it.
    """

    blocks: Sequence[TextBlock]

    def __init__(
        self,
        shape: BodyShape,
        rows: int,
        *,
        causal: bool,
        segments: int = 0,
        begin: int | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.causal, self.width, self.begin, self.window = shape, causal, shape.width, begin, window
        self.embedded = Embedded(shape, nn.Embedding(rows, shape.width), "text", segments, shape.norm_epsilon)
        self.blocks = nn.ModuleList(shape.block() for _ in range(shape.layers))  # type: ignore[assignment]
        self.norm = make_norm(shape.norm if shape.norm_first else "none", shape.width, shape.norm_epsilon)
        self.reset_parameters()

    @property
    def embed(self) -> nn.Embedding:
        """E, its vectors one for each of `rows` tokens."""
        return self.embedded.embed

    def reset_parameters(self) -> None:
        draw_matrices(self, self.shape)

    def levels(self) -> list[list[nn.Parameter]]:
        """Its parameters from the embeddings (level 0) up, a level for each block; the last norm is the top one's."""
        levels = [list(part.parameters()) for part in (self.embedded, *self.blocks)]
        levels[-1].extend(self.norm.parameters())
        return levels

    # Whole texts at once.

    def read(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Tokens (B, S), of which those of `mask` (B, S) are real, to h (B, S, D).

        `segments` (B, S) is which of two texts a token belongs to, 0 or 1. `documents` (B, S) numbers the documents
        that are packed into a row, each with a number of its own.
        """
        x, past = self.placed(tokens, mask, segments, documents)
        choose_kernels(tokens)
        return self.climb(x, past)[0]

    def attentions(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> list[Tensor]:
        """Where every head of every layer looked: (B, N, S, S) by layer, zero at padding."""
        x, past = self.placed(tokens, mask, segments, documents)
        looked = self.climb(x, past, weights=True)[2]
        return looked if mask is None else [layer.masked_fill(~mask[:, None, :, None], 0) for layer in looked]

    def placed(
        self, tokens: Tensor, mask: Tensor | None, segments: Tensor | None, documents: Tensor | None
    ) -> tuple[Tensor, Past]:
        """x (B, S, D) of the first block, and what its places may look at."""
        S = tokens.shape[1]
        places = torch.arange(S, device=tokens.device) if documents is None else places_of(documents)
        ends = places + 1 if mask is None else (places + 1) * mask
        x = self.embedded(self._begun(tokens, places), places, S, ends, segments)
        allowed = self._allowed(mask, documents, S)
        return x, Past(allowed, self.causal and allowed is None, places)

    def _begun(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Tokens (B, S) at places (S,) or (B, S), as they are embedded."""
        return tokens if self.begin is None else tokens.masked_fill((tokens == END) & (places == 0), self.begin)

    def _allowed(self, mask: Tensor | None, documents: Tensor | None, S: int) -> Allowed | None:
        """Who may look at whom (B or 1, 1, S or 1, S); None if all may, or if a causal body need only look back."""
        if documents is None and self.causal:
            beyond = self.window is not None and self.window < S
            return Allowed(self.earlier(S)[None, None], each=True) if beyond else None
        if documents is None:
            return None if mask is None else Allowed(mask[:, None, None, :])
        same = documents.unsqueeze(2) == documents.unsqueeze(1)  # (B, S, S)
        if self.causal:
            same = same & self.earlier(S)
        elif mask is not None:
            same = same & mask.unsqueeze(1)
        return Allowed(same.unsqueeze(1), each=self.causal or mask is None)

    def earlier(self, S: int) -> Tensor:
        """Which of S positions each of them may attend to (S, S) in a causal body."""
        return causal_mask(S, S, self.window, self.embed.weight.device)

    def climb(
        self, x: Tensor, past: Past, caches: Caches | None = None, weights: bool = False
    ) -> tuple[Tensor, Caches, list[Tensor]]:
        """x (B, T, D) through all blocks: h, the caches after it, and the weights (B, N, T, ·) of each if wanted."""
        after: list[Growing] = []
        looked: list[Tensor] = []
        for depth, block in enumerate(self.blocks):
            x, cache, own = block(x, past, None if caches is None else caches[depth], weights)
            after += [] if cache is None else [cache]
            looked += [] if own is None else [own]
        return self.norm(x), tuple(after), looked

    # Token by token.

    def caches(self, sources: int) -> Caches:
        """Empty ones, for texts of which each may come to have several hypotheses."""
        return tuple(empty_cache(block.attention, sources) for block in self.blocks)

    def advance(
        self, tokens: Tensor, known: Known, caches: Caches, mask: Tensor | None = None
    ) -> tuple[Tensor, Known, Caches]:
        """Tokens (R, T) that go on from what is in the caches, to h (R, T, D), and to what is known and kept after it.

        For a causal body. Padding, where `mask` (R, T) is False, may stand anywhere. The hypotheses of a text are read
        side by side, as k·T tokens of one row; `seqloom.nn.cache` says more.
        """
        (R, T), B = tokens.shape, len(caches[0].buffer)
        caches, known = with_room(caches, known, tokens, B)
        reading = Reading.of(tokens, mask, known, B, self.window)
        past = Past(reading.allowed, reading.allowed is None, reading.places, reading)
        tokens = self._begun(tokens.reshape(B, -1), reading.places)
        x = self.embedded(tokens, reading.places, known["read"] + T, reading.lengths)
        h, caches, _ = self.climb(x, past, caches)
        return h.reshape(R, T, -1), reading.known, caches


def draw_matrices(part: nn.Module, shape: BodyShape) -> None:
    """Everything from N(0, init²); where norms stand first, x is a sum of 2L layers, which are drawn accordingly
    smaller."""
    for name, parameter in part.named_parameters():
        if parameter.dim() < 2:
            continue  # biases and norms have begun as they should
        summed = shape.norm_first and name.endswith(("attention.out.weight", "feed_forward.down.weight"))
        nn.init.normal_(parameter, std=shape.init / math.sqrt(2 * shape.layers) if summed else shape.init)


def places_of(documents: Tensor) -> Tensor:
    """How many tokens of its own document stand before each: documents (B, S) to (B, S)."""
    place = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    first = torch.ones_like(documents, dtype=torch.bool)
    first[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return place - (place * first).cummax(dim=1).values
