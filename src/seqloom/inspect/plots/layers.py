"""A picture of what layers cost as the sequence grows."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from seqloom.inspect.plots.figures import COLOURS, new_figure, tidy
from seqloom.inspect.views.layers import Layers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^v"
STYLES = ("-", "-", "-", (0, (4, 2)), (0, (1, 1)))  # lines that lie on each other are still seen
GAP = 0.075  # between two names beside a panel, as a share of its height
PANELS = {
    "time": ("A forward and a backward pass", "milliseconds", 1e3),
    "memory": ("Memory such a pass holds at most", "MiB", 1 / 2**20),
    "chain": ("Operations that must wait for each other", "operations in a row", 1),
    "path": ("From the last place back to the first", "layers (recurrent: steps)", 1),
}


def draw_layers(found: Layers) -> "Figure":
    """Four panels against the length, logarithms on both axes: a power of n is a straight line, and named beside it."""
    figure = new_figure(14, 9)
    for axes, quantity in zip(figure.subplots(2, 2).flatten(), PANELS, strict=True):
        _panel(tidy(axes), found, quantity)
    slopes = f"; slopes over {found.fit()}" if found.fit() else ""
    figure.suptitle(
        f"What a layer costs as its sequence grows\n{found.settings()}\n{found.machine()}{slopes}", fontsize=12
    )
    return figure


def _panel(axes: Any, found: Layers, quantity: str) -> None:
    title, label, unit = PANELS[quantity]
    exponents, ends = found.exponents(quantity), []
    for number, (kind, rows) in enumerate(found.measured.items()):
        known = [one for one in rows if getattr(one, quantity) is not None]
        if not known:
            continue
        lengths, values = [one.length for one in known], [getattr(one, quantity) * unit for one in known]
        colour = COLOURS[number % len(COLOURS)]
        look: dict[str, Any] = {"marker": MARKERS[number % len(MARKERS)], "linestyle": STYLES[number % len(STYLES)]}
        axes.plot(lengths, values, color=colour, linewidth=2.2, **look)
        if quantity == "time":
            low, high = (np.array([edge(one.seconds) for one in known]) * unit for edge in (min, max))
            axes.fill_between(lengths, low, high, color=colour, alpha=0.2, linewidth=0)
        power = "" if exponents[kind] is None else f"  $n^{{{exponents[kind]:.2f}}}$"
        ends.append((values[-1], kind + power, colour))
    if not ends:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color="0.4")
    _scales(axes, found.lengths)
    axes.set_xlabel("length of the sequence n")
    axes.set_ylabel(label)
    axes.set_title(title, fontsize=12)
    _name(axes, ends)


def _scales(axes: Any, lengths: Sequence[int]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.set_yscale("log")
    axes.minorticks_off()
    low, high = axes.get_ylim()
    few = math.log10(high / low) < 2.5
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _name(axes: Any, ends: list[tuple[float, str, str]]) -> None:
    """Each line's name at its right end, as near as the others leave room."""
    low, high = (math.log(edge) for edge in axes.get_ylim())
    ends = sorted(ends, key=lambda end: end[0])
    heights = apart([(math.log(value) - low) / (high - low) for value, _, _ in ends], GAP)
    for height, (_, name, colour) in zip(heights, ends, strict=True):
        axes.text(1.02, height, name, color=colour, transform=axes.transAxes, va="center", fontsize=11)


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Rising heights, moved so that none is nearer to another than the gap: each crowd spreads around its middle."""
    crowds: list[list[float]] = []
    for height in heights:
        crowds.append([height])
        while len(crowds) > 1 and _lowest(crowds[-1], gap) < _lowest(crowds[-2], gap) + len(crowds[-2]) * gap:
            crowds[-2:] = [crowds[-2] + crowds[-1]]
    return [_lowest(crowd, gap) + place * gap for crowd in crowds for place in range(len(crowd))]


def _lowest(crowd: Sequence[float], gap: float) -> float:
    return sum(crowd) / len(crowd) - gap * (len(crowd) - 1) / 2
