"""The output of `seqloom evaluate`, as JSON and as text.

Creating an `Evaluation` evaluates a predictor. `Predictor.evaluation_class` selects the class for a predictor. Classes
that show more than metrics are defined next to their predictors.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rich.console import Console, RenderableType

from seqloom.core import Json
from seqloom.core.metrics import format_metric
from seqloom.core.words import escape_controls, format_count, format_sizes, one_line, shorten
from seqloom.data.corpus import TextCounts
from seqloom.data.labelled import encoding_notes, read_texts
from seqloom.data.table_profile import NamedColumns
from seqloom.evaluate.classification import ClassificationReport, describe_classes
from seqloom.evaluate.intervals import MetricReport
from seqloom.evaluate.tagging import TagReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The names of metrics for display, in the order that `metric_lines` uses.
LABELS = {
    "bleu": "BLEU",
    "baseline_bleu": "  baseline",
    "bleu_lowercase": "BLEU, lowercased",
    "bleu_1": "BLEU-1",
    "bleu_2": "BLEU-2",
    "bleu_3": "BLEU-3",
    "bleu_4": "BLEU-4",
    "cider_d": "CIDEr-D",
    "chrf": "chrF",
    "baseline_chrf": "  baseline",
    "character_error_rate": "character error rate",
    "word_error_rate": "word error rate",
    "exact_match": "exact match",
    "baseline_exact_match": "  baseline",
    "rouge_1": "ROUGE-1",
    "baseline_rouge_1": "  baseline",
    "rouge_2": "ROUGE-2",
    "baseline_rouge_2": "  baseline",
    "rouge_l": "ROUGE-L",
    "baseline_rouge_l": "  baseline",
    "labelled_attachment": "LAS",
    "baseline_labelled_attachment": "  baseline",
    "unlabelled_attachment": "UAS",
    "baseline_unlabelled_attachment": "  baseline",
    "valid_trees": "valid trees",
    "valid_python": "valid Python",
    "accuracy": "accuracy",
    "follow_up_accuracy": "  follow-up questions",
    "choice_accuracy": "  multiple choice",
    "majority": "  majority baseline",
    "chance": "  chance baseline",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "constant_f1": "  constant baseline",
    "weighted_f1": "weighted F1",
    "samples_f1": "samples F1",
    "subset_accuracy": "subset accuracy",
    "majority_set": "  majority baseline",
    "hamming_loss": "Hamming loss",
    "majority_hamming_loss": "  majority baseline",
    "average_precision": "average precision",
    "micro_average_precision": "  micro average",
    "matthews": "Matthews correlation",
    "calibration_error": "calibration error",
    "uncalibrated_error": "  before calibration",
    "coverage": "coverage",
    "selective_accuracy": "  selective accuracy",
    "span_f1": "span F1",
    "span_precision": "span precision",
    "span_recall": "span recall",
    "span_macro_f1": "span macro F1",
    "token_accuracy": "token accuracy",
    "majority_tag": "  majority baseline",
    "frame_accuracy": "frame accuracy",
    "majority_frame": "  majority baseline",
    "clip_accuracy": "  complete clips",
    "frame_macro_f1": "frame macro F1",
    "sentence_accuracy": "sentence accuracy",
    "tag_macro_f1": "tag macro F1",
    "loss": "loss",
    "reconstruction_loss": "  reconstruction loss",
    "kl": "  KL divergence",
    "importance_loss": "importance-weighted loss",
    "attention_loss": "  of the decoder",
    "ctc_loss": "  of CTC",
    "perplexity": "perplexity per token",
    "alignment_error_rate": "alignment error rate",
    "alignment_error_rate_diagonal": "  diagonal baseline",
    "alignment_error_rate_chance": "  chance baseline",
    "alignment_accuracy": "alignment accuracy",
    "alignment_slots": "fully aligned slots",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "rmse": "root mean square error",
    "mean_error": "mean absolute error",
    "answer_f1": "answer F1",
    "answer_exact": "answer exact match",
    "word_perplexity": "perplexity per word",
    "bits_per_character": "bits per character",
    "bits_per_byte": "bits per byte",
    "unknown_rate": "unknown token rate",
    "text_kept": "unchanged documents",
    "zero_shot": "recall, not stated",
    "one_shot": "recall, stated once",
    "few_shot": "  2 or 3 times",
    "many_shot": "  more often",
    "exact": "exact match",
    "many_to_one": "many-to-one accuracy",
    "v_measure": "V-measure of states",
    "one_state": "  single Gaussian",
    "masked_loss": "masked token loss",
    "masked_perplexity": "  perplexity",
    "masked_accuracy": "  accuracy",
    "forward_perplexity": "  forward",
    "backward_perplexity": "  backward",
    "detection_loss": "detection loss",
    "replaced_rate": "replaced tokens",
    "replaced_accuracy": "detection accuracy",
    "replaced_precision": "detection precision",
    "replaced_recall": "detection recall",
    "replaced_f1": "detection F1",
    "next_loss": "next-sentence loss",
    "next_accuracy": "next-sentence accuracy",
    "target_accuracy": "target accuracy",
    "hidden_accuracy": "  of missing tokens",
    "exact_spans": "exact spans",
    "exact_texts": "exact texts",
    "success": "success rate",
    "blind_loss": "blind baseline loss",
    "blind_success": "  success rate",
    "rmse_observed": "RMSE of observations",
    "rmse_filtered": "  filtered",
    "rmse_smoothed": "  smoothed",
    "gap_filtered": "RMSE in gaps, filtered",
    "gap_smoothed": "  smoothed",
    "within_filtered": "95 % region, filtered",
    "within_smoothed": "  smoothed",
    "next_rmse": "RMSE of next step",
    "next_naive": "  naive baseline",
}
EXAMPLES = 3  # maximum number of displayed mistakes
EXAMPLE_LETTERS = 100
MAX_MATRIX_CLASSES = 25  # with more classes, only the mistakes are listed
MISTAKES = 10  # maximum number of displayed pairs of confused classes


@dataclass(frozen=True)
class EvaluationOptions:
    """The data to evaluate on, and the search options."""

    split: str = "dev"  # split of the run's data
    text: Path | None = None  # a text to evaluate instead of the split
    documents: Literal["file", "line", "paragraph"] | None = None  # what counts as a document in `text`
    columns: NamedColumns | None = None  # the column of `text`, if it is a table
    pairs: tuple[Path, Path] | None = None  # sources and references to evaluate instead of the split
    search: Mapping[str, Json] = field(default_factory=dict)  # overrides of the section `decode`
    glossary: Path | None = None  # terms that translations must contain


class Evaluation(ABC):
    """The result of an evaluation."""

    # The option groups that the class supports: text, search, pairs, out, confusion, reliability
    option_groups: tuple[str, ...] = ()
    answers_name = "answers"  # the name of the rows of `answers` in messages
    notes: Sequence[str] = ()  # printed to standard error before the result
    remarks: Sequence[str] = ()  # printed to standard error after the result
    report: Any

    def __init__(self, model: Any, options: EvaluationOptions) -> None:
        """Evaluate a predictor on a split of its data."""
        self.model, self.split = model, options.split
        self.report = model.report(options.split)

    @property
    def data(self) -> str:
        """The name of the data."""
        name = str(self.model.run.data["corpus"])
        return name if self.split == "other" else f"{name}, {self.split}"

    @abstractmethod
    def to_json(self) -> dict[str, object]:
        """Return the evaluation as JSON values."""

    @abstractmethod
    def lines(self, console: Console) -> Iterator[RenderableType]:
        """Yield the evaluation as lines of text and tables that fit the console."""

    def answers(self) -> Iterable[str]:
        """Yield all predictions as the lines of a file."""
        raise NotImplementedError

    def draw(self, plot: str) -> "tuple[Figure, bool, str | None]":
        """Draw `confusion` or `reliability`. Return the plot, whether an SVG keeps text as text, and a font warning."""
        raise NotImplementedError


# --- metrics ----------------------------------------------------------------------------------------------------------


def metric_lines(
    metrics: Mapping[str, float],
    suffixes: Mapping[str, str] | None = None,
    *,
    loss: str,
    width: int = 9,
    ordered: bool = False,
) -> Iterator[str]:
    """Yield one line per metric with its suffix. With `ordered`, metrics are sorted as in `LABELS`."""
    names = [*(name for name in LABELS if name in metrics), *(name for name in metrics if name not in LABELS)]
    for name in names if ordered else metrics:
        label = loss if name == "loss" else LABELS.get(name, name)
        yield f"  {label:22} {format_value(name, metrics[name]):>{width}}{(suffixes or {}).get(name, '')}"


def format_value(name: str, value: float) -> str:
    """Format the value of a metric. `exact_match` is a percentage."""
    return f"{100 * value:.2f} %" if name.endswith("exact_match") else format_metric(name, value)


class MetricsEvaluation(Evaluation):
    """The metrics of a model on a split or on another text."""

    option_groups: tuple[str, ...] = ("text",)

    def __init__(self, model: Any, options: EvaluationOptions) -> None:
        self.model, self.split, self.text, documents = model, options.split, options.text, None
        if options.text is not None:
            model.task([])  # raises an error if the model cannot be evaluated on texts
            unit = (model.run.recipe.get("data") or {}).get("documents")
            kind = options.documents or (unit if unit in ("file", "paragraph") else "line")
            documents = read_texts(options.text, kind, options.columns)
            self.notes = encoding_notes(options.text)
        self.metrics = self.measure(options.split, documents)
        self.counts: Mapping[str, int] = (
            model.run.data["counts"][options.split] if documents is None else asdict(TextCounts.of(documents))
        )

    @property
    def data(self) -> str:
        return super().data if self.text is None else str(self.text)

    def measure(self, split: str, documents: Sequence[str] | None) -> dict[str, float]:
        """Compute the metrics on a split or on other documents."""
        model = self.model
        metrics: dict[str, float] = model.evaluate(split) if documents is None else model.evaluate_documents(documents)
        return metrics

    def to_json(self) -> dict[str, object]:
        return {"run": self.model.name, "data": self.data, **self.counts, **self.metrics}

    def lines(self, console: Console) -> Iterator[RenderableType]:
        sizes = format_sizes(self.counts)
        if "documents" in self.counts:
            words, characters = self.counts["words"], self.counts["characters"]
            sizes = f"{words:,} words, {characters:,} characters, including the ends of documents"
        yield f"{self.model.name} on {self.data}: {sizes}"
        loss = "loss, nats per token" if "perplexity" in self.metrics else "loss"
        yield from metric_lines(self.metrics, loss=loss, width=0)
        if "detection_loss" in self.metrics:
            weight = self.model.run.recipe["model"]["detection_weight"]
            yield f"  loss = {LABELS['masked_loss']} + {weight:g} · {LABELS['detection_loss']}"


# --- splits -----------------------------------------------------------------------------------------------------------


class SplitEvaluation(Evaluation):
    """The metrics on a split, with confidence intervals."""

    report: MetricReport

    def metric_lines(self) -> Iterator[str]:
        """Yield a heading, then each metric with its interval."""
        report = self.report
        counts = {unit: n for unit, n in self.model.run.data["counts"][self.split].items() if unit != "characters"}
        yield f"{self.model.name} on {self.data}: {format_sizes(counts)}"
        suffixes = {name: f"   95 %: {each.low:.4f} to {each.high:.4f}" for name, each in report.intervals.items()}
        loss = "loss" if "pearson" in report.metrics else "loss, nats"  # the loss of a regression model is not in nats
        yield from metric_lines(report.metrics, suffixes, loss=loss, ordered=True)


class AnswerRow(NamedTuple):
    """An example with its prediction."""

    error: float  # the size of the mistake, which is 0 for a correct prediction
    expected: str
    predicted: str
    example: str


class AnswersEvaluation(SplitEvaluation):
    """The metrics of a model that predicts scores, choices or answers, and the model's worst mistakes."""

    option_groups = ("out",)

    def to_json(self) -> dict[str, object]:
        report = self.report
        return {"run": self.model.name, "data": self.data, **report.metrics, "intervals": report.intervals}

    def lines(self, console: Console) -> Iterator[RenderableType]:
        yield from self.metric_lines()
        wrong = sorted((row for row in self.model.answer_rows(self.split) if row.error > 0), key=lambda row: -row.error)
        if wrong:
            yield "\nworst mistakes"
        for row in wrong[:EXAMPLES]:
            expected, predicted, example = map(shorten_example, row[1:])
            yield f"  {example}\n    {expected}; predicted: {predicted or 'nothing'}"

    def answers(self) -> Iterable[str]:
        rows = ("\t".join(map(one_line, row[1:])) + "\n" for row in self.model.answer_rows(self.split))
        return ["expected\tpredicted\texample\n", *rows]


