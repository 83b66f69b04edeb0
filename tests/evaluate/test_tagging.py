"""Reports of taggers: words, and spans if the tags mark them."""

import random

import pytest

from seqloom.core.errors import DataError
from seqloom.core.iob import extract_spans, write_tags
from seqloom.evaluate.classification import Hits
from seqloom.evaluate.tagging import report

EXPECTED = [["B-PER", "O", "O", "B-LOC"], ["O", "B-PER", "I-PER"], ["O"]]
PREDICTED = [["B-PER", "O", "O", "I-LOC"], ["O", "B-PER", "O"], ["O"]]


def test_report_metrics_match_manual_counts() -> None:
    result = report(EXPECTED, PREDICTED, ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"])
    assert result.metrics == {
        "span_f1": 2 * 2 / (3 + 3),
        "span_precision": 2 / 3,
        "span_recall": 2 / 3,
        "span_macro_f1": (1 + 1 / 2) / 2,
        "token_accuracy": 6 / 8,
        "majority_tag": 4 / 8,  # O
        "sentence_accuracy": 1 / 3,
        "tag_macro_f1": pytest.approx((0 + 1 + 0 + 0 + 8 / 9) / 5),
    }
    assert result.by_class == {"LOC": Hits(1, 1, 1), "PER": Hits(1, 2, 2)}
    assert result.invalid == 1 and result.unseen == {}  # I-LOC after O is read as a location and counted as invalid
    assert list(result.intervals) == ["span_f1", "token_accuracy", "sentence_accuracy"]
    assert all(low <= result.metrics[name] <= high for name, (low, high) in result.intervals.items())


def test_scheme_affects_only_the_invalid_count() -> None:
    as_bioes = [write_tags(extract_spans(tags), len(tags), "BIOES") for tags in EXPECTED]
    result = report(as_bioes, as_bioes, scheme="BIOES")
    assert result.invalid == 0 and result.metrics["span_f1"] == 1
    assert report(as_bioes, as_bioes).invalid == 2
    assert report(as_bioes, as_bioes).metrics == result.metrics


def test_part_of_speech_tags_have_no_spans() -> None:
    expected = [["DET", "NOUN", "VERB"], ["NOUN", "X"]]
    result = report(expected, [["DET", "NOUN", "NOUN"], ["NOUN", "NOUN"]], ["DET", "NOUN", "VERB"])
    assert result.spans is None and "span_f1" not in result.metrics and result.invalid == 0
    assert result.metrics["token_accuracy"] == 3 / 5 and result.unseen == {"X": 1}
    assert result.by_class["NOUN"] == Hits(2, 4, 2)
    assert report([["O", "B-X"]], [["O", "NOUN"]]).spans is None


def test_token_interval_resamples_sentences() -> None:
    """Ten words that are all correct or all wrong carry no more information than one."""
    draw = random.Random(0)
    right = [draw.random() < 0.8 for _ in range(400)]
    short = report([["A"]] * 400, [["A" if good else "B"] for good in right])
    long = report([["A"] * 10] * 400, [["A" if good else "B"] * 10 for good in right])
    assert short.metrics["token_accuracy"] == long.metrics["token_accuracy"]
    assert short.intervals["token_accuracy"] == pytest.approx(long.intervals["token_accuracy"], abs=1e-9)
    assert long.intervals["token_accuracy"] == pytest.approx(long.intervals["sentence_accuracy"], abs=0.01)


def test_inconsistent_inputs_are_rejected() -> None:
    with pytest.raises(DataError, match="sentence 1 has 1 words and 2 tags"):
        report([["A"]], [["A", "A"]])
    with pytest.raises(DataError, match="have no words"):
        report([[]], [[]])
