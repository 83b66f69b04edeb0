"""Neural forecasters: steps and scores, missing values, scaling and training."""

from typing import Any

import pytest
import torch
from torch import Tensor

from seqloom.config import build
from seqloom.core.errors import UsageError
from seqloom.core.protocols import Forecastable
from seqloom.core.tree import tree_map
from seqloom.decoding.forecast import forecast
from seqloom.models.forecaster import (
    ForecasterBase,
    RecurrentForecasterConfig,
    TransformerForecasterConfig,
    WindowForecasterConfig,
    log_density,
)

CONFIGS: dict[str, Any] = {
    "ffn": WindowForecasterConfig,
    "lstm": RecurrentForecasterConfig,
    "gru": RecurrentForecasterConfig,
    "transformer": TransformerForecasterConfig,
}
SEASON = 4


def build_forecaster(kind: str, variables: int = 2, **settings: Any) -> ForecasterBase:
    torch.manual_seed(0)
    defaults = {"cell": kind} if kind == "gru" else {"d_model": 8, "heads": 2} if kind == "transformer" else {}
    model: ForecasterBase = CONFIGS[kind](**{"context": 6, "dropout": 0.0, **defaults, **settings}).build(
        variables, SEASON
    )
    model.set_scale([(series(40, variables, seed=9), torch.ones(40, variables, dtype=torch.bool))])
    return model.eval()


def series(length: int = 20, variables: int = 2, seed: int = 0) -> Tensor:
    draws = torch.randn(length, variables, generator=torch.Generator().manual_seed(seed))
    return 50 + 3 * draws.cumsum(dim=0)


def everything(values: Tensor) -> Tensor:
    return torch.ones_like(values, dtype=torch.bool)


kinds = pytest.mark.parametrize("kind", CONFIGS)
differences = pytest.mark.parametrize("difference", ["none", "step", "season"])


@kinds
@differences
def test_step_agrees_with_score(kind: str, difference: Any) -> None:
    """log p of a value equals that of the Gaussian predicted from the previous values."""
    model, values = build_forecaster(kind, difference=difference), series()[None]
    mask = everything(values)
    mask[0, 7, 0] = mask[0, 11, 1] = False
    assert isinstance(model, Forecastable)
    with torch.no_grad():
        scores = model.score(values, mask)
        for t in (model.memory + 1, 15, 19):
            past = slice(t - model.memory, t)
            after = model.step(values[:, past], model.start(1), mask[:, past])
            assert after.deviation is not None
            expected = log_density(values[:, t], after.mean, after.deviation)
            assert torch.allclose(scores[:, t], (expected * mask[:, t]).sum(dim=1), atol=1e-4)


@kinds
@pytest.mark.parametrize(("difference", "lag"), [("step", 1), ("season", SEASON), (None, SEASON)])
def test_predictions_are_relative_to_the_lagged_value(kind: str, difference: Any, lag: int) -> None:
    """A network with zero output predicts the value m steps earlier plus the mean change in the training split."""
    model, values = build_forecaster(kind, difference=difference), series()[None]
    torch.nn.init.zeros_(model.output.weight)
    with torch.no_grad():
        after = model.step(values, model.start(1))
        assert torch.allclose(after.mean, values[:, -lag] + model.centre, atol=1e-4)
        after = model.step(torch.full((1, 1, 2), 5.0), after.state)
        expected = torch.full((1, 2), 5.0) if lag == 1 else values[:, 1 - lag]
        assert torch.allclose(after.mean, expected + model.centre, atol=1e-4)
    past = series(40, 2, seed=9)
    assert torch.allclose(model.centre, (past[lag:] - past[:-lag]).mean(dim=0), atol=1e-4)


@kinds
@differences
def test_reading_in_chunks_is_equivalent_to_reading_in_one_call(kind: str, difference: Any) -> None:
    model, values = build_forecaster(kind, difference=difference), series(10)[None]
    with torch.no_grad():
        whole = model.step(values, model.start(1))
        state = model.step(values[:, :7], model.start(1)).state
        for t in (7, 8, 9):
            last = model.step(values[:, t : t + 1], state)
            state = last.state
    assert torch.allclose(whole.mean, last.mean, atol=1e-5)
    assert whole.deviation is not None and last.deviation is not None
    assert torch.allclose(whole.deviation, last.deviation, atol=1e-5)


