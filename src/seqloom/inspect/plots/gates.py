"""Pictures of gates and states over a text."""

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from seqloom.inspect.plots.figures import SIGNED, WIDEST, label_tokens, literal, new_figure, tidy, visible, width_for
from seqloom.inspect.plots.palette import gate_colormap, quantity_colour
from seqloom.inspect.views.gates import Array, GateTrace, LayerTrace, describe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DASHES = ("-", "--", ":")  # so that lines on top of each other are both seen


def draw_gates(trace: GateTrace, number: int | None = None, title: str = "") -> "Figure":
    """Heat maps over the tokens: the gates from 0 to 1, then candidate and states around 0.

    The same units stand in the same rows of every map: those whose hidden state varies most.
    """
    layer = trace.layer(number)
    units = layer.most_varying()
    figure = new_figure(width_for(len(trace.tokens)), 1.2 + (0.6 + 0.12 * len(units)) * len(layer.values))
    panels = figure.subplots(len(layer.values), 1, sharex=True, squeeze=False)[:, 0].tolist()
    for axes, name in zip(panels, layer.values, strict=True):
        _heat_map(figure, axes, layer, name, units)
    label_tokens(panels, trace.tokens)
    shown = f"the {len(units)} units that vary most, of {layer.hidden}" if len(units) < layer.hidden else "all units"
    figure.suptitle(literal(f"{title or trace.cell}: {shown}{_which(trace, layer)}"))
    return figure


def _heat_map(figure: "Figure", axes: Any, layer: LayerTrace, name: str, units: Sequence[int]) -> None:
    values = layer.values[name][:, units].T  # (units, T)
    if name in layer.gates:
        look: dict[str, Any] = {"cmap": gate_colormap(), "vmin": 0, "vmax": 1}
    else:
        size = _reach(values)
        look = {"cmap": SIGNED, "vmin": -size, "vmax": size}
    image = axes.imshow(values, aspect="auto", interpolation="nearest", **look)
    axes.set_title(describe(layer, name), loc="left", fontsize=10)
    axes.set_yticks(range(len(units)), [str(unit) for unit in units], fontsize=7)
    axes.set_ylabel("unit")
    figure.colorbar(image, ax=axes, pad=0.01, aspect=12)


def _reach(values: Array) -> float:
    """How far from zero the finite ones go."""
    return max(float(np.abs(values[np.isfinite(values)]).max(initial=0)), 1e-12)


def _which(trace: GateTrace, layer: LayerTrace) -> str:
    where = trace.where(layer)
    return where and f" ({where})"


def draw_unit(trace: GateTrace, unit: int, number: int | None = None, title: str = "") -> "Figure":
    """One unit over the text: the text coloured by its hidden state, its gates, its states."""
    layer = trace.layer(number)
    values = layer.unit(unit)
    groups = {"gate": list(layer.gates), "content": [name for name in values if name == "c"]}
    groups["value"] = [name for name in values if name not in [*groups["gate"], *groups["content"]]]
    groups = {label: names for label, names in groups.items() if names}
    heights = [_strip_height(trace.tokens), *(1.7 + 0.2 * len(names) for names in groups.values())]
    figure = new_figure(width_for(len(trace.tokens)), 1.2 + sum(heights))
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights).tolist()
    _strip(figure, panels[0], values["h"], trace.tokens)
    for axes, (label, names) in zip(panels[1:], groups.items(), strict=True):
        _lines(axes, layer, {name: values[name] for name in names})
        axes.set_ylabel(label)
        reach = max(1.0, *(_reach(values[name]) for name in names))
        axes.set_ylim(-0.04 if label == "gate" else -1.06 * reach, 1.06 * reach)
    label_tokens(panels, trace.tokens)
    figure.suptitle(literal(f"{title or trace.cell}: unit {unit} while the text is read{_which(trace, layer)}"))
    return figure


def _strip_height(tokens: Sequence[str]) -> float:
    """In inches: words stand upended."""
    longest = max(len(visible(token)) for token in tokens[1:])
    return 0.45 if longest == 1 or width_for(len(tokens)) == WIDEST else 0.4 + 0.09 * longest


def _strip(figure: "Figure", axes: Any, values: Array, tokens: Sequence[str]) -> None:
    """The text itself, each token on the colour of the unit's hidden state."""
    size = _reach(values)
    image = axes.imshow(values[None], aspect="auto", cmap=SIGNED, vmin=-size, vmax=size)
    if width_for(len(tokens)) < WIDEST:
        for place, token in enumerate(tokens[1:], start=1):
            look: dict[str, Any] = {"color": "white" if abs(values[place]) > 0.6 * size else "black", "ha": "center"}
            look |= {"va": "center", "rotation": 90} if len(visible(token)) > 1 else {"va": "center_baseline"}
            axes.text(place, 0, literal(visible(token)), **look, family="monospace", fontsize=10)
    axes.set_yticks([])
    axes.set_title("hidden state h on each token", loc="left", fontsize=10)
    figure.colorbar(image, ax=axes, pad=0.01, aspect=4, ticks=[-size, size], format="%.2f")


def _lines(axes: Any, layer: LayerTrace, lines: dict[str, Array]) -> None:
    tidy(axes).axhline(0, color="black", linewidth=0.6)
    names = list(layer.values)
    for (name, values), dashes in zip(lines.items(), cycle(DASHES), strict=False):
        look: dict[str, Any] = {"color": quantity_colour(name, names.index(name)), "linestyle": dashes}
        axes.plot(values, **look, marker="o", markersize=3, linewidth=1.5, label=describe(layer, name))
    axes.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
