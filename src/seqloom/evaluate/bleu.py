"""BLEU by hand: what is counted, clipped, divided and averaged until a translation has its score.

    p_n    = Σ_g min(count of g in the hypothesis, most often g is in one reference) / n-grams in the hypothesis
    BP     = exp(1 − r/c) if c ≤ r, else 1      c tokens in the hypothesis, r in the reference closest in length
    BLEU-N = BP · (p_1 · … · p_N)^(1/N)

g runs over the n-grams of the hypothesis. Of two references equally close in length the shorter one
counts. For a whole text the counts and lengths of all its sentences are added up first, then
divided: it is not the mean of its sentences.

Everything is of given tokens. The scores to report are sacrebleu's
(`seqloom.evaluate.translation`); these are proven equal to them, statistic by statistic.
"""

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from seqloom.core.words import counted

ORDER = 4  # the longest n-grams counted
WIDTH = 110  # of the lines of an explanation

Tokens = Sequence[str]
Ngram = tuple[str, ...]


@dataclass(frozen=True)
class Statistics:
    """All that BLEU is made of, for a sentence or, added up, for a text."""

    correct: tuple[int, ...]  # n-grams of the hypothesis that count as right, n = 1 … ORDER
    total: tuple[int, ...]  # n-grams of the hypothesis
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
        """p_1 … p_4; of n-grams that are not there, 0."""
        return [right / all_ if all_ else 0.0 for right, all_ in zip(self.correct, self.total, strict=True)]

    @property
    def brevity_penalty(self) -> float:
        if self.length > self.reference_length:
            return 1.0
        if self.length == 0:
            return 0.0 if self.reference_length else 1.0
        return math.exp(1 - self.reference_length / self.length)

    def bleu(self, order: int = ORDER) -> float:
        """BLEU-1 … BLEU-4, from 0 to 100."""
        return 100 * self.brevity_penalty * math.prod(self.precisions[:order]) ** (1 / order)

    def smoothed_precisions(self) -> list[float]:
        """As sacrebleu's `exp` smoothing has them: the first p_n of 0 becomes 1/(2 · total), the next 1/(4 · total) …

        There are fewer than four where the hypothesis is too short to have longer n-grams.
        """
        found, halves = [], 1
        for right, all_ in zip(self.correct, self.total, strict=True):
            if all_ == 0:
                break
            halves *= 1 if right else 2
            found.append(right / all_ if right else 1 / (halves * all_))
        return found

    def smoothed_bleu(self, *, whole: bool = True) -> float:
        """As sacrebleu reports it: of a whole text, or of a sentence, whose mean is of the n-grams that it has."""
        precisions = self.smoothed_precisions()
        if not any(self.correct) or (whole and len(precisions) < ORDER):
            return 0.0
        return 100 * self.brevity_penalty * math.prod(precisions) ** (1 / len(precisions))


@dataclass(frozen=True)
class Count:
    """One n-gram of a hypothesis."""

    ngram: Ngram
    count: int  # in the hypothesis
    most: int  # in the reference that has it most often

    @property
    def clipped(self) -> int:
        """How many of them count as right: no more than a reference has."""
        return min(self.count, self.most)

    @property
    def unclipped(self) -> int:
        return self.count if self.most else 0


@dataclass(frozen=True)
class Explanation:
    """A sentence, and everything that was counted for its BLEU."""

    hypothesis: list[str]
    references: list[list[str]]
    counts: list[list[Count]]  # for n = 1 … ORDER, each n-gram once, in the order of the hypothesis
    statistics: Statistics


def explain(hypothesis: Tokens, references: Sequence[Tokens]) -> Explanation:
    """Count all that BLEU is made of for one sentence."""
    counts = [count_ngrams(hypothesis, references, n) for n in range(1, ORDER + 1)]
    statistics = Statistics(
        correct=tuple(sum(count.clipped for count in of_order) for of_order in counts),
        total=tuple(sum(count.count for count in of_order) for of_order in counts),
        length=len(hypothesis),
        reference_length=closest_length(len(hypothesis), map(len, references)),
    )
    return Explanation(list(hypothesis), [list(reference) for reference in references], counts, statistics)


