"""What tasks on series share."""

from typing import Any

from seqloom.data.corpus import Corpus
from seqloom.data.series import Series, columns_of, season_of
from seqloom.tasks.base import Task


class SeriesTask(Task):
    """A task on series of values."""

    corpus: Corpus[Series]
    counted = "values"
    measured_on = "series of numbers"

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the variables."""
        return columns_of(self.corpus)

    @property
    def season(self) -> int:
        """How many steps a season has; 1 for none."""
        return season_of(self.corpus)

    def loss_unit(self) -> str:
        return "nats per value"

    def describe_data(self) -> dict[str, Any]:
        step = self.corpus.splits["train"][0].clock.said()
        return {**super().describe_data(), "columns": list(self.columns), "step": step}
