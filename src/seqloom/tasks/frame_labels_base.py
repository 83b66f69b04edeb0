"""The evaluation of tasks whose models label frames, such as the frames of a clip or of a sound."""

from collections.abc import Sequence

from seqloom.evaluate.tagging import TagReport, report
from seqloom.tasks.base import M, R
from seqloom.tasks.reading_base import SplitTask


class FrameReport(TagReport):
    """The evaluation of a model that labels frames."""

    @property
    def counted(self) -> tuple[str, str]:
        return ("label", "frames")


class FrameTask(SplitTask[R, M]):
    """A task whose model labels frames. `outputs` returns the labels of each example, and −log p per frame."""

    complete_metric = ""  # name of the metric "fraction of examples whose labels are all correct"; "" leaves it out

    @classmethod
    def predicts_labels(cls, recipe: R) -> bool:
        return True

    def frame_labels(self, split: str) -> list[list[str]]:
        """Return the labels of the frames of each example."""
        raise NotImplementedError

    def measure(self, outputs: tuple[Sequence[Sequence[str]], float], split: str) -> FrameReport:
        """Compute the metrics of taggers, with frames as the tokens and examples as the sentences."""
        labels, loss = outputs
        tags = report(self.frame_labels(split), labels, self.names)
        renamed = {
            "token_accuracy": "frame_accuracy",
            "majority_tag": "majority_frame",
            "sentence_accuracy": self.complete_metric,
            "tag_macro_f1": "frame_macro_f1",
        }
        metrics = {renamed.get(name, name): value for name, value in tags.metrics.items()}
        intervals = {renamed.get(name, name): value for name, value in tags.intervals.items()}
        for values in (metrics, intervals):
            values.pop("", None)
        return FrameReport({"loss": loss, **metrics}, intervals, tags.confusion, tags.spans, tags.invalid, tags.unseen)
