"""Metrics of question answering (SQuAD's exact match and F1) and of multiple choice.

Answers are first normalized to lower case, without ASCII punctuation and articles (a, an, the), and with
single spaces. An answer is exact if it then equals a reference answer. F1 compares bags of words that
have c words in common:

    precision = c / predicted words    recall = c / reference words    F1 = 2 · precision · recall / (sum of both)

F1 is 0 if c is 0, for example for an empty answer. With several references, each metric uses the best
reference. The metrics of a split are means over its questions; SQuAD reports them multiplied by 100.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqloom.core.errors import DataError
from seqloom.evaluate.classification import calibrate
from seqloom.evaluate.intervals import MetricReport, mean_interval, wilson

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(answer: str) -> str:
    """Normalize an answer for comparison, with the steps in SQuAD's order."""
    letters = answer.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", letters).split())


def exact(predicted: str, expected: str) -> float:
    """Return 1 if the normalized answers are equal, else 0."""
    return float(normalize_answer(predicted) == normalize_answer(expected))


def f1(predicted: str, expected: str) -> float:
    """Return the F1 of the normalized bags of words."""
    words, reference = (Counter(normalize_answer(answer).split()) for answer in (predicted, expected))
    common = (words & reference).total()
    if not common:
        return 0.0
    precision, recall = common / words.total(), common / reference.total()
    return 2 * precision * recall / (precision + recall)


@dataclass(frozen=True)
class AnswerReport(MetricReport):
    exact: list[float]  # exact match of each question, 0 or 1
    f1: list[float]


def report(predicted: Sequence[str], references: Sequence[Sequence[str]], *, seed: int = 0) -> AnswerReport:
    """Evaluate answers; `references` contains all correct answers of each question."""
    if len(predicted) != len(references) or not predicted or not all(references):
        raise DataError(
            f"Every question needs an answer and at least one reference; got {len(predicted)} answers to "
            f"{len(references)} questions."
        )
    pairs = list(zip(predicted, references, strict=True))
    exacts = [max(exact(answer, reference) for reference in correct) for answer, correct in pairs]
    scores = [max(f1(answer, reference) for reference in correct) for answer, correct in pairs]
    return AnswerReport(
        metrics={"answer_f1": float(np.mean(scores)), "answer_exact": float(np.mean(exacts))},
        intervals={
            "answer_f1": mean_interval(scores, seed=seed),
            "answer_exact": wilson(int(sum(exacts)), len(exacts)),
        },
        exact=exacts,
        f1=scores,
    )


def report_choices(expected: Sequence[int], log_probs: Sequence[Sequence[float]]) -> MetricReport:
    """Evaluate multiple choice; `log_probs` contains log p of every option of each example."""
    if len(expected) != len(log_probs) or not expected:
        raise DataError(
            f"The numbers of answers and examples must be equal and at least 1; got {len(log_probs)} answers and "
            f"{len(expected)} examples."
        )
    is_correct = np.array([int(np.argmax(row)) == label for label, row in zip(expected, log_probs, strict=True)])
    correct, confidence = int(is_correct.sum()), np.exp([max(row) for row in log_probs])
    return MetricReport(
        metrics={
            "accuracy": correct / len(expected),
            "calibration_error": calibrate(confidence, is_correct).error,
            "chance": float(np.mean([1 / len(options) for options in log_probs])),
            "loss": -float(np.mean([options[label] for label, options in zip(expected, log_probs, strict=True)])),
        },
        intervals={"accuracy": wilson(correct, len(expected))},
    )
