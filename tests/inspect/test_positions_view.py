"""Positional encodings of Transformers, and their plot."""

import json
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from seqloom.core.errors import UsageError
from seqloom.inspect.views.inputs import PositionsView, run_positions, sinusoids_view
from seqloom.models.recurrent_seq2seq import RecurrentSeq2SeqConfig
from seqloom.models.transformer import TransformerConfig
from seqloom.nn.positions import PositionsConfig


def by_hand(length: int, width: int) -> list[list[float]]:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d))"""
    return [
        [(math.cos if i % 2 else math.sin)(position / 10000 ** ((i - i % 2) / width)) for i in range(width)]
        for position in range(length)
    ]


@dataclass
class Trained:
    model: Any
    name: str = "runs/x"
    description: str = "a translator"
    run: Any = None
    tokenizer: Any = None
    device: Any = None
    task: Any = None


def transformer(width: int = 8, **positions: Any) -> Trained:
    torch.manual_seed(0)
    config = TransformerConfig(
        d_model=width, heads=2, encoder_layers=1, decoder_layers=1, positions=PositionsConfig(**positions)
    )
    return Trained(config.build(10))


def test_sinusoids_match_equation() -> None:
    view = sinusoids_view(width=6, length=30)
    np.testing.assert_allclose(view.table, by_hand(30, 6), atol=1e-6)
    halves = sinusoids_view(width=6, length=30, layout="halves").table
    np.testing.assert_array_equal(halves, view.table[:, [0, 2, 4, 1, 3, 5]])


def test_products_depend_only_on_distance() -> None:
    view = sinusoids_view(width=16, length=40)
    waves = [10000 ** (2 * i / 16) for i in range(8)]
    expected = [sum(math.cos(k / wave) for wave in waves) / 8 for k in range(40)]
    np.testing.assert_allclose(view.by_distance, expected, atol=1e-6)
    low, high = view.spread
    np.testing.assert_allclose(low, high, atol=1e-6)
    np.testing.assert_allclose(view.products[3, 10], 8 * expected[7], atol=1e-5)
    random = PositionsView("learned", np.random.default_rng(0).normal(size=(40, 16)))  # control
    low, high = random.spread
    assert (high - low).max() > 0.5 and random.by_distance[0] == pytest.approx(1)


def test_informative_dimensions_have_short_wavelengths_or_vary_most() -> None:
    view = sinusoids_view(width=128, length=100)
    assert view.wavelengths[0] == pytest.approx(2 * math.pi)
    assert view.wavelengths[-1] == pytest.approx(2 * math.pi * 10000 ** (126 / 128))
    shown = view.informative_dimensions()
    assert shown[0] == 0 and len(shown) == 4 and shown == sorted(shown)
    assert all(dimension % 2 == 0 and view.wavelengths[dimension // 2] <= 400 for dimension in shown)
    halves = sinusoids_view(width=128, length=100, layout="halves")
    assert [2 * dimension for dimension in halves.informative_dimensions()] == shown
    table = np.zeros((5, 6))
    table[:, 4], table[:, 1] = [0, 9, 0, 9, 0], [0, 1, 0, 1, 0]
    assert (
        PositionsView("learned", table).informative_dimensions(2) == [1, 4]
        and not PositionsView("learned", table).wavelengths
    )
    assert sinusoids_view(width=2, length=1).informative_dimensions() == [0]


def test_json_has_table_and_wavelengths() -> None:
    decoded = json.loads(json.dumps(sinusoids_view(width=4, length=3, kind="rotary").to_json(), allow_nan=False))
    assert (decoded["kind"], decoded["layout"], decoded["width"], decoded["length"]) == ("rotary", "interleaved", 4, 3)
    np.testing.assert_allclose(decoded["table"], by_hand(3, 4), atol=1e-6)
    assert len(decoded["wavelengths"]) == 2 and len(decoded["by_distance"]) == 3


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["source", "target"])
def test_learned_positions_match_the_embeddings_of_the_run(side: Any) -> None:
    trained = transformer(kind="learned", max_length=20)
    view = run_positions(trained, side=side)
    table = getattr(trained.model, f"{side}_embed").positions.weight.detach().numpy()
    np.testing.assert_array_equal(view.table, table)
    assert (view.kind, view.length, view.layout, view.name) == ("learned", 20, None, f"runs/x, {side}")
    np.testing.assert_array_equal(run_positions(trained, 7, side).table, table[:7])
    with pytest.raises(UsageError, match="--length must be from 1 to 20, the positions of the run; got 21"):
        run_positions(trained, 21)


def test_sinusoids_use_layout_and_base_of_the_run() -> None:
    trained = transformer(layout="halves", base=100.0)
    view = run_positions(trained)
    np.testing.assert_allclose(view.table, trained.model.source_embed.positions(torch.arange(100)).numpy())
    assert (view.layout, view.base, view.width, view.length) == ("halves", 100.0, 8, 100)
    np.testing.assert_allclose(view.table, sinusoids_view(8, 100, "halves", 100.0).table, atol=1e-5)


def test_rotary_positions_have_the_size_of_a_head() -> None:
    view = run_positions(transformer(kind="rotary", base=50.0), 12)
    assert (view.kind, view.width, view.length, view.base) == ("rotary", 4, 12, 50.0)


def test_runs_without_positions_are_rejected() -> None:
    with pytest.raises(UsageError, match=r"runs/x has no position encodings: its recipe has model.positions.kind=none"):
        run_positions(transformer(kind="none"))
    run = SimpleNamespace(recipe={"model": {"kind": "recurrent-seq2seq"}})
    blind = Trained(RecurrentSeq2SeqConfig(hidden=4).build(9), run=run)
    with pytest.raises(UsageError, match="has no position encodings: it is of kind recurrent-seq2seq"):
        run_positions(blind)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 7}, "must be even and at least 2, for pairs of sine and cosine; got 7"),
        ({"width": 0}, "must be even and at least 2, for pairs of sine and cosine; got 0"),
        ({"length": 0}, "--length must be from 1 to 2,000; got 0"),
        ({"length": 2001}, "--length must be from 1 to 2,000; got 2001"),
        ({"base": 1.0}, "base must be above 1; got 1"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sinusoids_view(**options)


# --- plots ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "view",
    [
        sinusoids_view(width=32, length=50),
        sinusoids_view(width=2, length=1, kind="rotary"),
        PositionsView("learned", np.random.default_rng(0).normal(size=(30, 12)), name="runs/$x"),
    ],
    ids=lambda view: view.kind,
)
def test_plot_shows_computed_values(view: PositionsView) -> None:
    pytest.importorskip("matplotlib")
    from seqloom.inspect.plots.figures import to_bytes
    from seqloom.inspect.plots.inputs import draw_positions

    figure = draw_positions(view)
    table, products, curves, distances = figure.axes[:4]
    np.testing.assert_array_equal(np.asarray(table.images[0].get_array()), view.table.T)
    np.testing.assert_array_equal(np.asarray(products.images[0].get_array()), view.products)
    for dimension, line in zip(view.informative_dimensions(), curves.get_lines(), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), view.table[:, dimension])
    np.testing.assert_array_equal(distances.get_lines()[-1].get_ydata(), view.by_distance)
    # Only the products of learned positions depend on the position
    assert bool(distances.collections) == (view.kind == "learned")
    positions = "1 position" if view.length == 1 else f"{view.length} positions"
    assert f"({positions} × {view.width}" in figure.get_suptitle()
    for axis in (table.xaxis, table.yaxis, products.xaxis, products.yaxis, curves.xaxis, distances.xaxis):
        assert all(float(position).is_integer() for position in axis.get_ticklocs())
    assert to_bytes(figure).startswith(b"\x89PNG")
