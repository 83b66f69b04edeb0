"""How good answers are that are pieces of a text, counted as SQuAD's own evaluation counts.

An answer is made plain first: small letters, no ASCII punctuation, none of the words a, an, the, one space between
words. It is exact if it then equals one of the right answers. For F1 both are bags of words; c words are in both, each
as often as it is in the bag that has it less often:

    precision = c / words said    recall = c / words of the right answer    F1 = 2 · precision · recall / (sum of both)

and 0 where c is 0, also for an answer without words. Of several right answers the best counts, for each figure by
itself. The figures of a split are means over its questions; SQuAD's are these times 100.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqloom.core.errors import DataError
from seqloom.evaluate.figures import Figures
from seqloom.evaluate.intervals import mean_interval, wilson

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def plain(answer: str) -> str:
    """What is compared: the order of these steps is SQuAD's."""
    letters = answer.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", letters).split())


def exact(said: str, right: str) -> float:
    return float(plain(said) == plain(right))


def f1(said: str, right: str) -> float:
    words, wanted = Counter(plain(said).split()), Counter(plain(right).split())
    common = (words & wanted).total()
    if not common:
        return 0.0
    precision, recall = common / words.total(), common / wanted.total()
    return 2 * precision * recall / (precision + recall)


@dataclass(frozen=True)
class AnswerReport(Figures):
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
