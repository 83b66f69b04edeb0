"""Probabilistic forecasts of time series.

Linear models provide exact forecasts. For all other models, paths are sampled: every value is drawn
from the predictive distribution, and the model then reads it like an observation.

    y_{t+1} ~ p(· | y_1 … y_t),   y_{t+2} ~ p(· | y_1 … y_{t+1}),   …

The spread of the paths at step h therefore includes the uncertainty of all previous steps.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.core.protocols import ExactForecastable, FutureStep, SeriesModel
from seqloom.core.tree import tree_map

INTERVALS = (0.8, 0.95)  # probabilities of the reported intervals
POINTS = 199  # number of quantiles that represent an exact forecast
MAX_PATHS = 8192  # maximum number of paths per batch


@dataclass(frozen=True)
class Forecast:
    """Equally probable values of every future step, with mean and standard deviation, in float64 on the CPU."""

    points: Tensor  # (B, S, horizon, C): S paths, or for an exact forecast, the quantiles (s − ½) / S of each step
    mean: Tensor  # (B, horizon, C)
    deviation: Tensor  # (B, horizon, C)
    gaussian: tuple[Tensor, Tensor] | None = None  # for an exact forecast, μ and σ of y or of log y
    logarithmic: bool = False

    @classmethod
    def normal(cls, mean: Tensor, deviation: Tensor) -> "Forecast":
        """Build an exact forecast from μ and σ (B, horizon, C)."""
        levels = (torch.arange(POINTS, dtype=torch.float64) + 0.5) / POINTS
        points = mean.unsqueeze(1) + torch.special.ndtri(levels).view(1, -1, 1, 1) * deviation.unsqueeze(1)
        return cls(points, mean, deviation, (mean, deviation))

    @property
    def exact(self) -> bool:
        return self.gaussian is not None

    @property
    def horizon(self) -> int:
        return self.mean.shape[1]

    def quantile(self, level: float) -> Tensor:
        """Return the quantile (B, horizon, C) of a probability level."""
        if self.gaussian is None:
            return self.points.quantile(level, dim=1)
        mean, deviation = self.gaussian
        quantile = mean + torch.special.ndtri(torch.tensor(level, dtype=mean.dtype)) * deviation
        return quantile.exp() if self.logarithmic else quantile

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Return the lower and upper end of the central interval with this probability."""
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def exponential(self) -> "Forecast":
        """Return the forecast of exp(y); E exp(y) = exp(μ + σ²/2) for Gaussian y."""
        points = self.points.exp()
        if self.gaussian is None:
            return Forecast(points, points.mean(dim=1), _deviation(points))
        variance = self.deviation**2
        mean = (self.mean + variance / 2).exp()
        return Forecast(points, mean, mean * variance.expm1().sqrt(), self.gaussian, logarithmic=True)


def forecast(
    model: SeriesModel,
    values: Tensor,
    mask: Tensor,
    horizon: int,
    *,
    paths: int = 200,
    generator: torch.Generator | None = None,
) -> Forecast:
    """Forecast `horizon` steps after values (B, T, C) observed where `mask` (B, T, C) is True."""
    if horizon < 1:
        raise UsageError(f"A horizon must be at least one step; got {horizon}.")
    memory = getattr(model, "memory", None)  # maximum number of steps that the model reads
    if memory is not None:
        values, mask = values[:, -memory:], mask[:, -memory:]
    with torch.no_grad():
        if isinstance(model, ExactForecastable):
            mean, covariance = model.exact_forecast(values, mask, horizon)  # (B, horizon, C), (B, horizon, C, C)
            variance = covariance.diagonal(dim1=-2, dim2=-1).double().cpu()
            return Forecast.normal(mean.double().cpu(), variance.clamp(min=0).sqrt())
        # Draw the noise on the CPU, row by row, so that all devices and batch sizes have equal draws.
        size = (paths, horizon, values.shape[2])
        noise = torch.stack([torch.randn(size, generator=generator, dtype=torch.float64) for _ in values])
        batch_size = max(1, MAX_PATHS // paths)
        pieces = zip(values.split(batch_size), mask.split(batch_size), noise.split(batch_size), strict=True)
        points = torch.cat([draw_paths(model, *piece) for piece in pieces])
    return Forecast(points, points.mean(dim=1), _deviation(points))


def draw_paths(model: SeriesModel, values: Tensor, mask: Tensor, noise: Tensor) -> Tensor:
    """Sample paths with the given standard normal noise (B, paths, horizon, C)."""
    rows, paths, horizon, variables = noise.shape
    noise = noise.flatten(0, 1).to(values)  # (B · paths, horizon, C)
    after = model.step(values, model.start(rows), mask)
    state = tree_map(lambda leaf: leaf.repeat_interleave(paths, dim=0), after.state)
    mean, spread = (part.repeat_interleave(paths, dim=0) for part in _gaussian(after))
    path = []
    for ahead in range(horizon):
        value = mean + (spread @ noise[:, ahead].to(spread).unsqueeze(2)).squeeze(2)  # (B · paths, C)
        path.append(value)
        if ahead + 1 < horizon:
            after = model.step(value.unsqueeze(1), state)
            state, (mean, spread) = after.state, _gaussian(after)
    return torch.stack(path, dim=1).view(rows, paths, horizon, variables).double().cpu()


def _deviation(points: Tensor) -> Tensor:
    return points.std(dim=1, correction=1 if points.shape[1] > 1 else 0)


def _gaussian(after: FutureStep) -> tuple[Tensor, Tensor]:
    """Return μ (B, C) and a factor L (B, C, C) with L Lᵀ = Σ."""
    if after.covariance is not None:
        return after.mean, torch.linalg.cholesky(after.covariance)
    assert after.deviation is not None, "a prediction must have a covariance or a deviation"
    return after.mean, after.deviation.diag_embed()
