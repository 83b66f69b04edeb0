"""Plots of recurrent cells: gates and states over a text, and gradients through time."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from seqloom.inspect.plots.figures import (
    COLOURS,
    MAX_WIDTH,
    SIGNED_COLORMAP,
    Style,
    add_legend,
    draw_signed,
    escape_math,
    figure_width,
    format_token,
    gate_colormap,
    largest_magnitude,
    new_figure,
    quantity_colour,
    set_heading,
    set_token_labels,
    tidy,
)
from seqloom.inspect.values import Array
from seqloom.inspect.views.cells import GateTrace, LayerTrace
from seqloom.inspect.views.gradients import GradientReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = ("-", "--", ":")  # different dashes keep overlapping lines visible


def draw_gates(trace: GateTrace, number: int | None = None, title: str = "") -> "Figure":
    """Draw heat maps over the tokens: gates from 0 to 1, then candidate and states around 0.

    All maps show the units whose hidden states vary most.
    """
    layer = trace.layer(number)
    units = layer.most_varying()
    figure = new_figure(figure_width(len(trace.tokens)), 1.2 + (0.6 + 0.12 * len(units)) * len(layer.values))
    panels = figure.subplots(len(layer.values), 1, sharex=True, squeeze=False)[:, 0].tolist()
    for axes, name in zip(panels, layer.values, strict=True):
        values = layer.values[name][:, units].T  # (units, T)
        if name in layer.gates:
            style: Style = {"cmap": gate_colormap(), "vmin": 0, "vmax": 1}
            image = axes.imshow(values, aspect="auto", interpolation="nearest", **style)
        else:
            image = draw_signed(axes, values)
        set_heading(axes, layer.describe(name))
        axes.set_yticks(range(len(units)), [str(unit) for unit in units], fontsize=7)
        axes.set_ylabel("unit")
        figure.colorbar(image, ax=axes, pad=0.01, aspect=12)
    set_token_labels(panels, trace.tokens)
    shown = f"the {len(units)} of {layer.hidden} units that vary most" if len(units) < layer.hidden else "all units"
    figure.suptitle(escape_math(f"{title or trace.cell}: {shown}{_describe_position(trace, layer)}"))
    return figure


def _describe_position(trace: GateTrace, layer: LayerTrace) -> str:
    where = trace.location(layer)
    return where and f" ({where})"


def draw_unit(trace: GateTrace, unit: int, number: int | None = None, title: str = "") -> "Figure":
    """Draw one unit over the text: the text coloured by the hidden state, the gates, and the states."""
    layer = trace.layer(number)
    values, names = layer.unit(unit), list(layer.values)
    groups = {"gate": list(layer.gates), "content": [name for name in values if name == "c"]}
    groups["value"] = [name for name in values if name not in [*groups["gate"], *groups["content"]]]
    groups = {title: group for title, group in groups.items() if group}
    longest = max(len(format_token(token)) for token in trace.tokens[1:])
    # A narrower figure rotates the labels of longer tokens
    is_flat = longest == 1 or figure_width(len(trace.tokens)) == MAX_WIDTH
    heights = [0.45 if is_flat else 0.4 + 0.09 * longest, *(1.7 + 0.2 * len(group) for group in groups.values())]
    figure = new_figure(figure_width(len(trace.tokens)), 1.2 + sum(heights))
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights).tolist()
    _draw_strip(figure, panels[0], values["h"], trace.tokens)
    for axes, (kind, group) in zip(panels[1:], groups.items(), strict=True):
        tidy(axes).axhline(0, color="black", linewidth=0.6)
        for name, dashes in zip(group, cycle(DASHES), strict=False):
            style: Style = {"color": quantity_colour(name, names.index(name)), "linestyle": dashes}
            axes.plot(values[name], **style, marker="o", markersize=3, linewidth=1.5, label=layer.describe(name))
        axes.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
        axes.set_ylabel(kind)
        limit = max(1.0, *(largest_magnitude(values[name]) for name in group))
        axes.set_ylim(-0.04 if kind == "gate" else -1.06 * limit, 1.06 * limit)
    set_token_labels(panels, trace.tokens)
    figure.suptitle(escape_math(f"{title or trace.cell}: unit {unit} over the text{_describe_position(trace, layer)}"))
    return figure


def _draw_strip(figure: "Figure", axes: "Axes", values: Array, tokens: Sequence[str]) -> None:
    """Draw the text. The colour behind each token shows the unit's hidden state."""
    size = largest_magnitude(values)
    image = axes.imshow(values[None], aspect="auto", cmap=SIGNED_COLORMAP, vmin=-size, vmax=size)
    if figure_width(len(tokens)) < MAX_WIDTH:
        for position, token in enumerate(tokens[1:], start=1):
            style: Style = {"color": "white" if abs(values[position]) > 0.6 * size else "black", "ha": "center"}
            style |= {"va": "center", "rotation": 90} if len(format_token(token)) > 1 else {"va": "center_baseline"}
            axes.text(position, 0, escape_math(format_token(token)), **style, family="monospace", fontsize=10)
    axes.set_yticks([])
    set_heading(axes, "hidden state h at each token")
    figure.colorbar(image, ax=axes, pad=0.01, aspect=4, ticks=[-size, size], format="%.2f")


