"""The default predictor, for tasks that do not define a predictor of their own."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from seqloom.predict.base import BATCH_SIZE, WINDOW, Prediction, Predictor, as_lines, predict_windows
from seqloom.predict.results import returns_list


@dataclass(frozen=True, kw_only=True)
class RecordPrediction(Prediction):
    """A prediction with named values, as returned by `Task.predict`."""

    record: Mapping[str, object]

    def to_line(self) -> str:
        return "\t".join(str(value) for value in self.record.values())

    def to_json(self) -> dict[str, object]:
        return dict(self.record)


class TaskPredictor(Predictor[RecordPrediction]):
    """The default predictor, which calls `Task.predict`."""

    @returns_list
    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = BATCH_SIZE, window: int = WINDOW
    ) -> Iterator[RecordPrediction]:
        return predict_windows(as_lines(lines), self._predict, batch_size=batch_size, window=window)

    def _predict(self, lines: list[str], batch_size: int) -> Iterator[RecordPrediction]:
        for start in range(0, len(lines), batch_size):
            batch = lines[start : start + batch_size]
            for record in self.task_class.predict(self.recipe, self.run, self.model, batch):
                yield RecordPrediction(record=record)
