"""Plots of clips: frames with labels, weights of frames, and the attention of words over frames."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from seqloom.data.images import Pixels
from seqloom.inspect.plots.figures import COLOURS, new_figure, set_heading, text_style, tidy, truncate
from seqloom.inspect.plots.images import draw_image
from seqloom.inspect.values import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

PANEL, COLUMNS = 1.1, 12  # inches of a frame; frames in a row
CHARACTERS = 14  # maximum characters of a label
MAX_PLOTTED = 48  # maximum number of frames in a plot
WORD_HEIGHT = 0.28  # inches of a word
HEADINGS = {"occlusion": "occlusion: decrease in p without the frame", "attention": "attention pooling"}


def draw_frames(
    frames: Pixels, title: Sequence[str], labels: Sequence[str] = (), weights: Mapping[str, Array] | None = None
) -> "Figure":
    """Draw the frames of a clip (T, H, W, C) with their numbers and labels, then a chart for each list of weights.

    If the clip has more than `MAX_PLOTTED` frames, evenly spaced frames are drawn.
    """
    chosen = np.linspace(0, len(frames) - 1, min(len(frames), MAX_PLOTTED)).round().astype(int).tolist()
    columns, charts = min(len(chosen), COLUMNS), weights or {}
    rows = -(-len(chosen) // columns)
    heights = [(PANEL + 0.35) * rows, *[1.4] * len(charts)]
    figure = new_figure(max(5.0, PANEL * columns), sum(heights) + 0.3 * len(title))
    style = text_style([*labels, *title])
    figure.suptitle("\n".join(title), fontsize=11, **style)
    parts = figure.subfigures(1 + len(charts), 1, height_ratios=heights, squeeze=False).ravel()
    panels = parts[0].subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[len(chosen) :]:
        axes.set_axis_off()
    for axes, index in zip(panels, chosen, strict=False):
        draw_image(axes, frames[index])
        name = f"{index + 1}\n{truncate(labels[index], CHARACTERS)}" if labels else str(index + 1)
        axes.set_title(name, fontsize=8, **style)
    for part, (name, values) in zip(parts[1:], charts.items(), strict=True):
        _draw_weights(part, values, HEADINGS.get(name, name))
    return figure


def draw_clips(clips: Sequence[tuple[Pixels, Sequence[str], str]], title: Sequence[str]) -> "Figure":
    """Draw the frames of clips (T, H, W, C), one clip per row, with the label of each frame and a heading."""
    columns = min(COLUMNS, max(len(frames) for frames, _, _ in clips))
    figure = new_figure(max(5.0, PANEL * columns), (PANEL + 0.6) * len(clips) + 0.3 * len(title))
    style = text_style([*(label for _, labels, _ in clips for label in labels), *(name for *_, name in clips), *title])
    figure.suptitle("\n".join(title), fontsize=11, **style)
    rows = figure.subfigures(len(clips), 1, squeeze=False).ravel()
    for row, (frames, labels, name) in zip(rows, clips, strict=True):
        row.suptitle(name, fontsize=9, **style)
        panels = row.subplots(1, columns, squeeze=False).ravel()
        for axes in panels:
            axes.set_axis_off()
        for axes, frame, label in zip(panels, frames, labels, strict=False):
            axes.set_axis_on()
            draw_image(axes, frame)
            axes.set_title(truncate(label, CHARACTERS), fontsize=8, **style)
    return figure


def _draw_weights(part: "SubFigure", values: Array, heading: str) -> None:
    """Draw a bar for each frame."""
    axes: Axes = tidy(part.subplots())
    axes.bar(
        np.arange(1, len(values) + 1), values, color=[COLOURS[0] if value >= 0 else COLOURS[1] for value in values]
    )
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_xlabel("frame", fontsize=8)
    axes.tick_params(labelsize=7)
    set_heading(axes, heading)


def draw_frame_attention(frames: Pixels, words: Sequence[str], weights: Array, title: Sequence[str]) -> "Figure":
    """Draw the frames of a clip (T, H, W, C) above the attention weights (W, T) of the words over the frames."""
    count = len(frames)
    figure = new_figure(max(5.0, 1.6 + 0.8 * count), 1.6 + WORD_HEIGHT * len(words) + 0.3 * len(title))
    style = text_style([*words, *title])
    figure.suptitle("\n".join(title), fontsize=11, **style)
    grid = figure.add_gridspec(2, count, height_ratios=[1.0, WORD_HEIGHT * len(words) + 0.3])
    for index, frame in enumerate(frames):
        axes = figure.add_subplot(grid[0, index])
        draw_image(axes, frame)
        axes.set_title(str(index + 1), fontsize=8)
    axes = figure.add_subplot(grid[1, :])
    axes.imshow(weights, aspect="auto", cmap="Blues", vmin=0, vmax=max(1e-9, float(weights.max())))
    axes.set_yticks(range(len(words)), [truncate(word, 2 * CHARACTERS) for word in words], **style)
    axes.set_xticks(range(count), [str(number + 1) for number in range(count)])
    axes.tick_params(labelsize=8, length=0)
    axes.set_xlabel("frame", fontsize=9)
    return figure
