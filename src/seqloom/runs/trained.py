"""The kinds of trained models that views tell apart. A predictor inherits the kinds that it is."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seqloom.decoding.beam import BeamConfig, Hypothesis


class SearchingModel(ABC):
    """A trained model that reads a source and searches for a target."""

    @property
    @abstractmethod
    def longest_source(self) -> int | None:
        """The most tokens of a source it can read, END included; None for any number."""

    @abstractmethod
    def decode_options(self, **changes: Any) -> "BeamConfig":
        """Return the options of its search, with these changes."""


class TranslatingModel(SearchingModel):
    """A trained translator."""

    @abstractmethod
    def translate(self, lines: list[str], **options: Any) -> Iterator[Any]:
        """Translate lines; `options` are those of `BeamConfig`."""


class DenoisingModel(SearchingModel):
    """A trained denoiser."""

    @property
    @abstractmethod
    def sentinels(self) -> Sequence[int]:
        """The tokens that stand for hidden spans."""

    @property
    @abstractmethod
    def spans(self) -> bool:
        """Whether its target has the hidden spans only, not the whole text."""

    @property
    @abstractmethod
    def banned(self) -> tuple[int, ...]:
        """Tokens that it never generates."""

    @abstractmethod
    def source(self, text: str) -> list[int]:
        """Return the tokens of a text, END included; a gap is written [MASK]."""

    @abstractmethod
    def search(self, text: str, **options: Any) -> "tuple[list[int], Hypothesis]":
        """Return the tokens of a text, END included, and the best target for it."""


class WritingModel(ABC):
    """A trained language model, which continues a text."""

    @abstractmethod
    def to_training_format(self, text: str, complete: bool = True) -> str:
        """Return a text, or a prompt to continue, in the form of the training texts."""


class MaskFillingModel(ABC):
    """A trained masked language model."""

    @abstractmethod
    def fill(self, texts: str, *, top: int = 5) -> Iterator[Any]:
        """Predict the tokens at each [MASK] of each text."""


class LineReadingModel(ABC):
    """A trained model that reads a line and predicts a label or tags for it."""

    @abstractmethod
    def read_line(self, text: str) -> Any:
        """Return a line as the model reads it, with the prediction."""
