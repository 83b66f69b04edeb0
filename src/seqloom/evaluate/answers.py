"""Metrics of answers: pieces of a text, counted as SQuAD's own evaluation counts, and choices among options.

A written answer is normalised first: small letters, no ASCII punctuation, none of the words a, an,
the, one space between words. It is exact if it then equals one of the right answers. For F1 both
are bags of words with c words in common, each as often as it is in the bag that has it less often:

    precision = c / words said    recall = c / words of the right answer    F1 = 2 · precision · recall / (sum of both)

and 0 where c is 0, also for an answer without words. Of several right answers the best counts, for
each metric by itself. The metrics of a split are means over its questions; SQuAD's are these times
100.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqloom.core.errors import DataError
from seqloom.evaluate.intervals import MetricReport, mean_interval, wilson

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise_answer(answer: str) -> str:
    """Return what is compared: the order of these steps is SQuAD's."""
    letters = answer.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", letters).split())


def exact(said: str, right: str) -> float:
    return float(normalise_answer(said) == normalise_answer(right))


def f1(said: str, right: str) -> float:
    words, wanted = (Counter(normalise_answer(answer).split()) for answer in (said, right))
    common = (words & wanted).total()
    if not common:
        return 0.0
    precision, recall = common / words.total(), common / wanted.total()
    return 2 * precision * recall / (precision + recall)


@dataclass(frozen=True)
class AnswerReport(MetricReport):
    exact: list[float]  # of each question, 0 or 1
    f1: list[float]


def report(said: Sequence[str], right: Sequence[Sequence[str]], *, seed: int = 0) -> AnswerReport:
    """Measure answers; `right` has for each question every answer that counts as right."""
    if len(said) != len(right) or not said or not all(right):
        raise DataError(
            f"There must be an answer for each question, and at least one right one; got {len(said)} answers to "
            f"{len(right)} questions."
        )
    exacts = [max(exact(answer, one) for one in wanted) for answer, wanted in zip(said, right, strict=True)]
    scores = [max(f1(answer, one) for one in wanted) for answer, wanted in zip(said, right, strict=True)]
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
    """Measure choices: `log_probs` has, for each example, log p of every option it has."""
    if len(expected) != len(log_probs) or not expected:
        raise DataError(
            f"There must be as many answers as examples, and at least one: got {len(log_probs)} and {len(expected)}."
        )
    right = sum(int(np.argmax(own)) == place for place, own in zip(expected, log_probs, strict=True))
    return MetricReport(
        metrics={
            "accuracy": right / len(expected),
            "chance": float(np.mean([1 / len(own) for own in log_probs])),
            "loss": -float(np.mean([own[place] for place, own in zip(expected, log_probs, strict=True)])),
        },
        intervals={"accuracy": wilson(right, len(expected))},
    )
