"""Clips of a moving digit: their description, and their frames.

A digit moves in one direction, and may then turn or stop. Clips are drawn from a seed. Some combinations of digit and
motion are held out for dev or test: every clip of these splits has one of its combinations, and clips of other splits
never have them. A single frame shows the digit, but not its motion.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqloom.data.images import Pixels

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}  # x from the left, y from the top
STILL = "still"  # the frame label of a digit that has stopped
STEPS = {**DIRECTIONS, STILL: (0, 0)}
MOTIONS = tuple(
    (first, *((second,) if second else ()))
    for first in DIRECTIONS
    for second in ("", *(step for step in STEPS if step != first))
)
FRAMES = (6, 8)  # minimum and maximum number of frames
MIN_PART = 3  # minimum number of frames of a direction in a motion with two parts
SPEEDS = (0.06, 0.08)  # distance between two frames, as a fraction of the side
HEIGHTS = (0.34, 0.40)  # height of a digit, as a fraction of the side
Glyph = NDArray[np.uint8]  # grey values (rows, columns), 255 for the digit

GLYPHS = """
.###.  ..#..  .###.  .###.  ...#.  #####  ..##.  #####  .###.  .###.
#...#  .##..  #...#  #...#  ..##.  #....  .#...  ....#  #...#  #...#
#..##  ..#..  ....#  ....#  .#.#.  ####.  #....  ...#.  #...#  #...#
#.#.#  ..#..  ...#.  ..##.  #..#.  ....#  ####.  ..#..  .###.  .####
##..#  ..#..  ..#..  ....#  #####  ....#  #...#  .#...  #...#  ....#
#...#  ..#..  .#...  #...#  ...#.  #...#  #...#  .#...  #...#  ...#.
.###.  .###.  #####  .###.  ...#.  .###.  .###.  .#...  .###.  .##..
"""


@dataclass(frozen=True)
class MovingDigit:
    """The description of a clip. Positions are fractions of the side: x from the left, y from the top."""

    digit: int
    steps: tuple[str, ...]  # the label of each frame: the direction in which the digit moves there
    x: float  # the centre in the first frame
    y: float
    height: float
    speed: float  # distance between two frames
    brightness: int

    @property
    def parts(self) -> tuple[str, ...]:
        """The motion: one or two different steps."""
        return tuple(dict.fromkeys(self.steps))

    @property
    def motion(self) -> str:
        """The motion in words, such as "left, then up" or "left, then stops"."""
        return ", then ".join("stops" if step == STILL else step for step in self.parts)

    @property
    def caption(self) -> str:
        """The caption, such as "a three moves left, then up"."""
        return f"{'an' if self.digit == 8 else 'a'} {DIGITS[self.digit]} moves {self.motion}"

    def centres(self) -> list[tuple[float, float]]:
        """Return the centre of the digit in each frame. Step t moves the digit from frame t − 1 to frame t."""
        x, y = self.x, self.y
        centres = [(x, y)]
        for step in self.steps[1:]:
            x, y = x + self.speed * STEPS[step][0], y + self.speed * STEPS[step][1]
            centres.append((x, y))
        return centres


def held_out(split: str) -> frozenset[tuple[int, tuple[str, ...]]]:
    """Return the combinations of digit and motion that occur only in this split, one for each motion; train has none.

    Every digit and every motion occurs in train, in other combinations.
    """
    offsets = {"train": None, "dev": 0, "test": 5}
    offset = offsets[split]
    if offset is None:
        return frozenset()
    return frozenset(((3 * i + offset) % len(DIGITS), motion) for i, motion in enumerate(MOTIONS))


def draw_clips(split: str, seed: int = 0) -> Iterator[MovingDigit]:
    """Yield clips of a split indefinitely. All clips of dev and test have a combination that is held out for it."""
    draws = random.Random(f"video-digits {seed} {split}")
    reserved = held_out("dev") | held_out("test")
    kinds = sorted(held_out(split)) or sorted({(d, m) for d in range(len(DIGITS)) for m in MOTIONS} - reserved)
    while True:
        digit, motion = draws.choice(kinds)
        count = draws.randint(*FRAMES)
        turn = count if len(motion) == 1 else draws.randint(MIN_PART, count - MIN_PART)
        steps = tuple(motion[frame >= turn] for frame in range(count))
        height, speed = round(draws.uniform(*HEIGHTS), 4), round(draws.uniform(*SPEEDS), 4)
        offsets = np.array(MovingDigit(digit, steps, 0, 0, height, speed, 0).centres())
        x, y = (
            round(draws.uniform(margin - low, 1 - margin - high), 4)
            for margin, low, high in zip(
                (height * 5 / 14, height / 2), offsets.min(axis=0), offsets.max(axis=0), strict=True
            )
        )
        yield MovingDigit(digit, steps, x, y, height, speed, draws.randint(170, 255))


def embedded_glyphs() -> dict[int, list[Glyph]]:
    """Return the glyph of each digit."""
    rows = [line.split() for line in GLYPHS.split("\n") if line]
    return {
        digit: [np.array([[255 * (cell == "#") for cell in row[digit]] for row in rows], dtype=np.uint8)]
        for digit in range(len(DIGITS))
    }


def render_clip(clip: MovingDigit, glyph: Glyph, side: int = 32) -> Pixels:
    """Draw the frames of a clip as pixels (T, side, side, 1), a bright digit on black."""
    rows, columns = glyph.shape
    cell, frames = clip.height / rows * side, []  # the side of a cell of the glyph in pixels
    for x, y in clip.centres():
        down, across = (overlaps(side, centre * side, cell, cells) for centre, cells in ((y, rows), (x, columns)))
        frames.append(np.rint(down @ glyph @ across.T * clip.brightness / 255).astype(np.uint8))
    return np.stack(frames)[..., None]


def overlaps(pixels: int, centre: float, cell: float, cells: int) -> NDArray[np.float64]:
    """Return the fraction of each pixel that each cell covers (pixels, cells), in one direction."""
    starts = centre + (np.arange(cells) - cells / 2) * cell
    edges = np.arange(pixels)[:, None]
    covered = np.minimum(edges + 1, starts + cell) - np.maximum(edges, starts)
    return np.asarray(covered.clip(0))
