"""Tokens of a text, and the merges of a byte-pair tokenizer with their counts.

low.txt contains low × 5, lower × 2, newest × 6 and widest × 3
tokenizer = train_on_file(Path("low.txt"))
count_merges(tokenizer, texts, 3)       es 9, est 9, lo 7
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

from seqloom.core.errors import UsageError
from seqloom.data.corpora.text import read_documents
from seqloom.text import Tokenizer
from seqloom.text.base import cut_at_spaces
from seqloom.text.bytepair import BytePair, BytePairConfig, token_text


@dataclass(frozen=True)
class ShownToken:
    """A token of a text."""

    id: int
    token: str  # display name
    start: int  # start of its span in the text, in characters
    end: int
    unknown: bool  # whether the model reads this part of the text as <unk>


@dataclass(frozen=True)
class Merge:
    """A merge in the order in which the tokenizer learned it."""

    number: int  # counted from 1
    left: str
    right: str
    merged: str
    count: int | None  # occurrences of the pair in the training text at the time of the merge; None if unknown


def token_view(tokenizer: Tokenizer, text: str) -> list[ShownToken]:
    """Return the tokens of a text with their spans."""
    ids = tokenizer.encode(text)
    spans = tokenizer.spans(text)
    return [
        ShownToken(token, tokenizer.token(token), start, end, token == tokenizer.unknown)
        for token, (start, end) in zip(ids, spans, strict=True)
    ]


def train_on_file(path: Path, size: int) -> tuple[BytePair, list[str]]:
    """Learn byte pairs from a text file. Return the tokenizer and the training texts."""
    texts = read_documents(path, "file")
    return BytePair.train(BytePairConfig(size=size), texts), texts


def byte_pairs(tokenizer: Tokenizer, name: str) -> BytePair:
    """Return the tokenizer if it learned byte pairs; otherwise raise an error."""
    if isinstance(tokenizer, BytePair):
        return tokenizer
    raise UsageError(f"--merges needs a byte-pair tokenizer; the tokenizer of {name} is of kind {tokenizer.kind}.")


def list_merges(tokenizer: BytePair, top: int, counts: Sequence[int] | None = None) -> list[Merge]:
    """Return the first `top` merges. `counts` are their numbers of occurrences, if known."""
    merges = []
    for number, (left, right) in enumerate(tokenizer.merges()[:top], start=1):
        names = token_text(left), token_text(right), token_text(left + right)
        merges.append(Merge(number, *names, None if counts is None else counts[number - 1]))
    return merges


def count_merges(tokenizer: BytePair, texts: Iterable[str], top: int) -> list[Merge]:
    """Replay the first `top` merges on the training texts, and count each pair at the time of its merge."""
    words: Counter[tuple[int, ...]] = Counter()
    for text in texts:
        for piece in cut_at_spaces(text):
            words.update(tokenizer.pretoken_bytes(piece))
    counts = []
    for pair, (_, merged) in islice(tokenizer.merge_ranks().items(), top):
        counts.append(sum(number * occurrences(word, pair) for word, number in words.items()))
        replaced: Counter[tuple[int, ...]] = Counter()
        for word, number in words.items():
            replaced[replace_pair(word, pair, merged)] += number
        words = replaced
    return list_merges(tokenizer, top, counts)


def occurrences(word: tuple[int, ...], pair: tuple[int, int]) -> int:
    """Count the adjacent tokens of a word that form the pair."""
    return sum(neighbours == pair for neighbours in pairwise(word))


def replace_pair(word: tuple[int, ...], pair: tuple[int, int], merged: int) -> tuple[int, ...]:
    """Replace each occurrence of the pair by the merged token, from left to right."""
    if not occurrences(word, pair):
        return word
    pieces: list[int] = []
    position = 0
    while position < len(word):
        is_pair = word[position : position + 2] == pair
        pieces.append(merged if is_pair else word[position])
        position += 1 + is_pair
    return tuple(pieces)
