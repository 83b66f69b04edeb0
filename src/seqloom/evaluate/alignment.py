"""Word alignment: attention weights are merged by word, converted to links and compared with known links.

Weights are (T, S): row t is the attention while producing target token t, and sums to 1. The last row
is the END of the target, and the last column is the END of the source. A link is (source position,
target position); both positions are counted from 0.

    AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|)

A is the set of predicted links, S the set of sure links, and P ⊇ S the set of possible links (Och and
Ney). An AER of 0 is perfect.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import DataError
from seqloom.core.words import UNSPACED

Array = NDArray[np.float32] | NDArray[np.float64]
Span = tuple[int, int]  # start and end (exclusive) in characters or tokens
Link = tuple[int, int]  # source position, target position
SpanLink = tuple[Span, Span]  # source span and the target span that translates it

JOINER = "\N{ZERO WIDTH JOINER}"


# --- words ----------------------------------------------------------------------------------------------------------


class Word(NamedTuple):
    text: str
    tokens: tuple[int, ...]  # positions of the word's tokens


def group_words(text: str, spans: Sequence[Span], end: str | None = None) -> list[Word]:
    """Group tokens into words; each punctuation mark is a word.

    `spans` contains the characters of each token. Tokens are not split: a token that covers several words
    merges these words. In scripts without spaces, a character or a token of several characters is a word.
    White space belongs to the next word. If `end` is given, it is the text of an additional last word for
    END.
    """
    units = word_spans(text)
    owner = {position: number for number, (start, stop) in enumerate(units) for position in range(start, stop)}
    groups: list[tuple[Span, list[int]]] = []  # the first and the last unit of each group, and its tokens
    space: list[int] = []  # white-space tokens before the next word
    for token, (start, stop) in enumerate(spans):
        touched = [owner[position] for position in range(start, stop) if position in owner]
        if not touched:
            space.append(token)
        elif groups and touched[0] <= groups[-1][0][1]:
            (first, _), tokens = groups[-1]
            groups[-1] = (first, touched[-1]), [*tokens, *space, token]
            space = []
        else:
            groups.append(((touched[0], touched[-1]), [*space, token]))
            space = []
    if space and groups:
        groups[-1][1].extend(space)
    words = [Word(text[units[first][0] : units[last][1]], tuple(tokens)) for (first, last), tokens in groups]
    if space and not groups:
        words = [Word(text, tuple(space))]
    return words if end is None else [*words, Word(end, (len(spans),))]


def word_spans(text: str) -> list[Span]:
    """Return the spans of the words of a text, regardless of its tokens; see `group_words`."""
    spans: list[Span] = []
    kind = " "
    for position, letter in enumerate(text):
        last, now = kind, _kind(letter)
        is_joined = position > 0 and text[position - 1] == JOINER
        if last != " " and (now == "mark" or is_joined or now == last == "letter"):
            spans[-1] = spans[-1][0], position + 1  # the kind of the preceding letter is kept
        elif now != " ":
            spans.append((position, position + 1))
            kind = "letter" if now == "mark" else now
        else:
            kind = " "
    return spans


def _kind(letter: str) -> str:
    if letter.isspace():
        return " "
    if unicodedata.category(letter)[0] == "M" or unicodedata.category(letter) in ("Cf", "Sk"):
        return "mark"  # part of the preceding letter; Cf: joiners and directions, Sk: skin tones of emoji
    return "letter" if (letter.isalnum() or letter == "_") and not UNSPACED.match(letter) else "single"


def merge(weights: Array, target: Sequence[Word], source: Sequence[Word]) -> Array:
    """Merge token weights by word: the sum over source tokens and the mean over target tokens. Rows still sum to 1."""
    columns = [weights[:, list(word.tokens)].sum(axis=1) for word in source]
    summed = np.stack(columns, axis=1)  # (T, source words)
    return np.stack([summed[list(word.tokens)].mean(axis=0) for word in target])


# --- links ----------------------------------------------------------------------------------------------------------


def hard_links(weights: Array, threshold: float | None = None) -> list[Link]:
    """Link each target position to the source position with the largest weight; ties select the first position.

    With a threshold, link every pair whose weight is at least the threshold. To exclude END, pass weights
    without END.
    """
    if threshold is None:
        return [(int(column), row) for row, column in enumerate(weights.argmax(axis=1))] if weights.size else []
    rows, columns = np.nonzero(weights >= threshold)
    return sorted(zip(columns.tolist(), rows.tolist(), strict=True))


def to_pharaoh(links: Iterable[Link]) -> str:
    """Format links as `0-0 1-2`: source position, target position, both counted from 0."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def from_pharaoh(line: str) -> list[Link]:
    """Parse links formatted by `to_pharaoh`."""
    if wrong := [word for word in line.split() if not re.fullmatch("[0-9]+-[0-9]+", word)]:
        raise DataError(f"An alignment must look like 0-0 1-2 (source-target positions); got {wrong[0]!r}.")
    return [(int(source), int(target)) for source, target in (word.split("-") for word in line.split())]


