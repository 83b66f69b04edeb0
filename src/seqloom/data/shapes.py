"""Scenes of coloured shapes: their description, and their pixels.

A scene has one or more objects in different cells of a 3 × 3 grid. An object has a shape, a colour, a size and a
position. Scenes are drawn from a seed. Some combinations of shape and colour are held out for dev or test: every scene
of this split contains one of its combinations, and scenes of other splits never contain them. To describe the scenes, a
model must combine a shape and a colour that it has seen only in other combinations.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqloom.data.images import PixelImage, Pixels

SHAPES = ("circle", "square", "triangle", "cross", "ring", "star")
COLOURS = {
    "red": (214, 39, 40),
    "green": (44, 160, 44),
    "blue": (31, 87, 200),
    "yellow": (245, 205, 25),
    "purple": (140, 60, 180),
    "orange": (255, 127, 14),
    "brown": (120, 72, 40),
    "black": (20, 20, 20),
}
RADII = {"small": 0.075, "large": 0.14}  # fractions of the side of the image
ROWS, COLUMNS = ("top", "middle", "bottom"), ("left", "middle", "right")
CELLS = 3  # number of rows and columns of the grid
JITTER = 0.025  # maximum distance from the centre of a cell, as a fraction of the side of the image
SAMPLES = 4  # number of samples per pixel and direction, to smooth edges
STAR_POINTS = 5


@dataclass(frozen=True)
class SceneObject:
    """An object: its description, and the centre (x from the left, y from the top) as fractions of the side."""

    shape: str
    colour: str
    size: str
    row: int  # row of the grid, counted from the top
    column: int  # column of the grid, counted from the left
    x: float
    y: float

    @property
    def position(self) -> str:
        """The position in words, such as "top left" or "middle"."""
        row, column = ROWS[self.row], COLUMNS[self.column]
        return row if row == column else f"{row} {column}"


@dataclass(frozen=True)
class Scene:
    """Objects in the order of their cells, row by row, and the grey value of the background."""

    objects: tuple[SceneObject, ...]
    background: int


def held_out(split: str) -> frozenset[tuple[str, str]]:
    """Return the combinations of shape and colour that occur only in this split, one for each shape; train has none."""
    offsets = {"train": None, "dev": 0, "test": 3}
    offset, colours = offsets[split], list(COLOURS)
    if offset is None:
        return frozenset()
    return frozenset((shape, colours[(2 * i + offset) % len(colours)]) for i, shape in enumerate(SHAPES))


def draw_scenes(split: str, seed: int = 0, objects: tuple[int, int] = (1, 3)) -> Iterator[Scene]:
    """Yield different scenes of a split indefinitely; `objects` is the minimum and maximum number of objects.

    Every scene of dev and test has at least one object with a combination that is held out for the split.
    """
    draws, special = random.Random(f"shapes {seed} {split}"), sorted(held_out(split))
    reserved = held_out("dev") | held_out("test")
    common = sorted({(shape, colour) for shape in SHAPES for colour in COLOURS} - reserved)
    seen: set[Scene] = set()
    while True:
        cells = sorted(draws.sample(range(CELLS**2), draws.randint(*objects)))
        kinds = [draws.choice(common + special) for _ in cells]
        if special and not reserved & set(kinds):
            kinds[draws.randrange(len(kinds))] = draws.choice(special)
        parts = tuple(_place(draws, kind, cell) for kind, cell in zip(kinds, cells, strict=True))
        scene = Scene(parts, draws.randint(225, 255))
        if scene not in seen:
            seen.add(scene)
            yield scene


def _place(draws: random.Random, kind: tuple[str, str], cell: int) -> SceneObject:
    """Draw the size and the exact position of an object in a cell."""
    row, column = divmod(cell, CELLS)
    x, y = (round((i + 0.5) / CELLS + draws.uniform(-JITTER, JITTER), 4) for i in (column, row))
    return SceneObject(*kind, draws.choice(sorted(RADII)), row, column, x, y)


# --- captions ---------------------------------------------------------------------------------------------------------


def caption_scene(scene: Scene) -> tuple[str, ...]:
    """Return the captions of a scene with one or two objects, one for each object that can be named first.

    A single object has the caption "a small red circle in the top left"; of two objects, "a small red circle above and
    left of a large blue square" names their relation.
    """
    names = [f"a {part.size} {part.colour} {part.shape}" for part in scene.objects]
    if len(names) == 1:
        return (f"{names[0]} in the {scene.objects[0].position}",)
    first, second = scene.objects
    return (
        f"{names[0]} {relation(first, second)} {names[1]}",
        f"{names[1]} {relation(second, first)} {names[0]}",
    )


def relation(first: SceneObject, second: SceneObject) -> str:
    """Return the position of the first object relative to the second, such as "above and left of"."""
    vertical = {-1: "above", 1: "below"}.get(_sign(first.row - second.row), "")
    horizontal = {-1: "left of", 1: "right of"}.get(_sign(first.column - second.column), "")
    return " and ".join(filter(None, (vertical, horizontal)))


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


# --- pixels -----------------------------------------------------------------------------------------------------------


def render(scene: Scene, side: int = 64) -> Pixels:
    """Draw a scene as pixels (side, side, 3)."""
    canvas = np.full((side, side, 3), float(scene.background))
    samples = (np.arange(side * SAMPLES) + 0.5) / (side * SAMPLES)
    for part in scene.objects:
        radius = RADII[part.size]
        across, down = (_pixels_around(centre, radius, side) for centre in (part.x, part.y))
        u, v = (samples[r.start * SAMPLES : r.stop * SAMPLES] for r in (across, down))
        inside = covers(part.shape, *np.meshgrid((u - part.x) / radius, (v - part.y) / radius))
        coverage = inside.reshape(len(down), SAMPLES, len(across), SAMPLES).mean(axis=(1, 3))[:, :, None]
        box = canvas[down.start : down.stop, across.start : across.stop]
        box[:] = box * (1 - coverage) + np.array(COLOURS[part.colour]) * coverage
    return np.rint(canvas).astype(np.uint8)


def _pixels_around(centre: float, radius: float, side: int) -> range:
    """Return the pixels that an object of this centre and radius can cover in one direction."""
    return range(max(0, int((centre - radius) * side)), min(side, int((centre + radius) * side) + 1))


def covers(shape: str, u: NDArray[np.float64], v: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which points (u, v) are inside a shape with radius 1, centred at the origin; v increases downwards."""
    if shape == "square":
        inside = np.maximum(np.abs(u), np.abs(v)) < 0.85
    elif shape == "triangle":
        inside = (v < 0.75) & (v > 1.95 * np.abs(u) - 1)
    elif shape == "cross":
        inside = (np.minimum(np.abs(u), np.abs(v)) < 0.3) & (np.maximum(np.abs(u), np.abs(v)) < 1)
    elif shape == "star":
        step = np.pi / STAR_POINTS  # angle between a point and the next notch
        angle = np.abs((np.arctan2(u, -v) + step) % (2 * step) - step)  # angle to the nearest point
        notch = 0.42 * np.array([np.sin(step), np.cos(step)])
        inside = np.hypot(u, v) * (np.sin(angle) * (1 - notch[1]) + np.cos(angle) * notch[0]) < notch[0]
    else:
        distance = np.hypot(u, v)
        inside = (distance < 1) & (distance > (0.55 if shape == "ring" else -1))
    return np.asarray(inside)


def scene_image(scene: Scene, name: str, side: int = 64) -> PixelImage:
    """Return the image of a scene."""
    return PixelImage(name, render(scene, side))
