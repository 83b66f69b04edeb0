"""Forecasts by sampled paths."""

import math

import pytest
import torch
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.core.protocols import FutureStep
from seqloom.core.tree import Tree
from seqloom.decoding.forecast import Forecast, forecast


class Walk:
    """A random walk y_{t+1} ~ N(y_t, Σ) whose state is the last value."""

    def __init__(self, covariance: Tensor | None = None) -> None:
        self.covariance = covariance
        self.read: list[int] = []

    def start(self, rows: int) -> Tree:
        return torch.zeros(rows, 2, dtype=torch.float64)

    def step(self, values: Tensor, state: Tree, mask: Tensor | None = None) -> FutureStep:
        self.read.append(values.shape[1])
        last = values[:, -1]
        if self.covariance is None:
            return FutureStep(last, last, deviation=torch.ones_like(last))
        return FutureStep(last, last, covariance=self.covariance.expand(len(last), 2, 2))


VALUES = torch.tensor([[[0.0, 5.0], [1.0, 6.0]], [[3.0, 3.0], [2.0, 2.0]]], dtype=torch.float64)  # (2, 2, 2)
KNOWN = torch.ones_like(VALUES, dtype=torch.bool)


def test_uncertainty_grows_like_a_random_walk() -> None:
    result = forecast(Walk(), VALUES, KNOWN, 9, paths=20_000, generator=torch.Generator().manual_seed(0))
    assert result.points.shape == (2, 20_000, 9, 2) and not result.exact
    assert torch.allclose(result.mean, VALUES[:, -1:].expand(-1, 9, -1), atol=0.1)
    assert torch.allclose(result.deviation[0, :, 0], torch.arange(1.0, 10.0).double().sqrt(), rtol=0.03)
    low, high = result.interval(0.8)
    assert (high - low)[0, 3, 0].item() == pytest.approx(2 * 1.2816 * 2, rel=0.05)


def test_variables_are_drawn_jointly() -> None:
    covariance = torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=torch.float64)
    result = forecast(Walk(covariance), VALUES, KNOWN, 1, paths=20_000, generator=torch.Generator().manual_seed(0))
    assert torch.corrcoef(result.points[0, :, 0].T)[0, 1].item() == pytest.approx(0.9, abs=0.02)


class Count(Walk):
    """A model that predicts the number of values that it has read. Its state contains this number."""

    def step(self, values: Tensor, state: Tree, mask: Tensor | None = None) -> FutureStep:
        read = state + values.shape[1]
        return FutureStep(read, read, deviation=torch.full_like(read, 1e-9))


def test_each_path_has_a_state() -> None:
    result = forecast(Count(), VALUES, KNOWN, 4, paths=3)
    assert torch.allclose(result.mean[0, :, 0], torch.tensor([2.0, 3, 4, 5], dtype=torch.float64))


def test_paths_depend_on_the_generator_and_not_on_other_rows() -> None:
    def draw_paths(seed: int, rows: slice = slice(None)) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return forecast(Walk(), VALUES[rows], KNOWN[rows], 3, paths=5, generator=generator).points

    assert torch.equal(draw_paths(1), draw_paths(1)) and not torch.equal(draw_paths(1), draw_paths(2))
    assert torch.equal(draw_paths(1, slice(0, 1))[0], draw_paths(1)[0])


def test_forecast_reads_at_most_the_memory_of_the_model() -> None:
    model = Walk()
    forecast(model, VALUES, KNOWN, 3, paths=2)
    assert model.read == [2, 1, 1]
    model.memory = 1  # type: ignore[attr-defined]
    model.read.clear()
    forecast(model, VALUES, KNOWN, 3, paths=2)
    assert model.read == [1, 1, 1]
    with pytest.raises(UsageError, match="at least one step"):
        forecast(model, VALUES, KNOWN, 0)


def test_exact_and_sampled_forecasts_have_the_expected_quantiles_and_moments() -> None:
    mean, deviation = torch.full((1, 1, 1), 2.0).double(), torch.full((1, 1, 1), 0.5).double()
    result = Forecast.normal(mean, deviation)
    assert result.exact and result.quantile(0.975).item() == pytest.approx(2 + 0.5 * 1.959964, rel=1e-6)
    assert result.points.mean().item() == pytest.approx(2.0) and result.points.shape[1] % 2 == 1
    grown = result.exponential()
    assert grown.quantile(0.5).item() == pytest.approx(math.exp(2))
    assert grown.mean.item() == pytest.approx(math.exp(2 + 0.125))
    spread = math.exp(2.125) * math.sqrt(math.expm1(0.25))
    assert grown.deviation.item() == pytest.approx(spread)
    sampled = Forecast(torch.randn(1, 200_000, 1, 1).double() * 0.5 + 2, mean, deviation).exponential()
    assert sampled.mean.item() == pytest.approx(math.exp(2.125), rel=0.02)
    assert sampled.deviation.item() == pytest.approx(spread, rel=0.03)
