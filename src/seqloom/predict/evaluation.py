"""What `seqloom evaluate` shows of a trained model, as JSON and as text.

An `Evaluation` measures a predictor when it is created. `Predictor.evaluation_class` is the class
for a model; one that shows more than metrics is defined next to its predictor.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rich.console import Console, RenderableType

from seqloom.core.words import escape_controls, format_count, format_metric, format_sizes, one_line, shorten
from seqloom.data.corpora.text import read_documents
from seqloom.data.corpus import TextCounts
from seqloom.evaluate.classification import ClassificationReport
from seqloom.evaluate.intervals import MetricReport
from seqloom.evaluate.tagging import TagReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Names of metrics for people, in the order in which evaluations of translations, labels and answers show them.
LABELS = {
    "bleu": "BLEU",
    "bleu_lowercase": "BLEU, lowercased",
    "chrf": "chrF",
    "exact_match": "lines exactly right",
    "accuracy": "accuracy",
    "majority": "  of the largest class",
    "chance": "  of guessing",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "weighted_f1": "weighted F1",
    "matthews": "Matthews correlation",
    "calibration_error": "calibration error",
    "span_f1": "span F1",
    "span_precision": "span precision",
    "span_recall": "span recall",
    "span_macro_f1": "span macro F1",
    "token_accuracy": "words right",
    "sentence_accuracy": "sentences right",
    "tag_macro_f1": "tag macro F1",
    "loss": "loss",
    "perplexity": "perplexity per token",
    "alignment_error_rate": "alignment error rate",
    "alignment_error_rate_diagonal": "  of the diagonal",
    "alignment_error_rate_chance": "  by chance",
    "alignment_accuracy": "links in their slot",
    "alignment_slots": "slots wholly right",
    "copy_bleu": "BLEU of copying",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "rmse": "root mean square error",
    "mean_error": "mean error",
    "answer_f1": "answer F1",
    "answer_exact": "answers exact",
    "word_perplexity": "perplexity per word",
    "bits_per_character": "bits per character",
    "bits_per_byte": "bits per byte",
    "unknown_rate": "share read as <unk>",
    "text_kept": "documents kept whole",
    "zero_shot": "recalled, never told",
    "one_shot": "recalled, told once",
    "few_shot": "  told 2 or 3 times",
    "many_shot": "  told more often",
    "exact": "answers word for word",
    "many_to_one": "states as tags, words",
    "v_measure": "V-measure of states",
    "one_state": "  of one Gaussian",
    "masked_loss": "of hidden tokens",
    "masked_perplexity": "  their perplexity",
    "masked_accuracy": "  share told right",
    "forward_perplexity": "  from the left",
    "backward_perplexity": "  from the right",
    "detection_loss": "of replaced or not",
    "replaced_rate": "share replaced",
    "replaced_accuracy": "replaced or not, right",
    "replaced_precision": "precision of replaced",
    "replaced_recall": "recall of replaced",
    "replaced_f1": "F1 of replaced",
    "next_loss": "of pairs",
    "next_accuracy": "pairs told right",
    "target_accuracy": "share told right",
    "hidden_accuracy": "  of hidden tokens",
    "exact_spans": "spans told exactly",
    "exact_texts": "texts told exactly",
    "success": "share answered right",
    "blind_loss": "loss of a blind guess",
    "blind_success": "its share right",
    "rmse_observed": "error of observations",
    "rmse_filtered": "  filtered",
    "rmse_smoothed": "  smoothed",
    "gap_filtered": "in gaps, filtered",
    "gap_smoothed": "  smoothed",
    "within_filtered": "in 95 %, filtered",
    "within_smoothed": "  smoothed",
    "next_rmse": "error of the next",
    "next_naive": "  as the last one",
}
EXAMPLES = 3  # mistakes that are shown
EXAMPLE_LETTERS = 100
MAPPED_CLASSES = 25  # of more only the mistakes are listed
MISTAKES = 10  # pairs of classes


@dataclass(frozen=True)
class EvaluationOptions:
    """The data to measure a model on, and the options of a search."""

    split: str = "dev"  # of the data of its run
    text: Path | None = None  # measure another text instead
    documents: Literal["file", "line", "paragraph"] | None = None  # what a document of that text is
    pairs: tuple[Path, Path] | None = None  # measure other sentences, with their translations, instead
    search: Mapping[str, Any] = field(default_factory=dict)  # replaces options of the section `decode` of the recipe


class Evaluation(ABC):
    """The result of an evaluation."""

    uses: tuple[str, ...] = ()  # the groups of options it takes, of text, search, out, confusion and reliability
    answers_name = "answers"  # what `answers` has
    notes: Sequence[str] = ()  # for standard error, before the result
    remarks: Sequence[str] = ()  # for standard error, after the lines
    report: Any

    def __init__(self, model: Any, options: EvaluationOptions) -> None:
        """Measure a predictor on a split of its data."""
        self.model, self.split = model, options.split
        self.report = model.report(options.split)

    @property
    def data(self) -> str:
        """The name of the data."""
        return f"{self.model.run.data['corpus']}, {self.split}"

    @abstractmethod
    def to_json(self) -> dict[str, object]:
        """Return it as values that JSON has."""

    @abstractmethod
    def lines(self, console: Console) -> Iterator[RenderableType]:
        """Yield it as lines of text and tables that fit a console."""

    def answers(self) -> Iterable[str]:
        """Return the lines of a file with all predictions."""
        raise NotImplementedError

    def draw(self, plot: str) -> "tuple[Figure, bool, str | None]":
        """Draw `confusion` or `reliability`; with whether its text stays text, and a complaint about missing fonts."""
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
    """Yield a line for each metric, with its suffix; `ordered` sorts them by `LABELS`."""
    names = [*(name for name in LABELS if name in metrics), *(name for name in metrics if name not in LABELS)]
    for name in names if ordered else metrics:
        label = loss if name == "loss" else LABELS.get(name, name)
        yield f"  {label:22} {format_value(name, metrics[name]):>{width}}{(suffixes or {}).get(name, '')}"


def format_value(name: str, value: float) -> str:
    """Return a metric as evaluations show it."""
    return f"{100 * value:.2f} %" if name == "exact_match" else format_metric(name, value)


class MetricsEvaluation(Evaluation):
    """The metrics of a model on a split, or on another text."""

    uses = ("text",)

    def __init__(self, model: Any, options: EvaluationOptions) -> None:
        self.model, self.split, self.text, documents = model, options.split, options.text, None
        if options.text is not None:
            model.task([])  # refuses a model that is not measured on texts
            own = (model.run.recipe.get("data") or {}).get("documents")
            kind = options.documents or (own if own in ("file", "paragraph") else "line")
            documents = read_documents(options.text, kind)
        self.metrics = self.measure(options.split, documents)
        self.counts: Mapping[str, int] = (
            model.run.data["counts"][options.split] if documents is None else asdict(TextCounts.of(documents))
        )

    @property
    def data(self) -> str:
        return super().data if self.text is None else str(self.text)

    def measure(self, split: str, documents: Sequence[str] | None) -> dict[str, float]:
        """Return the metrics on a split, or on other documents."""
        model = self.model
        metrics: dict[str, float] = model.evaluate(split) if documents is None else model.evaluate_documents(documents)
        return metrics

    def to_json(self) -> dict[str, object]:
        return {"run": self.model.name, "data": self.data, **self.counts, **self.metrics}

    def lines(self, console: Console) -> Iterator[RenderableType]:
        sizes = format_sizes(self.counts)
        if "documents" in self.counts:
            words, characters = self.counts["words"], self.counts["characters"]
            sizes = f"{words:,} words, {characters:,} characters (ends of documents included)"
        yield f"{self.model.name} on {self.data}: {sizes}"
        loss = "loss, nats per token" if "perplexity" in self.metrics else "loss"
        yield from metric_lines(self.metrics, loss=loss, width=0)
        if "detection_loss" in self.metrics:
            weight = self.model.run.recipe["model"]["detection_weight"]
            yield f"  loss = {LABELS['masked_loss']} + {weight:g} · {LABELS['detection_loss']}"


# --- answers for every example of a split -----------------------------------------------------------------------------


class SplitEvaluation(Evaluation):
    """The report on a split: metrics with intervals."""

    report: MetricReport

    def metric_lines(self) -> Iterator[str]:
        """Yield what was measured, and each metric with its interval."""
        report = self.report
        counts = {unit: n for unit, n in self.model.run.data["counts"][self.split].items() if unit != "characters"}
        yield f"{self.model.name} on {self.data}: {format_sizes(counts)}"
        suffixes = {name: f"   95 %: {each.low:.4f} to {each.high:.4f}" for name, each in report.intervals.items()}
        loss = "loss" if "pearson" in report.metrics else "loss, nats"  # of scores, no nats
        yield from metric_lines(report.metrics, suffixes, loss=loss, ordered=True)


class AnswerRow(NamedTuple):
    """An example and what a model predicts for it."""

    error: float  # how wrong the prediction is; 0 if it is right
    expected: str
    predicted: str
    example: str


class AnswersEvaluation(SplitEvaluation):
    """The metrics of scores, choices or answers, and the worst mistakes: see `SplitPredictor.answer_rows`."""

    uses = ("out",)

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
            yield f"  {example}\n    {expected}; it said {predicted or 'nothing'}"

    def answers(self) -> Iterable[str]:
        rows = ("\t".join(map(one_line, row[1:])) + "\n" for row in self.model.answer_rows(self.split))
        return ["expected\tpredicted\texample\n", *rows]


def shorten_example(text: str) -> str:
    """Return the beginning of a text on one line, safe for a terminal."""
    return shorten(escape_controls(one_line(text)), EXAMPLE_LETTERS)


# --- labels and tags --------------------------------------------------------------------------------------------------


class LabelEvaluation(SplitEvaluation):
    """The metrics of a classifier or tagger, and which classes it takes for which."""

    uses: tuple[str, ...] = ("out", "confusion")
    report: ClassificationReport | TagReport

    @property
    def unit(self) -> str:
        """What has a class."""
        counts = self.model.run.data["counts"][self.split]
        return next((unit for unit in ("pairs", "series") if unit in counts), "texts")

    @property
    def drawn(self) -> tuple[str, str]:
        """What the confusion matrix tells apart, and what it counts."""
        return "class", self.unit

    def draw(self, plot: str) -> "tuple[Figure, bool, str | None]":
        from seqloom.inspect.plots.figures import choose_fonts, format_class
        from seqloom.inspect.plots.heatmaps import draw_confusion

        title, (of, unit), confusion = f"{self.model.name} on {self.data}", self.drawn, self.report.confusion
        complaint = choose_fonts([*map(format_class, confusion.labels), title]).warning()
        return draw_confusion(confusion, [title], label_kind=of, unit=unit), True, complaint

    def to_json(self) -> dict[str, object]:
        report = self.report
        by_class = {
            name: {**asdict(hits), "precision": hits.precision, "recall": hits.recall, "f1": hits.f1}
            for name, hits in report.by_class.items()
        }
        found = {"intervals": report.intervals, "by_class": by_class, "confusion": report.confusion}
        return {"run": self.model.name, "data": self.data, **report.metrics, **found, "unseen": report.unseen}

    def lines(self, console: Console) -> Iterator[RenderableType]:
        from seqloom.inspect.plots.terminal import build_class_table, list_mistakes, render_confusion

        report = self.report
        yield from self.metric_lines()
        yield ""
        of, each = report.counted
        by_class = {escape_controls(name): hits for name, hits in report.by_class.items()}
        yield build_class_table(by_class, of, self.unit if of == "class" else each)
        confusion = replace(report.confusion, labels=tuple(map(escape_controls, report.confusion.labels)))
        if confusion.labels and of != "span" and len(confusion.labels) <= MAPPED_CLASSES:
            colour = console.color_system is not None and not console.no_color
            yield "\nwhat is taken for what: a row is what it is, a column what it was called"
            yield render_confusion(confusion, width=console.width, colour=colour)
        if mistakes := list_mistakes(confusion, MISTAKES):
            yield "\nmost frequent mistakes" + (" of words" if of == "span" else "")
            yield from (f"  {line}" for line in mistakes)
        if report.unseen:
            has = (
                ("text has a label", "texts have labels") if each == "texts" else ("word has a tag", "words have tags")
            )
            unseen, names = format_count(sum(report.unseen.values()), *has), escape_controls(", ".join(report.unseen))
            yield f"{unseen} that training never had ({names}): counted as wrong"
