"""A plot of the quality of translations: BLEU by the length of the source, for several models."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from seqloom.evaluate.translation import LengthRow
from seqloom.inspect.plots.figures import MORE_COLOURS, add_legend, new_figure, set_heading, text_style, tidy

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
