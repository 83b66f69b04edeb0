"""Words written with the strokes of a pen: letters are placed side by side, distorted and sometimes joined.

    letter i of a word      p ← R(θ_i) · diag(w · a_i, a_i) p + (x_i, b_i)     size a_i, position x_i, baseline b_i
    the word                p ← p + wobble(p),   x ← x − slant · y,   y ← y + slope · x

The style of a word (slant, slope, width w, size of the distortions, how often letters are joined, speed of the pen) and
the values of its letters are drawn at random, as a pure function of the seed, the split and the number of the word.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from seqloom.core.device import derive_seed
from seqloom.data.files import read_asset
from seqloom.data.splits import split_of_group
from seqloom.data.strokes import Points, Strokes
from seqloom.data.transcriptions import TranscribedExample

HELD_OUT = {"test": 0.1, "dev": 0.1}  # fractions of the words
DENSITY = 0.12  # distance between the points of a letter, in units of its x-height
SIZE = 20.0  # x-height of a written word
MAX_INVENTED = 9  # maximum number of letters of an invented word


# --- words ------------------------------------------------------------------------------------------------------------


@cache
def words_of(split: str) -> tuple[str, ...]:
    """Return the English words of a split. A hash of a word selects its split."""
    words = [word for line in read_asset("words.txt")["words"] for word in line.split()]
    return tuple(word for word in words if split_of_group(word.encode(), HELD_OUT) == split)


def invent_word(draws: np.random.Generator) -> str:
    """Return an invented word, whose pairs of letters are as frequent as in the words of train.

    The word has at least two letters, and differs from the words of dev and test.
    """
    followers, held_out, letters = _followers(), {*words_of("dev"), *words_of("test")}, ""
    while True:
        options = followers[letters[-1:]]
        letter = options[int(draws.random() * len(options))]
        letters += letter
        if letter and len(letters) < MAX_INVENTED:
            continue
        if len(letters) > 1 and letters not in held_out:
            return letters
        letters = ""


@cache
def _followers() -> dict[str, list[str]]:
    """Return the letters that follow each letter in train, with repetitions; "" is the start and the end of a word."""
    followers: dict[str, list[str]] = {}
    for word in words_of("train"):
        for first, second in zip(["", *word], [*word, ""], strict=True):
            followers.setdefault(first, []).append(second)
    return followers


def draw_words(split: str, count: int, invented: float, seed: int) -> Iterator[str]:
    """Yield words of a split in random order. In train, a fraction `invented` is invented."""
    draws = np.random.default_rng(derive_seed(seed, "handwriting words", split))
    words = words_of(split)
    for number in range(count):
        if number % len(words) == 0:
            order = draws.permutation(len(words))
        is_invented = draws.random() < invented
        yield invent_word(draws) if split == "train" and is_invented else words[order[number % len(words)]]


# --- letters ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Letter:
    """A drawing of a letter, in units of its x-height: the baseline is y = 0, and the left edge is x = 0."""

    points: Points  # (N, 2), at distances of about `DENSITY`
    strokes: NDArray[np.int64]  # (N,) the stroke of each point
    width: float


Alphabet = Mapping[str, Sequence[Letter]]  # the drawings of each letter


def make_letter(strokes: Sequence[Points], width: float) -> Letter:
    """Return a letter with points at equal distances along its strokes."""
    dense = [resample_stroke(stroke, DENSITY) for stroke in strokes]
    numbers = np.repeat(np.arange(len(dense)), [len(points) for points in dense])
    return Letter(np.concatenate(dense), numbers, width)


def resample_stroke(stroke: Points, distance: float) -> Points:
    """Return points at about this distance along a stroke, with both of its ends."""
    lengths = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(stroke, axis=0), axis=1))])
    if lengths[-1] == 0:
        return stroke[:1]
    positions = np.linspace(0, lengths[-1], max(2, 1 + round(float(lengths[-1]) / distance)))
    return np.column_stack([np.interp(positions, lengths, stroke[:, axis]) for axis in (0, 1)])


@cache
def embedded_alphabets() -> dict[str, Alphabet]:
    """Return the alphabets in data/assets/letters.txt by name."""
    return {name: dict(_read_letters(lines)) for name, lines in read_asset("letters.txt").items()}


def _read_letters(lines: Sequence[str]) -> Iterator[tuple[str, list[Letter]]]:
    size = float(lines[0].removeprefix("size "))
    for line in lines[1:]:
        letter, left, right, rest = line.split(" ", 3)
        strokes = [
            (np.array([[float(x) for x in point.split(",")] for point in stroke.split()]) - [float(left), 0]) / size
            for stroke in rest.split(" / ")
        ]
        yield letter, [make_letter(strokes, (float(right) - float(left)) / size)]


# --- writing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Style:
    """How a word is written. Lengths are in units of the x-height."""

    slant: float
    slope: float
    width: float
    gap: float  # added between letters
    unevenness: float  # standard deviation of the sizes and the positions of letters
    wobble: float  # size of the distortion of strokes
    joined: float  # fraction of the letters that are joined to the next letter
    speed: float  # mean number of dense points between two recorded points

    @classmethod
    def draw(cls, draws: np.random.Generator) -> "Style":
        bounds = {
            "slant": (-0.15, 0.5),
            "slope": (-0.08, 0.08),
            "width": (0.75, 1.25),
            "gap": (-0.05, 0.25),
            "unevenness": (0.02, 0.1),
            "wobble": (0.01, 0.06),
            "joined": (-0.5, 0.6),
            "speed": (1.0, 2.5),
        }
        return cls(**{name: float(draws.uniform(*ends)) for name, ends in bounds.items()})


def write_word(word: str, alphabet: Alphabet, name: str, draws: np.random.Generator) -> Strokes:
    """Write a word with the letters of an alphabet, in a random style."""
    style = Style.draw(draws)
    letters = [alphabet[letter][int(draws.random() * len(alphabet[letter]))] for letter in word]
    counts, count = [len(letter.points) for letter in letters], len(letters)
    sizes = 1 + style.unevenness * draws.normal(size=count).clip(-2, 2)
    angles = style.unevenness * draws.normal(size=count).clip(-2, 2)
    heights = style.unevenness * draws.normal(size=count).clip(-2, 2)
    gaps = style.gap + style.unevenness * draws.normal(size=count).clip(-2, 2)
    widths = np.array([letter.width for letter in letters]) * sizes * style.width
    starts = np.cumsum(widths + gaps) - widths

    def each(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.repeat(values, counts)

    points = np.concatenate([letter.points for letter in letters]) * each(sizes)[:, None] * [style.width, 1]
    x, y = points[:, 0] - each(widths / 2), points[:, 1]
    cos, sin = each(np.cos(angles)), each(np.sin(angles))
    points = np.column_stack([cos * x - sin * y + each(widths / 2 + starts), sin * x + cos * y + each(heights)])
    points += style.wobble * smooth_noise(len(points), 2, draws)
    points[:, 0] -= style.slant * points[:, 1]
    points[:, 1] += style.slope * points[:, 0]
    is_start = np.concatenate([np.diff(letter.strokes, prepend=-1) > 0 for letter in letters])
    is_start[np.cumsum(counts)[:-1]] = draws.random(count - 1) >= style.joined
    is_end = np.append(is_start[1:], True)
    phase = np.cumsum(1 / (style.speed * np.exp(0.3 * smooth_noise(len(points), 1, draws)[:, 0])))
    kept = is_start | is_end | (np.diff(np.floor(phase), prepend=-1) > 0)
    kept_starts = np.flatnonzero(is_start[kept])
    return Strokes(name, tuple(np.split(np.round(SIZE * points[kept], 2), kept_starts[1:])))


def smooth_noise(count: int, columns: int, draws: np.random.Generator, every: int = 8) -> NDArray[np.float64]:
    """Return noise (count, columns) that is interpolated between normal numbers at every eighth position."""
    knots = draws.normal(size=(count // every + 2, columns)).clip(-2, 2)
    positions = np.arange(count) / every
    return np.column_stack([np.interp(positions, np.arange(len(knots)), column) for column in knots.T])


def write_examples(
    split: str, count: int, writers: Mapping[str, Alphabet], invented: float, seed: int
) -> list[TranscribedExample]:
    """Write words of a split. Each word is written by a random writer, with the letters of this writer."""
    names, examples = list(writers), []
    for number, word in enumerate(draw_words(split, count, invented, seed), start=1):
        draws = np.random.default_rng(derive_seed(seed, "handwriting", split, number))
        writer = names[int(draws.random() * len(names))]
        strokes = write_word(word, writers[writer], f"{split} {number}", draws)
        examples.append(TranscribedExample(strokes, word, writer))
    return examples
