"""The memory test: the plan, equal conditions for all cells, the results and the plot."""

from typing import Any

import numpy as np
import pytest

from seqloom.core.errors import UsageError
from seqloom.inspect.plots.measurements import draw_memory
from seqloom.inspect.rehearsal import nearest_size
from seqloom.inspect.views.memory import (
    Memory,
    MemoryPlan,
    Outcome,
    collect,
    count_parameters,
    measure,
)
from seqloom.nn.cells import CELLS

SMALL = {"steps": 6, "batch_size": 4, "hidden": 6, "device": "cpu"}


def plan(**more: Any) -> MemoryPlan:
    return MemoryPlan(**{**SMALL, **more})


def synthetic_memory(success: Any, lags: tuple[int, ...] = (5, 10, 20), blind: float = 0.2) -> Memory:
    """Build results for two cells with these success rates (cells, lags, seeds)."""
    shares = np.array(success)
    settled = plan(cells=("elman", "gru"), lags=lags, seeds=tuple(range(1, shares.shape[2] + 1)))
    return Memory(settled, shares, blind, {"elman": 9, "gru": 5}, {"elman": 100, "gru": 101})


# --- equal conditions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", CELLS)
def test_hidden_size_is_nearest_to_target(cell: str) -> None:
    """Compare with an exhaustive search."""
    for target in (300, 1000, 2345):
        off = {width: abs(count_parameters(cell, width, 3, 2) - target) for width in range(1, 60)}
        assert off[nearest_size(lambda width: count_parameters(cell, width, 3, 2), target)[0]] == min(off.values())


@pytest.mark.parametrize("test", ["recall", "adding"])
def test_cells_have_nearly_equal_parameters(test: str) -> None:
    sizes = plan(test=test, cells=tuple(CELLS), hidden=32).sizes()
    counts = [count for _, count in sizes.values()]
    assert sizes["lstm"][0] == 32
    assert max(counts) < 1.05 * min(counts)
    assert sizes["elman"][0] > sizes["gru"][0] > sizes["lstm"][0], "fewer gates, more units"


@pytest.mark.parametrize("test", ["recall", "adding"])
def test_recipes_differ_only_in_cell_lag_and_seed(test: str) -> None:
    settings = plan(test=test)
    recipe, other = settings.recipe("elman", 5, 1, 10), settings.recipe("gru", 5, 1, 8)
    assert (recipe.data, recipe.batch, recipe.train, recipe.seed) == (other.data, other.batch, other.train, other.seed)
    longer = settings.recipe("elman", 9, 1, 10)
    assert (longer.batch, longer.train, longer.model) == (recipe.batch, recipe.train, recipe.model)


def test_lag_sets_data_options() -> None:
    assert plan(test="adding").recipe("lstm", 7, 1, 4).data.length == 14
    recall = plan().recipe("lstm", 7, 1, 4).data
    assert (recall.lag, recall.min_lag) == (7, 1)
    assert plan(exact=True).recipe("lstm", 7, 1, 4).data.min_lag == 7


def test_forget_bias_applies_only_to_lstm() -> None:
    open_gates = plan(forget_bias=4.0)
    assert open_gates.recipe("lstm", 5, 1, 4).model.forget_bias == 4
    assert open_gates.recipe("gru", 5, 1, 4).model.forget_bias is None


# --- measuring --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("test", ["recall", "adding"])
def test_outcomes_are_collected_at_their_positions(test: str) -> None:
    settings = plan(test=test, cells=("elman", "gru"), lags=(4, 2), seeds=(7, 8, 9))
    outcomes = list(measure(settings))
    assert len(outcomes) == 2 * 2 * 3
    result = collect(settings, reversed(outcomes))
    for outcome in outcomes:
        index = settings.cells.index(outcome.cell), settings.lags.index(outcome.lag), settings.seeds.index(outcome.seed)
        assert result.success[index] == outcome.success
    assert not np.isnan(result.success).any()
    again = collect(settings, measure(settings))
    assert np.array_equal(again.success, result.success), "the same plan gives the same results"


