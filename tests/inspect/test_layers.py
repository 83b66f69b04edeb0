"""Costs of layers: the plan, fits to synthetic costs, the plot, and small real measurements."""

import dataclasses
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from seqloom.core.errors import UsageError
from seqloom.inspect.views import layers
from seqloom.inspect.views.layers import QUANTITIES, Layers, LayersPlan, Measurement, collect, measure, slope
from seqloom.nn.mixers import MIXERS

SMALL: dict[str, Any] = {"lengths": (8, 16), "d_model": 8, "heads": 2, "window": 2, "repeats": 2, "device": "cpu"}


def plan(**more: Any) -> LayersPlan:
    return LayersPlan(**{**SMALL, **more})


def synthetic_layers(lengths: tuple[int, ...] = (64, 256, 1024, 4096), **times: Any) -> Layers:
    """Build measurements of two kinds with the given seconds by length. None means out of memory."""
    rows = []
    for kind, time in times.items():
        for length in lengths:
            cost = time(length)
            kind = kind.replace("_", "-")
            if cost is None:
                rows.append(Measurement(kind, length, failure="out of memory; 1.0 GiB were free"))
            else:
                count = length**2 if kind == "self-attention" else length
                rows.append(Measurement(kind, length, (0.9 * cost, cost, 1.2 * cost), 1000 * length, 7, length, count))
    return collect(plan(lengths=lengths, kinds=tuple(kind.replace("_", "-") for kind in times)), rows)


# --- exponents --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_slope_of_power_is_exponent(power: float) -> None:
    assert slope([(n, 3 * n**power) for n in (10, 20, 80)]) == pytest.approx(power)


def test_slope_needs_two_positive_points() -> None:
    assert slope([(10, 3)]) is None
    assert slope([(10, 0), (20, 5)]) is None


def test_slope_minimizes_squared_error() -> None:
    points = [(1, 1.0), (2, 5.0), (4, 3.0)]
    logs = [(math.log(x), math.log(y)) for x, y in points]
    best = slope(points)
    assert best is not None

    def off(angle: float) -> float:
        shift = sum(y - angle * x for x, y in logs) / 3
        return sum((y - angle * x - shift) ** 2 for x, y in logs)

    assert all(off(best) < off(best + nudge) for nudge in (-1e-3, 1e-3))


def test_exponents_are_fitted_to_the_larger_lengths() -> None:
    """A constant of half a second hides the quadratic growth for short lengths. The fit uses the last two lengths."""
    layers = synthetic_layers(self_attention=lambda n: n**2 * 1e-6 if n > 256 else 0.5, recurrent=lambda n: n * 1e-3)
    assert layers.fitted("recurrent") == (1024, 4096) and layers.fit() == "n = 1,024 … 4,096"
    assert layers.exponents("time") == pytest.approx({"self-attention": 2, "recurrent": 1})
    assert layers.exponents("chain") == pytest.approx({"self-attention": 0, "recurrent": 0})
    assert layers.exponents("path") == pytest.approx({"self-attention": 1, "recurrent": 1})
    assert layers.remarks() == []


def test_busy_machine_is_reported() -> None:
    def measured_with(others: float | None, threads: int = 1) -> Layers:
        rows = [Measurement("recurrent", n, (0.1 * n,), 1, n, n, n, others) for n in (8, 16)]
        return collect(plan(kinds=("recurrent",), threads=threads), rows)

    cores = os.cpu_count() or 1
    assert measured_with(None, cores).remarks() == measured_with(0.1, cores).remarks() == []
    (remark,) = measured_with(1.3, cores).remarks()
    assert remark.startswith("other programs used up to 1.3 cores, so the measured times are too high")
    assert measured_with(cores - 0.9, 1).remarks() == [], "a core was free"


def test_time_is_median() -> None:
    assert Measurement("recurrent", 4, (3.0, 1.0, 50.0)).time == 3
    assert Measurement("recurrent", 4).time is None


def test_overhead_is_reported() -> None:
    layers = synthetic_layers(self_attention=lambda n: 0.5 + n**2 * 1e-8, recurrent=lambda n: n * 1e-3)
    (remark,) = layers.remarks()
    assert re.match(r"self-attention: time grows as n\^0\.\d\d, but multiplications grow as n\^2\.00", remark)