# --- gradients --------------------------------------------------------------------------------------------------------

MIN_RATIO = 1e-16  # smallest gradient shown, relative to the largest
HEADROOM = 1e3  # a bound is drawn up to this multiple of the largest measured value
STATES = {"h": "-", "c": "--"}
MAX_LEGEND_ENTRIES = 6  # longer legends are placed beside the panel
MAX_UPRIGHT_MATRICES = 12  # with more matrices, labels are rotated


def draw_gradients(reports: Sequence[GradientReport]) -> "Figure":
    """Draw gradient norms over time, singular values and, if available, the Elman bound and the norms in training."""
    panels = [_draw_norms, _draw_singular_values]
    panels += [_draw_bound] if any(report.flows for report in reports) else []
    panels += [_draw_training] if any(report.training for report in reports) else []
    rows, columns = (2, 2) if len(panels) == 4 else (1, len(panels))
    curves = sum(len(states) for report in reports for states in report.trace.layers)
    width = 6.5 if curves <= MAX_LEGEND_ENTRIES else 11.0  # the larger width leaves room for legends beside the panels
    figure = new_figure(width * columns, 4.9 * rows)
    for axes, draw in zip(figure.subplots(rows, columns).flatten(), panels, strict=True):
        draw(tidy(axes), reports)
        if len(axes.get_legend_handles_labels()[0]) <= MAX_LEGEND_ENTRIES:
            add_legend(axes, "best" if draw is _draw_norms else "upper right")
        else:
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
    return figure


def _iterate_lines(reports: Sequence[GradientReport]) -> Iterator[tuple[str, str, GradientReport]]:
    """Yield the colour, the name and the report of each run."""
    for colour, report in zip(cycle(COLOURS), reports, strict=False):
        name = report.name if report.cell in report.name else f"{report.name} ({report.cell})"
        yield colour, escape_math(name), report


def _layer_alpha(depth: int, layers: int) -> float:
    """Return the opacity of a layer's line; lines of lower layers are paler."""
    return 0.35 + 0.65 * (depth + 1) / layers


def _mask_nonpositive(values: Array) -> Array:
    """Replace values by NaN if a logarithmic axis cannot show them."""
    return np.where((values > 0) & np.isfinite(values), values, np.nan)


def _mark_hidden_ends(axes: "Axes") -> None:
    """Mark where lines leave the panel at the bottom, and write the smallest value next to each mark."""
    floor, (left, right) = axes.get_ylim()[0], axes.get_xlim()
    positions, smallest = [], floor
    for line in list(axes.lines):
        x, y = (np.asarray(values, dtype=float) for values in line.get_data())
        below = np.flatnonzero(y < floor)
        if below.size:
            positions.append(float(x[below[np.argmax(y[below])]]))
            smallest = min(smallest, float(y[below].min()))
            axes.plot(positions[-1:], [floor], "v", color=line.get_color(), alpha=line.get_alpha(), clip_on=False)
    if positions:
        edge, side = (0.02, "left") if max(positions) > (left + right) / 2 else (0.98, "right")
        words = f"▼ continues below, down to {smallest:.0e}"
        axes.text(edge, 0.03, words, transform=axes.transAxes, ha=side, fontsize=9, color="0.3")


def _draw_norms(axes: "Axes", reports: Sequence[GradientReport]) -> None:
    """Draw ‖∂L/∂h_t‖, and ‖∂L/∂c_t‖ for cells with a cell state."""
    is_last = reports[0].trace.of == "last"
    strongest = 0.0
    for colour, name, report in _iterate_lines(reports):
        trace = report.trace
        positions = trace.distances if is_last else list(range(len(trace.tokens)))
        for depth, states in enumerate(trace.layers):
            layer = f", layer {depth + 1}" if len(trace.layers) > 1 else ""
            style: Style = {"color": colour, "alpha": _layer_alpha(depth, len(trace.layers))}
            for state, norms in states.items():
                shown = _mask_nonpositive(norms)
                axes.plot(positions, shown, **style, linestyle=STATES.get(state, ":"), label=f"{name}: {state}{layer}")
                strongest = max(strongest, float(np.nanmax(shown, initial=0)))
    axes.set_yscale("log")
    if strongest > 0:
        axes.set_ylim(max(axes.get_ylim()[0], strongest * MIN_RATIO), strongest * 3)
        _mark_hidden_ends(axes)
    axes.set_ylabel("‖∂L/∂h$_t$‖" + (", ‖∂L/∂c$_t$‖" if any("c" in r.trace.layers[0] for r in reports) else ""))
    predictions = "the last prediction" if is_last else "all predictions"
    axes.set_title(f"Gradient norm of each state for the loss of {predictions}")
    axes.set_xlabel("distance from the loss in tokens" if is_last else "time step t")


