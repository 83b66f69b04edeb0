"""Plots for translators: BLEU by the length of the source, and gradients by source position."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from seqloom.evaluate.translation import LengthRow
from seqloom.inspect.plots.figures import (
    MORE_COLOURS,
    add_legend,
    draw_cell_borders,
    format_token,
    new_figure,
    set_heading,
    text_style,
    tidy,
    truncate,
)
from seqloom.inspect.views.source_gradients import SourceGradients

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^vP"


def draw_lengths(rows: Mapping[str, Sequence[LengthRow]], unit: str, title: str) -> "Figure":
    """Draw BLEU by source length for each model, above the number of pairs in each bucket.

    The models must have translated the same sentences, so that their buckets are equal.
    """
    buckets = next(iter(rows.values()))
    names = [bucket_name(row) for row in buckets]
    positions = range(len(buckets))
    figure, style = new_figure(max(6.5, 1.8 + 0.75 * len(names)), 5.2), text_style([*rows, title])
    scores, counts = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    for number, (name, of_model) in enumerate(rows.items()):
        line = {"color": MORE_COLOURS[number % len(MORE_COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        scores.plot(positions, [row.bleu for row in of_model], label=name, markersize=5, linewidth=1.8, **line)
    tidy(scores).set_ylim(bottom=0)
    scores.set_ylabel("BLEU")
    if len(rows) > 1:
        add_legend(scores, prop={"size": 9, **({} if style["family"] is None else {"family": style["family"]})})
    set_heading(scores, "BLEU by the length of the source")
    tidy(counts, grid=False).bar(positions, [row.pairs for row in buckets], color="0.75", width=0.7)
    for position, row in enumerate(buckets):
        counts.text(position, row.pairs, f"{row.pairs:,}", ha="center", va="bottom", size=7.5, color="0.35")
    counts.set_ylabel("pairs")
    counts.set_ylim(top=1.35 * max(row.pairs for row in buckets))
    counts.set_yticks([])
    counts.set_xticks(list(positions), names)
    counts.set_xlabel(f"{unit} in the source")
    figure.suptitle(title, fontsize=11, **style)
    return figure


def bucket_name(row: LengthRow) -> str:
    return f"{row.low}" if row.low == row.high else f"{row.low}–{row.high}"


# --- gradients --------------------------------------------------------------------------------------------------------

MAX_TOKEN = 16  # maximum characters of a token's label
CELL = 0.36  # inches of a cell


def draw_source_gradients(reports: Sequence[SourceGradients], of: str) -> "Figure":
    """Draw ‖∂L/∂x_j‖ by source position for each run. For a single run, also draw ‖∂L_t/∂x_j‖ of each target token."""
    longest = max(len(report.source) for report in reports)
    names = [truncate(format_token(token), MAX_TOKEN) for token in reports[0].source]
    is_shared = all(report.source == reports[0].source for report in reports)
    style = text_style([*names, *(token for report in reports for token in report.target), reports[0].text])
    width, rows = max(6.5, 2.5 + CELL * longest), len(reports[0].target) if len(reports) == 1 else 0
    figure = new_figure(width, 3.6 + CELL * rows)
    panels = figure.subplots(
        1 + bool(rows), 1, sharex=True, squeeze=False, height_ratios=[CELL * rows, 2.6][not rows :]
    )
    axes = tidy(panels[-1, 0])
    for number, report in enumerate(reports):
        norms = report.by_token[-1] if of == "last" else report.total
        line = {"color": MORE_COLOURS[number % len(MORE_COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        axes.semilogy(range(len(norms)), np.where(norms > 0, norms, np.nan), label=report.name, markersize=4, **line)
    loss = "of the last token" if of == "last" else "of all tokens"
    set_heading(axes, f"gradient of the loss {loss} with respect to the input at each source position")
    axes.set_ylabel("‖∂L/∂x‖")
    if len(reports) > 1:
        add_legend(axes)
    if is_shared:
        axes.set_xticks(range(len(names)), names, rotation=60, ha="right", rotation_mode="anchor", size=9, **style)
    axes.set_xlabel("source token" if is_shared else "source position")
    if rows:
        report, heat = reports[0], panels[0, 0]
        relative = report.by_token / np.maximum(report.by_token.max(axis=1, keepdims=True), 1e-300)
        image = heat.imshow(relative, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        heat.set_yticks(
            range(rows), [truncate(format_token(token), MAX_TOKEN) for token in report.target], size=9, **style
        )
        heat.spines[:].set_visible(False)
        heat.set_ylabel("produces (target)")
        draw_cell_borders(heat, rows, len(names), "white", 0.8)
        if is_shared:
            heat.set_xticks(range(len(names)), names)
        set_heading(heat, "gradient of each target token, relative to the largest in its row")
        bar = figure.colorbar(image, ax=heat, pad=0.02, aspect=18)
        bar.outline.set_visible(False)
    return figure
