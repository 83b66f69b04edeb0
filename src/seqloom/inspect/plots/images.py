"""Plots of images and of maps that are drawn over images."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from seqloom.data.images import Pixels
from seqloom.inspect.plots.figures import (
    SIGNED_COLORMAP,
    largest_magnitude,
    new_figure,
    set_heading,
    text_style,
    truncate,
)
from seqloom.inspect.values import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = 2.9  # inches of a panel
TITLE_CHARACTERS = 34  # maximum characters of a panel's title
OPACITY = 0.6  # opacity of a map over an image
FAINT_CONTRAST = 0.45  # contrast of the image below a map
GRID_PANEL, GRID_COLUMNS = 1.1, 10  # inches of an image; images in a row
GRID_CHARACTERS = 16  # maximum characters of a label
HEADINGS = {
    "occlusion": "occlusion: loss of p without a square",
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


def draw_map(axes: "Axes", pixels: Pixels, values: Array) -> None:
    """Draw a map (rows, columns) over an image (H, W, C). In a signed map, red supports and blue opposes the label."""
    H, W, _ = pixels.shape
    draw_image(axes, pixels, faint=True)
    extent = (-0.5, W - 0.5, H - 0.5, -0.5)
    if (values < 0).any():
        size, colours = largest_magnitude(values), SIGNED_COLORMAP
        low = -size
    else:
        size, colours, low = float(values.max()) or 1.0, "Reds", 0.0
    axes.imshow(
        values, cmap=colours, vmin=low, vmax=size, extent=extent, alpha=OPACITY, interpolation="nearest", aspect="equal"
    )
    axes.set_xlim(-0.5, W - 0.5)
    axes.set_ylim(H - 0.5, -0.5)


def draw_image_reasons(pixels: Pixels, maps: Mapping[str, Array], title: Sequence[str]) -> "Figure":
    """Draw an image, then each map over a grey copy of the image."""
    ratio = pixels.shape[0] / pixels.shape[1]
    figure = new_figure(PANEL * (1 + len(maps)), PANEL * float(np.clip(ratio, 0.4, 2.5)) + 0.3 + 0.25 * len(title))
    style = text_style(title)
    lines = [truncate(line, TITLE_CHARACTERS * (1 + len(maps))) for line in title]
    figure.suptitle("\n".join(lines), fontsize=11, **style)
    panels = figure.subplots(1, 1 + len(maps), squeeze=False)[0]
    draw_image(panels[0], pixels)
    set_heading(panels[0], "image")
    for axes, (name, values) in zip(panels[1:], maps.items(), strict=True):
        draw_map(axes, pixels, values)
        set_heading(axes, HEADINGS.get(name, name))
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
