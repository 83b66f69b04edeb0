"""Interfaces by which views distinguish trained models. Predictors inherit from these classes."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seqloom.decoding.beam import BeamConfig, Hypothesis


class SearchingModel(ABC):
    """A trained model that reads a source and searches for a target."""

    @property
    @abstractmethod
    def longest_source(self) -> int | None:
        """The maximum number of source tokens, including END; None means no limit."""

    @abstractmethod
    def decode_options(self, **changes: Any) -> "BeamConfig":
        """Return the search options of the recipe with the changes applied."""


class TranslatingModel(SearchingModel):
    """A trained translator."""

    @abstractmethod
    def translate(self, lines: list[str], **options: Any) -> Iterable[Any]:
        """Translate lines with options of `BeamConfig`."""


class DenoisingModel(SearchingModel):
    """A trained denoiser."""

    @property
    @abstractmethod
    def sentinels(self) -> Sequence[int]:
        """The tokens that replace hidden spans."""

    @property
    @abstractmethod
    def predicts_spans(self) -> bool:
        """Whether the target contains only the hidden spans instead of the whole text."""

    @property
    @abstractmethod
    def banned(self) -> tuple[int, ...]:
        """Tokens that are never generated."""

    @abstractmethod
    def encode_source(self, text: str) -> list[int]:
        """Return the tokens of a text, including END. A gap is written as [MASK]."""

    @abstractmethod
    def search(self, text: str, **options: Any) -> "tuple[list[int], Hypothesis]":
        """Return the source tokens of a text, including END, and the best target."""


class WritingModel(ABC):
    """A trained language model that continues texts."""

    @abstractmethod
    def to_training_format(self, text: str, complete: bool = True) -> str:
        """Normalize a text like the training texts.

        If the text is not `complete`, like a prompt, its trailing space is kept.
        """


class MaskFillingModel(ABC):
    """A trained masked language model."""

    @abstractmethod
    def fill_mask(self, texts: str, *, top: int = 5) -> Iterable[Any]:
        """Predict the tokens at each [MASK] of each text."""


class LineReadingModel(ABC):
    """A trained model that predicts a label or tags for a line."""

    @abstractmethod
    def read_line(self, text: str) -> Any:
        """Return a text as read by the model, with the prediction."""