def test_failed_lengths_are_reported_and_excluded() -> None:
    layers = synthetic_layers(
        self_attention=lambda n: n**2 * 1e-6 if n < 4096 else None, recurrent=lambda n: n * 1e-3 if n < 200 else None
    )
    assert layers.exponents("time")["self-attention"] == pytest.approx(2)
    assert layers.exponents("time")["recurrent"] is None, "one length has no slope"
    assert layers.fit() == "n = 256 … 1,024 (self-attention)"
    assert layers.remarks()[0] == "self-attention, n = 4,096: out of memory; 1.0 GiB were free"
    assert len(layers.remarks()) == 4


# --- measuring --------------------------------------------------------------------------------------------------------


def test_all_quantities_are_measured() -> None:
    settings = plan()
    rows = list(measure(settings))
    assert [(row.length, row.kind) for row in rows] == [(n, kind) for n in (8, 16) for kind in MIXERS]
    for row in rows:
        layer = settings.layer(row.kind)
        assert len(row.seconds) == 2 and min(row.seconds) > 0
        assert row.failure is None and row.memory is not None and row.chain is not None
        assert row.memory >= 4 * 8 * row.length, "y at least"
        assert row.path == layer.path_length(row.length)
        assert row.count == layer.multiplications(row.length)
    together = collect(settings, reversed(rows))
    assert together.measured["recurrent"] == (rows[2], rows[7])
    chains = {kind: together.values("chain", kind) for kind in MIXERS}
    assert chains["recurrent"] == [8 * 8 + 5, 8 * 16 + 5], "eight operations a step, for an LSTM"
    parallel = [values for kind, values in chains.items() if kind != "recurrent"]
    assert all(short is not None and long is not None and short >= long for short, long in parallel), "none grows"


def test_larger_batch_costs_more_and_threads_are_restored() -> None:
    before = torch.get_num_threads()
    (single,) = measure(plan(kinds=("convolution",), lengths=(16,), threads=before + 1))
    (batched,) = measure(plan(kinds=("convolution",), lengths=(16,), batch=3))
    assert single.count is not None and batched.count == 3 * single.count
    assert torch.get_num_threads() == before
    settings = plan(threads=2)
    assert collect(settings, []).threads == 2 and collect(settings, []).machine() == "float32 on a CPU, 2 threads"


