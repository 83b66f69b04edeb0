"""ROUGE (Lin 2004): the overlap of a summary and its reference in n-grams and in the longest common subsequence.

    P = overlap / n-grams of the summary    R = overlap / n-grams of the reference    F1 = 2 P R / (P + R)

For ROUGE-N, the overlap of an n-gram is the smaller of its two counts. For ROUGE-L, the overlap is the length of the
longest common subsequence of words. A score is the mean F1 of all summaries, times 100.
"""

import re
from collections import Counter
from collections.abc import Sequence


def rouge(summaries: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return ROUGE-1, ROUGE-2 and ROUGE-L with one reference each, from 0 to 100."""
    pairs = [(words(summary), words(reference)) for summary, reference in zip(summaries, references, strict=True)]
    sums = {
        "rouge_1": sum(rouge_n(summary, reference, 1) for summary, reference in pairs),
        "rouge_2": sum(rouge_n(summary, reference, 2) for summary, reference in pairs),
        "rouge_l": sum(rouge_l(summary, reference) for summary, reference in pairs),
    }
    return {name: 100 * total / max(len(pairs), 1) for name, total in sums.items()}


def words(text: str) -> list[str]:
    """Return the runs of letters and digits in lowercase. Words are not stemmed."""
    return re.findall(r"[^\W_]+", text.lower())


def rouge_n(summary: Sequence[str], reference: Sequence[str], n: int) -> float:
    """Return the F1 of the n-grams, from 0 to 1."""
    first, second = ngrams(summary, n), ngrams(reference, n)
    return f1((first & second).total(), first.total(), second.total())


def ngrams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    """Return the count of each n-gram."""
    return Counter(tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1))


def rouge_l(summary: Sequence[str], reference: Sequence[str]) -> float:
    """Return the F1 of the longest common subsequence, from 0 to 1."""
    return f1(common_subsequence(summary, reference), len(summary), len(reference))


def common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence."""
    row = [0] * (len(second) + 1)  # row[j]: the length for the words of `first` so far and the first j of `second`
    for word in first:
        previous, row = row, [0]
        for index, other in enumerate(second):
            row.append(previous[index] + 1 if word == other else max(previous[index + 1], row[index]))
    return row[-1]


def f1(overlap: int, predicted: int, expected: int) -> float:
    """Return 2 P R / (P + R), or 0 without overlap."""
    return 2 * overlap / (predicted + expected) if overlap else 0.0
