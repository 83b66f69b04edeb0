"""Pooling over the positions of a sequence, bags of words, and learned mixtures of layers.

    last        c = the final state: h_S, or →h_S and ←h_1 combined if the encoder is bidirectional
    mean        c = 1/S Σ_j h_j
    max         c_i = max_j h_ji, elementwise
    attention   e_j = vᵀ tanh(W h_j + b)     α = softmax(e)     c = Σ_j α_j h_j

Padding is ignored. A sequence without tokens gives zeros. To add a pooling, add a class and its entry in `POOLINGS`.

A bag of words is a vector b with one number per token of the vocabulary:

    one-hot   b_v = 1 if v is in the text, else 0
    counts    b_v = n_v, the number of occurrences of v
    mean      b_v = n_v / Σ_u n_u
    tf-idf    b_v = n_v · idf_v / ‖n ⊙ idf‖,   idf_v = ln((1 + N) / (1 + N_v)) + 1,   v in N_v of N training texts

A linear layer over b computes Eᵀ b = Σ_v b_v E_v. Most entries of b are zero, and b is never computed: each b_v is
divided among the positions of v as w_j, and the layer computes Σ_j w_j E[x_j].
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.nn.attention import masked_softmax
from seqloom.nn.masks import zero_padding

PoolingKind = Literal["last", "mean", "max", "attention"]
BagWeights = Literal["one-hot", "counts", "tf-idf", "mean"]


class Pooling(nn.Module):
    """A layer that maps h (B, S, H), a mask (B, S) and the final state (B, H) to c (B, H).

    Attention pooling also returns α (B, S).
    """

    def __init__(self, size: int) -> None:
        super().__init__()

    def forward(self, h: Tensor, mask: Tensor, ends: Tensor) -> tuple[Tensor, Tensor | None]:
        raise NotImplementedError


class LastPooling(Pooling):
    def forward(self, h: Tensor, mask: Tensor, ends: Tensor) -> tuple[Tensor, Tensor | None]:
        return ends, None


class MeanPooling(Pooling):
    def forward(self, h: Tensor, mask: Tensor, ends: Tensor) -> tuple[Tensor, Tensor | None]:
        return mean_of_real(h, mask), None


class MaxPooling(Pooling):
    def forward(self, h: Tensor, mask: Tensor, ends: Tensor) -> tuple[Tensor, Tensor | None]:
        largest = h.masked_fill(~mask.unsqueeze(2), torch.finfo(h.dtype).min).amax(dim=1)
        return largest.where(mask.any(dim=1, keepdim=True), 0), None


class AttentionPooling(Pooling):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.weight = nn.Linear(size, size)
        self.v = nn.Linear(size, 1, bias=False)

    def forward(self, h: Tensor, mask: Tensor, ends: Tensor) -> tuple[Tensor, Tensor | None]:
        h = zero_padding(h, mask)
        weights = masked_softmax(self.v(torch.tanh(self.weight(h))).squeeze(2), mask)
        return (weights.to(h.dtype).unsqueeze(1) @ h).squeeze(1), weights


POOLINGS: dict[PoolingKind, type[Pooling]] = {
    "last": LastPooling,
    "mean": MeanPooling,
    "max": MaxPooling,
    "attention": AttentionPooling,
}


def mean_of_real(h: Tensor, mask: Tensor) -> Tensor:
    """Return the mean (B, H) over the real positions of h (B, S, H)."""
    return zero_padding(h, mask).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


@config
class BagConfig:
    kind: Literal["bag"] = "bag"
    weights: BagWeights = "mean"  # weights of the words: one-hot, counts, tf-idf or mean

    def build(self, vocabulary: int) -> "Bag":
        return Bag(self.weights, vocabulary)


class Bag(nn.Module):
    """Σ_j w_j x_j (B, D) of embeddings x (B, S, D) of tokens (B, S).

    Before `set_documents`, all tokens have the same idf.
    """

    idf: Tensor

    def __init__(self, weights: BagWeights, vocabulary: int) -> None:
        super().__init__()
        self.weights, self.vocabulary = weights, vocabulary
        if weights == "tf-idf":
            self.register_buffer("idf", torch.ones(vocabulary))

    def extra_repr(self) -> str:
        return self.weights

    def set_documents(self, document_counts: Tensor, documents: int) -> None:
        """Set the number of training texts that contain each token (V,), and the number of training texts."""
        if self.weights == "tf-idf":
            self.idf.copy_(torch.log((1 + documents) / (1 + document_counts.double())) + 1)

    def forward(self, x: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        weights = self.position_weights(tokens, mask, torch.promote_types(x.dtype, torch.float32)).to(x.dtype)
        return (weights.unsqueeze(1) @ zero_padding(x, mask)).squeeze(1)

    def position_weights(self, tokens: Tensor, mask: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the weights w (B, S), 0 at padding. b_v is divided among the n_v positions of the token v."""
        real = mask.to(dtype)
        if self.weights == "counts":
            return real
        if self.weights == "mean":
            return real / real.sum(dim=1, keepdim=True).clamp(min=1)
        counts = counts_in_row(tokens, mask).to(dtype)
        if self.weights == "one-hot":
            return real / counts.clamp(min=1)
        rarity = self.idf.to(dtype)[tokens] * real
        # Σ_v (n_v · idf_v)²: each of the n_v positions adds n_v · idf_v²
        square = (counts * rarity.square()).sum(dim=1, keepdim=True)
        return rarity / square.clamp(min=torch.finfo(dtype).tiny).sqrt()

    def vector(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the bag of words b (B, V)."""
        weights = self.position_weights(tokens, mask, torch.float64)
        return weights.new_zeros(len(tokens), self.vocabulary).scatter_add(1, tokens, weights)


def counts_in_row(tokens: Tensor, mask: Tensor) -> Tensor:
    """Return the number of occurrences (B, S) of each position's token in its row, or 0 at padding."""
    ordered, positions = tokens.masked_fill(~mask, -1).sort(dim=1)  # equal tokens are adjacent, and padding comes first
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    run = begins.long().cumsum(dim=1) - 1  # the run of equal tokens that contains a position
    lengths = torch.zeros_like(run).scatter_add(1, run, torch.ones_like(run))
    counts = torch.zeros_like(run).scatter(1, positions, lengths.gather(1, run))
    return counts.masked_fill(~mask, 0)


class LayerMix(nn.Module):
    """A learned mixture of the layers of a pretrained model (ELMo):

        h = γ Σ_j s_j h_j          s = softmax(w)          j = 0 … L

    The weights s_j sum to 1, and γ scales the mixture. w and γ are learned; initially, all weights are equal and γ is
    1.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))  # w
        self.scale = nn.Parameter(torch.ones(1))  # γ

    @property
    def layer_weights(self) -> Tensor:
        """The weights s (L + 1,)."""
        return self.weights.softmax(dim=0)

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """Mix layers (B, S, H), lowest first, into (B, S, H)."""
        mixed = torch.zeros_like(layers[0])
        for weight, h in zip(self.layer_weights.to(mixed.dtype).unbind(), layers, strict=True):
            mixed = mixed + weight * h
        return self.scale.to(mixed.dtype) * mixed