def test_explicit_weights_need_quadratic_memory() -> None:
    """The fused kernel never stores n² numbers; the computation with explicit weights does."""
    settings = plan(lengths=(512, 1024), kinds=("self-attention",), repeats=1)
    fused = collect(settings, measure(settings)).measured["self-attention"][-1].memory
    explicit = collect(settings, measure(dataclasses.replace(settings, weights=True)))
    square = 4 * settings.heads * 1024**2
    assert fused is not None and fused < square / 4
    assert square < (explicit.measured["self-attention"][-1].memory or 0)
    assert explicit.exponents("memory")["self-attention"] == pytest.approx(2, abs=0.1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory limit needs Linux")
def test_out_of_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution fits in 60 MiB. Attention weights of 128 MiB (two heads, 4,096 positions) do not fit."""
    monkeypatch.setattr(layers, "free_memory", lambda device: 60 * 2**20)
    settings = plan(kinds=("self-attention", "dilated"), lengths=(64, 4096, 5000), weights=True, repeats=1)
    rows = {(row.kind, row.length): row for row in measure(settings)}
    assert rows["self-attention", 64].failure is None
    assert rows["self-attention", 4096].failure == "out of memory; 60 MiB were free"
    assert rows["self-attention", 5000].failure == "skipped: 4,096 positions did not fit in memory"
    assert rows["dilated", 5000].failure is None
    together = collect(settings, rows.values())
    assert together.exponents("time")["self-attention"] is None
    assert len(together.remarks()) >= 2


def test_other_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: Any) -> Any:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(layers, "seconds", wrong)
    with pytest.raises(RuntimeError, match="shapes"):
        list(measure(plan()))


def test_measuring_does_not_change_the_random_state() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    list(measure(plan(kinds=("dilated",))))
    assert torch.equal(torch.rand(3), expected)


def test_settings_list_relevant_options() -> None:
    assert collect(plan(), []).settings() == "d_model 8, 2 heads, window 2 on either side, cell lstm, kernel 3, batch 1"
    assert collect(plan(kinds=("recurrent",)), []).settings() == "d_model 8, cell lstm, batch 1"
    openly = plan(kinds=("self-attention",), heads=1, weights=True)
    assert collect(openly, []).settings() == "d_model 8, 1 head, explicit weights, batch 1"


# --- plots ------------------------------------------------------------------------------------------------------------


def test_plot_shows_measurements() -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    from seqloom.inspect.plots.figures import to_bytes
    from seqloom.inspect.plots.measurements import COST_PANELS, draw_layers

    layers = synthetic_layers(self_attention=lambda n: n**2 * 1e-6 if n < 4096 else None, recurrent=lambda n: n * 1e-3)
    figure: Any = draw_layers(layers)
    to_bytes(figure)  # computes the layout
    assert set(COST_PANELS) == set(QUANTITIES) - {"count"}
    for axes, quantity in zip(figure.axes, COST_PANELS, strict=True):
        attention, recurrent = axes.get_lines()
        assert list(attention.get_xdata()) == [64, 256, 1024] and list(recurrent.get_xdata()) == [64, 256, 1024, 4096]
        expected = [
            value * COST_PANELS[quantity][2] for value in layers.values(quantity, "recurrent") if value is not None
        ]
        assert list(recurrent.get_ydata()) == pytest.approx(expected)
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        names = {text.get_text().split()[0]: text for text in axes.texts}
        assert {kind: names[kind].get_color() for kind in names} == {
            "self-attention": attention.get_color(),
            "recurrent": recurrent.get_color(),
        }
    assert "$n^{2.00}$" in figure.axes[0].texts[1].get_text() + figure.axes[0].texts[0].get_text()
    band = figure.axes[0].collections[1].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((0.9 * 64, 1.2 * 4096))


def test_line_labels_do_not_overlap() -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    from seqloom.inspect.plots.figures import to_bytes
    from seqloom.inspect.plots.measurements import draw_layers

    costs: dict[str, Any] = {
        kind: lambda n: n * 1e-3 for kind in ("self_attention", "windowed", "recurrent", "convolution", "dilated")
    }
    figure = draw_layers(synthetic_layers(**costs))
    to_bytes(figure)
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in axes.texts]
        assert not any(a.overlaps(b) for index, a in enumerate(boxes) for b in boxes[:index])
        assert not any(box.overlaps(axes.get_window_extent()) for box in boxes)
        assert all(box.x1 <= figure.bbox.x1 for box in boxes)


def test_labels_keep_minimum_gap() -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    from seqloom.inspect.plots.measurements import spread_labels

    assert spread_labels([0.1, 0.5], 0.1) == [0.1, 0.5]
    assert spread_labels([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert spread_labels([0.2, 0.5, 0.5, 0.55, 0.9], 0.2) == pytest.approx([0.13, 0.33, 0.53, 0.73, 0.93], abs=0.01)


def test_plot_marks_missing_memory_measurements() -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    from seqloom.inspect.plots.figures import to_bytes
    from seqloom.inspect.plots.measurements import draw_layers

    settings = plan(kinds=("recurrent",))
    rows = [Measurement("recurrent", n, (0.1 * n,), None, n, n, n) for n in (8, 16)]
    figure = draw_layers(collect(settings, rows))
    to_bytes(figure)
    assert [text.get_text() for text in figure.axes[1].texts] == ["not measured"]


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"kinds": ("recurent",)}, "no layer 'recurent': did you mean recurrent"),
        ({"kinds": ()}, "at least one of kinds"),
        ({"lengths": ()}, "at least one of lengths"),
        ({"lengths": (8, 8)}, "lengths must differ"),
        ({"lengths": (8, 0)}, "length must be at least 1; got 8, 0"),
        ({"d_model": 9}, "D_model must be divisible by heads; got 9 and 2"),
        ({"d_model": 9, "kinds": ("recurrent",)}, "needs an even d_model; got 9"),
        ({"d_model": 0}, "d_model must be at least 1"),
        ({"heads": 0}, "Heads must be at least 1"),
        ({"kernel": 4}, "Kernel must be odd and at least 3"),
        ({"window": 0}, "Window must be at least 1"),
        ({"cell": "lsmt"}, "No cell is called 'lsmt': did you mean lstm"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"threads": 0}, "threads must be at least 1"),
    ],
)
def test_invalid_plan_is_rejected(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan(**wrong)


def test_unused_options_are_not_checked() -> None:
    assert plan(kinds=("convolution",), d_model=9, heads=4, window=0)
    assert plan(kinds=("self-attention",), kernel=2, cell="none")


def test_path_timeout_is_reported() -> None:
    layers = synthetic_layers(recurrent=lambda n: 1e-6 * n)
    assert not any("given up" in line for line in layers.remarks())
    *rows, last = layers.measured["recurrent"]
    lost = dataclasses.replace(layers, measured={"recurrent": (*rows, dataclasses.replace(last, path=None))})
    assert "recurrent, n = 4,096: measuring the path exceeded 30 s" in lost.remarks()
