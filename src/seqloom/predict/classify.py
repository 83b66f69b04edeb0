"""Predictors for classifiers of texts and series."""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console, RenderableType

from seqloom.core.errors import DataError, UsageError
from seqloom.core.tree import Tree, to_device
from seqloom.core.words import did_you_mean, escape_controls, format_value, one_line
from seqloom.data.series import LabelledSeries
from seqloom.data.series_files import parse_number
from seqloom.data.text_inputs import TextReader
from seqloom.evaluate.classification import ClassificationReport
from seqloom.inspect.views.labels import WordWeights, WordWeightsKind, explain, remove_each_word
from seqloom.inspect.views.texts import LinePrediction
from seqloom.inspect.views.texts import one_line as check_one_line
from seqloom.predict.base import (
    P,
    Prediction,
    as_lines,
    json_value,
    predict_batches,
    predict_filled,
    predict_windows,
    ranked_columns,
    ranked_fields,
)
from seqloom.predict.confidence import CalibratedPredictor
from seqloom.predict.evaluation import EXAMPLES, Evaluation, LabelEvaluation, shorten_example
from seqloom.predict.results import returns_list
from seqloom.runs.run import Run
from seqloom.tasks.reading_base import UNSEEN, spellings_of, text_reader
from seqloom.tasks.series_classify import collate_series

if TYPE_CHECKING:
    from matplotlib.figure import Figure


NO_LABEL = "-"  # printed if the model abstains
CUT = {"{lines} longer than {max_length} tokens: only the beginning was read": lambda answer: answer.cut}
ABSTAINED = {"{lines} without a label: the probability is below the threshold": lambda answer: answer.abstained}


@dataclass(frozen=True)
class LabelProbability:
    """A label and its probability."""

    label: str
    probability: float


@dataclass(frozen=True)
class LabelPrediction(Prediction):
    """The labels of an example by decreasing probability. A blank line has no labels."""

    candidates: list[LabelProbability]
    abstained: bool = False  # whether no label is predicted, because the probability is below the threshold

    @property
    def label(self) -> str:
        return self.candidates[0].label if self.candidates and not self.abstained else ""

    @property
    def probability(self) -> float:
        return self.candidates[0].probability if self.candidates else 0.0

    @property
    def listed(self) -> list[LabelProbability]:
        """The candidates to print. If the model abstains, the first candidate is printed as NO_LABEL."""
        return self.candidates

    def to_line(self) -> str:
        """Return tab-separated labels and probabilities, with NO_LABEL if the model abstains."""
        labels = [candidate.label for candidate in self.listed]
        if self.abstained:
            labels[0] = NO_LABEL
        return ranked_fields(zip(labels, (candidate.probability for candidate in self.listed), strict=True))

    def to_json(self) -> dict[str, object]:
        labels: dict[str, object] = {"label": None, "probability": None}
        if self.candidates:
            labels = {"label": self.label or None, "probability": self.probability}
        return {**labels, "candidates": json_value(self.candidates), **super().to_json()}

    def to_columns(self) -> dict[str, object]:
        candidates = self.candidates or [LabelProbability("", 0.0)]
        columns = ranked_columns(map(asdict, candidates))
        return {**columns, "label": self.label or None, "probability": self.probability if self.candidates else None}


@dataclass(frozen=True)
class Classification(LabelPrediction):
    """The labels of a text."""

    text: str = ""  # the unchanged input
    cut: bool = False  # whether the text was truncated
    why: WordWeights | None = None  # weights of the words, if requested
    json_names: ClassVar = ("unknown", "cut")

    def to_line(self) -> str:
        """Return tab-separated labels and probabilities. With `why`, the last field lists the word weights."""
        if self.why is None:
            return super().to_line()
        sign, words = "+" if self.why.kind == "influence" else "", []
        for word in self.why.words:
            visible = "".join("␣" if character.isspace() else character for character in word.text)
            words.append(f"{visible} {word.weight:{sign}.3f}")
        return "\t".join([super().to_line()] * bool(self.candidates) + [" ".join(words)])

    def to_json(self) -> dict[str, object]:
        reasons = {} if self.why is None else {"why": json_value(self.why)}
        return {"text": self.text, **super().to_json(), **reasons}


@dataclass(frozen=True)
class PredictedExample:
    """An example of a split with its true label and its predicted label."""

    text: str
    expected: str
    label: str
    probability: float


class ClassEvaluation(LabelEvaluation):
    """The evaluation of a model that predicts labels."""

    model: "LabelPredictor[Any]"
    report: ClassificationReport

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), "calibration": self.report.calibration.filled}

    def answers(self) -> Iterator[str]:
        """Yield tab-separated rows with the true label, the predicted label, its probability and the text."""
        yield "expected\tpredicted\tprobability\ttext\n"
        for example in self.model.predict_split(self.split):
            expected, label, text = map(one_line, (example.expected, example.label, example.text))
            yield f"{expected}\t{label}\t{example.probability:.4f}\t{text}\n"