def _draw_singular_values(axes: "Axes", reports: Sequence[GradientReport]) -> None:
    """Draw all singular values as short strokes in one column per matrix, and the spectral radius as a dot."""
    labels: list[str] = []
    is_crowded = sum(len(report.matrices) for report in reports) > MAX_UPRIGHT_MATRICES
    rotation, separator = (90, ", ") if is_crowded else (0, "\n")
    stroke: Style = {"marker": "_", "s": 90 if is_crowded else 220, "linewidth": 1, "alpha": 0.45}
    above: Style = {"textcoords": "offset points", "ha": "center", "fontsize": 8 if is_crowded else 9}
    for colour, name, report in _iterate_lines(reports):
        axes.plot([], [], color=colour, linewidth=2, label=name)
        for matrix in report.matrices:
            position, values = len(labels), matrix.singular_values
            layer = f"{separator}layer {matrix.layer + 1}" if len(report.trace.layers) > 1 else ""
            block = "h" if matrix.name == "candidate" else matrix.name
            labels.append(f"W$_{{h{block}}}${layer}")
            axes.scatter([position] * len(values), values, **stroke, color=colour)
            axes.annotate(f"{values[0]:.2f}", (position, values[0]), xytext=(0, 4), rotation=rotation, **above)
            axes.scatter([position], [matrix.spectral_radius], s=22, color="black", zorder=3)
    axes.scatter([], [], s=22, color="black", label="spectral radius")
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(labels)), labels, fontsize=9, rotation=rotation)
    axes.set_xlim(-0.6, len(labels) - 0.4)
    axes.set_ylim(0, (1.2 + 0.05 * len(reports)) * axes.get_ylim()[1])
    axes.set_ylabel("singular value")
    axes.set_title("Singular values of the recurrent matrices")


def _draw_bound(axes: "Axes", reports: Sequence[GradientReport]) -> None:
    """Draw the measured ‖∂h_t/∂h_k‖ and its upper bound."""
    ends = []
    for colour, name, report in _iterate_lines(reports):
        for flow in report.flows:
            title = f"{name}, layer {flow.layer + 1}" if len(report.flows) > 1 else name
            style: Style = {"color": colour, "alpha": _layer_alpha(flow.layer, len(report.flows))}
            measured, gamma = _mask_nonpositive(flow.measured), flow.gamma_w * flow.gamma_g
            axes.plot(measured, **style, label=f"{title}: measured")
            bound = _mask_nonpositive(flow.bound)
            axes.plot(bound, **style, linestyle=":", label=f"{title}: bound {gamma:.2f}$^{{t-k}}$")
            ends.append((float(np.nanmin(measured)), float(np.nanmax(measured))))  # the first value is 1
    axes.set_yscale("log")
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    axes.set_ylim(max(low / 3, high * MIN_RATIO), high * HEADROOM)
    _mark_hidden_ends(axes)
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_title("Jacobian norm and its upper bound (Elman)")
    axes.set_xlabel("t − k in steps")
    axes.set_ylabel("‖∂h$_t$/∂h$_k$‖")


def _draw_training(axes: "Axes", reports: Sequence[GradientReport]) -> None:
    """Draw ‖g‖ as logged before clipping, and the clipping threshold θ."""
    thresholds: dict[float, str] = {}
    for colour, name, report in _iterate_lines(reports):
        if report.training:
            fraction = report.clipped_fraction
            clipped = "" if fraction is None else f", {fraction:.0%} clipped"
            axes.plot(*zip(*report.training, strict=True), color=colour, linewidth=1.2, label=f"{name}{clipped}")
            if report.clipping.clip is not None:
                thresholds.setdefault(report.clipping.clip, colour)
    for clip, colour in thresholds.items():
        style: Style = {"color": colour if len(thresholds) > 1 else "black", "linewidth": 1, "linestyle": "--"}
        axes.axhline(clip, **style, label=f"clipping threshold θ = {clip:g}")
    norms = [norm for report in reports for _, norm in report.training]
    if 0 < min(norms) < max(norms) / 100:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
    axes.set_title("Total gradient norm during training, before clipping")
    axes.set_xlabel("step")
    axes.set_ylabel("‖g‖")
