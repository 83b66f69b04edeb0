"""Bag of words: a text as a vector b with a number for each word of the vocabulary, in which no order is left.

    one-hot   b_v = 1 if v is in the text, else 0
    counts    b_v = n_v, how often v is in the text
    mean      b_v = n_v / Σ_u n_u
    tf-idf    b_v = n_v · idf_v / ‖n ⊙ idf‖,   idf_v = ln((1 + N) / (1 + N_v)) + 1,   v in N_v of N training texts

A layer over it is Eᵀ b = Σ_v b_v E_v: a sum of the vectors of the words that are there. So b, which is mostly zeros, is
never made: each place of the text has a share w_j of its word's b, and the layer is Σ_j w_j E[x_j].
"""

from typing import Literal

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.nn.masks import zero_padding

BagWeights = Literal["one-hot", "counts", "tf-idf", "mean"]


@config
class BagConfig:
    kind: Literal["bag"] = "bag"
    weights: BagWeights = "mean"  # what a word counts: one-hot, counts, tf-idf or mean

    def build(self, vocabulary: int) -> "Bag":
        return Bag(self.weights, vocabulary)


class Bag(nn.Module):
    """Vectors x (B, S, D) of tokens (B, S) to Σ_j w_j x_j (B, D); a text without tokens gives zeros.

    Until `set_documents` has told it of the training texts, tf-idf takes all words for equally rare.
    """

    idf: Tensor

    def __init__(self, weights: BagWeights, vocabulary: int) -> None:
        super().__init__()
        self.weights, self.vocabulary = weights, vocabulary
        if weights == "tf-idf":
            self.register_buffer("idf", torch.ones(vocabulary))

    def extra_repr(self) -> str:
        return self.weights

    def set_documents(self, found_in: Tensor, documents: int) -> None:
        """In how many of the training texts each token is (V,), and how many texts there are."""
        if self.weights == "tf-idf":
            self.idf.copy_(inverse_frequency(found_in, documents))

    def forward(self, x: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        weights = self.place_weights(tokens, mask, torch.promote_types(x.dtype, torch.float32)).to(x.dtype)
        return (weights.unsqueeze(1) @ zero_padding(x, mask)).squeeze(1)

    def place_weights(self, tokens: Tensor, mask: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """w (B, S), 0 at padding. The places of a word that is there n_v times share its b_v."""
        real = mask.to(dtype)
        if self.weights == "counts":
            return real
        if self.weights == "mean":
            return real / real.sum(dim=1, keepdim=True).clamp(min=1)
        counts = counts_in_row(tokens, mask).to(dtype)
        if self.weights == "one-hot":
            return real / counts.clamp(min=1)
        rare = self.idf.to(dtype)[tokens] * real
        square = (counts * rare.square()).sum(dim=1, keepdim=True)  # Σ_v (n_v · idf_v)²: n_v places have n_v · idf_v²
        return rare / square.clamp(min=torch.finfo(dtype).tiny).sqrt()

    def vector(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """b itself (B, V)."""
        weights = self.place_weights(tokens, mask, torch.float64)
        return weights.new_zeros(len(tokens), self.vocabulary).scatter_add(1, tokens, weights)


def counts_in_row(tokens: Tensor, mask: Tensor) -> Tensor:
    """How often the token of each place is in its row (B, S); 0 at padding."""
    ordered, places = tokens.masked_fill(~mask, -1).sort(dim=1)  # equal tokens stand together, padding first
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    run = begins.long().cumsum(dim=1) - 1  # which run of equal tokens a place is in
    lengths = torch.zeros_like(run).scatter_add(1, run, torch.ones_like(run))
    counts = torch.zeros_like(run).scatter(1, places, lengths.gather(1, run))
    return counts.masked_fill(~mask, 0)


def inverse_frequency(found_in: Tensor, documents: int) -> Tensor:
    """idf (V,): ln((1 + N) / (1 + N_v)) + 1, as if one more text had every word."""
    return torch.log((1 + documents) / (1 + found_in.double())) + 1