class ClassifierEvaluation(ClassEvaluation):
    """The evaluation of a text classifier, with its most confident mistakes."""

    option_groups = ("out", "confusion", "reliability")

    def lines(self, console: Console) -> Iterator[RenderableType]:
        yield from super().lines(console)
        wrong = [example for example in self.model.predict_split(self.split) if example.label != example.expected]
        wrong.sort(key=lambda example: -example.probability)
        if wrong:
            yield "\nmost confident mistakes"
        for example in wrong[:EXAMPLES]:
            expected, label = (escape_controls(one_line(part)) for part in (example.expected, example.label))
            yield f"  {expected}, predicted {label} ({example.probability:.1%}): {shorten_example(example.text)}"

    def draw(self, plot: str) -> "tuple[Figure, bool, str | None]":
        return reliability_plot(self) if plot == "reliability" else super().draw(plot)


def reliability_plot(evaluation: Evaluation) -> "tuple[Figure, bool, str | None]":
    """Draw accuracy against confidence; see `Evaluation.draw`."""
    from seqloom.inspect.plots.measurements import draw_reliability

    title = f"{evaluation.model.name} on {evaluation.data}"
    return draw_reliability(evaluation.report.calibration, title), False, None


class LabelPredictor(CalibratedPredictor[P]):
    """A predictor of labels."""

    @property
    def labels(self) -> list[str]:
        return self.run.labels

    @property
    def choices(self) -> list[str]:
        return self.labels

    def targets(self, split: str) -> list[int]:
        labels: list[int] = self.training_task.labels(split)
        return labels

    def abstains(self, candidates: Sequence[LabelProbability]) -> bool:
        """Return whether the probability of the best label is below its threshold."""
        return candidates[0].probability < self.threshold(candidates[0].label)

    def rank(self, probabilities: Sequence[float], top: int | None) -> list[LabelProbability]:
        """Return the `top` most probable labels, best first, or all labels if `top` is None."""
        order = sorted(range(len(probabilities)), key=lambda label: -probabilities[label])[:top]
        return [LabelProbability(self.labels[label], probabilities[label]) for label in order]

    def predict_split(self, split: str = "dev") -> list[PredictedExample]:
        """Return all examples of a split with their predicted labels."""
        best = self.outputs(split).exp().max(dim=1)
        rows = zip(self.training_task.corpus.split(split), best.indices.tolist(), best.values.tolist(), strict=True)
        return [
            PredictedExample(example.text, example.label, self.labels[label], value) for example, label, value in rows
        ]


class ClassifierPredictor(LabelPredictor[Classification]):
    """A trained classifier."""

    description = "a classifier"
    usage = "use `seqloom classify`"
    evaluation_class: type[Evaluation] = ClassifierEvaluation
    notes: ClassVar = {**CUT, **ABSTAINED}
    default_top: ClassVar[int | None] = 1  # number of labels to print; None prints all predicted labels

    @classmethod
    def class_for(cls, run: Run) -> "type[ClassifierPredictor]":
        from seqloom.predict.multi_label import MultiLabelPredictor

        return MultiLabelPredictor if run.sizes.get("multi_label") else cls

    @returns_list
    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = 128, window: int = 1024
    ) -> Iterator[Classification]:
        return self.classify(lines, top=self.default_top, batch_size=batch_size, window=window, stream=True)

    @returns_list
    def classify(
        self,
        texts: str | Iterable[str],
        *,
        top: int | None = None,
        why: bool = False,
        batch_size: int = 128,
        window: int = 1024,
    ) -> Iterator[Classification]:
        """Return one classification per text. A blank text has no labels.

        `top` limits the number of labels; by default, all labels are returned. With `why`, each classification includes
        the weights of the words. `window` and `batch_size` work as in `predict`.
        """
        return predict_windows(as_lines(texts), self._classify, batch_size=batch_size, window=window, top=top, why=why)

    def _classify(self, lines: list[str], batch_size: int, top: int | None, why: bool) -> Iterator[Classification]:
        reader = self.reader()

        def classify(filled: list[str]) -> list[Classification]:
            texts = [line.strip() for line in filled]
            batches = reader.batches(texts, tokens=1)

            def classify_batch(indices: list[int]) -> Iterator[Classification]:
                batch = to_device(batches.collate(np.array(indices)), self.device)
                reasons: Sequence[WordWeights | None] = [None] * len(indices)
                if why:
                    reasons = self.explain(reader, batch, [texts[index] for index in indices])
                rows = self.model.probabilities(batch).tolist()
                for index, row, reason in zip(indices, rows, reasons, strict=True):
                    line, candidates = filled[index], self.rank(row, top)
                    yield self.make_prediction(
                        candidates,
                        text=line,
                        unknown=tuple(reader.unknown(texts[index])),
                        cut=bool(batches.was_cut[index]),
                        why=None if reason is None else reason.shift(len(line) - len(line.lstrip())),
                    )

            return predict_batches(batches.texts.lengths.tolist(), batch_size, classify_batch)

        return predict_filled(lines, str.strip, classify, lambda line: self.make_prediction([], text=line))

    def make_prediction(self, candidates: list[LabelProbability], **details: Any) -> Classification:
        """Return the prediction for a text from its most probable labels, best first. A blank text has no labels."""
        return Classification(candidates, bool(candidates) and self.abstains(candidates), **details)

    def explain(self, reader: TextReader, batch: Tree, texts: list[str], **options: Any) -> list[WordWeights]:
        """Compute the weights of the words of a batch of texts."""
        before = 0 if reader.frame is None else reader.frame.before
        spans = [reader.read(text)[1] for text in texts]
        return explain(self.model, batch, texts, spans, self.tokenizer, before, **options)

    def why(self, text: str, label: str | None = None, kind: WordWeightsKind | None = None) -> WordWeights:
        """Compute the weights of the words of a text for a label, by default the most probable label.

        The default kind is attention for models with attention pooling, and influence for other models. See
        `inspect.views.labels`.
        """
        line = check_one_line(text, "text")
        (answer,) = self.classify(line)
        label = answer.candidates[0].label if label is None else label
        if label not in self.labels:
            raise UsageError(f"{self.name} has no label {label!r}: {did_you_mean(label, self.labels)}.")
        reader = self.reader()
        batch = self._batch(reader, line)
        if kind == "attention" and self.model.attention(batch) is None:
            raise UsageError(f"{self.name} has no attention pooling. Use the kind influence or occlusion.")
        labels = torch.tensor([self.labels.index(label)], device=self.device)
        by: WordWeightsKind | None = "influence" if kind == "occlusion" else kind
        (reason,) = self.explain(reader, batch, [line], labels=labels, kind=by)
        if kind == "occlusion":
            p, *without_word = (
                next((each.probability for each in prediction.candidates if each.label == label), None)
                for prediction in [answer, *self.classify(remove_each_word(line, reason.words))]
            )
            drops = [0.0 if other is None or p is None else p - other for other in without_word]
            words = [replace(word, weight=drop) for word, drop in zip(reason.words, drops, strict=True)]
            reason = WordWeights("occlusion", words, 0.0)
        return reason.shift(len(text) - len(text.lstrip()))

    def reader(self) -> TextReader:
        """Return the reader that tokenizes texts."""
        return text_reader(self.recipe, self.tokenizer, spellings_of(self.run))

    def _batch(self, reader: TextReader, line: str) -> Tree:
        return to_device(reader.batches([line], tokens=1).collate(np.array([0])), self.device)

    def _read_line(self, line: str) -> LinePrediction:
        (answer,), reader = self.classify(line, top=1), self.reader()
        batch, spans = self._batch(reader, line), reader.read(line)[1]
        log_prob = math.log(max(answer.probability, sys.float_info.min))
        label = answer.candidates[0].label  # the best label, even if the model abstains
        return LinePrediction(line, line, spans, batch, "label", label, log_prob, answer.unknown, reader.frame)


