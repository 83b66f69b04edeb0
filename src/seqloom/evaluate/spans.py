"""How many of the spans in a text were found: persons, places, phrases.

A span is right if its type, its first word and its last word are. Half of a name is a span too many and one too few.

    precision = right / found      recall = right / expected      F1 = 2 · right / (found + expected)

Tags are read as the CoNLL evaluations read them, forgiving what is not valid (`seqloom.core.iob.spans_of`); with a
`strict` scheme only spans that are spelled as the scheme spells them are read. Both are what seqeval counts.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from seqloom.core.errors import DataError
from seqloom.core.iob import Scheme, Span, spans_of, strict_spans
from seqloom.evaluate.hits import Average, Hits, macro, micro, weighted
from seqloom.evaluate.intervals import Interval, ratio_interval

Tags = Sequence[str]


@dataclass(frozen=True)
class SpanScores:
    by_type: dict[str, Hits]  # sorted by name
    sentences: list[dict[str, Hits]]  # the same of each sentence, without types that it has not

    @property
    def micro(self) -> Average:
        """The figures to report: all types together."""
        return micro(self.by_type.values())

    @property
    def macro(self) -> Average:
        return macro(self.by_type.values())

    @property
    def weighted(self) -> Average:
        return weighted(self.by_type.values())

    def interval(self, *, seed: int = 0) -> Interval:
        """Of the micro F1: sentences drawn again, since the spans of one sentence are right or wrong together."""
        sums = [sum(own.values(), Hits(0, 0, 0)) for own in self.sentences]
        return ratio_interval(((2 * one.correct, one.found + one.expected) for one in sums), seed=seed)


def score_spans(expected: Sequence[Tags], found: Sequence[Tags], *, strict: Scheme | None = None) -> SpanScores:
    """Compare the tags of sentences, as many of each."""
    check_aligned(expected, found)
    read: Callable[[Tags], list[Span]] = spans_of if strict is None else partial(strict_spans, scheme=strict)
    sentences = [compare(read(one), read(other)) for one, other in zip(expected, found, strict=True)]
    total: dict[str, Hits] = {}
    for own in sentences:
        for kind, hits in own.items():
            total[kind] = total.get(kind, Hits(0, 0, 0)) + hits
    return SpanScores({kind: total[kind] for kind in sorted(total)}, sentences)


def compare(expected: Iterable[Span], found: Iterable[Span]) -> dict[str, Hits]:
    """The spans of one sentence, by type."""
    true, said = set(expected), set(found)
    counts = [Counter(span.type for span in spans) for spans in (true & said, said, true)]
    return {kind: Hits(*(count[kind] for count in counts)) for kind in sorted({span.type for span in true | said})}


def check_aligned(expected: Sequence[Tags], found: Sequence[Tags]) -> None:
    if len(expected) != len(found) or not expected:
        raise DataError(
            f"There must be as many tagged sentences as expected, and at least one: got {len(found)} "
            f"and {len(expected)}."
        )
    for number, (one, other) in enumerate(zip(expected, found, strict=True), start=1):
        if len(one) != len(other):
            raise DataError(f"Sentence {number} has {len(one)} words and {len(other)} tags; there must be as many.")
