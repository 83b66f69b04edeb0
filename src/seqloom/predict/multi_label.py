"""The predictor for multi-label classifiers of texts, which predict any number of labels."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, RenderableType

from seqloom.core.words import escape_controls, format_count, one_line
from seqloom.evaluate.confidence import fit_temperature
from seqloom.evaluate.intervals import Values
from seqloom.evaluate.multi_label import DEFAULT_THRESHOLD, MultiLabelReport, choose_thresholds, sigmoid
from seqloom.predict.classify import (
    CUT,
    Classification,
    ClassifierPredictor,
    LabelProbability,
    PredictedExample,
    reliability_plot,
)
from seqloom.predict.confidence import MIN_EXAMPLES
from seqloom.predict.evaluation import EXAMPLES, SplitEvaluation, report_to_json, shorten_example
from seqloom.runs.calibration import RunCalibration

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class MultiLabelClassification(Classification):
    """The labels of a text whose probabilities reach their thresholds. `candidates` also contains the other labels."""

    labels: tuple[str, ...] = ()  # predicted labels, most probable first
    separator: str | None = None  # separator of labels in a table cell; None if the cells of the table are lists

    @property
    def listed(self) -> list[LabelProbability]:
        return [candidate for candidate in self.candidates if candidate.label in self.labels] or self.candidates[:1]

    @property
    def probabilities(self) -> list[float]:
        """The probabilities of the labels."""
        return [candidate.probability for candidate in self.listed[: len(self.labels)]]

    def to_json(self) -> dict[str, object]:
        content = super().to_json()
        del content["label"], content["probability"]
        has_text = bool(self.candidates)
        labels = {"labels": list(self.labels), "probabilities": self.probabilities}
        return {"text": self.text, **(labels if has_text else dict.fromkeys(labels)), **content}

    def to_columns(self) -> dict[str, object]:
        if self.separator is None or not self.candidates:
            content = self.to_json()
            return {name: content[name] for name in ("labels", "probabilities")}
        probabilities = map(str, self.probabilities)
        return {"labels": self.separator.join(self.labels), "probabilities": self.separator.join(probabilities)}


class MultiLabelEvaluation(SplitEvaluation):
    """The evaluation of a multi-label classifier, with its most confident mistakes."""

    option_groups = ("out", "reliability")
    model: "MultiLabelPredictor"
    report: MultiLabelReport

    def to_json(self) -> dict[str, object]:
        report = self.report
        content = report_to_json(self, {"calibration": report.calibration.filled, "unseen": report.unseen})
        by_class: Any = content["by_class"]
        for label, threshold in report.thresholds.items():
            by_class[label] |= {"average_precision": report.average_precision[label], "threshold": threshold}
        return content

    def lines(self, console: Console) -> Iterator[RenderableType]:
        from seqloom.inspect.plots.terminal import build_class_table

        report = self.report
        yield from self.metric_lines()
        yield ""
        columns = {"average precision": report.average_precision, "threshold": report.thresholds}
        named = {
            head: {escape_controls(name): value for name, value in column.items()} for head, column in columns.items()
        }
        by_class = {escape_controls(name): hits for name, hits in report.by_class.items()}
        yield build_class_table(by_class, *report.counted, columns=named)
        if mistakes := self.model.mistakes(self.split)[:EXAMPLES]:
            yield "\nmost confident mistakes"
        for label, probability, is_expected, text in mistakes:
            decision = "expected, but not predicted" if is_expected else "predicted, but not expected"
            yield f"  {escape_controls(one_line(label))} ({probability:.1%}) {decision}: {shorten_example(text)}"
        if report.unseen:
            unseen = format_count(sum(report.unseen.values()), "label", "labels")
            yield f"{unseen} not in the training data ({escape_controls(', '.join(report.unseen))}); counted as missed"

    def answers(self) -> Iterator[str]:
        """Yield tab-separated rows with the true labels, the predicted labels and the text."""
        yield "expected\tpredicted\ttext\n"
        for example in self.model.predict_split(self.split):
            yield "\t".join(map(one_line, (example.expected, example.label, example.text))) + "\n"

    def draw(self, plot: str) -> "tuple[Figure, bool, str | None]":
        return reliability_plot(self)


class MultiLabelPredictor(ClassifierPredictor):
    """A trained multi-label classifier."""

    description = "a multi-label classifier"
    evaluation_class = MultiLabelEvaluation
    default_threshold = DEFAULT_THRESHOLD
    default_top = None
    notes: ClassVar = CUT

    def make_prediction(self, candidates: list[LabelProbability], **details: Any) -> Classification:
        """Select the labels whose probabilities reach their thresholds."""
        labels = tuple(each.label for each in candidates if each.probability >= self.threshold(each.label))
        abstained, separator = bool(candidates) and not labels, getattr(self.recipe.data, "label_separator", None)
        return MultiLabelClassification(candidates, abstained, labels=labels, separator=separator, **details)

    # --- splits -----------------------------------------------------------------------------------------------------

    @property
    def thresholds(self) -> list[float]:
        """The threshold of each label, or ∞ if a label is never predicted."""
        return [self.threshold(label) for label in self.labels]

    def decisions(self, split: str) -> tuple[Values, NDArray[np.bool_]]:
        """Return the probabilities (N, L) of a split, and whether each label is predicted."""
        p = sigmoid(self.outputs(split).double().numpy())
        return p, p >= np.array(self.thresholds)

    def predict_split(self, split: str = "dev") -> list[PredictedExample]:
        """Return all examples of a split with their predicted labels, joined, and the probability of this label set."""
        examples, names = self.training_task.corpus.split(split), self.labels
        rows = []
        for example, p, predicted in zip(examples, *self.decisions(split), strict=True):
            labels = ", ".join(sorted(names[k] for k in np.flatnonzero(predicted)))
            probability = float(np.where(predicted, p, 1 - p).prod())
            rows.append(PredictedExample(example.text, example.label, labels, probability))
        return rows

    def mistakes(self, split: str) -> list[tuple[str, float, bool, str]]:
        """Return the wrong decisions, most confident first: label, probability, whether it is expected, text."""
        (p, predicted), correct = self.decisions(split), self.training_task.label_matrix(split).astype(bool)
        rows, columns = np.nonzero(predicted != correct)
        confidence = np.abs(p[rows, columns] - correct[rows, columns])
        examples = self.training_task.corpus.split(split)
        return [
            (self.labels[k], float(p[n, k]), bool(correct[n, k]), examples[n].text)
            for n, k in ((rows[i], columns[i]) for i in np.argsort(-confidence, kind="stable"))
        ]

    def compute_report(self, split: str) -> MultiLabelReport:
        outputs, task = self.outputs(split), self.training_task
        report: MultiLabelReport = task.measure(outputs, split, self.thresholds)
        if self.model.temperature != 1:
            raw = task.measure(outputs * self.model.temperature, split)
            report.metrics["uncalibrated_error"] = raw.metrics["calibration_error"]
        return report

    # --- calibration ------------------------------------------------------------------------------------------------

    def calibrate(
        self, *, f1: bool = False, precision: float | None = None, temperature: float | None = None
    ) -> RunCalibration:
        """Fit the temperature on dev and choose the threshold of each label. Later predictions use these values.

        The thresholds maximize F1, or are the lowest thresholds that reach `precision`. A given `temperature` is not
        fitted.
        """
        raw = self.outputs("dev").double().numpy() * self.model.temperature
        correct = self.training_task.label_matrix("dev")
        self.check_calibration_examples(len(raw))
        if temperature is None:
            pairs = np.stack([np.zeros(raw.size), raw.ravel()], axis=1)  # log p of "absent" and "present"
            temperature = fit_temperature(pairs, correct.ravel().astype(np.int64)) or 1.0
        chosen = choose_thresholds(sigmoid(raw / temperature), correct.astype(bool), precision)
        thresholds: dict[str, float | None] = dict(zip(self.labels, chosen, strict=True))
        return self.store_calibration(temperature, len(raw), thresholds, precision, f1=True)

    def finish_training(self) -> None:
        """Choose the thresholds with the best F1 on dev, unless the run has thresholds for these weights."""
        if self.calibration is None and len(self.training_task.corpus.split("dev")) >= MIN_EXAMPLES:
            self.calibrate(temperature=1.0)
