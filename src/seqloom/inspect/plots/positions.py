"""A picture of positions: the table, a few of its rows as curves, and what two places have in common."""

from typing import TYPE_CHECKING, Any

import numpy as np

from seqloom.core.words import counted
from seqloom.inspect.plots.figures import COLOURS, SIGNED, new_figure, tidy
from seqloom.inspect.views.positions import PositionsView

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "sinusoidal": "Sinusoidal positions",
    "learned": "Learned positions",
    "rotary": "Rotary positions: sine and cosine of the angles by which queries and keys are turned",
}

TOLD = {"rotary": "by which angles each place turns: their sines and cosines"}
PRODUCT = {"rotary": "q · k, for q = k before they are turned"}


def draw_positions(view: PositionsView) -> "Figure":
    figure = new_figure(13, 8.8)
    (table, products), (curves, distances) = figure.subplots(2, 2, width_ratios=(1.45, 1), height_ratios=(1.45, 1))
    _table(figure, table, view)
    _products(figure, products, view)
    _curves(curves, view)
    _distances(distances, view)
    laid = "" if view.layout is None else f", {view.layout}, base {view.base:g}"
    run = f"{view.name}: " if view.name else ""
    size = f"{counted(view.length, 'place')} × {view.width}"
    figure.suptitle(f"{run}{TITLES[view.kind]} ({size}{laid})", parse_math=False)
    for axis in (table.xaxis, table.yaxis, products.xaxis, products.yaxis, curves.xaxis, distances.xaxis):
        axis.get_major_locator().set_params(integer=True, min_n_ticks=1)  # there is no place between two
    return figure


def _table(figure: "Figure", axes: Any, view: PositionsView) -> None:
    """Places run to the right, as in the curves below."""
    reach = float(np.abs(view.table).max()) or 1.0
    image = axes.imshow(view.table.T, aspect="auto", cmap=SIGNED, vmin=-reach, vmax=reach, interpolation="nearest")
    title = TOLD.get(view.kind, "what each place is told: a column is a place's vector")
    axes.set_title(title, loc="left", fontsize=10)
    axes.set(xlabel="place", ylabel="dimension")
    for number, dimension in enumerate(view.telling()):  # where the curves below are taken from
        mark: dict[str, Any] = {"color": COLOURS[number], "fontsize": 13, "va": "center", "in_layout": False}
        axes.text(1.005, dimension, "◀", transform=axes.get_yaxis_transform(), **mark)
    figure.colorbar(image, ax=axes, pad=0.05, aspect=25)


def _curves(axes: Any, view: PositionsView) -> None:
    tidy(axes)
    for number, dimension in enumerate(view.telling()):
        axes.plot(view.table[:, dimension], color=COLOURS[number], linewidth=1.8, label=_name(view, dimension))
    axes.set_xlim(-0.5, view.length - 0.5)
    axes.set(xlabel="place", ylabel="value")
    axes.set_title("a few dimensions, marked above", loc="left", fontsize=10)
    axes.legend(ncols=2, frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, -0.42))


def _name(view: PositionsView, dimension: int) -> str:
    if not view.wavelengths:
        return f"dimension {dimension}"
    pair = dimension // 2 if view.layout == "interleaved" else dimension
    return f"dimension {dimension}: sine, again after {view.wavelengths[pair]:,.1f} places"


def _products(figure: "Figure", axes: Any, view: PositionsView) -> None:
    products = view.products
    reach = float(np.abs(products).max()) or 1.0
    image = axes.imshow(products, aspect="auto", cmap=SIGNED, vmin=-reach, vmax=reach, interpolation="nearest")
    axes.set_title(f"{PRODUCT.get(view.kind, 'dot product')}, of any two places", loc="left", fontsize=10)
    axes.set(xlabel="place", ylabel="place")
    figure.colorbar(image, ax=axes, pad=0.02, aspect=25)


def _distances(axes: Any, view: PositionsView) -> None:
    tidy(axes).axhline(0, color="black", linewidth=0.6)
    low, high = view.spread
    same = float((high - low).max()) < 1e-5  # as good as nothing in the precision of the table
    if not same:
        axes.fill_between(range(view.length), low, high, color=COLOURS[0], alpha=0.18, linewidth=0)
    axes.plot(view.by_distance, color=COLOURS[0], linewidth=1.8)
    axes.set_xlim(0, max(view.length - 1, 1))
    axes.set(xlabel="distance between two places", ylabel="share of that at distance 0")
    how = "alike wherever they stand" if same else "the mean, and a band of all pairs"
    axes.set_title(f"the same by distance: {how}", loc="left", fontsize=10)