def alignment_error_rate(
    predicted: Iterable[Link], sure: Iterable[Link], possible: Iterable[Link] | None = None
) -> float:
    """Return the AER of one sentence, or of a corpus with distinct positions; `possible` need not contain `sure`."""
    a, s = set(predicted), set(sure)
    p = s | set(possible or ())
    return 1 - (len(a & s) + len(a & p)) / (len(a) + len(s)) if a or s else 0.0


def diagonal_links(targets: int, sources: int) -> list[Link]:
    """Return the diagonal baseline: each target token is linked to its relative position in the source."""
    return [(int((target + 0.5) * sources / targets), target) for target in range(targets)] if sources else []


# --- slots with known translations ----------------------------------------------------------------------------------


class Slots(NamedTuple):
    """The known links of a sentence pair, in tokens.

    A corpus contains the source span that a target span translates, but not the alignment within the span.
    Every link between the two spans is possible. A link is sure if the source span is a single token.
    """

    slots: list[tuple[frozenset[int], frozenset[int]]]  # source tokens and target tokens of each slot
    possible: frozenset[Link]
    sure: frozenset[Link]

    @property
    def targets(self) -> frozenset[int]:
        """The target tokens of all slots; only these tokens are evaluated."""
        return frozenset(target for _, target in self.possible)


def token_slots(source: Sequence[Span], target: Sequence[Span], links: Iterable[SpanLink]) -> Slots:
    """Convert links between characters to links between tokens with spans `source` and `target`, without END.

    A token belongs to every slot with which it shares a character.
    """

    def overlapping(tokens: Sequence[Span], span: Span) -> frozenset[int]:
        return frozenset(token for token, (start, stop) in enumerate(tokens) if start < span[1] and span[0] < stop)

    pairs = ((overlapping(source, source_span), overlapping(target, target_span)) for source_span, target_span in links)
    slots = [pair for pair in pairs if all(pair)]
    possible = frozenset((s, t) for sources, targets in slots for s in sources for t in targets)
    choices: dict[int, set[int]] = {}
    for s, t in possible:
        choices.setdefault(t, set()).add(s)
    sure = frozenset((s, t) for s, t in possible if len(choices[t]) == 1)
    return Slots(slots, possible, sure)


@dataclass(frozen=True)
class AlignmentCounts:
    """Counts that can be summed over sentences."""

    predicted: float = 0  # |A|: one link for each target token of a slot
    sure: float = 0  # |S|
    sure_predicted: float = 0  # |A ∩ S|
    possible_predicted: float = 0  # |A ∩ P|
    slots: float = 0
    correct_slots: float = 0  # number of slots whose target tokens are all linked to source tokens of the slot

    @classmethod
    def of(cls, slots: Slots, links: Iterable[Link]) -> "AlignmentCounts":
        predicted = {link for link in links if link[1] in slots.targets}
        correct = sum(all(s in sources for s, t in predicted if t in targets) for sources, targets in slots.slots)
        hits = len(predicted & slots.sure), len(predicted & slots.possible)
        return cls(len(predicted), len(slots.sure), *hits, len(slots.slots), correct)

    @classmethod
    def by_chance(cls, slots: Slots, sources: int) -> "AlignmentCounts":
        """Return the expected counts of links drawn uniformly from all source tokens."""
        predicted, sure, possible = len(slots.targets), len(slots.sure), len(slots.possible)
        correct = sum((len(s) / sources) ** len(t) for s, t in slots.slots)
        return cls(predicted, sure, sure / sources, possible / sources, len(slots.slots), correct)

    def __add__(self, other: "AlignmentCounts") -> "AlignmentCounts":
        return AlignmentCounts(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def error_rate(self) -> float:
        return 1 - (self.sure_predicted + self.possible_predicted) / (self.predicted + self.sure)


class ForcedPair(NamedTuple):
    """A sentence pair and the attention weights of teacher-forced decoding."""

    weights: Array  # (T, S), with END last on both sides
    source: Sequence[Span]  # characters of the source tokens
    target: Sequence[Span]
    links: Sequence[SpanLink]  # known links between characters


def score_alignments(examples: Iterable[ForcedPair]) -> dict[str, float]:
    """Measure how well attention aligns slots with known translations; return {} if there are no slots.

    Each target token of a slot is linked to the source token with the largest weight; a link to END
    is wrong. `alignment_error_rate` is the metric to report. The other metrics are the baselines (diagonal
    and chance), the fraction of links into the correct slot, and the fraction of slots with only correct
    links.
    """
    model = diagonal = chance = AlignmentCounts()
    for example in examples:
        slots = token_slots(example.source, example.target, example.links)
        if slots.slots:
            model += AlignmentCounts.of(slots, hard_links(example.weights[: len(example.target)]))
            diagonal += AlignmentCounts.of(slots, diagonal_links(len(example.target), len(example.source)))
            chance += AlignmentCounts.by_chance(slots, len(example.source))
    if not model.slots:
        return {}
    return {
        "alignment_error_rate": model.error_rate,
        "alignment_error_rate_diagonal": diagonal.error_rate,
        "alignment_error_rate_chance": chance.error_rate,
        "alignment_accuracy": model.possible_predicted / model.predicted,
        "alignment_slots": model.correct_slots / model.slots,
    }
