"""Forecasts: what a model expects of the steps to come, and how sure it is of each.

A model that knows its future exactly (a linear one) is asked for it. Of any other, paths are drawn:
every value is drawn from what the model expects next, and read by it as if it had been observed.

    y_{t+1} ~ p(· | y_1 … y_t),   y_{t+2} ~ p(· | y_1 … y_{t+1}),   …

So the spread of the paths at step h is that of all that can happen until then.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.core.protocols import ExactForecastable, FutureStep, SeriesModel
from seqloom.core.tree import tree_map

INTERVALS = (0.8, 0.95)  # shares of the future that are to lie within
POINTS = 199  # equally likely values that stand for an exact answer
MOST_ROWS = 8192  # paths stepped at once


@dataclass(frozen=True)
class Forecast:
    """Of every step ahead: equally likely values, and what follows from them. Float64, on the CPU."""

    points: Tensor  # (B, S, horizon, C): S paths, or of an exact answer the quantiles (s − ½) / S of each step
    mean: Tensor  # (B, horizon, C)
    deviation: Tensor  # (B, horizon, C)
    gaussian: tuple[Tensor, Tensor] | None = None  # of an exact answer: μ and σ of y, or of log y
    logarithmic: bool = False

    @classmethod
    def normal(cls, mean: Tensor, deviation: Tensor) -> "Forecast":
        """An exact one, from μ and σ (B, horizon, C)."""
        shares = (torch.arange(POINTS, dtype=torch.float64) + 0.5) / POINTS
        points = mean.unsqueeze(1) + torch.special.ndtri(shares).view(1, -1, 1, 1) * deviation.unsqueeze(1)
        return cls(points, mean, deviation, (mean, deviation))

    @property
    def exact(self) -> bool:
        return self.gaussian is not None

    @property
    def horizon(self) -> int:
        return self.mean.shape[1]

    def quantile(self, share: float) -> Tensor:
        """Below it lies so large a share of the future (B, horizon, C)."""
        if self.gaussian is None:
            return self.points.quantile(share, dim=1)
        mean, deviation = self.gaussian
        quantile = mean + torch.special.ndtri(torch.tensor(share, dtype=mean.dtype)) * deviation
        return quantile.exp() if self.logarithmic else quantile

    def interval(self, share: float) -> tuple[Tensor, Tensor]:
        """The middle that holds so large a share: its two ends."""
        return self.quantile((1 - share) / 2), self.quantile((1 + share) / 2)

    def exponential(self) -> "Forecast":
        """The forecast of exp(y) where y was forecast: E exp(y) = exp(μ + σ²/2), where y is Gaussian."""
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
    """The `horizon` steps after values (B, T, C), of which those of `mask` (B, T, C) were observed."""
    if horizon < 1:
        raise UsageError(f"A horizon must be at least one step; got {horizon}.")
    memory = getattr(model, "memory", None)  # the most steps a model looks back, where that is bounded
    if memory is not None:
        values, mask = values[:, -memory:], mask[:, -memory:]
    with torch.no_grad():
        if isinstance(model, ExactForecastable):
            mean, covariance = model.exact_forecast(values, mask, horizon)  # (B, horizon, C), (B, horizon, C, C)
            variance = covariance.diagonal(dim1=-2, dim2=-1).double().cpu()
            return Forecast.normal(mean.double().cpu(), variance.clamp(min=0).sqrt())
        # Noise is drawn on the CPU, so that every device draws the same, and row by row.
        size = (paths, horizon, values.shape[2])
        noise = torch.stack([torch.randn(size, generator=generator, dtype=torch.float64) for _ in values])
        at_once = max(1, MOST_ROWS // paths)
        pieces = zip(values.split(at_once), mask.split(at_once), noise.split(at_once), strict=True)
        points = torch.cat([draw_paths(model, *piece) for piece in pieces])
    return Forecast(points, points.mean(dim=1), _deviation(points))


def draw_paths(model: SeriesModel, values: Tensor, mask: Tensor, noise: Tensor) -> Tensor:
    """Paths (B, paths, horizon, C) of noise of that shape."""
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
    """μ (B, C) and a factor L (B, C, C) with L Lᵀ = Σ."""
    if after.covariance is not None:
        return after.mean, torch.linalg.cholesky(after.covariance)
    assert after.deviation is not None, "what is expected next must say how sure it is"
    return after.mean, after.deviation.diag_embed()
