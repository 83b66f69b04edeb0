"""Spans encoded as one tag per word: B begins a span, I is inside a span, O is outside all spans.

    Pankaj  Singh  lives  in  New    Delhi  India
    I-PER   I-PER  O      O   I-LOC  I-LOC  B-LOC     IOB1: B only directly after a span of the same type
    B-PER   I-PER  O      O   B-LOC  I-LOC  B-LOC     IOB2: every span begins with B
    B-PER   E-PER  O      O   B-LOC  E-LOC  S-LOC     BIOES: E ends a span, S is a span of one word

In each scheme, exactly one tag sequence encodes given spans. `extract_spans` decodes any tag sequence of any scheme
with the rule of the CoNLL evaluation script. A sequence is valid if encoding its spans in the same scheme reproduces
the sequence.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from seqloom.core.errors import DataError

Scheme = Literal["IOB1", "IOB2", "BIOES"]
SCHEMES: tuple[Scheme, ...] = ("IOB2", "IOB1", "BIOES")  # in order of preference
OUTSIDE = "O"


class Span(NamedTuple):
    """A span of type `type` from word `start` up to but excluding word `end`."""

    type: str
    start: int
    end: int


class ParsedTags(NamedTuple):
    spans: list[Span]
    mistakes: list[int]  # positions of tags that are invalid in the scheme


# --- reading and writing --------------------------------------------------------------------------------------------


def parse_tag(tag: str) -> tuple[str, str]:
    """Split a tag: `B-PER` → B, PER. The type of a bare `B` is empty."""
    prefix, dash, kind = tag.partition("-")
    if tag == OUTSIDE or (prefix in ("B", "I", "E", "S") and bool(dash) == bool(kind)):
        return prefix, kind
    raise DataError(f"A span tag must be O, or B-, I-, E- or S- followed by a type, such as B-PER; got {tag!r}.")


def marks_spans(tags: Iterable[str]) -> bool:
    """Return whether tags mark spans and not, for example, parts of speech."""
    tag_set = set(tags)
    try:
        prefixes = {parse_tag(tag)[0] for tag in tag_set}
    except DataError:
        return False
    return bool(prefixes - {OUTSIDE}) and (OUTSIDE in tag_set or any("-" in tag for tag in tag_set))


def extract_spans(tags: Sequence[str]) -> list[Span]:
    """Return the spans of tags of any scheme, valid or not.

    A span begins at B or S, after E, S or O, and at a change of type. A span ends before the next span, before O, and
    after E or S.
    """
    spans: list[Span] = []
    last, last_type = OUTSIDE, ""  # prefix and type of the previous tag
    for position, (prefix, kind) in enumerate(map(parse_tag, tags)):
        begins = prefix in ("B", "S") or last in (OUTSIDE, "E", "S") or kind != last_type
        if prefix != OUTSIDE and begins:
            spans.append(Span(kind, position, position + 1))
        elif prefix != OUTSIDE:
            spans[-1] = spans[-1]._replace(end=position + 1)
        last, last_type = prefix, kind
    return spans


def write_tags(spans: Iterable[Span], length: int, scheme: Scheme = "IOB2") -> list[str]:
    """Encode spans as the tags of `length` words. Spans may have any order but must not overlap."""
    tags, before = [OUTSIDE] * length, Span("", -1, -1)
    for span in sorted(spans, key=lambda span: span.start):
        if not max(before.end, 0) <= span.start < span.end <= length:
            raise DataError(
                f"Spans must lie within {length} words, contain at least one word and not overlap; got {span}."
            )
        inside = "I" * (span.end - span.start - 1)
        prefixes = "B" + inside
        if scheme == "IOB1" and not (before.end == span.start and before.type == span.type):
            prefixes = "I" + inside  # the span does not directly follow a span of the same type
        elif scheme == "BIOES":
            prefixes = "B" + inside[1:] + "E" if inside else "S"
        suffix = f"-{span.type}" if span.type else ""
        tags[span.start : span.end] = [prefix + suffix for prefix in prefixes]
        before = span
    return tags


# --- mistakes -------------------------------------------------------------------------------------------------------


def read_tags(tags: Sequence[str], scheme: Scheme = "IOB2") -> ParsedTags:
    """Return the spans that `extract_spans` finds and the positions of tags that are invalid in the scheme.

    `write_tags(read_tags(tags).spans, len(tags))` repairs a sequence.
    """
    spans = extract_spans(tags)
    written = write_tags(spans, len(tags), scheme)
    mistakes = [position for position, (a, b) in enumerate(zip(tags, written, strict=True)) if a != b]
    return ParsedTags(spans, mistakes)


def extract_strict_spans(tags: Sequence[str], scheme: Scheme = "IOB2") -> list[Span]:
    """Return only spans whose tags are valid in the scheme; in IOB2, an I-PER after O does not begin a span.

    The result equals the result of seqeval's strict mode. In IOB1, `extract_spans` does not always find all these
    spans: in O B-PER I-PER, the misplaced B is skipped and a span begins at the I.
    """
    parsed = [*map(parse_tag, tags), (OUTSIDE, "")]
    spans, before, start = [], (OUTSIDE, ""), 0
    while start < len(tags):
        end, kind = start + 1, parsed[start][1]
        if _starts(before, parsed[start], scheme):
            while parsed[end - 1][0] in ("B", "I") and parsed[end] in (("I", kind), ("E", kind)):
                end += 1
            if _ends(parsed[end - 1], parsed[end], scheme):
                spans.append(Span(kind, start, end))
        before, start = parsed[end - 1], end
    return spans


def _starts(before: tuple[str, str], tag: tuple[str, str], scheme: Scheme) -> bool:
    """Return whether a parsed tag that does not continue a span starts a span in this scheme."""
    if scheme == "IOB1":
        return tag[0] == "I" or (tag[0] == "B" and before[0] in ("B", "I") and before[1] == tag[1])
    return tag[0] == "B" or (tag[0] == "S" and scheme == "BIOES")


def _ends(last: tuple[str, str], after: tuple[str, str], scheme: Scheme) -> bool:
    """Return whether a span may end with `last` before the tag `after`, which does not continue the span."""
    if scheme == "BIOES":
        return last[0] in ("E", "S")
    misplaced = scheme == "IOB1" and last[0] == after[0] == "B" and last[1] != after[1]
    return last[0] in ("B", "I") and not misplaced


def may_follow(before: str | None, tag: str | None, scheme: Scheme = "IOB2") -> bool:
    """Return whether a tag may follow another; None is the beginning or the end of the sentence.

    A sequence is valid if and only if all pairs of adjacent tags are valid, including the pairs with None at both ends.
    """
    last, last_type = (OUTSIDE, "") if before is None else parse_tag(before)
    prefix, kind = (OUTSIDE, "") if tag is None else parse_tag(tag)
    inside = last in ("B", "I") and last_type == kind
    if scheme == "BIOES":
        return inside and prefix in ("I", "E") if last in ("B", "I") else prefix in (OUTSIDE, "B", "S")
    if prefix in ("E", "S") or last in ("E", "S"):
        return False
    return inside or prefix != ("I" if scheme == "IOB2" else "B")


def detect_scheme(sequences: Iterable[Sequence[str]]) -> Scheme:
    """Return the scheme in which the sequences have the fewest mistakes."""
    mistakes: dict[Scheme, int] = dict.fromkeys(SCHEMES, 0)
    for tags in sequences:
        for scheme in SCHEMES:
            mistakes[scheme] += len(read_tags(tags, scheme).mistakes)
    return min(SCHEMES, key=lambda scheme: mistakes[scheme])
