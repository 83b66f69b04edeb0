"""Metrics of taggers: token accuracy, and where the tags mark spans, span F1.

    token accuracy = words with the right tag / words      sentence accuracy = sentences without a mistake / sentences

Token accuracy is the metric for parts of speech. Where most words are O it says little: quote span
F1 there. A span is right if its type, its first word and its last word are; half of a name is a
span too many and one too few. Precision, recall and F1 are those of `classification`.

Tags are read as the CoNLL evaluations read them, forgiving what is not valid
(`seqloom.core.iob.spans_of`); with a `strict` scheme only spans that are spelled as the scheme
spells them are read. Both are what seqeval counts.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from seqloom.core.errors import DataError
from seqloom.core.iob import Scheme, Span, marks_spans, read_tags, spans_of, strict_spans
from seqloom.evaluate.classification import Average, Confusion, Hits, macro, micro, unseen_labels
from seqloom.evaluate.intervals import Interval, MetricReport, ratio_interval, wilson

Tags = Sequence[str]


@dataclass(frozen=True)
class SpanScores:
    by_type: dict[str, Hits]  # sorted by name
    sentences: list[dict[str, Hits]]  # the same of each sentence, without types that it has not

    @property
    def micro(self) -> Average:
        """The metrics to report: all types together."""
        return micro(self.by_type.values())

    def interval(self, *, seed: int = 0) -> Interval:
        """Of the micro F1: sentences drawn again, since the spans of one sentence are right or wrong together."""
        sums = [sum(by_type.values(), Hits(0, 0, 0)) for by_type in self.sentences]
        return ratio_interval(((2 * hits.correct, hits.found + hits.expected) for hits in sums), seed=seed)


def score_spans(expected: Sequence[Tags], found: Sequence[Tags], *, strict: Scheme | None = None) -> SpanScores:
    """Compare the spans of sentences, given both taggings."""
    check_aligned(expected, found)
    read: Callable[[Tags], list[Span]] = spans_of if strict is None else partial(strict_spans, scheme=strict)
    sentences = [compare(read(wanted), read(said)) for wanted, said in zip(expected, found, strict=True)]
    total: dict[str, Hits] = {}
    for by_type in sentences:
        for kind, hits in by_type.items():
            total[kind] = total.get(kind, Hits(0, 0, 0)) + hits
    return SpanScores({kind: total[kind] for kind in sorted(total)}, sentences)


def compare(expected: Iterable[Span], found: Iterable[Span]) -> dict[str, Hits]:
    """Count the spans of one sentence, by type."""
    true, said = set(expected), set(found)
    counts = [Counter(span.type for span in spans) for spans in (true & said, said, true)]
    return {kind: Hits(*(count[kind] for count in counts)) for kind in sorted({span.type for span in true | said})}


def check_aligned(expected: Sequence[Tags], found: Sequence[Tags]) -> None:
    """Raise `DataError` unless there is a tag for each word of each sentence."""
    if len(expected) != len(found) or not expected:
        raise DataError(
            f"There must be as many tagged sentences as expected, and at least one: got {len(found)} "
            f"and {len(expected)}."
        )
    for number, (wanted, said) in enumerate(zip(expected, found, strict=True), start=1):
        if len(wanted) != len(said):
            raise DataError(f"Sentence {number} has {len(wanted)} words and {len(said)} tags; there must be as many.")


@dataclass(frozen=True)
class TagReport(MetricReport):
    """Everything an evaluation of a tagger found."""

    confusion: Confusion  # of the words' tags
    spans: SpanScores | None  # None where the tags mark no spans
    invalid: int  # sentences whose tags, as the model gave them, are not valid in the scheme
    unseen: dict[str, int]  # tags that training did not have, and how many words have them

    @property
    def by_class(self) -> dict[str, Hits]:
        """Hits by type of span, else by tag."""
        return self.confusion.hits if self.spans is None else self.spans.by_type

    @property
    def counted(self) -> tuple[str, str]:
        """What `by_class` tells apart, and what it counts."""
        return ("tag", "words") if self.spans is None else ("span", "spans")


def report(
    expected: Sequence[Tags], found: Sequence[Tags], tags: Sequence[str] = (), *, scheme: Scheme = "IOB2", seed: int = 0
) -> TagReport:
    """Measure a tagger's answers. `tags` are those the model knows; `scheme` is that of its tags, if they mark spans.

    Whatever the scheme, invalid sequences are read as leniently as the CoNLL evaluations read them,
    and counted.
    """
    check_aligned(expected, found)
    words, said = list(chain.from_iterable(expected)), list(chain.from_iterable(found))
    if not words:
        raise DataError("There is nothing to evaluate: the sentences have no words. Check the split and its files.")
    confusion = Confusion.of(words, said, tags)
    right = [sum(a == b for a, b in zip(*pair, strict=True)) for pair in zip(expected, found, strict=True)]
    lengths = list(map(len, expected))
    whole = sum(count == length for count, length in zip(right, lengths, strict=True))
    metrics = {
        "token_accuracy": sum(right) / len(words),
        "sentence_accuracy": whole / len(expected),
        "tag_macro_f1": macro(confusion.hits.values()).f1,
    }
    intervals = {
        # sentences are drawn again, not words: those of one sentence are right or wrong together
        "token_accuracy": ratio_interval(zip(right, lengths, strict=True), seed=seed),
        "sentence_accuracy": wilson(whole, len(expected)),
    }
    spans = score_spans(expected, found) if marks_spans([*tags, *words, *said]) else None
    if spans is not None:
        average = {f"span_{name}": value for name, value in spans.micro._asdict().items()}
        metrics = {"span_f1": spans.micro.f1, **average, "span_macro_f1": macro(spans.by_type.values()).f1, **metrics}
        intervals = {"span_f1": spans.interval(seed=seed), **intervals}
    return TagReport(
        metrics=metrics,
        intervals=intervals,
        confusion=confusion,
        spans=spans,
        invalid=sum(bool(read_tags(own, scheme).mistakes) for own in found) if spans is not None else 0,
        unseen=unseen_labels(words, tags) if tags else {},
    )
