"""Plots of pen strokes: writings with their texts, and the alignment of a text with the strokes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqloom.data.pen_features import PenOffsetsConfig, height_of, resample
from seqloom.data.strokes import Strokes
from seqloom.inspect.plots.figures import MORE_COLOURS, Style, new_figure, text_style, truncate
from seqloom.inspect.values import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS, PANEL = 4, (2.6, 1.4)  # writings in a row, and the size of a writing in inches
CHARACTERS = 24  # maximum characters of a text
UNREAD = "#BBBBBB"  # the colour of points that belong to no token


def draw_writings(writings: Sequence[tuple[Strokes, str]], title: Sequence[str]) -> "Figure":
    """Draw writings with their texts."""
    columns = min(COLUMNS, len(writings))
    rows = -(-len(writings) // columns)
    figure = new_figure(max(5.0, PANEL[0] * columns), PANEL[1] * rows + 0.3 * len(title))
    style = text_style([*(text for _, text in writings), *title])
    figure.suptitle("\n".join(title), fontsize=11, **style)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels:
        axes.set_axis_off()
    for axes, (strokes, text) in zip(panels, writings, strict=False):
        axes.set_title(truncate(text, CHARACTERS), fontsize=9, **style)
        for stroke in strokes.strokes:
            _draw_line(axes, stroke, "black")
        _fit(axes)
    return figure


def draw_transcription(features: PenOffsetsConfig, prediction: Any) -> "Figure":
    """Draw the strokes of an aligned transcription above the weights of its tokens.

    A point of the strokes has the colour of the token with the largest weight at this point, and the name of a token is
    written above the point with its largest weight. CTC labels only single points of a letter.
    """
    strokes, tokens = prediction.signal, prediction.alignment
    weights: Array = np.stack([token.weights for token in tokens]) if tokens else np.zeros((0, 1))
    points, is_up = resample(strokes.strokes, features.spacing * height_of(strokes), strokes.name)
    names = [token.text for token in tokens]
    title = [text for text in (Path(prediction.recording).name, prediction.text) if text]
    left, top, right, bottom = strokes.bounds
    width = 8.0
    height = float(np.clip((width - 1) * (bottom - top) / max(right - left, 1e-9), 1.0, 4.0))
    figure = new_figure(width, height + 0.2 * len(names) + 1.4)
    style = text_style([*names, *title])
    figure.suptitle("\n".join(title), fontsize=11, **style)
    upper, lower = figure.subplots(2, 1, height_ratios=[height, 0.2 * len(names) + 0.6])
    _draw_points(upper, points, is_up, weights)
    for number, name in enumerate(names):
        colour = MORE_COLOURS[number % len(MORE_COLOURS)]
        place: Style = {"textcoords": "offset points", "xytext": (0, 5), "ha": "center", "fontsize": 12}
        upper.annotate(name, points[weights[number].argmax()], color=colour, **place, **style)
    _fit(upper)
    upper.set_axis_off()
    lower.imshow(weights, aspect="auto", cmap="Blues", vmin=0, vmax=max(1e-9, float(weights.max(initial=0))))
    lower.set_yticks(range(len(names)), names, **style)
    for label, number in zip(lower.get_yticklabels(), range(len(names)), strict=True):
        label.set_color(MORE_COLOURS[number % len(MORE_COLOURS)])
    lower.tick_params(labelsize=9, length=0)
    lower.set_xlabel("point of the pen", fontsize=9)
    return figure


def _draw_points(axes: "Axes", points: Array, is_up: Array, weights: Array) -> None:
    """Draw the segments between the points (S, 2) of strokes in the colours of their tokens."""
    owners = weights.argmax(axis=0) if len(weights) else np.zeros(len(points), dtype=int)
    is_read = weights.max(axis=0, initial=0) > 0
    for index, (point, is_start) in enumerate(zip(points, is_up, strict=True)):
        colour = MORE_COLOURS[int(owners[index]) % len(MORE_COLOURS)] if is_read[index] else UNREAD
        previous = point if is_start else points[index - 1]
        _draw_line(axes, np.stack([previous, point]), colour, 3.0)


def _draw_line(axes: "Axes", points: Array, colour: str, width: float = 1.6) -> None:
    """Draw a line through points (N, 2). A single point is drawn as a dot."""
    axes.plot(*points.T, color=colour, linewidth=width, solid_capstyle="round", solid_joinstyle="round")


def _fit(axes: "Axes") -> None:
    """Use the same scale for x and y, which increases downwards."""
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.04)
    axes.invert_yaxis()
