"""Span scores compared with seqeval: 10,000 random sentences in every scheme, valid and invalid."""

import random
import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest

from seqloom.core.errors import DataError
from seqloom.core.iob import Scheme, Span, extract_spans, extract_strict_spans, write_tags
from seqloom.evaluate.classification import Hits, macro, micro, weighted
from seqloom.evaluate.tagging import compare_spans, score_spans

TYPES = ["PER", "LOC", "ORG-x"]
SENTENCES = 10_000
Pairs = tuple[list[list[str]], list[list[str]]]


def random_pairs(prefixes: str, seed: int, count: int = SENTENCES) -> Pairs:
    """Draw random tags, mostly invalid, and a copy with some changes."""
    draw = random.Random(seed)
    tags = ["O"] * 3 + [f"{prefix}-{kind}" for prefix in prefixes for kind in TYPES]
    expected = [[draw.choice(tags) for _ in range(draw.randint(1, 12))] for _ in range(count)]
    return expected, [[tag if draw.random() < 0.8 else draw.choice(tags) for tag in sentence] for sentence in expected]


def valid_pairs(scheme: Scheme, seed: int, count: int = 1000) -> Pairs:
    """Draw valid sequences, and other sequences of the same lengths that often agree with them."""
    both: Pairs = ([], [])
    for pair in zip(*random_pairs("BI", seed, count), strict=True):
        for side, tags in zip(both, pair, strict=True):
            side.append(write_tags(extract_spans(tags), len(tags), scheme))
    return both


def seqeval_scores(expected: Any, predicted: Any, scheme: str | None, average: str | None) -> Any:
    """Return precision, recall, F1 and support of seqeval, by type or averaged."""
    if scheme is None:
        lenient = pytest.importorskip("seqeval.metrics.sequence_labeling")
        return lenient.precision_recall_fscore_support(expected, predicted, average=average, zero_division=0)
    strict = pytest.importorskip("seqeval.metrics.v1")
    schemes = pytest.importorskip("seqeval.scheme")
    kind = getattr(schemes, {"BIOES": "IOBES"}.get(scheme, scheme))
    return strict.precision_recall_fscore_support(expected, predicted, average=average, zero_division=0, scheme=kind)


def assert_equals_seqeval(pairs: Pairs, strict: Scheme | None) -> None:
    ours = score_spans(*pairs, strict=strict)
    rows = [(score.precision, score.recall, score.f1, score.expected) for score in ours.by_type.values()]
    np.testing.assert_allclose(np.transpose(rows), seqeval_scores(*pairs, strict, None), rtol=1e-12)
    assert all(
        0 < score.f1 < 1 for score in ours.by_type.values()
    )  # negative control: some spans are correct, and some are wrong
    first: Any = tuple(side[:500] for side in pairs)  # averages are computed from the same counts
    scores = score_spans(*first, strict=strict)
    assert scores.micro == micro(scores.by_type.values())
    for name, average in {"micro": micro, "macro": macro, "weighted": weighted}.items():
        theirs = seqeval_scores(first[0], first[1], strict, name)
        np.testing.assert_allclose(average(scores.by_type.values()), theirs[:3], rtol=1e-12)


@pytest.mark.parametrize("prefixes", ["BI", "BIES"])
def test_lenient_scores_match_seqeval(prefixes: str) -> None:
    assert_equals_seqeval(random_pairs(prefixes, 1), None)


@pytest.mark.parametrize(("prefixes", "scheme"), [("BI", "IOB1"), ("BI", "IOB2"), ("BIES", "BIOES")])
def test_strict_scores_match_seqeval(prefixes: str, scheme: Scheme) -> None:
    assert_equals_seqeval(random_pairs(prefixes, 2), scheme)


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "BIOES"])
def test_strict_and_lenient_agree_on_valid_sequences(scheme: Scheme) -> None:
    pairs = valid_pairs(scheme, 3)
    assert_equals_seqeval(pairs, None)
    assert_equals_seqeval(pairs, scheme)
    assert score_spans(*pairs) == score_spans(*pairs, strict=scheme)


