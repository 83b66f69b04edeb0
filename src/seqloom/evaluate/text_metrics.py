"""The metrics that a recipe of text-to-text tasks can name.

BLEU, chrF and exact match are always computed. The other metrics are computed if the recipe names them, because they
require targets of a certain form.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from seqloom.evaluate.dependencies import attachment_scores
from seqloom.evaluate.python_code import python_validity
from seqloom.evaluate.rouge import rouge

TextMetric = Literal["bleu", "chrf", "exact_match", "rouge", "attachment", "python"]
# Called with the predictions and their references
SCORERS: dict[TextMetric, Callable[[Sequence[str], Sequence[str]], dict[str, float]]] = {
    "rouge": rouge,
    "attachment": attachment_scores,
    "python": python_validity,
}
# The values of each metric that are compared with a baseline
BASELINE_VALUES: dict[TextMetric, tuple[str, ...]] = {
    "bleu": ("bleu",),
    "chrf": ("chrf",),
    "exact_match": ("exact_match",),
    "rouge": ("rouge_1", "rouge_2", "rouge_l"),
    "attachment": ("labelled_attachment", "unlabelled_attachment"),
    "python": (),  # a baseline that copies code is always valid
}


def metric_of(value: str) -> TextMetric | None:
    """Return the metric that a recipe must name in order to compute a value, or None if the value always exists."""
    return next((metric for metric in SCORERS if value in BASELINE_VALUES[metric]), None)


def additional_metrics(
    metrics: Iterable[TextMetric], predictions: Sequence[str], references: Sequence[str]
) -> dict[str, float]:
    """Compute the metrics in addition to BLEU, chrF and exact match."""
    values: dict[str, float] = {}
    for metric in metrics:
        if metric in SCORERS:
            values |= SCORERS[metric](predictions, references)
    return values
