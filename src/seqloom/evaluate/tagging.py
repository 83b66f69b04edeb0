"""How good the tags of a text's words are: token accuracy, and where the tags mark spans, how many were found.

    token accuracy = words with the right tag / words      sentence accuracy = sentences without a mistake / sentences

Token accuracy is the figure for parts of speech. Where most words are O it says little: quote span F1 there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from seqloom.core.errors import DataError
from seqloom.core.iob import Scheme, marks_spans, read_tags
from seqloom.evaluate.classification import Confusion, unseen_labels
from seqloom.evaluate.hits import Hits, macro
from seqloom.evaluate.intervals import Interval, ratio_interval, wilson
from seqloom.evaluate.spans import SpanScores, Tags, check_aligned, score_spans


@dataclass(frozen=True)
class TagReport:
    """Everything an evaluation of a tagger found."""

    metrics: dict[str, float]
    intervals: dict[str, Interval]  # of some of the metrics, 95 %
    confusion: Confusion  # of the words' tags
    spans: SpanScores | None  # None where the tags mark no spans
    invalid: int  # sentences whose tags, as the model gave them, are not valid in the scheme
    unseen: dict[str, int]  # tags that training did not have, and how many words have them

    def kept(self) -> dict[str, Any]:
        """What a run keeps of it."""
        return {**self.metrics, "intervals": {name: list(interval) for name, interval in self.intervals.items()}}

    @property
    def by_class(self) -> dict[str, Hits]:
        """By type of span, else by tag."""
        return self.confusion.hits if self.spans is None else self.spans.by_type

    @property
    def counted(self) -> tuple[str, str]:
        """What `by_class` tells apart, and what it counts."""
        return ("tag", "words") if self.spans is None else ("span", "spans")


def report(
    expected: Sequence[Tags], found: Sequence[Tags], tags: Sequence[str] = (), *, scheme: Scheme = "IOB2", seed: int = 0
) -> TagReport:
    """Measure a tagger's answers. `tags` are those the model knows; `scheme` is that of its tags, if they mark spans.

    Whatever the scheme, invalid sequences are read as leniently as the CoNLL evaluations read them, and counted.
    """
    check_aligned(expected, found)
    words, said = list(chain.from_iterable(expected)), list(chain.from_iterable(found))
    if not words:
        raise DataError("There is nothing to evaluate: the sentences have no words. Check the split and its files.")
    confusion = Confusion.of(words, said, tags)
    right = [sum(a == b for a, b in zip(*pair, strict=True)) for pair in zip(expected, found, strict=True)]
    whole = sum(count == len(own) for count, own in zip(right, expected, strict=True))
    metrics = {
        "token_accuracy": sum(right) / len(words),
        "sentence_accuracy": whole / len(expected),
        "tag_macro_f1": macro(confusion.hits.values()).f1,
    }
    intervals = {
        # sentences are drawn again, not words: those of one sentence are right or wrong together
        "token_accuracy": ratio_interval(zip(right, map(len, expected), strict=True), seed=seed),
        "sentence_accuracy": wilson(whole, len(expected)),
    }
    spans = score_spans(expected, found) if marks_spans([*tags, *words, *said]) else None
    if spans is not None:
        metrics = {
            "span_f1": spans.micro.f1,
            "span_precision": spans.micro.precision,
            "span_recall": spans.micro.recall,
            "span_macro_f1": spans.macro.f1,
            **metrics,
        }
        intervals = {"span_f1": spans.interval(seed=seed), **intervals}
    return TagReport(
        metrics=metrics,
        intervals=intervals,
        confusion=confusion,
        spans=spans,
        invalid=sum(bool(read_tags(own, scheme).mistakes) for own in found) if spans is not None else 0,
        unseen=unseen_labels(words, tags) if tags else {},
    )
