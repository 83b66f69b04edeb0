"""Pictures of gates and states over a text.

Pictures of how gradients flow back through time, several runs on one.
"""

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from seqloom.inspect.plots.figures import (
    COLOURS,
    SIGNED,
    WIDEST,
    gate_colormap,
    label_tokens,
    legend,
    literal,
    new_figure,
    quantity_colour,
    tidy,
    visible,
    width_for,
)
from seqloom.inspect.values import Array
from seqloom.inspect.views.cells import GateTrace, LayerTrace
from seqloom.inspect.views.gradients import GradientReport

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
    axes.set_title(layer.describe(name), loc="left", fontsize=10)
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
        axes.plot(values, **look, marker="o", markersize=3, linewidth=1.5, label=layer.describe(name))
    axes.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)


# ---------------------------------------------------------------------------------------------------------------------

SMALLEST = 1e-16  # what is weaker than that beside the strongest is nothing to any optimizer
HEADROOM = 1e3  # how far above what is measured a bound is still drawn
STATES = {"h": "-", "c": "--"}
MANY = 6  # entries of a legend that still leave room for the curves …
CROWDED = 12  # … and matrices whose names and figures fit side by side


def draw_gradients(reports: Sequence[GradientReport]) -> "Figure":
    """Norms over time and singular values; where there is something to show, the Elman bound and norms in training."""
    panels: list[Callable[[Any, Sequence[GradientReport]], None]] = [_norms, _singular_values]
    panels += [_bound] if any(report.flows for report in reports) else []
    panels += [_training] if any(report.training for report in reports) else []
    rows, columns = (2, 2) if len(panels) == 4 else (1, len(panels))
    curves = sum(len(states) for report in reports for states in report.trace.layers)
    width = 6.5 if curves <= MANY else 11.0  # the legends stand beside the panels then
    figure = new_figure(width * columns, 4.9 * rows)
    for axes, panel in zip(figure.subplots(rows, columns).flatten(), panels, strict=True):
        panel(tidy(axes), reports)
    return figure


def _legend(axes: Any, place: str = "best") -> None:
    """Where it fits; beside the panel if it would cover too much of it."""
    if len(axes.get_legend_handles_labels()[0]) <= MANY:
        legend(axes, place)
    else:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def _coloured(reports: Sequence[GradientReport]) -> list[tuple[str, GradientReport]]:
    return list(zip(cycle(COLOURS), reports, strict=False))


def _name(report: GradientReport) -> str:
    return literal(report.name if report.cell in report.name else f"{report.name} ({report.cell})")


def _fade(depth: int, layers: int) -> float:
    """The lower a layer, the paler its line."""
    return 0.35 + 0.65 * (depth + 1) / layers


def _positive(values: Array) -> Array:
    """What a logarithmic axis can show."""
    return np.where((values > 0) & np.isfinite(values), values, np.nan)


def _mark_what_goes_on(axes: Any) -> None:
    """A triangle where a line leaves the panel below, and how far down it goes."""
    floor, (left, right) = axes.get_ylim()[0], axes.get_xlim()
    places, least = [], floor
    for line in list(axes.lines):
        x, y = (np.asarray(values, dtype=float) for values in line.get_data())
        below = np.flatnonzero(y < floor)
        if below.size:
            places.append(float(x[below[np.argmax(y[below])]]))
            least = min(least, float(y[below].min()))
            axes.plot(places[-1:], [floor], "v", color=line.get_color(), alpha=line.get_alpha(), clip_on=False)
    if places:
        side = "left" if max(places) > (left + right) / 2 else "right"
        words = f"▼ goes on below, down to {least:.0e}"
        at = 0.02 if side == "left" else 0.98
        axes.text(at, 0.03, words, transform=axes.transAxes, ha=side, fontsize=9, color="0.3")


def _norms(axes: Any, reports: Sequence[GradientReport]) -> None:
    """‖∂L/∂h_t‖, of the cell's content too where there is one."""
    last = reports[0].trace.of == "last"
    strongest = 0.0
    for colour, report in _coloured(reports):
        trace = report.trace
        places = trace.distances if last else list(range(len(trace.tokens)))
        for depth, states in enumerate(trace.layers):
            look: dict[str, Any] = {"color": colour, "alpha": _fade(depth, len(trace.layers))}
            for state, norms in states.items():
                layer = f", layer {depth + 1}" if len(trace.layers) > 1 else ""
                shown = _positive(norms)
                label = f"{_name(report)}: {state}{layer}"
                axes.plot(places, shown, **look, linestyle=STATES.get(state, ":"), label=label)
                strongest = max(strongest, float(np.nanmax(shown, initial=0)))
    axes.set_yscale("log")
    if strongest > 0:
        axes.set_ylim(max(axes.get_ylim()[0], strongest * SMALLEST), strongest * 3)
        _mark_what_goes_on(axes)
    axes.set_ylabel("‖∂L/∂h$_t$‖" + (", ‖∂L/∂c$_t$‖" if any("c" in r.trace.layers[0] for r in reports) else ""))
    if last:
        axes.set_title("How much each earlier state matters for the last prediction")
        axes.set_xlabel("distance from the loss, tokens")
    else:
        axes.set_title("How much each state matters for all predictions after it")
        axes.set_xlabel("time step t")
    _legend(axes)