def shorten_example(text: str) -> str:
    """Return the beginning of a text as one printable line."""
    return shorten(escape_controls(one_line(text)), EXAMPLE_LETTERS)


# --- labels and tags --------------------------------------------------------------------------------------------------


class LabelEvaluation(SplitEvaluation):
    """The metrics of a classifier or tagger, with the confusion matrix."""

    option_groups: tuple[str, ...] = ("out", "confusion")
    report: ClassificationReport | TagReport

    @property
    def unit(self) -> str:
        """The unit to which a class is assigned, such as a text or a word."""
        counts = self.model.run.data["counts"][self.split]
        return next((unit for unit in ("pairs", "series", "images", "clips") if unit in counts), "texts")

    @property
    def matrix_units(self) -> tuple[str, str]:
        """The kind of class in the confusion matrix, and the unit that its cells count."""
        return "class", self.unit

    def draw(self, plot: str) -> "tuple[Figure, bool, str | None]":
        from seqloom.inspect.plots.figures import choose_fonts, format_class
        from seqloom.inspect.plots.heatmaps import draw_confusion

        title, (of, unit), confusion = f"{self.model.name} on {self.data}", self.matrix_units, self.report.confusion
        complaint = choose_fonts([*map(format_class, confusion.labels), title]).warning()
        return draw_confusion(confusion, [title], label_kind=of, unit=unit), True, complaint

    def to_json(self) -> dict[str, object]:
        return report_to_json(self, {"confusion": self.report.confusion, "unseen": self.report.unseen})

    def lines(self, console: Console) -> Iterator[RenderableType]:
        from seqloom.inspect.plots.terminal import build_class_table, list_mistakes, render_confusion

        report = self.report
        yield from self.metric_lines()
        yield ""
        of, each = report.counted
        by_class = {escape_controls(name): hits for name, hits in report.by_class.items()}
        yield build_class_table(by_class, of, self.unit if of == "class" else each)
        confusion = replace(report.confusion, labels=tuple(map(escape_controls, report.confusion.labels)))
        if confusion.labels and of != "span" and len(confusion.labels) <= MAX_MATRIX_CLASSES:
            colour = console.color_system is not None and not console.no_color
            yield "\nconfusion matrix: rows are true classes, columns are predicted classes"
            yield render_confusion(confusion, width=console.width, colour=colour)
        if mistakes := list_mistakes(confusion, MISTAKES):
            yield "\nmost frequent mistakes" + (" of words" if of == "span" else "")
            yield from (f"  {line}" for line in mistakes)
        if report.unseen:
            has = ("word has a tag", "words have tags")
            if each == "texts":
                one = {"images": "image", "clips": "clip"}.get(self.unit, "text")
                has = (f"{one} has a label", f"{self.unit} have labels")
            elif each == "frames":
                has = ("frame has a label", "frames have labels")
            unseen, names = format_count(sum(report.unseen.values()), *has), escape_controls(", ".join(report.unseen))
            yield f"{unseen} not in the training data ({names}); counted as errors"


def report_to_json(evaluation: SplitEvaluation, details: Mapping[str, object]) -> dict[str, object]:
    """Return the metrics, their intervals and the metrics of each class as JSON values."""
    report: Any = evaluation.report
    by_class = describe_classes(report.by_class)
    about = {"run": evaluation.model.name, "data": evaluation.data}
    return {**about, **report.metrics, "intervals": report.intervals, "by_class": by_class, **details}
