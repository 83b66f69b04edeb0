"""The autoregressive model: the next values are a linear function of the previous p values (taps).

    y_t = b + Σ_{k=1…p} A_k y_{t−k} + ε_t,   ε_t ~ N(0, Σ)

A and b are estimated by least squares, and Σ is the covariance of the residuals. With `difference`, the
model describes d_t = y_t − y_{t−m}. The expanded model is an equation in y with more taps:
A(L) (1 − Lᵐ) y_t = b + ε_t.

With the state x_t = (y_t … y_{t−p+1}), the model is a linear system x_t = F x_{t−1} + b + ε_t that is
observed without noise. Forecasts are therefore exact: F propagates means, F P Fᵀ + Σ propagates
covariances, and a step with a missing value has no observation. F consists of [A_1 … A_p] above rows
that only shift the state, so F is never formed. Once the last p steps have been observed, P is 0.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from seqloom.classical.tensor_model import Bounds, TensorModel
from seqloom.config import config
from seqloom.config.constraints import Difference, NonNegativeFloat, PositiveInt, lag_of
from seqloom.core.errors import DataError
from seqloom.core.protocols import Estimate, FutureStep
from seqloom.core.tree import Tree, require

MEMORY_FACTOR = 4  # number of steps read per tap, with a margin for gaps among the most recent steps
MIN_VARIANCE_RATIO = 1e-12  # residual variance of a perfect fit, relative to the variance of the variable


@config
class AutoregressiveConfig:
    kind: Literal["ar"] = "ar"
    taps: PositiveInt | None = None  # p, the number of previous values; null: season + 1, at least 8
    # predict y_t, its change since the previous step, or its change since the previous season
    difference: Difference = "none"
    ridge: NonNegativeFloat = 0.0  # λ of the penalty λ ‖A‖² on standardized variables

    def order(self, season: int) -> int:
        return max(8, season + 1) if self.taps is None else self.taps

    def build(self, variables: int, season: int) -> "Autoregressive":
        return Autoregressive(self.order(season), lag_of(self.difference, season), variables)

    def estimates(
        self, series: Sequence[tuple[Tensor, Tensor]], season: int, model: object, step: int, seed: int
    ) -> Iterator[Estimate]:
        """Fit the model to values and masks (T, C) in one step, whose checkpoint contains the finished model."""
        if model is None:
            estimated = self.build(series[0][0].shape[1], season)
            covariance = estimated.solve(series, self.ridge)
            yield Estimate(1, 1, estimated, {"deviation": float(covariance.diagonal().sqrt().mean())})


class Autoregressive(TensorModel):
    """The autoregressive model, in float64. The model is small and always runs on the CPU."""

    names = ("weights", "bias", "covariance", "level", "spread")
    bounds: Mapping[str, Bounds] = {"spread": (0, None)}
    cpu_only = True

    def __init__(self, taps: int, lag: int, variables: int) -> None:
        self.taps, self.lag, self.variables = taps, lag, variables
        self.order = taps + lag  # number of taps of the equation in y
        self.memory = MEMORY_FACTOR * self.order  # maximum number of steps read
        self.weights = torch.zeros(taps, variables, variables, dtype=torch.float64)  # A_1 … A_p
        self.bias = torch.zeros(variables, dtype=torch.float64)
        self.covariance = torch.eye(variables, dtype=torch.float64)
        self.level = torch.zeros(variables, dtype=torch.float64)  # mean of the training values
        self.spread = torch.ones(variables, dtype=torch.float64)  # variance of the training values

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        require(torch.linalg.cholesky_ex(tensors["covariance"]).info == 0, "covariance must be positive definite")

    # --- estimation -------------------------------------------------------------------------------------------------

    def solve(self, series: Sequence[tuple[Tensor, Tensor]], ridge: float = 0.0) -> Tensor:
        """Fit the model by least squares to all steps whose taps are observed; return Σ."""
        pairs = [self._regression_rows(values, mask) for values, mask in series]
        inputs, targets = (torch.cat(parts) for parts in zip(*pairs, strict=True))  # (N, p C + 1), (N, C)
        if len(inputs) <= inputs.shape[1]:
            raise DataError(
                f"{self.taps} taps and a constant need more than {inputs.shape[1]} training steps with all taps "
                f"observed; got {len(inputs)}. Lower model.taps, fill gaps (data.fill), or use more data."
            )
        observed = [torch.cat([values[mask[:, c], c] for values, mask in series]) for c in range(self.variables)]
        self.level = torch.stack([values.mean() for values in observed])
        self.spread = torch.stack([values.var(correction=0) for values in observed]).clamp(min=1e-300)
        solution = _least_squares(inputs, targets, ridge)
        self.bias = solution[-1].clone()
        self.weights = solution[:-1].view(self.taps, self.variables, self.variables).transpose(1, 2).contiguous()
        residual = targets - inputs @ solution
        self.covariance = residual.T @ residual / len(residual) + (MIN_VARIANCE_RATIO * self.spread).diag()
        return self.covariance

    def _regression_rows(self, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs (taps and a constant 1) and targets of every fully observed step."""
        if self.lag:
            values, mask = values[self.lag :] - values[: -self.lag], mask[self.lag :] & mask[: -self.lag]
        if len(values) <= self.taps:
            return values.new_empty(0, self.taps * self.variables + 1), values.new_empty(0, self.variables)
        taps = [values[self.taps - k : len(values) - k] for k in range(1, self.taps + 1)]
        observed = [mask[self.taps - k : len(values) - k] for k in range(self.taps + 1)]
        complete = torch.cat(observed, dim=1).all(dim=1)
        inputs = torch.cat([*taps, torch.ones(len(values) - self.taps, 1, dtype=values.dtype)], dim=1)
        return inputs[complete], values[self.taps :][complete]

    # --- the state-space form ---------------------------------------------------------------------------------------

    def coefficients(self) -> Tensor:
        """Return A_k (p + m, C, C) of the equation in y: the product of A(L) and 1 − Lᵐ."""
        coefficients = torch.zeros(self.order, self.variables, self.variables, dtype=torch.float64)
        coefficients[: self.taps] += self.weights
        if self.lag:
            coefficients[self.lag - 1] += torch.eye(self.variables, dtype=torch.float64)
            coefficients[self.lag :] -= self.weights
        return coefficients

    def _top_rows(self) -> Tensor:
        """Return [A_1 … A_p], the upper rows of F (C, P), P = order · C."""
        return self.coefficients().transpose(0, 1).reshape(self.variables, -1)

    def _predict(self, state: dict[str, Tensor], top: Tensor) -> dict[str, Tensor]:
        """Advance the state by one step without an observation."""
        C, P = self.variables, state["covariance"]
        cross = top @ P  # (B, C, P)
        spread = cross @ top.T + self.covariance
        covariance = torch.empty_like(P)
        covariance[:, :C, :C] = (spread + spread.mT) / 2
        covariance[:, :C, C:] = cross[:, :, :-C]
        covariance[:, C:, :C] = cross[:, :, :-C].mT
        covariance[:, C:, C:] = P[:, :-C, :-C]
        return {"mean": self._shift(state["mean"], state["mean"] @ top.T + self.bias), "covariance": covariance}

    def _shift(self, mean: Tensor, newest: Tensor) -> Tensor:
        """Prepend values (B, C) to a state (B, P) and drop the oldest values."""
        return torch.cat([newest, mean[:, : -self.variables]], dim=1)

    def _observe(self, state: dict[str, Tensor], values: Tensor, mask: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Update the state with values (B, C) observed where the mask is True; also return their log p (B,)."""
        C, real = self.variables, mask.double()
        P, mean = state["covariance"], state["mean"]
        both_observed = real.unsqueeze(2) * real.unsqueeze(1)  # (B, C, C)
        S = P[:, :C, :C] * both_observed + (1 - real).diag_embed()
        factor = torch.linalg.cholesky(S)
        error = (values - mean[:, :C]) * real  # (B, C)
        log_p = _log_density(factor, error) + 0.5 * math.log(2 * math.pi) * (1 - real).sum(dim=1)
        gain = torch.cholesky_solve(P[:, :C] * real.unsqueeze(2), factor).mT  # (B, P, C)
        after = P - gain @ (P[:, :C] * real.unsqueeze(2))
        return {"mean": mean + (gain @ error.unsqueeze(2)).squeeze(2), "covariance": (after + after.mT) / 2}, log_p

    # --- the interface of series models -----------------------------------------------------------------------------

    def start(self, rows: int) -> dict[str, Tensor]:
        """Return the prior state: the mean and variance of the training values."""
        mean = self.level.repeat(self.order).expand(rows, -1)
        return {"mean": mean, "covariance": self.spread.repeat(self.order).diag().expand(rows, -1, -1)}

    def step(self, values: Tensor, state: Tree, mask: Tensor | None = None) -> FutureStep:
        state, _ = self.read(values, state, mask)
        after, C = self._predict(state, self._top_rows()), self.variables
        return FutureStep(after["mean"][:, :C], state, covariance=after["covariance"][:, :C, :C])

    def score(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.read(values, self.start(len(values)), mask)[1]

    def read(self, values: Tensor, state: dict[str, Tensor], mask: Tensor | None) -> tuple[dict[str, Tensor], Tensor]:
        """Return the state after values (B, T, C) and the log p (B, T) of each step."""
        values, top = values.double().cpu(), self._top_rows()
        mask = torch.ones_like(values, dtype=torch.bool) if mask is None else mask.cpu()
        scores, complete_steps = [], 0  # number of consecutive steps without a gap before this step
        for t, is_complete in enumerate(mask.all(dim=2).all(dim=0).tolist()):
            if is_complete and complete_steps >= self.order:  # the state is known exactly
                error = values[:, t] - (state["mean"] @ top.T + self.bias)
                log_p = _log_density(torch.linalg.cholesky(self.covariance), error)
                mean = self._shift(state["mean"], values[:, t])
                state = {"mean": mean, "covariance": torch.zeros_like(state["covariance"])}
            else:
                state, log_p = self._observe(self._predict(state, top), values[:, t], mask[:, t])
            complete_steps = complete_steps + 1 if is_complete else 0
            scores.append(log_p)
        return state, torch.stack(scores, dim=1)

    def exact_forecast(self, values: Tensor, mask: Tensor, horizon: int) -> tuple[Tensor, Tensor]:
        """Return means (B, horizon, C) and covariances (B, horizon, C, C) of the steps after values (B, T, C)."""
        top, C, last = self._top_rows(), self.variables, values[:, -self.order :]
        if last.shape[1] == self.order and bool(mask[:, -self.order :].all()):  # no gap: the state is known
            mean = last.double().cpu().flip(1).flatten(1)
            state = {"mean": mean, "covariance": mean.new_zeros(len(mean), mean.shape[1], mean.shape[1])}
        else:
            state, _ = self.read(values, self.start(len(values)), mask)
        means, covariances = [], []
        for _ in range(horizon):
            state = self._predict(state, top)
            means.append(state["mean"][:, :C])
            covariances.append(state["covariance"][:, :C, :C])
        return torch.stack(means, dim=1), torch.stack(covariances, dim=1)


def _log_density(factor: Tensor, error: Tensor) -> Tensor:
    """Return log N(error; 0, L Lᵀ) (B,) of errors (B, C) with factors L (C, C) or (B, C, C)."""
    whitened = torch.linalg.solve_triangular(factor, error.unsqueeze(2), upper=False).squeeze(2)
    logs = factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    return -0.5 * (whitened**2).sum(dim=1) - logs - 0.5 * math.log(2 * math.pi) * error.shape[1]


def _least_squares(inputs: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """Return the ridge regression coefficients (K, C). The last row is the intercept, which is not penalized."""
    if not ridge:
        solution: Tensor = torch.linalg.lstsq(inputs, targets, driver="gelsd").solution
        return solution
    scale = inputs[:, :-1].std(dim=0).clamp(min=1e-300)
    centre, target_mean = inputs[:, :-1].mean(dim=0), targets.mean(dim=0)
    z = (inputs[:, :-1] - centre) / scale
    penalty = (ridge * len(z)) ** 0.5 * torch.eye(z.shape[1], dtype=z.dtype)
    zeros = torch.zeros(len(penalty), targets.shape[1]).to(z)
    stacked = torch.cat([z, penalty]), torch.cat([targets - target_mean, zeros])
    slopes = torch.linalg.lstsq(*stacked, driver="gelsd").solution / scale.unsqueeze(1)
    return torch.cat([slopes, (target_mean - centre @ slopes).unsqueeze(0)])
