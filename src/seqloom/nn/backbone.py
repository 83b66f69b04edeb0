"""Token embeddings of Transformers, and the backbone of GPT, BERT and ELECTRA.

    x_j = norm(√D · E[token_j] + PE(j) + G[segment_j])          each term only if configured
    x ← block(x), L times:   self-attention, feed-forward       each within a residual
    h = norm(x)                                                 with norm_first

In a causal backbone, positions attend only to themselves and earlier positions, optionally within a sliding window;
otherwise attention is bidirectional. If several documents are packed into a row, attention does not cross their
boundaries, and positions restart at 0 in each document. The blocks are defined in `seqloom.nn.transformer`, and the
positional encodings PE in `seqloom.nn.positions`.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import PositiveFloat, PositiveInt
from seqloom.core import END
from seqloom.core.tree import Tree
from seqloom.nn.cache import Caches, CacheState, extend_caches
from seqloom.nn.masks import AttentionMask, AttentionScope, Dropout, causal_mask
from seqloom.nn.positions import PositionsConfig
from seqloom.nn.transformer import TransformerOptions, TransformerStack, make_norm


@config
class TokenTransformerOptions(TransformerOptions):
    """The recipe keys of every Transformer that embeds tokens."""

    embed_norm: bool = False  # normalize the embeddings
    embed_scale: bool = False  # multiply the embeddings by √d_model

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.embed_norm and self.norm == "none":
            yield "embed_norm needs a norm: set norm to layer or rms"


@config
class BackboneOptions(TokenTransformerOptions):
    """The recipe keys that the configs of GPT and BERT share."""

    layers: PositiveInt = 4  # number of blocks
    positions: PositionsConfig = PositionsConfig(kind="learned")
    init: PositiveFloat = 0.02  # standard deviation of the initial weights


class InputLayer(nn.Module):
    """The layer below the blocks, which adds positions and segments to vectors and applies dropout.

    `embed` computes the vectors, and `what` is the name of the input in error messages.
    """

    embed: nn.Module

    def __init__(
        self, config: TokenTransformerOptions, embed: nn.Module, what: str = "source", segments: int = 0
    ) -> None:
        super().__init__()
        self.embed, self.what = embed, what
        self.scale = math.sqrt(config.d_model) if config.embed_scale else 1.0
        self.positions = config.positions.added(config.d_model)
        self.segments = nn.Embedding(segments, config.d_model) if segments else None
        self.norm = make_norm(config.norm, config.d_model, config.norm_epsilon) if config.embed_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)

    def embed_vectors(
        self, x: Tensor, positions: Tensor, max_length: int, lengths: Tensor, segments: Tensor | None = None
    ) -> Tensor:
        """Embed vectors (B, T, D) at positions (T,) or (B, T) as (B, T, D). If `segments` (B, T) is None, all are
        segment 0.

        `lengths` (B,) are the lengths of the rows after these vectors, at most `max_length`. Positions beyond these
        lengths must be padding.
        """
        x = x * self.scale
        if self.positions is not None:
            x = self.positions.add_to(x, positions, max_length, lengths, self.what)
        if self.segments is not None:
            x = x + (self.segments.weight[0] if segments is None else self.segments(segments))
        embedded: Tensor = self.dropout(self.norm(x))
        return embedded


class Embedded(InputLayer):
    """The embedding layer, which computes the first x of the equations above and applies dropout.

    If `bos` is set, the token `bos` replaces END at position 0, as imported models require.
    """

    embed: nn.Embedding
    bos: int | None = None

    def forward(
        self, tokens: Tensor, positions: Tensor, max_length: int, lengths: Tensor, segments: Tensor | None = None
    ) -> Tensor:
        """Embed tokens (B, T) as (B, T, D); see `embed_vectors`."""
        if self.bos is not None:
            tokens = tokens.masked_fill((tokens == END) & (positions == 0), self.bos)
        return self.embed_vectors(self.embed(tokens), positions, max_length, lengths, segments)


class EmbeddedSource(InputLayer):
    """The input layer of a source that `embed` maps to vectors (B, T, D), such as an image."""

    def forward(self, source: Tree, positions: Tensor, max_length: int, lengths: Tensor) -> Tensor:
        return self.embed_vectors(self.embed(source), positions, max_length, lengths)


class SourceEncoder(nn.Module):
    """The encoder of an encoder–decoder, which maps sources to x (B, S, D)."""

    source_embed: InputLayer
    encoder: TransformerStack
    encoder_norm: nn.Module

    def run_encoder(self, source: Tree, mask: Tensor, weights: bool = False) -> tuple[Tensor, list[Tensor]]:
        """Return x (B, S, D) and, if requested, the attention weights (B, N, S, S) of each layer, 0 at padding."""
        S = mask.shape[1]
        x = self.source_embed(source, torch.arange(S, device=mask.device), S, mask.sum(dim=1))
        return_weights = dict.fromkeys(range(len(self.encoder)), ("self",)) if weights else None
        output = self.encoder(x, AttentionScope.within(mask), return_weights=return_weights)
        padding = ~mask[:, None, :, None]
        return self.encoder_norm(output.x), [layer.masked_fill(padding, 0) for layer in output.self_weights]


class TransformerBackbone(nn.Module):
    """The Transformer backbone, which maps tokens (B, S) to h (B, S, D).

    `rows` is the number of embeddings, and `segments` the number of segments. With a sliding `window`, each position of
    a causal backbone attends to the last `window` positions, including itself.

    `read` masks padding, which must come last. `mask` (B, S) is True at real tokens, `segments` (B, S) is 0 for the
    first and 1 for the second text, and `documents` (B, S) numbers the documents that are packed into a row.
    """

    def __init__(
        self,
        shape: BackboneOptions,
        rows: int,
        *,
        causal: bool,
        segments: int = 0,
        bos: int | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.causal, self.output_size, self.window = shape, causal, shape.d_model, window
        self.embedded = Embedded(shape, nn.Embedding(rows, shape.d_model), "text", segments)
        self.embedded.bos = bos
        self.blocks = shape.stack(shape.layers)
        self.norm = shape.final_norm()
        draw_matrices(self, shape)

    @property
    def embed(self) -> nn.Embedding:
        """The embedding matrix E."""
        return self.embedded.embed

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Return the layer groups: the embeddings, then each block. The final norm belongs to the last group."""
        groups = [list(part.parameters()) for part in (self.embedded, *self.blocks)]
        groups[-1].extend(self.norm.parameters())
        return groups

    # Complete texts

    def read(self, tokens: Tensor, *text: Tensor | None, **named: Tensor | None) -> Tensor:
        """Map tokens (B, S) to h (B, S, D); see `embed_tokens` for the arguments."""
        h: Tensor = self.norm(self.blocks(*self.embed_tokens(tokens, *text, **named)).x)
        return h

    def attentions(
        self, tokens: Tensor, mask: Tensor | None = None, *text: Tensor | None, **named: Tensor | None
    ) -> list[Tensor]:
        """Return the attention weights (B, N, S, S) of every layer, 0 at padding."""
        return self.blocks.attentions(*self.embed_tokens(tokens, mask, *text, **named), mask)

    def embed_tokens(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> tuple[Tensor, AttentionScope]:
        """Compute the input x (B, S, D) of the first block and its attention scope."""
        S = tokens.shape[1]
        positions = torch.arange(S, device=tokens.device) if documents is None else document_positions(documents)
        ends = positions + 1 if mask is None else (positions + 1) * mask
        x = self.embedded(tokens, positions, S, ends, segments)
        allowed = self._attention_mask(mask, documents, S)
        return x, AttentionScope(allowed, self.causal and allowed is None, positions)

    def _attention_mask(self, mask: Tensor | None, documents: Tensor | None, S: int) -> AttentionMask | None:
        """Return the attention mask (B or 1, 1, S or 1, S).

        The result is None if the causal flag suffices or if no mask is needed.
        """
        if documents is None and not self.causal:
            return None if mask is None else AttentionMask(mask[:, None, None, :])
        if documents is None and (self.window is None or self.window >= S):
            return None
        past = causal_mask(S, S, self.window, self.embed.weight.device) if self.causal else None
        if documents is None and past is not None:
            return AttentionMask(past[None, None], every_query_attends=True)
        assert documents is not None
        same = documents.unsqueeze(2) == documents.unsqueeze(1)  # (B, S, S)
        if past is not None:
            same = same & past
        elif mask is not None:
            same = same & mask.unsqueeze(1)
        return AttentionMask(same.unsqueeze(1), every_query_attends=self.causal or mask is None)

    # Token by token

    def advance(
        self, tokens: Tensor, state: CacheState, caches: Caches, mask: Tensor | None = None
    ) -> tuple[Tensor, CacheState, Caches]:
        """Read tokens (R, T) that follow the cached tokens. Return h (R, T, D), the new state and the new caches.

        The backbone must be causal. Padding, where `mask` (R, T) is False, may be at any position. The k hypotheses of
        a text are read as k·T tokens of one row; see `seqloom.nn.cache`.
        """
        (R, T), B = tokens.shape, len(caches[0].buffer)
        caches, update = extend_caches(caches, state, tokens, mask, B, self.window)
        x = self.embedded(tokens.reshape(B, -1), update.positions, update.state["read"], update.lengths)
        output = self.blocks(x, update.scope, caches)
        return self.norm(output.x).reshape(R, T, -1), update.state, output.caches


def draw_matrices(part: nn.Module, shape: BackboneOptions) -> None:
    """Draw all matrices from N(0, init²).

    With norm_first, divide the last matrix of each sublayer by √(2L), because x is the sum of 2L sublayers.
    """
    for name, parameter in part.named_parameters():
        if parameter.dim() < 2:
            continue  # biases and norms keep their initial values
        summed = shape.norm_first and name.endswith(("attention.out.weight", "feed_forward.down.weight"))
        nn.init.normal_(parameter, std=shape.init / math.sqrt(2 * shape.layers) if summed else shape.init)


def document_positions(documents: Tensor) -> Tensor:
    """Return the position (B, S) of each token in its document; `documents` (B, S) numbers the documents."""
    position = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    first = torch.ones_like(documents, dtype=torch.bool)
    first[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return position - (position * first).cummax(dim=1).values
