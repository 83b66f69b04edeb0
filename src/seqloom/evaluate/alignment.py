"""Alignments: attention weights summed by word, made into links, and measured against known links.

Weights are (T, S): row t is the attention when target token t was produced, and sums to 1. The last
row belongs to END, the last column is the source's END. A link is (source position, target
position), both from 0.

    AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|)

A are the links found, S the sure ones, P ⊇ S the possible ones (Och and Ney). 0 is perfect.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import DataError

Array = NDArray[np.float32] | NDArray[np.float64]
Span = tuple[int, int]  # characters, or tokens, from the first to the one after the last
Link = tuple[int, int]  # source place, target place
SpanLink = tuple[Span, Span]  # this part of the source says what that part of the target says

# Letters of scripts written without spaces between words: kana and Han, Thai, Lao, Myanmar, Khmer.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
JOINER = "\N{ZERO WIDTH JOINER}"


# --- words ----------------------------------------------------------------------------------------------------------


class Word(NamedTuple):
    text: str
    tokens: tuple[int, ...]  # their places


def words_of(text: str, spans: Sequence[Span], end: str | None = None) -> list[Word]:
    """Tokens gathered into words: what stands between white space, each punctuation mark for itself.

    `spans` are the characters of each token. A token is never cut: one that reaches over several
    words makes them one. In scripts without spaces a character is a word, and so is a token of
    several. White space belongs to the word after it. Where `end` is given, END follows as a word
    of that name.
    """
    units = word_spans(text)
    owner = {place: number for number, (start, stop) in enumerate(units) for place in range(start, stop)}
    found: list[tuple[Span, list[int]]] = []  # units from the first to the last, and tokens
    waiting: list[int] = []  # white space
    for token, (start, stop) in enumerate(spans):
        touched = [owner[place] for place in range(start, stop) if place in owner]
        if not touched:
            waiting.append(token)
        elif found and touched[0] <= found[-1][0][1]:
            (first, _), tokens = found[-1]
            found[-1] = (first, touched[-1]), [*tokens, *waiting, token]
            waiting = []
        else:
            found.append(((touched[0], touched[-1]), [*waiting, token]))
            waiting = []
    if waiting and found:
        found[-1][1].extend(waiting)
    words = [Word(text[units[first][0] : units[last][1]], tuple(tokens)) for (first, last), tokens in found]
    if waiting and not found:  # nothing but white space
        words = [Word(text, tuple(waiting))]
    return words if end is None else [*words, Word(end, (len(spans),))]


def word_spans(text: str) -> list[Span]:
    """The words of a text, before it is asked which tokens it has: see `words_of`."""
    spans: list[Span] = []
    kind = " "
    for place, letter in enumerate(text):
        last, now = kind, _kind(letter)
        joined = place > 0 and text[place - 1] == JOINER
        if last != " " and (now == "mark" or joined or now == last == "letter"):
            spans[-1] = spans[-1][0], place + 1  # and the kind stays that of what it is joined to
        elif now != " ":
            spans.append((place, place + 1))
            kind = "letter" if now == "mark" else now
        else:
            kind = " "
    return spans


def _kind(letter: str) -> str:
    if letter.isspace():
        return " "
    if unicodedata.category(letter)[0] == "M" or unicodedata.category(letter) in ("Cf", "Sk"):
        return "mark"  # goes with what stands before it; Cf are joiners and directions, Sk the colours of emoji
    return "letter" if (letter.isalnum() or letter == "_") and not UNSPACED.match(letter) else "single"


def merge(weights: Array, target: Sequence[Word], source: Sequence[Word]) -> Array:
    """Attention between words: the sum over a source word's tokens, the mean over a target word's, so rows still sum
    to 1."""
    columns = [weights[:, list(word.tokens)].sum(axis=1) for word in source]
    summed = np.stack(columns, axis=1)  # (T, source words)
    return np.stack([summed[list(word.tokens)].mean(axis=0) for word in target])


# --- links ----------------------------------------------------------------------------------------------------------


def hard_links(weights: Array, threshold: float | None = None) -> list[Link]:
    """The links that attention amounts to: for each target place the source place with the most weight, the first of
    equal ones; or, with a threshold, every pair of at least that weight. Give weights without END to leave it out."""
    if threshold is None:
        return [(int(place), row) for row, place in enumerate(weights.argmax(axis=1))] if weights.size else []
    rows, columns = np.nonzero(weights >= threshold)
    return sorted(zip(columns.tolist(), rows.tolist(), strict=True))


def to_pharaoh(links: Iterable[Link]) -> str:
    """`0-0 1-2`: source place, target place, both from 0."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def from_pharaoh(line: str) -> list[Link]:
    """Read links written by `to_pharaoh`."""
    if wrong := [word for word in line.split() if not re.fullmatch("[0-9]+-[0-9]+", word)]:
        raise DataError(f"An alignment is written like 0-0 1-2 (source place, target place), got {wrong[0]!r}.")
    return [(int(source), int(target)) for source, target in (word.split("-") for word in line.split())]


