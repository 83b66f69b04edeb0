"""BLEU step by step: counts, clipping, precisions and brevity penalty of a translation.

    p_n    = Σ_g min(count of g in the hypothesis, maximum count of g in a reference) / n-grams in the hypothesis
    BP     = exp(1 − r/c) if c ≤ r, else 1      c tokens in the hypothesis, r in the reference closest in length
    BLEU-N = BP · (p_1 · … · p_N)^(1/N)

g runs over the n-grams of the hypothesis. If two references are equally close in length, the shorter
reference is used. For a corpus, counts and lengths of all sentences are summed before the division, so
corpus BLEU is not the mean of sentence BLEU.

Inputs must already be tokenized. Report the scores of sacrebleu (`seqloom.evaluate.translation`); tests
compare each statistic with sacrebleu.
"""

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from seqloom.core.words import format_count

ORDER = 4  # length of the longest n-grams
LINE_WIDTH = 110  # maximum width of a line of an explanation

Tokens = Sequence[str]
Ngram = tuple[str, ...]


@dataclass(frozen=True)
class Statistics:
    """The statistics of BLEU for a sentence, or their sums over a corpus."""

    correct: tuple[int, ...]  # clipped matches of the hypothesis, n = 1 … ORDER
    total: tuple[int, ...]  # number of n-grams of the hypothesis, n = 1 … ORDER
    length: int  # c
    reference_length: int  # r

    def __add__(self, other: "Statistics") -> "Statistics":
        return Statistics(
            tuple(map(sum, zip(self.correct, other.correct, strict=True))),
            tuple(map(sum, zip(self.total, other.total, strict=True))),
            self.length + other.length,
            self.reference_length + other.reference_length,
        )

    @property
    def precisions(self) -> list[float]:
        """The precisions p_1 … p_4; a precision without n-grams is 0."""
        return [correct / total if total else 0.0 for correct, total in zip(self.correct, self.total, strict=True)]

    @property
    def brevity_penalty(self) -> float:
        if self.length > self.reference_length:
            return 1.0
        if self.length == 0:
            return 0.0 if self.reference_length else 1.0
        return math.exp(1 - self.reference_length / self.length)

    def bleu(self, order: int = ORDER) -> float:
        """Return BLEU-1 … BLEU-4, from 0 to 100."""
        return 100 * self.brevity_penalty * math.prod(self.precisions[:order]) ** (1 / order)

    def smoothed_precisions(self) -> list[float]:
        """Smooth as sacrebleu's `exp` does: the first p_n of 0 becomes 1/(2 · total), the next 1/(4 · total), …

        The result has fewer than four values if the hypothesis is too short for longer n-grams.
        """
        precisions, divisor = [], 1
        for correct, total in zip(self.correct, self.total, strict=True):
            if total == 0:
                break
            divisor *= 1 if correct else 2
            precisions.append(correct / total if correct else 1 / (divisor * total))
        return precisions

    def smoothed_bleu(self, *, is_corpus: bool = True) -> float:
        """Return BLEU as sacrebleu reports it; for a sentence, the mean covers only the available n-gram orders."""
        precisions = self.smoothed_precisions()
        if not any(self.correct) or (is_corpus and len(precisions) < ORDER):
            return 0.0
        return 100 * self.brevity_penalty * math.prod(precisions) ** (1 / len(precisions))


@dataclass(frozen=True)
class Count:
    """One n-gram of a hypothesis."""

    ngram: Ngram
    count: int  # count in the hypothesis
    reference_count: int  # maximum count in a reference

    @property
    def clipped(self) -> int:
        """The clipped count: the number of matches, limited to the maximum count in any reference."""
        return min(self.count, self.reference_count)

    @property
    def unclipped(self) -> int:
        """The number of matches without clipping."""
        return self.count if self.reference_count else 0


@dataclass(frozen=True)
class Explanation:
    """A sentence with all counts of its BLEU."""

    hypothesis: list[str]
    references: list[list[str]]
    counts: list[list[Count]]  # for n = 1 … ORDER, the distinct n-grams in the order of the hypothesis
    statistics: Statistics


