"""Spans and tags: round trips in every scheme, validity, and repair of invalid sequences."""

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.core.errors import DataError
from seqloom.core.iob import (
    SCHEMES,
    Scheme,
    Span,
    detect_scheme,
    extract_spans,
    extract_strict_spans,
    marks_spans,
    may_follow,
    parse_tag,
    read_tags,
    write_tags,
)

PREFIXES: dict[Scheme, str] = {"IOB1": "BI", "IOB2": "BI", "BIOES": "BIES"}
PANKAJ = [Span("PER", 0, 2), Span("LOC", 4, 6), Span("LOC", 6, 7)]
TAGS: dict[Scheme, str] = {
    "IOB1": "I-PER I-PER O O I-LOC I-LOC B-LOC",
    "IOB2": "B-PER I-PER O O B-LOC I-LOC B-LOC",
    "BIOES": "B-PER E-PER O O B-LOC E-LOC S-LOC",
}


def alphabet(scheme: Scheme, types: str = "XY") -> list[str]:
    return ["O", *(f"{prefix}-{kind}" for prefix in PREFIXES[scheme] for kind in types)]


@st.composite
def sentences(draw: st.DrawFn) -> tuple[list[Span], int]:
    """Draw spans without overlap, some of which are adjacent, and a number of words."""
    spans, position = [], 0
    for _ in range(draw(st.integers(0, 5))):
        start = position + draw(st.integers(0, 2))
        position = start + draw(st.integers(1, 4))
        spans.append(Span(draw(st.sampled_from(["PER", "LOC", "a-b", ""])), start, position))
    return spans, position + draw(st.integers(0, 2))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_gives_the_tags_of_the_worked_example(scheme: Scheme) -> None:
    tags = TAGS[scheme].split()
    assert write_tags(PANKAJ, 7, scheme) == tags
    assert extract_spans(tags) == extract_strict_spans(tags, scheme) == PANKAJ
    assert read_tags(tags, scheme) == (PANKAJ, [])
    assert detect_scheme([tags]) == scheme


@pytest.mark.parametrize("scheme", SCHEMES)
@given(sentences())
def test_tags_round_trip(scheme: Scheme, sentence: tuple[list[Span], int]) -> None:
    spans, length = sentence
    tags = write_tags(spans[::-1], length, scheme)
    assert len(tags) == length and extract_spans(tags) == extract_strict_spans(tags, scheme) == spans
    assert read_tags(tags, scheme).mistakes == []
    assert read_tags(tags, detect_scheme([tags])).mistakes == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_sequence_is_valid_if_and_only_if_all_adjacent_pairs_are(scheme: Scheme) -> None:
    """Two definitions of validity agree on every sequence of up to four tags, and valid sequences have unique spans."""
    for length in range(5):
        seen: dict[tuple[Span, ...], tuple[str, ...]] = {}
        for tags in product(alphabet(scheme), repeat=length):
            spans, mistakes = read_tags(tags, scheme)
            valid = all(may_follow(before, tag, scheme) for before, tag in pairwise([None, *tags, None]))
            assert valid == (not mistakes), tags
            if valid:
                assert seen.setdefault(tuple(spans), tags) == tags


@pytest.mark.parametrize("scheme", SCHEMES)
@given(st.lists(st.sampled_from(alphabet("BIOES")), max_size=12))
def test_repair_keeps_spans_and_is_valid(scheme: Scheme, tags: list[str]) -> None:
    spans, mistakes = read_tags(tags, scheme)
    repaired = write_tags(spans, len(tags), scheme)
    assert read_tags(repaired, scheme) == (spans, [])
    assert [position for position, tag in enumerate(tags) if tag != repaired[position]] == mistakes
    if scheme != "IOB1":  # in IOB1, as in seqeval, a span may begin after a misplaced B
        assert set(extract_strict_spans(tags, scheme)) <= set(spans)
    covered = {position for span in spans for position in range(span.start, span.end)}
    assert covered == {position for position, tag in enumerate(tags) if tag != "O"}  # spans cover the same words


@pytest.mark.parametrize(
    ("tags", "scheme", "repaired", "strict"),
    [
        ("O I-PER I-PER", "IOB2", "O B-PER I-PER", []),
        ("B-PER I-LOC", "IOB2", "B-PER B-LOC", [Span("PER", 0, 1)]),
        ("I-PER B-LOC", "IOB1", "I-PER I-LOC", [Span("PER", 0, 1)]),
        ("O B-PER I-PER", "IOB1", "O I-PER I-PER", [Span("PER", 2, 3)]),
        ("I-PER B-PER B-LOC", "IOB1", "I-PER B-PER I-LOC", [Span("PER", 0, 1)]),
        ("B-PER O S-LOC", "BIOES", "S-PER O S-LOC", [Span("LOC", 2, 3)]),
        ("B-PER I-PER B-PER E-PER", "BIOES", "B-PER E-PER B-PER E-PER", [Span("PER", 2, 4)]),
        ("E-PER E-PER", "BIOES", "S-PER S-PER", []),
        ("S-PER I-PER O", "IOB2", "B-PER B-PER O", []),
    ],
)
def test_invalid_sequences_are_repaired(tags: str, scheme: Scheme, repaired: str, strict: list[Span]) -> None:
    given_tags = tags.split()
    spans, mistakes = read_tags(given_tags, scheme)
    assert " ".join(write_tags(spans, len(given_tags), scheme)) == repaired
    assert mistakes
    assert extract_strict_spans(given_tags, scheme) == strict


def test_detected_scheme_has_fewest_mistakes() -> None:
    assert detect_scheme([]) == detect_scheme([["O", "O"]]) == "IOB2"
    assert detect_scheme([["I-X", "O", "I-Y"], ["B-X"]]) == "IOB1"
    assert detect_scheme([["B-X", "E-X", "S-Y"], ["I-X"]]) == "BIOES"


@pytest.mark.parametrize(
    ("tags", "does"),
    [
        (["O", "B-PER", "I-PER"], True),
        (["I-PER", "B-PER"], True),
        (["B", "I", "O"], True),
        (["S-a", "O"], True),
        (["O"], False),
        ([], False),
        (["NOUN", "X", "O"], False),
        (["S", "I"], False),  # tags of another tag set
        (["B-PER", "U-PER", "O"], False),
    ],
)
def test_span_tags_are_recognized(tags: list[str], does: bool) -> None:
    assert marks_spans(tags) is does


@pytest.mark.parametrize("tag", ["", "PER", "B-", "U-PER", "b-PER", "OO", "O-PER", "BPER", "-PER", "B PER"])
def test_invalid_tag_is_rejected(tag: str) -> None:
    with pytest.raises(DataError, match=r"must be O, or B-, I-, E- or S- followed by a type, such as B-PER; got "):
        parse_tag(tag)


@pytest.mark.parametrize(
    "spans",
    [
        [Span("X", 0, 2), Span("Y", 1, 3)],
        [Span("X", 2, 5)],
        [Span("X", 1, 1)],
        [Span("X", -1, 1)],
        [Span("X", 0, 3), Span("X", 1, 2)],
    ],
)
def test_invalid_spans_are_rejected(spans: list[Span]) -> None:
    with pytest.raises(DataError, match=r"within 4 words, contain at least one word and not overlap; got Span"):
        write_tags(spans, 4)