def alignment_error_rate(found: Iterable[Link], sure: Iterable[Link], possible: Iterable[Link] | None = None) -> float:
    """AER of one sentence, or of a corpus whose places are all different; `possible` adds to `sure`."""
    a, s = set(found), set(sure)
    p = s | set(possible or ())
    return 1 - (len(a & s) + len(a & p)) / (len(a) + len(s)) if a or s else 0.0


def diagonal_links(targets: int, sources: int) -> list[Link]:
    """What one would guess without looking: each target token at its share of the way through the source."""
    return [(int((place + 0.5) * sources / targets), place) for place in range(targets)] if sources else []


# --- against slots whose translation is known -----------------------------------------------------------------------


class Slots(NamedTuple):
    """What a corpus knows of a pair, in tokens.

    It knows which part of the source a part of the target says, not which token within that part.
    So any link into the part is possible, and a link is sure where the part is a single source
    token.
    """

    places: list[tuple[frozenset[int], frozenset[int]]]  # source tokens, target tokens of each slot
    possible: frozenset[Link]
    sure: frozenset[Link]

    @property
    def targets(self) -> frozenset[int]:
        """The target tokens that are measured: those of some slot."""
        return frozenset(target for _, target in self.possible)


def slots_of(source: Sequence[Span], target: Sequence[Span], links: Iterable[SpanLink]) -> Slots:
    """Known links between characters as links between tokens, whose characters are `source` and `target` (END is not
    among them). A token belongs to every slot it has a character of."""

    def touching(tokens: Sequence[Span], span: Span) -> frozenset[int]:
        return frozenset(place for place, (start, stop) in enumerate(tokens) if start < span[1] and span[0] < stop)

    pairs = ((touching(source, source_span), touching(target, target_span)) for source_span, target_span in links)
    places = [pair for pair in pairs if all(pair)]
    possible = frozenset((s, t) for sources, targets in places for s in sources for t in targets)
    choices: dict[int, set[int]] = {}
    for s, t in possible:
        choices.setdefault(t, set()).add(s)
    sure = frozenset((s, t) for s, t in possible if len(choices[t]) == 1)
    return Slots(places, possible, sure)


@dataclass(frozen=True)
class AlignmentCounts:
    """Counts that add up over sentences."""

    found: float = 0  # |A|: one link for each target token of a slot
    sure: float = 0  # |S|
    sure_found: float = 0  # |A ∩ S|
    possible_found: float = 0  # |A ∩ P|
    slots: float = 0
    slots_found: float = 0  # all of whose target tokens were linked into the slot

    @classmethod
    def of(cls, slots: Slots, links: Iterable[Link]) -> "AlignmentCounts":
        found = {link for link in links if link[1] in slots.targets}
        right = sum(all(s in sources for s, t in found if t in targets) for sources, targets in slots.places)
        hits = len(found & slots.sure), len(found & slots.possible)
        return cls(len(found), len(slots.sure), *hits, len(slots.places), right)

    @classmethod
    def by_chance(cls, slots: Slots, sources: int) -> "AlignmentCounts":
        """What is to be expected of links drawn among all source tokens alike."""
        found, sure, possible = len(slots.targets), len(slots.sure), len(slots.possible)
        right = sum((len(s) / sources) ** len(t) for s, t in slots.places)
        return cls(found, sure, sure / sources, possible / sources, len(slots.places), right)

    def __add__(self, other: "AlignmentCounts") -> "AlignmentCounts":
        return AlignmentCounts(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def error_rate(self) -> float:
        return 1 - (self.sure_found + self.possible_found) / (self.found + self.sure)


class ForcedPair(NamedTuple):
    """A pair and the attention weights while the model was forced to say the target."""

    weights: Array  # (T, S), END last on both sides
    source: Sequence[Span]  # characters of the source's tokens
    target: Sequence[Span]
    links: Sequence[SpanLink]  # known: characters of the source, characters of the target


def score_alignments(examples: Iterable[ForcedPair]) -> dict[str, float]:
    """Measure how well attention finds the slots of pairs whose slots are known; {} if none are.

    Each target token of a slot is linked to the source token with the most weight, END included
    (and then wrong). `alignment_error_rate` is the metric to quote. Beside it: what the diagonal
    and blind chance get, the share of those links that lead into the slot, and the share of slots
    all of whose links do.
    """
    model = diagonal = chance = AlignmentCounts()
    for example in examples:
        slots = slots_of(example.source, example.target, example.links)
        if slots.places:
            model += AlignmentCounts.of(slots, hard_links(example.weights[: len(example.target)]))
            diagonal += AlignmentCounts.of(slots, diagonal_links(len(example.target), len(example.source)))
            chance += AlignmentCounts.by_chance(slots, len(example.source))
    if not model.slots:
        return {}
    return {
        "alignment_error_rate": model.error_rate,
        "alignment_error_rate_diagonal": diagonal.error_rate,
        "alignment_error_rate_chance": chance.error_rate,
        "alignment_accuracy": model.possible_found / model.found,
        "alignment_slots": model.slots_found / model.slots,
    }