def test_training_works_although_a_single_update_would_fail() -> None:
    """A gated cell learns a lag of three. Negative control: a single update is not sufficient."""
    settled = {"cells": ("gru",), "lags": (3,), "seeds": (1,), "hidden": 24, "batch_size": 32}
    (learnt,) = measure(plan(**{**settled, "steps": 250}))
    (fresh,) = measure(plan(**{**settled, "steps": 1}))
    assert learnt.success > 0.95
    assert fresh.success < 0.3 and fresh.blind == learnt.blind == 0.125


def test_reach_is_the_longest_lag_up_to_which_all_lags_succeed() -> None:
    result = synthetic_memory([[[1.0], [0.7], [0.3]], [[0.3], [1.0], [1.0]]])
    assert result.reach("elman") == 10
    assert result.reach("gru") is None, "a cell that fails at the shortest lag has no reach"
    shuffled = synthetic_memory([[[0.3], [1.0], [0.7]], [[1.0], [1.0], [1.0]]], lags=(20, 5, 10))
    assert shuffled.reach("elman") == 10 and shuffled.reach("gru") == 20
    assert synthetic_memory([[[0.59], [0.7], [0.7]], [[0.6], [0.6], [0.59]]]).reach("elman") is None, (
        "halfway is 0.6 here"
    )


def test_reach_uses_mean_over_seeds() -> None:
    assert synthetic_memory([[[1.0, 0.3], [0.0, 1.0], [0.0, 0.0]]] * 2, blind=0.2).reach("elman") == 5


# --- plots ------------------------------------------------------------------------------------------------------------


def test_plot_shows_means_bands_and_guessing() -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    result = synthetic_memory(
        [[[1.0, 0.8], [0.2, 0.4], [0.9, 0.7]], [[1.0, 1.0], [1.0, 0.9], [0.5, 0.4]]], lags=(20, 5, 10)
    )
    axes: Any = draw_memory(result).axes[0]
    elman, gru, guess = axes.get_lines()
    assert list(elman.get_xdata()) == [5, 10, 20]
    assert list(elman.get_ydata()) == pytest.approx([0.3, 0.8, 0.9])
    assert list(gru.get_ydata()) == pytest.approx([0.95, 0.45, 1.0])
    assert set(guess.get_ydata()) == {0.2}
    assert elman.get_color() != gru.get_color() and elman.get_marker() != gru.get_marker()
    bands = [collection.get_paths()[0].vertices for collection in axes.collections]
    assert len(bands) == 2
    for band, low, high in zip(bands, (0.2, 0.4), (1.0, 1.0), strict=True):
        assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((low, high))
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words == ["elman: hidden size 9, 100 parameters", "gru: hidden size 5, 101 parameters", "guessing: 20.0%"]
    assert "2 seeds" in axes.get_title() and "6 updates" in axes.get_title()
    assert [label.get_text() for label in axes.get_xticklabels()] == ["5", "10", "20"]


def test_all_cells_differ_in_colour_or_line_style() -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    settings = plan(cells=tuple(CELLS), lags=(1,), seeds=(1,))
    result = collect(settings, [Outcome(cell, 1, 1, 0.5, 0.1) for cell in CELLS])
    lines = draw_memory(result).axes[0].get_lines()[:-1]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == len(CELLS)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"test": "recal"}, "did you mean recall"),
        ({"cells": ("elman", "lsmt")}, "no cell 'lsmt': did you mean lstm"),
        ({"cells": ()}, "at least one of cells"),
        ({"lags": ()}, "at least one of lags"),
        ({"seeds": ()}, "at least one of seeds"),
        ({"lags": (5, 0)}, "lag must be at least 1; got 5, 0"),
        ({"lags": (5, 5)}, "lags of a memory test must differ"),
        ({"cells": ("gru", "gru")}, "cells of a memory test must differ"),
        ({"steps": 0}, "steps must be above 0; got 0"),
        ({"hidden": 0}, "hidden must be above 0"),
        ({"test": "adding", "exact": True}, "exact applies only to recall"),
        ({"cells": ("gru",), "forget_bias": 2.0}, "not among gru"),
    ],
)
def test_invalid_plan_is_rejected(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan(**wrong)
