"""Plots of images and of maps that are drawn over images."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from seqloom.data.images import Pixels
from seqloom.inspect.plots.figures import (
    SIGNED_COLORMAP,
    interpolate_colour,
    largest_magnitude,
    new_figure,
    set_heading,
    text_style,
    truncate,
)
from seqloom.inspect.values import Array
from seqloom.inspect.views.image_texts import AttendedWord
from seqloom.inspect.views.images import Glimpse

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = 2.9  # inches of a panel
TITLE_CHARACTERS = 34  # maximum characters of a panel's title
OPACITY = 0.6  # opacity of a map over an image
FAINT_CONTRAST = 0.45  # contrast of the image below a map
WORD_PANEL, WORD_COLUMNS = 1.7, 6  # inches of a panel; panels in a row
WORD_CHARACTERS = 18  # maximum characters of a word
GRID_PANEL, GRID_COLUMNS = 1.1, 10  # inches of an image; images in a row
GRID_CHARACTERS = 16  # maximum characters of a label
FIRST_COLOUR, LAST_COLOUR = (86, 180, 233), (213, 94, 0)  # of the first and the last glimpse
HEADINGS = {
    "occlusion": "occlusion: decrease of p(label)",
    "gradient": "gradient × input",
    "rollout": "attention roll-out",
    "attention": "attention pooling",
}


def draw_image(axes: "Axes", pixels: Pixels, faint: bool = False) -> None:
    """Draw an image (H, W, C) without ticks.

    With `faint`, draw it in light grey as the background of a map, and invert it if it is mostly dark.
    """
    shown = pixels.mean(axis=2) if faint or pixels.shape[2] == 1 else pixels
    if faint:
        darkness = shown if shown.mean() < 128 else 255 - shown
        shown = 255 - FAINT_CONTRAST * darkness
    axes.imshow(shown, cmap="gray", vmin=0, vmax=255, interpolation="nearest", aspect="equal")
    axes.set_xticks([])
    axes.set_yticks([])


def draw_map(axes: "Axes", pixels: Pixels, values: Array, largest: float | None = None) -> None:
    """Draw a map (rows, columns) over an image (H, W, C). In a signed map, red supports and blue opposes the label.

    `largest` is the value of the darkest colour of an unsigned map, by default the largest value of the map.
    """
    H, W, _ = pixels.shape
    draw_image(axes, pixels, faint=True)
    extent = (-0.5, W - 0.5, H - 0.5, -0.5)
    if (values < 0).any():
        size, colours = largest_magnitude(values), SIGNED_COLORMAP
        low = -size
    else:
        size, colours, low = largest or float(values.max()) or 1.0, "Reds", 0.0
    axes.imshow(
        values, cmap=colours, vmin=low, vmax=size, extent=extent, alpha=OPACITY, interpolation="nearest", aspect="equal"
    )
    axes.set_xlim(-0.5, W - 0.5)
    axes.set_ylim(H - 0.5, -0.5)


def draw_glimpses(axes: "Axes", pixels: Pixels, glimpses: Sequence[Glimpse]) -> None:
    """Draw the squares of glimpses at an image and the path of their centres, from blue to orange."""
    from matplotlib.patches import Rectangle

    draw_image(axes, pixels, faint=True)
    axes.plot([each.column - 0.5 for each in glimpses], [each.row - 0.5 for each in glimpses], color="#404040", lw=1)
    for number, each in enumerate(glimpses):
        stops = interpolate_colour((FIRST_COLOUR, LAST_COLOUR), number / max(1, len(glimpses) - 1))
        colour = "#" + bytes(stops).hex()
        for side in each.sides:
            corner = each.column - side / 2 - 0.5, each.row - side / 2 - 0.5
            axes.add_patch(Rectangle(corner, side, side, fill=False, edgecolor=colour, lw=1.2, clip_on=True))
        box = {"boxstyle": "circle,pad=0.15", "facecolor": colour, "edgecolor": "none"}
        place = each.column - 0.5, each.row - 0.5
        axes.text(*place, str(number + 1), fontsize=7, color="white", ha="center", va="center", bbox=box, clip_on=True)
    H, W, _ = pixels.shape
    axes.set_xlim(-0.5, W - 0.5)
    axes.set_ylim(H - 0.5, -0.5)


def draw_image_reasons(
    pixels: Pixels, maps: Mapping[str, Array], title: Sequence[str], glimpses: Sequence[Glimpse] = ()
) -> "Figure":
    """Draw an image, its glimpses if there are any, then each map over a grey copy of the image."""
    ratio, count = pixels.shape[0] / pixels.shape[1], 1 + bool(glimpses) + len(maps)
    figure = new_figure(PANEL * count, PANEL * float(np.clip(ratio, 0.4, 2.5)) + 0.3 + 0.25 * len(title))
    style = text_style(title)
    lines = [truncate(line, TITLE_CHARACTERS * count) for line in title]
    figure.suptitle("\n".join(lines), fontsize=11, **style)
    panels = iter(figure.subplots(1, count, squeeze=False)[0])
    draw_image(axes := next(panels), pixels)
    set_heading(axes, "image")
    if glimpses:
        draw_glimpses(axes := next(panels), pixels, glimpses)
        set_heading(axes, "glimpses, in order")
    for axes, (name, values) in zip(panels, maps.items(), strict=True):
        draw_map(axes, pixels, values)
        set_heading(axes, HEADINGS.get(name, name))
    return figure


def draw_attended_words(pixels: Pixels, words: Sequence[AttendedWord], title: Sequence[str] = ()) -> "Figure":
    """Draw an image, then the attention of each word over a grey copy of the image.

    The darkest colour is the largest weight of all words. If the model also read a text, the heading of a panel
    contains the fraction of the attention that the image received.
    """
    columns = min(1 + len(words), WORD_COLUMNS)
    rows = -(-(1 + len(words)) // columns)
    ratio = float(np.clip(pixels.shape[0] / pixels.shape[1], 0.4, 2.5))
    figure = new_figure(max(4.0, WORD_PANEL * columns), (WORD_PANEL * ratio + 0.3) * rows + 0.25 * len(title))
    style = text_style([*(word.text for word in words), *title])
    figure.suptitle("\n".join(truncate(line, TITLE_CHARACTERS * columns) for line in title), fontsize=11, **style)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    draw_image(panels[0], pixels)
    largest = max((float(word.weights.max()) for word in words), default=1.0)
    for axes, word in zip(panels[1:], words, strict=False):
        draw_map(axes, pixels, word.weights, largest)
        share = f" {word.weights.sum():.0%}" if word.source_weights.size else ""
        axes.set_title(truncate(word.text, WORD_CHARACTERS) + share, loc="left", fontsize=10, **style)
    for axes in panels[1 + len(words) :]:
        axes.set_axis_off()
    return figure


def draw_image_grid(images: Sequence[Pixels], labels: Sequence[str], title: Sequence[str] = ()) -> "Figure":
    """Draw images with their labels, row by row."""
    columns = min(len(images), GRID_COLUMNS)
    rows = -(-len(images) // columns)
    figure = new_figure(max(4.0, GRID_PANEL * columns), (GRID_PANEL + 0.25) * rows + 0.3 * len(title))
    style = text_style([*labels, *title])
    figure.suptitle("\n".join(title), fontsize=11, **style)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[len(images) :]:
        axes.set_axis_off()
    for axes, pixels, label in zip(panels, images, labels, strict=False):
        draw_image(axes, pixels)
        axes.set_title(truncate(label, GRID_CHARACTERS), fontsize=8, **style)
    return figure
