"""Tokens to vectors: what a model reads of each.

    x_j = [E w_j; c_j]     E w_j the token's own vector, c_j what its spelling says, if that is read too

E begins at random, or with vectors from a file for the words that are there.
"""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.nn.dropout import EmbeddingDropout, make_dropout
from seqloom.nn.spelling import CharacterCNNConfig, CharacterRNNConfig


@config
class VectorsConfig:
    file: str  # in word2vec's text format, .gz or not: a word and its numbers on each line
    lowercase: bool = True  # a word that is not there takes the vector of its lower-case form
    frozen: bool = False  # token vectors stay as they begin, those that are not in the file too


class LexiconChoice(Protocol):
    """What a model's config says of its tokens' vectors."""

    @property
    def embedding(self) -> int: ...
    @property
    def vectors(self) -> VectorsConfig | None: ...
    @property
    def characters(self) -> CharacterCNNConfig | CharacterRNNConfig | None: ...
    @property
    def dropout(self) -> float: ...
    @property
    def embedding_dropout(self) -> float: ...


def lexicon_problems(choice: LexiconChoice) -> Iterator[str]:
    if choice.embedding < 1:
        yield f"embedding must be at least 1; got {choice.embedding}"
    for name in ("dropout", "embedding_dropout"):
        if not 0 <= getattr(choice, name) < 1:
            yield f"{name} must be at least 0 and below 1; got {getattr(choice, name)}"


class Lexicon(nn.Module):
    """For a vocabulary of so many tokens, spelled with so many characters, 0 where spelling is not read."""

    def __init__(self, choice: LexiconChoice, vocabulary: int, characters: int = 0) -> None:
        super().__init__()
        if choice.characters is not None and characters < 1:
            raise ValueError(f"to read characters one must know how many there are; got {characters}")
        self.embed = nn.Embedding(vocabulary, choice.embedding)
        self.spelling = None if choice.characters is None else choice.characters.build(characters)
        self.width = choice.embedding + (0 if self.spelling is None else self.spelling.width)
        self.embedding_dropout = EmbeddingDropout(choice.embedding_dropout)
        self.dropout = make_dropout(choice.dropout)
        nn.init.normal_(self.embed.weight, std=choice.embedding**-0.5)
        if choice.vectors is not None and choice.vectors.frozen:
            self.embed.weight.requires_grad_(False)

    @torch.no_grad()
    def set_vectors(self, rows: Tensor, found: Tensor) -> None:
        """Begin with these vectors (V, D) for the tokens that were found (V,)."""
        if rows.shape != self.embed.weight.shape:
            wanted, got = tuple(self.embed.weight.shape), tuple(rows.shape)
            raise ValueError(f"the vectors must have shape {wanted}; got {got}")
        weight = self.embed.weight
        weight.copy_(torch.where(found.to(weight.device).unsqueeze(1), rows.to(weight), weight))

    def spelled(self, characters: Tensor | None) -> Tensor | None:
        """c (…, F) of words spelled (…, C), as precise as their embeddings; None where spelling is not read."""
        if self.spelling is None:
            return None
        if characters is None:
            raise ValueError("this model reads characters: its batch must have them")
        found: Tensor = self.spelling(characters)
        return found.to(self.embed.weight.dtype)  # under autocast cuDNN answers in float16, whatever was asked for

    def forward(self, tokens: Tensor, spelled: Tensor | None = None) -> Tensor:
        """Tokens (B, S), and c (B, S, F) of each, to x (B, S, D)."""
        own = self.embedding_dropout(self.embed, tokens)
        x: Tensor = self.dropout(own if spelled is None else torch.cat([own, spelled], dim=2))
        return x
