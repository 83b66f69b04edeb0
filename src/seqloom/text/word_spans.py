"""Functions that split raw text into words and return the span of each word.

Words are separated by white space and punctuation. In every script, a combining mark belongs to the word of its letter.
An emoji is never split. As in treebanks, some marks belong to their words: 1,000 · 10:30 · U.S. · J. · Mr. · O'Hara ·
me@example.org · https://… · @name · #topic. English contractions are split: do|n't · Pankaj|'s. Invisible characters
(direction marks, controls) do not belong to any word. Chinese, Japanese and Thai are not segmented: a sequence of their
letters is one word.
"""

import re
import sys
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

Span = tuple[int, int]

_JOINERS = "\u00ad\u200c\u200d\u2060"  # soft hyphen and joiners, which occur only within words
_APOSTROPHES = "'\u2019\u02bc"
_INSIDE = f"{_APOSTROPHES}\u00b7\u05f3\u05f4"  # symbols between letters: O'Hara, col·lecció, צה״ל
_TITLES = "Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Rev|Gen|Col|Lt|Sgt|Capt|Gov|Sen|Rep|Hon|Mme|Mlle|Hr|Fr|vs|etc"
_EMOJI = (
    "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u27bf\u2900-\u297f\u2b00-\u2bff\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001f1e5\U0001f200-\U0001faff]"
    "[\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*"
)
_CONTRACTED = re.compile(rf"(?i)(?<=.)(?:n[{_APOSTROPHES}]t|[{_APOSTROPHES}](?:s|re|ve|ll|d|m))\Z")


def word_spans(text: str) -> list[Span]:
    """Return the spans of the words in a text. The spans do not overlap and cover all visible characters."""
    return [span for match in _pattern().finditer(text) for span in _pieces(match)]


def split_words(text: str) -> list[str]:
    return [text[start:end] for start, end in word_spans(text)]


def join_words(words: Sequence[str]) -> tuple[str, list[Span]]:
    """Join words by spaces. Return the text and the span of each word in it."""
    spans, start = [], 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return " ".join(words), spans


def first_tokens(tokens: Sequence[Span], words: Sequence[Span]) -> list[int]:
    """Return the index of the first token of each word, given the spans of tokens and words in a text.

    A byte-pair token may include the space before a word or be part of a character. A word without a token can only be
    white space. The next token is assigned to it, or the last token if no token follows.
    """
    ends = [end for _, end in tokens]  # ascending
    return [min(bisect_right(ends, start), max(len(tokens) - 1, 0)) for start, _ in words]


def _pieces(match: re.Match[str]) -> Iterator[Span]:
    start, end = match.span()
    kind = match.lastgroup
    if kind == "initial" and not match[0][0].isupper():
        yield start, start + 1
        yield start + 1, end
    elif kind == "word":
        yield from pairwise([start, *(start + cut for cut in _contractions(match[0])), end])
    elif kind != "rest" or unicodedata.category(match[0][0]) not in ("Cc", "Cf"):
        yield start, end


def _contractions(word: str) -> list[int]:
    """Return the starts of the words in a contraction; for example, I'd've consists of three words."""
    starts: list[int] = []
    while cut := _CONTRACTED.search(word[-4:]):  # a contraction has at most three characters
        word = word[: cut.start() - len(word[-4:])]
        starts.append(len(word))
    return starts[::-1]


@cache
def _pattern() -> re.Pattern[str]:
    letter = rf"[\w{_marks()}]"
    run = rf"{letter}[\w{_marks()}{_JOINERS}]*"
    single = r"[^\W\d_]"  # a letter
    named = [
        ("link", r"(?:https?://|www\.)[^\s<>\"]*[^\s<>\".,;:!?)\]}'\u2019]"),
        ("address", r"[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+"),
        ("topic", rf"(?<!\w)[@#][^\W\d][\w{_marks()}]*"),
        ("letters", rf"(?<!\w)(?:{single}\.){{2,}}"),
        ("initial", rf"(?<!\w){single}\.(?=\s+{single})"),
        ("title", rf"(?<!\w)(?:{_TITLES})\.(?=\s)"),
        ("word", rf"{run}(?:(?:[{_INSIDE}](?={single})|(?<=\d)[.,:/](?=\d)){run})*"),
        ("flag", "[\U0001f1e6-\U0001f1ff]{2}"),
        ("emoji", rf"{_EMOJI}(?:\u200d{_EMOJI})*"),
        ("rest", r"(?P<mark>[^\s\w])(?P=mark)*"),
    ]
    return re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in named))


@cache
def _marks() -> str:
    """Return all combining marks of Unicode as ranges.

    Python's \\w does not match combining marks and would split words of Hindi.
    """
    codes = [code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] == "M"]
    first = [code for code in codes if unicodedata.category(chr(code - 1))[0] != "M"]
    last = [code for code in codes if code == sys.maxunicode or unicodedata.category(chr(code + 1))[0] != "M"]
    return "".join(f"{chr(a)}-{chr(b)}" for a, b in zip(first, last, strict=True))
