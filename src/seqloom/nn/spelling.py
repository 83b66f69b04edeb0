"""Vectors of words from their characters: what a word's spelling says, of words never seen too.

    cnn   c_i = max_t y_ti over the features y_t of the few characters around each (`seqloom.nn.convolution`)
    rnn   c = [→h_n; ←h_1], where cells that read the characters from both ends have ended

Characters are numbers; 0 is none: padding, which stands last. A word without characters has the zero vector.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Annotated, Literal

from torch import Tensor, nn

from seqloom.config import Discriminator, config
from seqloom.nn.bidirectional import BidirectionalStack
from seqloom.nn.cells import cell_class
from seqloom.nn.convolution import Windows, window_problems


class Spelling(nn.Module, ABC):
    """Characters (…, C) to vectors (…, width)."""

    width: int

    def __init__(self, characters: int, embedding: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, embedding)
        nn.init.normal_(self.embed.weight, std=embedding**-0.5)

    def forward(self, characters: Tensor) -> Tensor:
        flat = characters.flatten(0, -2)  # (N, C)
        words = self.words(self.embed(flat), flat != 0)  # (N, F)
        return words.unflatten(0, characters.shape[:-1])

    @abstractmethod
    def words(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (N, C, D) and a mask (N, C) to (N, F), zero where there are no characters."""


@config
class CharacterCNNConfig:
    kind: Literal["cnn"] = "cnn"
    embedding: int = 32  # width of a character's vector
    filters: int = 64  # features of each width
    widths: tuple[int, ...] = (3,)  # how many characters a window sees; one set of filters for each

    def problems(self) -> Iterator[str]:
        if self.embedding < 1:
            yield f"embedding must be at least 1; got {self.embedding}"
        yield from window_problems(self.filters, self.widths)

    def build(self, characters: int) -> "CharacterCNN":
        return CharacterCNN(self, characters)


class CharacterCNN(Spelling):
    def __init__(self, config: CharacterCNNConfig, characters: int) -> None:
        super().__init__(characters, config.embedding)
        self.windows = Windows(config.embedding, config.filters, config.widths)
        self.width = self.windows.width

    def words(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.windows(x, mask).amax(dim=1)  # no feature is below 0, which is what padding has


@config
class CharacterRNNConfig:
    kind: Literal["rnn"] = "rnn"
    embedding: int = 32  # width of a character's vector
    cell: str = "lstm"  # `seqloom list cells` shows them all
    hidden: int = 32  # width of the state in each direction: a word's vector is twice as wide

    def problems(self) -> Iterator[str]:
        for name in ("embedding", "hidden"):
            if getattr(self, name) < 1:
                yield f"{name} must be at least 1; got {getattr(self, name)}"
        cell_class(self.cell)  # a wrong name ends the list

    def build(self, characters: int) -> "CharacterRNN":
        return CharacterRNN(self, characters)


class CharacterRNN(Spelling):
    def __init__(self, config: CharacterRNNConfig, characters: int) -> None:
        super().__init__(characters, config.embedding)
        self.stack = BidirectionalStack(cell_class(config.cell), config.embedding, config.hidden)
        self.width = self.stack.width

    def words(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.stack.read(x, mask)[1]


SpellingConfig = Annotated[CharacterCNNConfig | CharacterRNNConfig, Discriminator("kind")]