def explain(hypothesis: Tokens, references: Sequence[Tokens]) -> Explanation:
    """Compute the counts and statistics of BLEU for one sentence."""
    counts = [count_ngrams(hypothesis, references, n) for n in range(1, ORDER + 1)]
    statistics = Statistics(
        correct=tuple(sum(count.clipped for count in of_order) for of_order in counts),
        total=tuple(sum(count.count for count in of_order) for of_order in counts),
        length=len(hypothesis),
        reference_length=closest_length(len(hypothesis), map(len, references)),
    )
    return Explanation(list(hypothesis), [list(reference) for reference in references], counts, statistics)


def corpus_statistics(hypotheses: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> Statistics:
    """Sum the statistics of all sentences; `references[i]` are the references of sentence i."""
    total = Statistics((0,) * ORDER, (0,) * ORDER, 0, 0)
    for hypothesis, sentence_references in zip(hypotheses, references, strict=True):
        total += explain(hypothesis, sentence_references).statistics
    return total


def count_ngrams(hypothesis: Tokens, references: Sequence[Tokens], n: int) -> list[Count]:
    """Count the n-grams of a hypothesis and their maximum count in a reference."""
    in_references = [ngrams(reference, n) for reference in references]
    return [
        Count(ngram, count, max(reference[ngram] for reference in in_references))
        for ngram, count in ngrams(hypothesis, n).items()
    ]


def ngrams(tokens: Tokens, n: int) -> Counter[Ngram]:
    """Count the n-grams of a sentence."""
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def closest_length(length: int, references: Iterable[int]) -> int:
    """Return r, the reference length closest to c, or the shorter length if there is a tie."""
    return min(references, key=lambda reference: (abs(reference - length), reference))


# --- explanations ---------------------------------------------------------------------------------------------------


def describe_sentence(explanation: Explanation) -> list[str]:
    """Describe the BLEU of a sentence step by step."""
    statistics, several = explanation.statistics, len(explanation.references) > 1
    texts = {"hypothesis": explanation.hypothesis}
    for number, reference in enumerate(explanation.references, start=1):
        texts[f"reference {number}" if several else "reference"] = reference
    lines = [
        f"{name:11} {len(tokens):3} token{' ' if len(tokens) == 1 else 's'}  {' '.join(tokens)}"
        for name, tokens in texts.items()
    ]
    for n, counts in enumerate(explanation.counts, start=1):
        lines += ["", *_describe_order(n, counts, explanation)]
    lengths = sorted({len(reference) for reference in explanation.references})
    closest = f", the closest of the lengths {', '.join(map(str, lengths))}" if len(lengths) > 1 else ""
    lines += ["", "Brevity penalty for a hypothesis shorter than its reference", *_brevity(statistics, closest)]
    lines += ["", "Geometric mean of the precisions for n-grams up to 1, 2, 3 and 4"]
    lines += [f"  {_mean(statistics, order)}" for order in range(1, ORDER + 1)]
    return [*lines, *_zero(statistics, "the hypothesis"), "", *_smoothing(statistics, is_corpus=False)]


def describe_corpus(total: Statistics, lines: int, sentence: Statistics) -> list[str]:
    """Describe the BLEU of a corpus and the contribution of one sentence."""
    head = (
        f"Corpus of {format_count(lines, 'line')}: corpus BLEU is not the mean of sentence BLEU; "
        "counts and lengths are summed before dividing"
    )
    precisions = [
        f"  {_precision(total, n)}, where this line contributes {correct}/{count}"
        for n, (correct, count) in enumerate(zip(sentence.correct, sentence.total, strict=True), start=1)
    ]
    brevity = _brevity(total, ", the sum of the closest lengths")
    mean = f"  {_mean(total, ORDER)}"
    return [head, *precisions, *brevity, mean, *_zero(total, "a line"), *_smoothing(total, is_corpus=True)]


def _describe_order(n: int, counts: list[Count], explanation: Explanation) -> list[str]:
    """Describe the n-grams of one order: each match on a separate line, and other n-grams in a paragraph."""
    several, statistics = len(explanation.references) > 1, explanation.statistics
    if not counts:
        return [
            f"{n}-grams: a hypothesis of {format_count(len(explanation.hypothesis), 'token')} has none, so p_{n} is 0"
        ]
    limit = "one reference" if several else "the reference"
    lines = [f"{n}-grams of the hypothesis: matches are limited to the count in {limit}"]
    present = [count for count in counts if count.reference_count]
    if present:
        lines.append(f"  {'hypothesis':>10}  {'reference':>9}  {'counts':>6}")
    for count in present:
        lines.append(f"  {count.count:10}  {count.reference_count:9}  {count.clipped:6}   {' '.join(count.ngram)}")
    absent = [
        " ".join(count.ngram) + (f" ({count.count} times)" if count.count > 1 else "")
        for count in counts
        if not count.reference_count
    ]
    if absent:
        wrapper = textwrap.TextWrapper(LINE_WIDTH, " " * 12, " " * 14, break_long_words=False, break_on_hyphens=False)
        lines += wrapper.wrap(f"{'in no reference' if several else 'not in the reference'}: {' | '.join(absent)}")
    unclipped = sum(count.unclipped for count in counts)
    is_clipped = unclipped > statistics.correct[n - 1]
    note = f"   (without clipping it would be {unclipped}/{statistics.total[n - 1]})" if is_clipped else ""
    return [*lines, f"  {_precision(statistics, n)}{note}"]


def _precision(statistics: Statistics, n: int) -> str:
    correct, total = statistics.correct[n - 1], statistics.total[n - 1]
    return f"p_{n} = {correct}/{total} = {statistics.precisions[n - 1]:.4f}" if total else f"p_{n} = 0/0, defined as 0"


def _brevity(statistics: Statistics, closest: str) -> list[str]:
    c, r, penalty = statistics.length, statistics.reference_length, statistics.brevity_penalty
    lengths = f"  c = {format_count(c, 'token')} in the hypothesis, r = {r} in the reference{closest}"
    if c > r:
        return [lengths, "  c > r, so BP = 1"]
    if c == 0:
        return [lengths, f"  the hypothesis is empty, so BP = {penalty:.0f}"]
    sign = "<" if c < r else "="
    return [lengths, f"  c {sign} r, so BP = exp(1 − r/c) = exp(1 − {r}/{c}) = {penalty:.4f}"]


def _mean(statistics: Statistics, order: int) -> str:
    pairs = zip(statistics.correct[:order], statistics.total[:order], strict=True)
    parts = [f"{correct}/{total}" for correct, total in pairs]
    return f"BLEU-{order} = {_power(statistics, parts)} = {statistics.bleu(order):.2f}"


def _power(statistics: Statistics, parts: list[str]) -> str:
    root = f"({' × '.join(parts)})^(1/{len(parts)})" if len(parts) > 1 else parts[0]
    return f"100 × {statistics.brevity_penalty:.4g} × {root}"


def _zero(statistics: Statistics, where: str) -> list[str]:
    """Explain why a mean is 0."""
    if all(statistics.correct):
        return []
    n = statistics.correct.index(0) + 1
    reason = f"there is no {n}-gram: {where} needs at least {format_count(n, 'token')}"
    if statistics.total[n - 1]:
        reason = f"no {n}-gram matches"
    means = f"BLEU-{n} is" if n == ORDER else f"BLEU-{n} and all higher orders are"
    return [f"  one factor is 0 because {reason}, so {means} 0"]


def _smoothing(statistics: Statistics, *, is_corpus: bool) -> list[str]:
    """Describe the score of sacrebleu and its smoothing."""
    value = f"{statistics.smoothed_bleu(is_corpus=is_corpus):.2f}"
    head = f"sacrebleu's score for this {'corpus' if is_corpus else 'line'}: {value}"
    if all(statistics.correct):
        return [f"{head} (it smooths only factors of 0; there are none)"]
    if not any(statistics.correct):
        return [f"{head} (it does not smooth if no token matches)"]
    if is_corpus and not all(statistics.total):
        return [f"{head} (it does not smooth if an order has no n-grams)"]
    orders = zip(statistics.correct, statistics.total, statistics.smoothed_precisions(), strict=False)
    parts = [
        f"{correct}/{total}" if correct else f"{precision * total:.4g}/{total}" for correct, total, precision in orders
    ]
    lines = [head, "  smoothing (exp): the first order without a match counts as 1/2 match, the next as 1/4, and so on"]
    if not all(statistics.total):
        lines.append(f"  for a single line, orders without n-grams are left out: n up to {len(parts)}")
    return [*lines, f"  {_power(statistics, parts)} = {value}"]
