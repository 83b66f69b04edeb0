"""The metrics that a recipe of text-to-text tasks can name.

BLEU, chrF and exact match are always computed. The other metrics are computed if the recipe names them, because they
require targets of a certain form. Their modules are imported on first use.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

TextMetric = Literal["bleu", "chrf", "exact_match", "rouge", "attachment", "python"]
# The values of each metric that are compared with a baseline
BASELINE_VALUES: dict[TextMetric, tuple[str, ...]] = {
    "bleu": ("bleu",),
    "chrf": ("chrf",),
    "exact_match": ("exact_match",),
    "rouge": ("rouge_1", "rouge_2", "rouge_l"),
    "attachment": ("labelled_attachment", "unlabelled_attachment"),
    "python": (),  # a baseline that copies code is always valid
}
ALWAYS_COMPUTED = ("bleu", "chrf", "exact_match")


def metric_of(value: str) -> TextMetric | None:
    """Return the metric that a recipe must name in order to compute a value, or None if the value always exists."""
    named = (metric for metric in BASELINE_VALUES if metric not in ALWAYS_COMPUTED)
    return next((metric for metric in named if value in BASELINE_VALUES[metric]), None)


def additional_metrics(
    metrics: Iterable[TextMetric], predictions: Sequence[str], references: Sequence[str]
) -> dict[str, float]:
    """Compute the metrics in addition to BLEU, chrF and exact match."""
    values: dict[str, float] = {}
    for metric in metrics:
        match metric:
            case "rouge":
                from seqloom.evaluate.rouge import rouge

                values |= rouge(predictions, references)
            case "attachment":
                from seqloom.evaluate.dependencies import attachment_scores

                values |= attachment_scores(predictions, references)
            case "python":
                from seqloom.evaluate.python_code import python_validity

                values |= python_validity(predictions)
    return values