@kinds
@differences
def test_missing_values_are_ignored(kind: str, difference: Any) -> None:
    model, values = build_forecaster(kind, difference=difference), series()[None]
    mask = everything(values)
    mask[0, 12, 0] = mask[0, 17] = False
    other = values.clone()
    other[~mask] = 1e4
    with torch.no_grad():
        first, second = (model.step(inputs, model.start(1), mask) for inputs in (values, other))
        assert torch.equal(first.mean, second.mean)
        assert torch.equal(model.score(values, mask), model.score(other, mask))
        losses = [model.loss(inputs[:, -model.window :], mask[:, -model.window :])[0] for inputs in (values, other)]
        assert torch.equal(*losses)
        assert not torch.equal(model.step(values, model.start(1)).mean, first.mean), (
            "the mask of missing values must have an effect"
        )


@kinds
def test_single_row_gives_the_same_result_as_in_a_batch(kind: str) -> None:
    model = build_forecaster(kind)
    values = torch.stack([series(seed=1), series(seed=2)])
    with torch.no_grad():
        both = model.step(values, model.start(2))
        single = model.step(values[1:], model.start(1))
    assert torch.allclose(both.mean[1:], single.mean, atol=1e-5)
    branched = tree_map(lambda leaf: leaf.repeat_interleave(3, dim=0), both.state)
    assert len(branched["past"]) == 6


@kinds
@differences
def test_forecast_is_equivariant_to_scale_and_shift(kind: str, difference: Any) -> None:
    """The forecast of a scaled and shifted series equals the scaled and shifted forecast of the original series."""
    values = series(40, 1, seed=9)
    result = []
    for factor, shift in ((1.0, 0.0), (8.0, 1024.0)):
        model = build_forecaster(kind, 1, difference=difference)
        scaled = values * factor + shift
        model.set_scale([(scaled, everything(scaled))])
        drawn = forecast(
            model, scaled[None], everything(scaled)[None], 5, paths=20, generator=torch.Generator().manual_seed(0)
        )
        result.append((drawn.mean - shift) / factor)
    assert torch.allclose(result[0], result[1], atol=0.02)


@kinds
def test_short_history_is_supported(kind: str) -> None:
    for difference in ("none", "season"):
        model = build_forecaster(kind, difference=difference)
        for length in (1, 3, 5):
            values = series(length)[None]
            result = forecast(model, values, everything(values), 7, paths=3)
            assert torch.isfinite(result.points).all()


@kinds
def test_mean_and_noise_of_a_sine_are_learned(kind: str) -> None:
    """For a sine with noise 0.1, the mean follows the sine, and the deviation is close to 0.1."""
    generator = torch.Generator().manual_seed(0)
    t = torch.arange(400.0)
    values = (torch.sin(2 * torch.pi * t / 8) + 0.1 * torch.randn(400, generator=generator)).unsqueeze(1)
    torch.manual_seed(0)
    config = CONFIGS[kind](context=16, dropout=0.0, difference="none", **({"cell": "gru"} if kind == "gru" else {}))
    model = config.build(1, 8)
    model.set_scale([(values, everything(values))])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        starts = torch.randint(0, 360 - model.window, (32,), generator=generator)
        batch = torch.stack([values[s : s + model.window] for s in starts])
        loss, _ = model.loss(batch, everything(batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    past = values[None, :376]
    result = forecast(model, past, everything(past), 8, paths=100, generator=generator)
    assert (result.mean[0, :, 0] - torch.sin(2 * torch.pi * t[376:384] / 8)).abs().max() < 0.3
    after = model.step(past[:, -model.memory :], model.start(1))
    assert after.deviation is not None and 0.05 < after.deviation.item() < 0.25


def test_all_problems_are_reported() -> None:
    with pytest.raises(UsageError) as error:
        build(
            TransformerForecasterConfig, {"kind": "transformer", "context": 0, "d_model": 7, "heads": 2, "dropout": 1.0}
        )
    assert all(word in str(error.value) for word in ("context: ", "dropout: ", "d_model must be divisible by heads"))
    with pytest.raises(UsageError, match="did you mean"):
        build(RecurrentForecasterConfig, {"kind": "lstm", "cell": "lsm"})
    with pytest.raises(UsageError, match="at most 10, the number of learned positions"):
        positions = {"kind": "learned", "max_length": 10}
        build(TransformerForecasterConfig, {"kind": "transformer", "context": 20, "positions": positions})
