"""The base class of values that a notebook displays as a picture."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from seqloom.core.errors import ResourceError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Picture(ABC):
    """A value that a notebook displays as a picture if matplotlib is installed, and otherwise as text."""

    @abstractmethod
    def draw(self) -> "Figure":
        """Return a figure that shows the value."""

    def _repr_png_(self) -> bytes | None:
        from seqloom.inspect.plots.figures import to_bytes

        try:
            return to_bytes(self.draw())
        except ResourceError:
            return None
