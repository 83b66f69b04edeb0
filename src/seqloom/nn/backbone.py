"""The backbone of GPT, BERT and ELECTRA: tokens to vectors, and blocks of self-attention over them.

    x_j = norm(√D · E[token_j] + PE(j) + G[segment_j])          each part only where the model has it
    x ← block(x), L times:   self-attention, feed-forward       each with a way around it and a norm
    h = norm(x)                                                 where norms stand first

A causal backbone attends to earlier positions only, with a sliding window no further back than that; another one to
both sides. Several documents may be packed into a row: no position attends across a border, and positions begin anew at
each. `seqloom.nn.embedded` has x, `seqloom.nn.transformer` the blocks.
"""

import math

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import PositiveFloat, PositiveInt
from seqloom.nn.cache import AttentionScope, Caches, CacheState, extend_caches
from seqloom.nn.embedded import Embedded, TokenTransformerOptions
from seqloom.nn.masks import AttentionMask, causal_mask
from seqloom.nn.positions import PositionsConfig

END = 0  # as in seqloom.text.base


@config
class BackboneOptions(TokenTransformerOptions):
    """The keys that the configs of GPT and BERT share."""

    layers: PositiveInt = 4  # blocks stacked on each other
    positions: PositionsConfig = PositionsConfig(kind="learned")
    init: PositiveFloat = 0.02  # weights begin as draws from N(0, init²)


class TransformerBackbone(nn.Module):
    """Tokens (B, S) to h (B, S, D). `rows` is how many tokens have a vector, `segments` how many segments. An END that
    stands first is read as the token `begin`, where there is one. A causal backbone may have a sliding `window`: each
    position then attends to that many positions, itself included.

    In `read` the real tokens of a row stand first; padding comes last and is masked out.
    """

    def __init__(
        self,
        shape: BackboneOptions,
        rows: int,
        *,
        causal: bool,
        segments: int = 0,
        begin: int | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.causal, self.width, self.begin, self.window = shape, causal, shape.width, begin, window
        self.embedded = Embedded(shape, nn.Embedding(rows, shape.width), "text", segments)
        self.blocks = shape.stack(shape.layers)
        self.norm = shape.final_norm()
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
        x, scope = self.embed_tokens(tokens, mask, segments, documents)
        h: Tensor = self.norm(self.blocks(x, scope).x)
        return h

    def attentions(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> list[Tensor]:
        """The attention weights of every layer (B, N, S, S), zero at padding."""
        x, scope = self.embed_tokens(tokens, mask, segments, documents)
        weights: list[Tensor] = self.blocks(x, scope, wanted=self.blocks.all_self_weights()).self_weights
        return weights if mask is None else [layer.masked_fill(~mask[:, None, :, None], 0) for layer in weights]

    def embed_tokens(
        self, tokens: Tensor, mask: Tensor | None, segments: Tensor | None, documents: Tensor | None
    ) -> tuple[Tensor, AttentionScope]:
        """x (B, S, D) of the first block, and what its positions may attend to."""
        S = tokens.shape[1]
        positions = torch.arange(S, device=tokens.device) if documents is None else document_positions(documents)
        ends = positions + 1 if mask is None else (positions + 1) * mask
        x = self.embedded(self._replace_start(tokens, positions), positions, S, ends, segments)
        allowed = self._attention_mask(mask, documents, S)
        return x, AttentionScope(allowed, self.causal and allowed is None, positions)

    def _replace_start(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Tokens (B, S) at positions (S,) or (B, S), as they are embedded."""
        return tokens if self.begin is None else tokens.masked_fill((tokens == END) & (positions == 0), self.begin)

    def _attention_mask(self, mask: Tensor | None, documents: Tensor | None, S: int) -> AttentionMask | None:
        """Which positions may attend to which (B or 1, 1, S or 1, S); None if a causal flag or nothing is enough."""
        if documents is None and self.causal:
            beyond = self.window is not None and self.window < S
            return AttentionMask(self.causal_mask(S)[None, None], each=True) if beyond else None
        if documents is None:
            return None if mask is None else AttentionMask(mask[:, None, None, :])
        same = documents.unsqueeze(2) == documents.unsqueeze(1)  # (B, S, S)
        if self.causal:
            same = same & self.causal_mask(S)
        elif mask is not None:
            same = same & mask.unsqueeze(1)
        return AttentionMask(same.unsqueeze(1), each=self.causal or mask is None)

    def causal_mask(self, S: int) -> Tensor:
        """Which of S positions each of them may attend to (S, S) in a causal backbone."""
        return causal_mask(S, S, self.window, self.embed.weight.device)

    # Token by token.

    def caches(self, sources: int) -> Caches:
        """Empty ones, for texts of which each may come to have several hypotheses."""
        return self.blocks.empty_caches(sources)

    def advance(
        self, tokens: Tensor, state: CacheState, caches: Caches, mask: Tensor | None = None
    ) -> tuple[Tensor, CacheState, Caches]:
        """Tokens (R, T) that continue what is in the caches, to h (R, T, D), and to state and caches after them.

        For a causal backbone. Padding, where `mask` (R, T) is False, may stand anywhere. The hypotheses of a text are
        read side by side, as k·T tokens of one row; `seqloom.nn.cache` says more.
        """
        (R, T), B = tokens.shape, len(caches[0].buffer)
        caches, update = extend_caches(caches, state, tokens, mask, B, self.window)
        tokens = self._replace_start(tokens.reshape(B, -1), update.positions)
        x = self.embedded(tokens, update.positions, update.state["read"], update.lengths)
        output = self.blocks(x, update.scope, caches)
        return self.norm(output.x).reshape(R, T, -1), update.state, output.caches


def draw_matrices(part: nn.Module, shape: BackboneOptions) -> None:
    """Everything from N(0, init²); where norms stand first, x is a sum of 2L layers, which are drawn accordingly
    smaller."""
    for name, parameter in part.named_parameters():
        if parameter.dim() < 2:
            continue  # biases and norms have begun as they should
        summed = shape.norm_first and name.endswith(("attention.out.weight", "feed_forward.down.weight"))
        nn.init.normal_(parameter, std=shape.init / math.sqrt(2 * shape.layers) if summed else shape.init)


def document_positions(documents: Tensor) -> Tensor:
    """How many tokens of its own document stand before each: documents (B, S) to (B, S)."""
    place = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    first = torch.ones_like(documents, dtype=torch.bool)
    first[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return place - (place * first).cummax(dim=1).values