def corpus_statistics(hypotheses: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> Statistics:
    """The sum over all sentences; `references[i]` are those of sentence i."""
    total = Statistics((0,) * ORDER, (0,) * ORDER, 0, 0)
    for hypothesis, own in zip(hypotheses, references, strict=True):
        total += explain(hypothesis, own).statistics
    return total


def count_ngrams(hypothesis: Tokens, references: Sequence[Tokens], n: int) -> list[Count]:
    inside = [ngrams(reference, n) for reference in references]
    return [
        Count(ngram, count, max(reference[ngram] for reference in inside))
        for ngram, count in ngrams(hypothesis, n).items()
    ]


def ngrams(tokens: Tokens, n: int) -> Counter[Ngram]:
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def closest_length(length: int, references: Iterable[int]) -> int:
    """r: the reference length nearest to c, the shorter of two equally near."""
    return min(references, key=lambda reference: (abs(reference - length), reference))


# --- in words -------------------------------------------------------------------------------------------------------


def in_words(found: Explanation) -> list[str]:
    """Describe a sentence's BLEU step by step, with its own numbers."""
    own, several = found.statistics, len(found.references) > 1
    texts = {"hypothesis": found.hypothesis}
    for number, reference in enumerate(found.references, start=1):
        texts[f"reference {number}" if several else "reference"] = reference
    lines = [
        f"{name:11} {len(tokens):3} token{' ' if len(tokens) == 1 else 's'}  {' '.join(tokens)}"
        for name, tokens in texts.items()
    ]
    for n, counts in enumerate(found.counts, start=1):
        lines += ["", *_order_in_words(n, counts, found)]
    lengths = sorted({len(reference) for reference in found.references})
    closest = f", the closest of the lengths {', '.join(map(str, lengths))}" if len(lengths) > 1 else ""
    lines += ["", "Brevity penalty: a hypothesis shorter than its reference pays for it", *_brevity(own, closest)]
    lines += ["", "The geometric mean of the precisions, for n-grams up to 1, 2, 3 and 4"]
    lines += [f"  {_mean(own, order)}" for order in range(1, ORDER + 1)]
    return [*lines, *_zero(own, "the hypothesis"), "", *_smoothing(own, whole=False)]


def corpus_in_words(total: Statistics, lines: int, own: Statistics) -> list[str]:
    """Describe how the BLEU of a whole text comes about, and what one of its lines had to do with it."""
    head = (
        f"The whole text, {counted(lines, 'line')}: its BLEU is not the mean of theirs; "
        "counts and lengths are added up first, then divided"
    )
    precisions = [
        f"  {_precision(total, n)}, where this line gives {right}/{all_}"
        for n, (right, all_) in enumerate(zip(own.correct, own.total, strict=True), start=1)
    ]
    brevity = _brevity(total, ", the closest lengths added up")
    mean = f"  {_mean(total, ORDER)}"
    return [head, *precisions, *brevity, mean, *_zero(total, "any line"), *_smoothing(total, whole=True)]


def _order_in_words(n: int, counts: list[Count], found: Explanation) -> list[str]:
    """Describe the n-grams of one order: those in a reference one by one, the others in a paragraph."""
    several, own = len(found.references) > 1, found.statistics
    if not counts:
        return [f"{n}-grams: a hypothesis of {counted(len(found.hypothesis), 'token')} has none, so p_{n} is 0"]
    most = "one reference" if several else "the reference"
    lines = [f"{n}-grams of the hypothesis: of each, no more count as right than {most} has"]
    present = [count for count in counts if count.most]
    if present:
        lines.append(f"  {'hypothesis':>10}  {'reference':>9}  {'counts':>6}")
    lines += [f"  {one.count:10}  {one.most:9}  {one.clipped:6}   {' '.join(one.ngram)}" for one in present]
    absent = [
        " ".join(one.ngram) + (f" ({one.count} times)" if one.count > 1 else "") for one in counts if not one.most
    ]
    if absent:
        wrapper = textwrap.TextWrapper(WIDTH, " " * 12, " " * 14, break_long_words=False, break_on_hyphens=False)
        lines += wrapper.wrap(f"{'in no reference' if several else 'not in the reference'}: {' | '.join(absent)}")
    unclipped = sum(count.unclipped for count in counts)
    clipped = unclipped > own.correct[n - 1]
    control = f"   (without clipping it would be {unclipped}/{own.total[n - 1]})" if clipped else ""
    return [*lines, f"  {_precision(own, n)}{control}"]


def _precision(own: Statistics, n: int) -> str:
    if own.total[n - 1] == 0:
        return f"p_{n} = 0/0, taken as 0"
    return f"p_{n} = {own.correct[n - 1]}/{own.total[n - 1]} = {own.precisions[n - 1]:.4f}"


def _brevity(own: Statistics, closest: str) -> list[str]:
    c, r = own.length, own.reference_length
    lengths = f"  c = {counted(c, 'token')} in the hypothesis, r = {r} in the reference{closest}"
    if c > r:
        return [lengths, "  c > r, so BP = 1"]
    if c == 0:
        return [lengths, f"  nothing was said, so BP = {own.brevity_penalty:.0f}"]
    sign = "<" if c < r else "="
    return [lengths, f"  c {sign} r, so BP = exp(1 − r/c) = exp(1 − {r}/{c}) = {own.brevity_penalty:.4f}"]


def _mean(own: Statistics, order: int) -> str:
    parts = [f"{right}/{all_}" for right, all_ in zip(own.correct[:order], own.total[:order], strict=True)]
    return f"BLEU-{order} = {_power(own, parts)} = {own.bleu(order):.2f}"


def _power(own: Statistics, parts: list[str]) -> str:
    root = f"({' × '.join(parts)})^(1/{len(parts)})" if len(parts) > 1 else parts[0]
    return f"100 × {own.brevity_penalty:.4g} × {root}"


def _zero(own: Statistics, where: str) -> list[str]:
    """Explain why a mean is 0, where one is."""
    if all(own.correct):
        return []
    n = own.correct.index(0) + 1
    why = f"there is no {n}-gram: {where} would need at least {counted(n, 'token')}"
    if own.total[n - 1]:
        why = f"no {n}-gram is right"
    return [f"  BLEU-{n}{'' if n == ORDER else ' and what follows'} is 0 because {why}; one factor of 0 makes it so"]


def _smoothing(own: Statistics, *, whole: bool) -> list[str]:
    """State what sacrebleu reports, and why that is another value where it is."""
    value = f"{own.smoothed_bleu(whole=whole):.2f}"
    head = f"sacrebleu's figure for this {'text' if whole else 'line'}: {value}"
    if all(own.correct):
        return [f"{head} (it smooths, but only factors of 0; there are none)"]
    if not any(own.correct):
        return [f"{head} (where no token at all is right it does not smooth)"]
    if whole and not all(own.total):
        return [f"{head} (n-grams that are not there cannot be smoothed)"]
    parts = [
        f"{right}/{all_}" if right else f"{precision * all_:.4g}/{all_}"
        for right, all_, precision in zip(own.correct, own.total, own.smoothed_precisions(), strict=False)
    ]
    lines = [
        head,
        "  it smooths (exp): where none is right it counts 1/2 for the first such n, 1/4 for the next, and so on",
    ]
    if not all(own.total):
        lines.append(f"  and in a single line it leaves out n-grams that are not there: n up to {len(parts)}")
    return [*lines, f"  {_power(own, parts)} = {value}"]
