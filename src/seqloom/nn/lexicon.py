"""Tokens to vectors, and words to vectors by their spelling.

    x_j = [E w_j; c_j]     E w_j the token's own vector, c_j that of its spelling, if it is read too

    cnn   c_i = max_t y_ti over the features y_t of the few characters around each (`seqloom.nn.encoders`)
    rnn   c = [→h_n; ←h_1], where cells that read the characters from both ends have ended

E begins at random, or with vectors from a file for the words that are there. Characters are
numbers; 0 is padding, which stands last. A word without characters has the zero vector.
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
    """Characters (…, C) to vectors (…, width)."""

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
        """x (N, C, D) and a mask (N, C) to (N, F), zero where there are no characters."""


@config
class CharacterCNNConfig(WindowOptions):
    kind: Literal["cnn"] = "cnn"
    embedding: PositiveInt = 32  # width of a character's vector
    filters: PositiveInt = 64  # features of each width
    widths: tuple[int, ...] = (3,)  # how many characters a window sees; one set of filters for each

    def build(self, characters: int) -> "CharacterCNN":
        return CharacterCNN(self, characters)


class CharacterCNN(Spelling):
    def __init__(self, config: CharacterCNNConfig, characters: int) -> None:
        super().__init__(characters, config.embedding)
        self.windows = Windows(config.embedding, config.filters, config.widths)
        self.output_size = self.windows.output_size

    def read_words(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.windows(x, mask).amax(dim=1)  # no feature is below 0, which is what padding has


@config
class CharacterRNNConfig:
    kind: Literal["rnn"] = "rnn"
    embedding: PositiveInt = 32  # width of a character's vector
    cell: CellName = "lstm"  # `seqloom list cells` shows them all
    hidden: PositiveInt = 32  # width of the state in each direction: a word's vector is twice as wide

    def problems(self) -> Iterator[str]:
        cell_class(self.cell)  # a wrong name ends the list
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
    file: str  # in word2vec's text format, .gz or not: a word and its numbers on each line
    lowercase: bool = True  # a word that is not there takes the vector of its lower-case form
    frozen: bool = False  # token vectors stay as they begin, those that are not in the file too


@config
class LexiconOptions:
    """The keys of a model that learns vectors of its tokens."""

    kind: str = ""
    embedding: PositiveInt = 128  # width of the token vectors
    vectors: VectorsConfig | None = None  # begin with vectors from a file
    characters: SpellingConfig | None = None  # also read how each word is spelled
    dropout: Fraction = 0.0  # on what is read of each token, and before the output layer
    embedding_dropout: Fraction = 0.0  # share of the token types that are the zero vector for one batch


class Lexicon(nn.Module):
    """For a vocabulary of so many tokens, spelled with so many characters, 0 where spelling is not read."""

    def __init__(self, options: LexiconOptions, vocabulary: int, characters: int = 0) -> None:
        super().__init__()
        if options.characters is not None and characters < 1:
            raise ValueError(f"to read characters one must know how many there are; got {characters}")
        self.embed = nn.Embedding(vocabulary, options.embedding)
        self.spelling = None if options.characters is None else options.characters.build(characters)
        self.output_size = options.embedding + (0 if self.spelling is None else self.spelling.output_size)
        self.embedding_dropout = EmbeddingDropout(options.embedding_dropout)
        self.dropout = make_dropout(options.dropout)
        nn.init.normal_(self.embed.weight, std=options.embedding**-0.5)
        if options.vectors is not None and options.vectors.frozen:
            self.embed.weight.requires_grad_(False)

    @torch.no_grad()
    def set_vectors(self, rows: Tensor, known: Tensor) -> None:
        """Begin with these vectors (V, D) for the tokens that are known (V,)."""
        if rows.shape != self.embed.weight.shape:
            expected, got = tuple(self.embed.weight.shape), tuple(rows.shape)
            raise ValueError(f"the vectors must have shape {expected}; got {got}")
        weight = self.embed.weight
        weight.copy_(torch.where(known.to(weight.device).unsqueeze(1), rows.to(weight), weight))

    def read_spelling(self, characters: Tensor | None) -> Tensor | None:
        """c (…, F) of words spelled (…, C), as precise as their embeddings; None where spelling is not read."""
        if self.spelling is None:
            return None
        if characters is None:
            raise ValueError("this model reads characters: its batch must have them")
        spelling: Tensor = self.spelling(characters)
        return spelling.to(self.embed.weight.dtype)  # under autocast cuDNN answers in float16, whatever was asked for

    def forward(self, tokens: Tensor, spelling: Tensor | None = None) -> Tensor:
        """Tokens (B, S), and c (B, S, F) of each, to x (B, S, D)."""
        vectors = self.embedding_dropout(self.embed, tokens)
        x: Tensor = self.dropout(vectors if spelling is None else torch.cat([vectors, spelling], dim=2))
        return x
