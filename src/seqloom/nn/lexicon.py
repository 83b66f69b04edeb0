"""Embeddings of tokens and of the characters of words.

    x_j = [E w_j; c_j]     E w_j: embedding of the token; c_j: vector of its characters, if used

    cnn   c_i = max_t y_ti over the convolution features y_t (`seqloom.nn.encoders`)
    rnn   c = [→h_n; ←h_1], the final states of a bidirectional network over the characters

E is initialized randomly, or with pretrained vectors from a file. Characters are represented by ids; padding has the id
0 and comes last. The vector of a word without characters is zero.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from seqloom.config import Discriminator, config
from seqloom.config.constraints import Fraction, PositiveInt
from seqloom.nn.bidirectional import BidirectionalStack
from seqloom.nn.cells import CellName, cell_class
from seqloom.nn.encoders import WindowOptions, Windows
from seqloom.nn.masks import EmbeddingDropout, make_dropout


class Spelling(nn.Module, ABC):
    """A layer that maps characters (…, C) to vectors (…, output_size)."""

    output_size: int

    def __init__(self, characters: int, embedding: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, embedding)
        nn.init.normal_(self.embed.weight, std=embedding**-0.5)

    def forward(self, characters: Tensor) -> Tensor:
        flat = characters.flatten(0, -2)  # (N, C)
        words = self.read_words(self.embed(flat), flat != 0)  # (N, F)
        return words.unflatten(0, characters.shape[:-1])

    @abstractmethod
    def read_words(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map x (N, C, D) and a mask (N, C) to vectors (N, F), which are zero for words without characters."""


@config
class CharacterCNNConfig(WindowOptions):
    kind: Literal["cnn"] = "cnn"
    embedding: PositiveInt = 32  # size of the character embeddings
    filters: PositiveInt = 64  # number of filters of each width
    widths: tuple[int, ...] = (3,)  # kernel widths in characters, each with separate filters

    def build(self, characters: int) -> "CharacterCNN":
        return CharacterCNN(self, characters)


class CharacterCNN(Spelling):
    def __init__(self, config: CharacterCNNConfig, characters: int) -> None:
        super().__init__(characters, config.embedding)
        self.windows = Windows(config.embedding, config.filters, config.widths)
        self.output_size = self.windows.output_size

    def read_words(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.windows(x, mask).amax(dim=1)  # features are at least 0, which is also their value at padding


@config
class CharacterRNNConfig:
    kind: Literal["rnn"] = "rnn"
    embedding: PositiveInt = 32  # size of the character embeddings
    cell: CellName = "lstm"  # name of a recurrent cell; `seqloom list cells` describes all cells
    hidden: PositiveInt = 32  # size of the hidden state in each direction; the vector of a word is twice as large

    def problems(self) -> Iterator[str]:
        cell_class(self.cell)  # `cell_class` raises an error for an unknown cell
        return iter(())

    def build(self, characters: int) -> "CharacterRNN":
        return CharacterRNN(self, characters)


class CharacterRNN(Spelling):
    def __init__(self, config: CharacterRNNConfig, characters: int) -> None:
        super().__init__(characters, config.embedding)
        self.stack = BidirectionalStack(cell_class(config.cell), config.embedding, config.hidden)
        self.output_size = self.stack.output_size

    def read_words(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.stack.read(x, mask)[1]


SpellingConfig = Annotated[CharacterCNNConfig | CharacterRNNConfig, Discriminator("kind")]


@config
class VectorsConfig:
    file: str  # file in word2vec text format, optionally gzipped: a word and its numbers on each line
    lowercase: bool = True  # use the vector of the lower-case form for words that are not in the file
    frozen: bool = False  # do not train the embeddings, including those of words that are not in the file


@config
class LexiconOptions:
    """The keys of models that learn token embeddings."""

    kind: str = ""
    embedding: PositiveInt = 128  # size of the token embeddings
    vectors: VectorsConfig | None = None  # pretrained word vectors from a file
    characters: SpellingConfig | None = None  # encoder of the characters of each word
    dropout: Fraction = 0.0  # dropout on the embeddings and before the output layer
    embedding_dropout: Fraction = 0.0  # probability that the embedding of a token type is 0 in a batch


class Lexicon(nn.Module):
    """The embeddings of a vocabulary.

    `characters` is the size of the character vocabulary, or 0 without character vectors.
    """

    def __init__(self, options: LexiconOptions, vocabulary: int, characters: int = 0) -> None:
        super().__init__()
        if options.characters is not None and characters < 1:
            raise ValueError(f"the number of characters must be at least 1; got {characters}")
        self.embed = nn.Embedding(vocabulary, options.embedding)
        self.spelling = None if options.characters is None else options.characters.build(characters)
        self.output_size = options.embedding + (0 if self.spelling is None else self.spelling.output_size)
        self.embedding_dropout = EmbeddingDropout(options.embedding_dropout)
        self.dropout = make_dropout(options.dropout)
        nn.init.normal_(self.embed.weight, std=options.embedding**-0.5)
        if options.vectors is not None and options.vectors.frozen:
            self.embed.weight.requires_grad_(False)

    @torch.no_grad()
    def set_vectors(self, rows: Tensor, has_vector: Tensor) -> None:
        """Initialize the embeddings with vectors (V, D) where `has_vector` (V,) is True."""
        if rows.shape != self.embed.weight.shape:
            expected, shape = tuple(self.embed.weight.shape), tuple(rows.shape)
            raise ValueError(f"the vectors must have shape {expected}; got {shape}")
        weight = self.embed.weight
        weight.copy_(torch.where(has_vector.to(weight.device).unsqueeze(1), rows.to(weight), weight))

    def read_spelling(self, characters: Tensor | None) -> Tensor | None:
        """Return c (…, F) of characters (…, C) in the dtype of the embeddings, or None if characters are not used."""
        if self.spelling is None:
            return None
        if characters is None:
            raise ValueError("this model needs a batch with the characters of each word")
        spelling: Tensor = self.spelling(characters)
        return spelling.to(self.embed.weight.dtype)  # under autocast, cuDNN returns float16

    def forward(self, tokens: Tensor, spelling: Tensor | None = None) -> Tensor:
        """Map tokens (B, S) and their character vectors c (B, S, F) to x (B, S, D)."""
        vectors = self.embedding_dropout(self.embed, tokens)
        x: Tensor = self.dropout(vectors if spelling is None else torch.cat([vectors, spelling], dim=2))
        return x