class SeriesClassifierPredictor(LabelPredictor[LabelPrediction]):
    """A trained classifier of series."""

    description = "a classifier of series"
    usage = "use `seqloom classify`"
    inputs = ("values",)
    evaluation_class = ClassEvaluation
    notes: ClassVar = ABSTAINED

    @property
    def max_length(self) -> None:
        """None, because a series may have any length."""
        return None

    @property
    def variables(self) -> int:
        return self.run.sizes["variables"]

    @returns_list
    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = 1, window: int = 1, top: int | None = 1
    ) -> Iterator[LabelPrediction]:
        """Classify one series per line.

        A line lists all values of the first variable, then those of the second, and so on.
        """
        for number, line in enumerate(as_lines(lines), start=1):
            candidates = self.classify(read_numbers(line, number), top=top) if line.strip() else []
            yield LabelPrediction(candidates, bool(candidates) and self.abstains(candidates))

    def classify(
        self, values: Sequence[float] | NDArray[np.floating[Any]], *, top: int | None = None
    ) -> list[LabelProbability]:
        """Return the labels of a series, best first.

        `values` has the shape (T, C), or is a flat row with all values of the first variable, then those of the second,
        and so on.
        """
        array = np.asarray(values, dtype=np.float64)
        if array.ndim == 1:
            if len(array) == 0 or len(array) % self.variables:
                raise UsageError(f"A series must have values of {self.variables} variables; got {len(array)} numbers.")
            array = array.reshape(self.variables, -1).T
        if array.ndim != 2 or array.shape[1] != self.variables or len(array) == 0 or np.isinf(array).any():
            raise UsageError(
                f"A series must have finite values and the shape (T, {self.variables}); got {array.shape}."
            )
        batch = to_device(collate_series([LabelledSeries(array, "")], [UNSEEN], len(array)), self.device)
        return self.rank(self.model.probabilities(batch)[0].tolist(), top)


def read_numbers(line: str, number: int) -> list[float]:
    """Parse numbers separated by commas, semicolons, tabs or spaces; missing values are NaN."""
    separated = any(separator in line for separator in ",;\t")
    cells = line.replace("\t", ",").replace(";", ",").split(",") if separated else line.split()
    try:
        return [parse_number(cell) for cell in cells]
    except ValueError:
        raise DataError(
            f"Line {number:,} must have finite numbers, separated by commas or spaces; got {format_value(line)}."
        ) from None
