"""Metrics of taggers: token accuracy, and span F1 for tags that mark spans.

    token accuracy = words with the correct tag / words      sentence accuracy = correct sentences / sentences

Report token accuracy for part-of-speech tagging, and span F1 if most words have the tag O. A span is
correct if its type, first word and last word are correct. A partial match is both a false positive and a
false negative. `classification` defines precision, recall and F1.

By default, tags are read leniently as in the CoNLL evaluations (`seqloom.core.iob.extract_spans`). With a
`strict` scheme, only valid spans of the scheme count. The results of both methods equal the results of
seqeval.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from seqloom.core.errors import DataError
from seqloom.core.iob import Scheme, Span, extract_spans, extract_strict_spans, marks_spans, read_tags
from seqloom.evaluate.classification import Average, Confusion, Hits, describe_classes, macro, micro, unseen_labels
from seqloom.evaluate.intervals import Interval, MetricReport, ratio_interval, wilson

Tags = Sequence[str]


@dataclass(frozen=True)
class SpanScores:
    by_type: dict[str, Hits]  # sorted by name
    sentences: list[dict[str, Hits]]  # for each sentence, the types that occur in it

    @property
    def micro(self) -> Average:
        """The average over all spans, which is the metric to report."""
        return micro(self.by_type.values())

    def interval(self, *, seed: int = 0) -> Interval:
        """Return the bootstrap interval of the micro F1; sentences are resampled because their spans are correlated."""
        sums = [sum(by_type.values(), Hits(0, 0, 0)) for by_type in self.sentences]
        return ratio_interval(((2 * hits.correct, hits.predicted + hits.expected) for hits in sums), seed=seed)


def score_spans(expected: Sequence[Tags], predicted: Sequence[Tags], *, strict: Scheme | None = None) -> SpanScores:
    """Compare the spans of expected and predicted tags."""
    check_aligned(expected, predicted)
    read: Callable[[Tags], list[Span]] = (
        extract_spans if strict is None else partial(extract_strict_spans, scheme=strict)
    )
    sentences = [compare_spans(read(gold), read(tags)) for gold, tags in zip(expected, predicted, strict=True)]
    total: dict[str, Hits] = {}
    for by_type in sentences:
        for kind, hits in by_type.items():
            total[kind] = total.get(kind, Hits(0, 0, 0)) + hits
    return SpanScores({kind: total[kind] for kind in sorted(total)}, sentences)


def compare_spans(expected: Iterable[Span], predicted: Iterable[Span]) -> dict[str, Hits]:
    """Count the spans of one sentence by type."""
    gold, spans = set(expected), set(predicted)
    counts = [Counter(span.type for span in part) for part in (gold & spans, spans, gold)]
    return {kind: Hits(*(count[kind] for count in counts)) for kind in sorted({span.type for span in gold | spans})}


def check_aligned(expected: Sequence[Tags], predicted: Sequence[Tags]) -> None:
    """Raise `DataError` unless every word of every sentence has a tag."""
    if len(expected) != len(predicted) or not expected:
        raise DataError(
            f"There must be at least one sentence and a prediction for each: got {len(predicted)} tagged sentences "
            f"for {len(expected)}."
        )
    for number, (gold, tags) in enumerate(zip(expected, predicted, strict=True), start=1):
        if len(gold) != len(tags):
            raise DataError(
                f"Every word needs one tag, but sentence {number} has {len(gold)} words and {len(tags)} tags."
            )


@dataclass(frozen=True)
class TagReport(MetricReport):
    """The evaluation of a tagger."""

    confusion: Confusion  # confusion of the words' tags
    spans: SpanScores | None  # None if the tags do not mark spans
    invalid: int  # number of sentences with predicted tags that are invalid in the scheme
    unseen: dict[str, int]  # tags absent from training, and their number of words

    @property
    def by_class(self) -> dict[str, Hits]:
        """Hits by span type, or by tag if the tags do not mark spans."""
        return self.confusion.hits if self.spans is None else self.spans.by_type

    def to_dict(self) -> dict[str, object]:
        return {**super().to_dict(), "by_class": describe_classes(self.by_class)}

    @property
    def counted(self) -> tuple[str, str]:
        """The kind of groups in `by_class`, and the unit of their counts."""
        return ("tag", "words") if self.spans is None else ("span", "spans")


def report(
    expected: Sequence[Tags],
    predicted: Sequence[Tags],
    tags: Sequence[str] = (),
    *,
    scheme: Scheme = "IOB2",
    seed: int = 0,
) -> TagReport:
    """Evaluate predicted tags; `tags` are the tags of the model, and `scheme` is the scheme of span tags.

    Invalid sequences are counted and read leniently, as in the CoNLL evaluations.
    """
    check_aligned(expected, predicted)
    words, flat = list(chain.from_iterable(expected)), list(chain.from_iterable(predicted))
    if not words:
        raise DataError("The sentences have no words to evaluate. Check the split and its files.")
    confusion = Confusion.of(words, flat, tags)
    correct = [sum(a == b for a, b in zip(*pair, strict=True)) for pair in zip(expected, predicted, strict=True)]
    lengths = list(map(len, expected))
    correct_sentences = sum(count == length for count, length in zip(correct, lengths, strict=True))
    metrics = {
        "token_accuracy": sum(correct) / len(words),
        "majority_tag": max(confusion.support) / len(words),
        "sentence_accuracy": correct_sentences / len(expected),
        "tag_macro_f1": macro(confusion.hits.values()).f1,
    }
    intervals = {
        # Resample sentences, because the words of a sentence are correlated.
        "token_accuracy": ratio_interval(zip(correct, lengths, strict=True), seed=seed),
        "sentence_accuracy": wilson(correct_sentences, len(expected)),
    }
    spans = score_spans(expected, predicted) if marks_spans([*tags, *words, *flat]) else None
    if spans is not None:
        average = {f"span_{name}": value for name, value in spans.micro._asdict().items()}
        metrics = {"span_f1": spans.micro.f1, **average, "span_macro_f1": macro(spans.by_type.values()).f1, **metrics}
        intervals = {"span_f1": spans.interval(seed=seed), **intervals}
    return TagReport(
        metrics=metrics,
        intervals=intervals,
        confusion=confusion,
        spans=spans,
        invalid=sum(bool(read_tags(row, scheme).mistakes) for row in predicted) if spans is not None else 0,
        unseen=unseen_labels(words, tags) if tags else {},
    )
