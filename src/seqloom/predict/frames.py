"""The base class of predictors that label frames, such as the frames of sounds and of clips."""

from abc import abstractmethod
from typing import TYPE_CHECKING

from seqloom.predict.base import P, SplitPredictor

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class FrameTagger(SplitPredictor[P]):
    """A trained model that labels the frames of files."""

    usage = "use `seqloom tag`"
    reads_text = False
    reads_files = True

    @property
    def max_length(self) -> int | None:
        return None

    @property
    def labels(self) -> list[str]:
        return self.run.labels

    @abstractmethod
    def draw_tags(self, answer: P) -> "Figure":
        """Draw the frames of a file with their labels."""