def _singular_values(axes: Any, reports: Sequence[GradientReport]) -> None:
    """All of them as short strokes, one column per matrix; a dot is the spectral radius."""
    labels: list[str] = []
    crowded = sum(len(report.matrices) for report in reports) > CROWDED
    stroke: dict[str, Any] = {"marker": "_", "s": 90 if crowded else 220, "linewidth": 1, "alpha": 0.45}
    above: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": 8 if crowded else 9}
    above |= {"xytext": (0, 4), "rotation": 90 if crowded else 0}
    for colour, report in _coloured(reports):
        axes.plot([], [], color=colour, linewidth=2, label=_name(report))
        for matrix in report.matrices:
            place, values = len(labels), matrix.singular_values
            layer = f"layer {matrix.layer + 1}" if len(report.trace.layers) > 1 else ""
            layer = layer and (", " if crowded else "\n") + layer
            labels.append(f"W$_{{h{_block(matrix.name)}}}${layer}")
            axes.scatter([place] * len(values), values, **stroke, color=colour)
            axes.annotate(f"{values[0]:.2f}", (place, values[0]), **above)
            axes.scatter([place], [matrix.spectral_radius], s=22, color="black", zorder=3)
    axes.scatter([], [], s=22, color="black", label="spectral radius")
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(labels)), labels, fontsize=9, rotation=90 if crowded else 0)
    axes.set_xlim(-0.6, len(labels) - 0.4)
    axes.set_ylim(0, (1.2 + 0.05 * len(reports)) * axes.get_ylim()[1])
    axes.set_ylabel("singular value")
    axes.set_title("Singular values of the recurrent matrices")
    _legend(axes, "upper right")


def _block(name: str) -> str:
    return "h" if name == "candidate" else name


def _bound(axes: Any, reports: Sequence[GradientReport]) -> None:
    """What arrives of a change, and what the bound would allow."""
    ends = []
    for colour, report in _coloured(reports):
        for flow in report.flows:
            layer = f", layer {flow.layer + 1}" if len(report.flows) > 1 else ""
            look: dict[str, Any] = {"color": colour, "alpha": _fade(flow.layer, len(report.flows))}
            gamma = flow.gamma_w * flow.gamma_g
            measured = _positive(flow.measured)
            axes.plot(measured, **look, label=f"{_name(report)}{layer}: measured")
            axes.plot(
                _positive(flow.bound),
                **look,
                linestyle=":",
                label=f"{_name(report)}{layer}: bound {gamma:.2f}$^{{t-k}}$",
            )
            ends.append((float(np.nanmin(measured)), float(np.nanmax(measured))))  # the first is 1
    axes.set_yscale("log")
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    axes.set_ylim(max(low / 3, high * SMALLEST), high * HEADROOM)
    _mark_what_goes_on(axes)
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_title("How much of a change of h$_k$ arrives at h$_t$ (Elman)")
    axes.set_xlabel("t − k, steps")
    axes.set_ylabel("‖∂h$_t$/∂h$_k$‖")
    _legend(axes, "upper right")


def _training(axes: Any, reports: Sequence[GradientReport]) -> None:
    """‖g‖ as logged; above θ it was scaled down to θ."""
    thresholds: dict[float, list[str]] = {}
    for colour, report in _coloured(reports):
        if not report.training:
            continue
        share = report.share_clipped
        clipped = "" if share is None else f", {share:.0%} clipped"
        axes.plot(*zip(*report.training, strict=True), color=colour, linewidth=1.2, label=f"{_name(report)}{clipped}")
        if report.clipping.clip is not None:
            thresholds.setdefault(report.clipping.clip, []).append(colour)
    for clip, colours in thresholds.items():
        colour = colours[0] if len(thresholds) > 1 else "black"
        axes.axhline(
            clip, color=colour, linewidth=1, linestyle="--", label=f"θ = {clip:g}: what is longer is cut to it"
        )
    norms = [norm for report in reports for _, norm in report.training]
    if 0 < min(norms) < max(norms) / 100:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
    axes.set_title("The whole gradient during training, before clipping")
    axes.set_xlabel("step")
    axes.set_ylabel("‖g‖")
    _legend(axes, "upper right")