@pytest.mark.parametrize(("prefixes", "scheme"), [("BI", "IOB1"), ("BI", "IOB2"), ("BIES", "BIOES")])
def test_spans_match_seqeval_in_each_sentence(prefixes: str, scheme: Scheme) -> None:
    """Compare all sequences of up to four tags of two types, then long random sequences."""
    entities = pytest.importorskip("seqeval.metrics.sequence_labeling").get_entities
    schemes = pytest.importorskip("seqeval.scheme")
    kind = getattr(schemes, {"BIOES": "IOBES"}.get(scheme, scheme))
    alphabet = ["O", *(f"{prefix}{suffix}" for prefix in prefixes for suffix in ("-X", "-Y"))]
    short = (tags for length in range(1, 5) for tags in product(alphabet, repeat=length))
    for tags in (*short, *random_pairs(prefixes, 4, 3000)[0]):
        assert [(span.type, span.start, span.end - 1) for span in extract_spans(tags)] == entities(list(tags)), tags
        strict = [(entity.tag, entity.start, entity.end) for entity in schemes.Tokens(tags, kind).entities]
        assert strict == extract_strict_spans(tags, scheme), tags


def test_bare_tags_have_no_type() -> None:
    """seqeval uses `_` for the missing type."""
    entities = pytest.importorskip("seqeval.metrics.sequence_labeling").get_entities
    tags = ["B", "I", "O", "I", "B"]
    assert [(span.type or "_", span.start, span.end - 1) for span in extract_spans(tags)] == entities(tags)


def test_partial_match_is_false_positive_and_false_negative() -> None:
    expected = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "O"]]
    predicted = [["B-PER", "O", "O", "B-LOC"], ["B-LOC", "O"]]
    scores = score_spans(expected, predicted)
    assert scores.by_type == {"LOC": Hits(1, 2, 1), "PER": Hits(0, 1, 1)}
    assert scores.micro == (1 / 3, 1 / 2, 2 / 5)
    assert scores.sentences == [{"LOC": Hits(1, 1, 1), "PER": Hits(0, 1, 1)}, {"LOC": Hits(0, 1, 0)}]
    assert compare_spans([Span("A", 0, 2)], [Span("B", 0, 2)]) == {"A": Hits(0, 0, 1), "B": Hits(0, 1, 0)}


def test_scores_without_spans_are_zero() -> None:
    scores = score_spans([["O", "O"]], [["O", "O"]])
    assert not scores.by_type
    assert [average(scores.by_type.values()) for average in (micro, macro, weighted)] == [(0, 0, 0)] * 3
    assert scores.interval() == (0, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert seqeval_scores([["O", "O"]], [["O", "O"]], None, "micro")[2] == 0


def test_interval_resamples_sentences() -> None:
    """Joining ten copies of each of a hundred sentences must not narrow the interval."""
    once = random_pairs("BI", 6, 100)
    separate: Any = tuple([sentence for sentence in side for _ in range(10)] for side in once)
    joined: Any = tuple([[*sentence, "O"] * 10 for sentence in side] for side in once)
    many, few = score_spans(*separate), score_spans(*joined)
    assert many.by_type == few.by_type
    wide, narrow = few.interval(), many.interval()
    assert wide.low < narrow.low < many.micro.f1 < narrow.high < wide.high
    assert (wide.high - wide.low) / (narrow.high - narrow.low) == pytest.approx(10**0.5, rel=0.15)
    assert narrow == many.interval(seed=0) != many.interval(seed=1)


def test_inconsistent_inputs_are_rejected() -> None:
    with pytest.raises(DataError, match=r"a prediction for each: got 2 tagged sentences for 1"):
        score_spans([["O"]], [["O"], ["O"]])
    with pytest.raises(DataError, match="got 0 tagged sentences for 0"):
        score_spans([], [])
    with pytest.raises(DataError, match="sentence 2 has 2 words and 1 tags"):
        score_spans([["O"], ["O", "O"]], [["O"], ["O"]])
    with pytest.raises(DataError, match="got 'NOUN'"):
        score_spans([["O"]], [["NOUN"]])
