"""Plots of sounds: the spectrogram with the parts in which tokens or labels were read."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from seqloom.core.words import one_line
from seqloom.data.features_sound import LogMelConfig, from_mel, to_mel
from seqloom.data.sound import Sound
from seqloom.inspect.plots.figures import COLOURS, format_token, new_figure, text_style, tidy, truncate
from seqloom.inspect.values import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCHES_PER_SECOND, NARROWEST, WIDEST = 3.0, 7.0, 24.0
PANEL = 2.6  # inches of the spectrogram
ROW = 0.32  # inches of a row of labels
COLUMNS, CHARACTERS = 2, 44  # sounds in a row of a grid, and maximum characters of their texts
DRAWN_MELS, DRAWN_FRAME, DRAWN_STEP = 40, 32.0, 8.0  # the spectrogram is drawn in more detail than models read it
MAX_DRAWN_RATE = 16_000  # rate to which sounds in a grid are converted
CHARACTER = 0.085  # inches of a character of a label
DYNAMIC_RANGE = 10.0  # the darkest colour is this many natural logarithms below the loudest band
FREQUENCIES = (100, 250, 500, 1000, 2000, 4000, 8000, 16000)


class AlignedText(Protocol):
    """A transcription of a sound with the parts of its tokens."""

    recording: str
    text: str
    signal: Sound

    @property
    def alignment(self) -> "Sequence[SoundToken]": ...


class SoundToken(Protocol):
    """A token, its start and end in seconds, and its weight for each frame."""

    text: str
    start: float
    end: float
    weights: Array


class LabelledPart(NamedTuple):
    """A label and its time interval in a sound, in seconds."""

    text: str
    start: float
    end: float


def draw_sound(
    features: LogMelConfig,
    sound: Sound,
    rows: Sequence[tuple[str, Sequence[LabelledPart]]],
    title: Sequence[str],
    attention: Array | None = None,
) -> "Figure":
    """Draw the spectrogram of a sound and below it rows of labels with their parts.

    `attention` (tokens, frames) is drawn between the spectrogram and the labels: the weight of each frame for each
    token of the first row.
    """
    fine = replace(features, mels=max(features.mels, DRAWN_MELS), frame_ms=DRAWN_FRAME, step_ms=DRAWN_STEP)
    static = fine.log_mel(sound)
    seconds = len(sound.read()) / sound.rate
    weights_height = 0.0 if attention is None else max(0.8, 0.16 * len(attention))
    heights = [PANEL, *([weights_height] if attention is not None else []), *[ROW] * len(rows)]
    width = min(WIDEST, max(NARROWEST, INCHES_PER_SECOND * seconds))
    figure = new_figure(width, sum(heights) + 0.8 + 0.25 * len(title))
    style = text_style([*title, *(part.text for _, parts in rows for part in parts)])
    figure.suptitle("\n".join(title), fontsize=11, **style)
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False).ravel()
    draw_spectrogram(panels[0], fine, static, seconds)
    if attention is not None:
        panels[1].imshow(attention, aspect="auto", cmap="Blues", extent=(0, seconds, len(attention), 0), vmin=0)
        panels[1].set_ylabel("attention", fontsize=8)
        panels[1].set_yticks([])
    for axes, (name, parts) in zip(panels[len(panels) - len(rows) :], rows, strict=True):
        draw_parts(axes, parts, name, (width - 1) / seconds)
    for part in rows[0][1] if rows else ():
        panels[0].axvline(part.start, color="white", linewidth=0.6, alpha=0.7)
    panels[-1].set_xlim(0, seconds)
    panels[-1].set_xlabel("seconds", fontsize=9)
    for axes in panels[:-1]:
        axes.tick_params(labelbottom=False)
    return figure


def draw_transcription(features: LogMelConfig, prediction: AlignedText) -> "Figure":
    """Draw the spectrogram of a sound, the tokens at their times, and the attention of each token if it is soft."""
    sound, tokens = prediction.signal, prediction.alignment
    step, begin = features.step_ms / 1000, prediction.signal.start
    parts = [LabelledPart(format_token(each.text), each.start - begin, each.end - begin + step) for each in tokens]
    weights = np.array([token.weights for token in tokens])
    is_soft = bool(((weights > 0) & (weights < 1)).any())
    title = [one_line(prediction.recording), one_line(prediction.text)]
    return draw_sound(features, sound, [("tokens", parts)], title, weights if is_soft else None)


def draw_sounds(sounds: Sequence[tuple[Sound, str]], title: Sequence[str]) -> "Figure":
    """Draw the spectrograms of sounds in a grid, each with its text."""
    columns = min(len(sounds), COLUMNS)
    rows = -(-len(sounds) // columns)
    figure = new_figure(max(5.0, 3.6 * columns), 2.2 * rows + 0.3 * len(title))
    style = text_style([*title, *(text for _, text in sounds)])
    figure.suptitle("\n".join(title), fontsize=11, **style)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[len(sounds) :]:
        axes.set_axis_off()
    for axes, (sound, text) in zip(panels, sounds, strict=False):
        rate = min(sound.rate, MAX_DRAWN_RATE)
        features = LogMelConfig(rate=rate, mels=DRAWN_MELS, frame_ms=DRAWN_FRAME, step_ms=DRAWN_STEP)
        static = features.log_mel(sound)
        draw_spectrogram(axes, features, static, len(static) * features.step_ms / 1000)
        axes.set_title(truncate(one_line(text), CHARACTERS), fontsize=9, **style)
        axes.tick_params(labelsize=7)
    for axes in panels[max(0, len(sounds) - columns) : len(sounds)]:
        axes.set_xlabel("seconds", fontsize=8)
    return figure


def draw_spectrogram(axes: "Axes", features: LogMelConfig, static: Array, seconds: float) -> None:
    """Draw log-mel energies (T, mels) with frequencies in Hz."""
    loudest = float(static.max())
    edges = np.linspace(to_mel(features.low), to_mel(features.highest), features.mels + 2)
    extent = (0.0, seconds, float(edges[0]), float(edges[-1]))
    axes.imshow(
        static.T, aspect="auto", origin="lower", cmap="magma", vmin=loudest - DYNAMIC_RANGE, vmax=loudest, extent=extent
    )
    shown = [hertz for hertz in FREQUENCIES if features.low <= hertz <= from_mel(edges[-1:])[0]]
    axes.set_yticks([to_mel(hertz) for hertz in shown], [f"{hertz:,} Hz" for hertz in shown])
    axes.tick_params(labelsize=8)


def draw_parts(axes: "Axes", parts: Sequence[LabelledPart], name: str, inches_per_second: float) -> None:
    """Draw a row of labels, each on a coloured bar that covers its part."""
    tidy(axes, grid=False)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.spines[["left"]].set_visible(False)
    axes.set_ylabel(name, fontsize=8, rotation=0, ha="right", va="center")
    ends = [*(part.start for part in parts[1:]), None]
    for number, (part, next_start) in enumerate(zip(parts, ends, strict=True)):
        axes.axvspan(part.start, part.end, color=COLOURS[number % len(COLOURS)], alpha=0.25, linewidth=0)
        space = CHARACTERS if next_start is None else int((next_start - part.start) * inches_per_second / CHARACTER)
        text = truncate(part.text, max(space, 3))
        style = text_style([text])
        is_wide = (part.end - part.start) * inches_per_second > CHARACTER * len(text)
        place, align = ((part.start + part.end) / 2, "center") if is_wide else (part.start, "left")
        axes.text(place, 0.5, text, ha=align, va="center", fontsize=8, clip_on=True, **style)
