"""The autoregressive model: the next values are a linear function of the last ones, seen through delay taps.

    y_t = b + Σ_{k=1…p} A_k y_{t−k} + ε_t,   ε_t ~ N(0, Σ)

A and b are estimated by least squares, Σ is the covariance of the residuals. With `difference` the
equation is one of d_t = y_t − y_{t−m}; written out it is again one of y, with more taps: A(L) (1 −
Lᵐ) y_t = b + ε_t.

As a state x_t = (y_t … y_{t−p+1}) it is a linear system, x_t = F x_{t−1} + b + ε_t, that is
observed without noise. So forecasts are exact: means go on by F, covariances by F P Fᵀ + Σ; and a
missing value is one more step of that kind. F is [A_1 … A_p] above rows that only move what is
there, so it is never multiplied out; and once the last p steps have all been observed, P is 0.
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

MORE = 4  # times as many steps as its taps are read, so that gaps among the last do no harm
MIN_VARIANCE_RATIO = 1e-12  # of the residuals to the variable: a perfect fit keeps this uncertainty


@config
class AutoregressiveConfig:
    kind: Literal["ar"] = "ar"
    taps: PositiveInt | None = None  # p, the last values that are seen; None is a season and one more, at least 8
    difference: Difference = "none"  # none, step or season: predict y_t − y_{t−1}, or y_t − y of a season ago
    ridge: NonNegativeFloat = 0.0  # λ ‖A‖² is added to the squares, in units of the variables' deviations

    def order(self, season: int) -> int:
        return max(8, season + 1) if self.taps is None else self.taps

    def build(self, variables: int, season: int) -> "Autoregressive":
        return Autoregressive(self.order(season), lag_of(self.difference, season), variables)

    def estimates(
        self, series: Sequence[tuple[Tensor, Tensor]], season: int, model: object, step: int, seed: int
    ) -> Iterator[Estimate]:
        """Solve for values and masks (T, C) at once: a checkpoint of it is the finished model."""
        if model is None:
            solved = self.build(series[0][0].shape[1], season)
            covariance = solved.solve(series, self.ridge)
            yield Estimate(1, 1, solved, {"deviation": float(covariance.diagonal().sqrt().mean())})


class Autoregressive(TensorModel):
    """The model above. Float64, and on the CPU wherever the rest is: it is small."""

    names = ("weights", "bias", "covariance", "level", "spread")
    bounds: Mapping[str, Bounds] = {"spread": (0, None)}
    cpu_only = True

    def __init__(self, taps: int, lag: int, variables: int) -> None:
        self.taps, self.lag, self.variables = taps, lag, variables
        self.order = taps + lag  # taps of the equation in y itself
        self.memory = MORE * self.order  # the most steps it looks back
        self.weights = torch.zeros(taps, variables, variables, dtype=torch.float64)  # A_k, the nearest first
        self.bias = torch.zeros(variables, dtype=torch.float64)
        self.covariance = torch.eye(variables, dtype=torch.float64)
        self.level = torch.zeros(variables, dtype=torch.float64)  # mean of the training values
        self.spread = torch.ones(variables, dtype=torch.float64)  # and their variance: the belief before any value

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        require(torch.linalg.cholesky_ex(tensors["covariance"]).info == 0, "covariance must be positive definite")

    # --- estimation -------------------------------------------------------------------------------------------------

    def solve(self, series: Sequence[tuple[Tensor, Tensor]], ridge: float = 0.0) -> Tensor:
        """Solve least squares over all steps whose taps were observed; return Σ."""
        pairs = [self._regression_rows(values, mask) for values, mask in series]
        inputs, targets = (torch.cat(parts) for parts in zip(*pairs, strict=True))  # (N, p C + 1), (N, C)
        if len(inputs) <= inputs.shape[1]:
            raise DataError(
                f"{self.taps} taps and a constant are {inputs.shape[1]} unknowns of each variable, and only "
                f"{len(inputs)} steps of train have all of their taps. Lower model.taps, fill gaps (data.fill), or "
                "give more data."
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
        """Taps, a 1 after them, and the values that follow, of every step where all were observed."""
        if self.lag:
            values, mask = values[self.lag :] - values[: -self.lag], mask[self.lag :] & mask[: -self.lag]
        if len(values) <= self.taps:
            return values.new_empty(0, self.taps * self.variables + 1), values.new_empty(0, self.variables)
        taps = [values[self.taps - k : len(values) - k] for k in range(1, self.taps + 1)]
        known = [mask[self.taps - k : len(values) - k] for k in range(self.taps + 1)]
        complete = torch.cat(known, dim=1).all(dim=1)
        inputs = torch.cat([*taps, torch.ones(len(values) - self.taps, 1, dtype=values.dtype)], dim=1)
        return inputs[complete], values[self.taps :][complete]

    # --- the equation in y, as a state ------------------------------------------------------------------------------

    def coefficients(self) -> Tensor:
        """A_k (p + m, C, C) of the equation in y: the product of A(L) and 1 − Lᵐ."""
        whole = torch.zeros(self.order, self.variables, self.variables, dtype=torch.float64)
        whole[: self.taps] += self.weights
        if self.lag:
            whole[self.lag - 1] += torch.eye(self.variables, dtype=torch.float64)
            whole[self.lag :] -= self.weights
        return whole

    def _top_rows(self) -> Tensor:
        """[A_1 … A_p], the upper rows of F (C, P), P = order · C."""
        return self.coefficients().transpose(0, 1).reshape(self.variables, -1)

    def _predict(self, state: dict[str, Tensor], top: Tensor) -> dict[str, Tensor]:
        """Move the state one step on, nothing observed."""
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
        """Put values (B, C) before all others of a state (B, P), and drop the oldest."""
        return torch.cat([newest, mean[:, : -self.variables]], dim=1)

    def _observe(self, state: dict[str, Tensor], values: Tensor, mask: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Update the state by values (B, C), observed where the mask is; return it and their log p (B,)."""
        C, real = self.variables, mask.double()
        P, mean = state["covariance"], state["mean"]
        known = real.unsqueeze(2) * real.unsqueeze(1)  # (B, C, C)
        S = P[:, :C, :C] * known + (1 - real).diag_embed()
        factor = torch.linalg.cholesky(S)
        error = (values - mean[:, :C]) * real  # (B, C)
        log_p = _log_density(factor, error) + 0.5 * math.log(2 * math.pi) * (1 - real).sum(dim=1)
        gain = torch.cholesky_solve(P[:, :C] * real.unsqueeze(2), factor).mT  # (B, P, C)
        after = P - gain @ (P[:, :C] * real.unsqueeze(2))
        return {"mean": mean + (gain @ error.unsqueeze(2)).squeeze(2), "covariance": (after + after.mT) / 2}, log_p

    # --- what all models of series can do ---------------------------------------------------------------------------

    def start(self, rows: int) -> dict[str, Tensor]:
        """The state before the first value: all values are as those of train were."""
        mean = self.level.repeat(self.order).expand(rows, -1)
        return {"mean": mean, "covariance": self.spread.repeat(self.order).diag().expand(rows, -1, -1)}

    def step(self, values: Tensor, state: Tree, mask: Tensor | None = None) -> FutureStep:
        state, _ = self.read(values, state, mask)
        after, C = self._predict(state, self._top_rows()), self.variables
        return FutureStep(after["mean"][:, :C], state, covariance=after["covariance"][:, :C, :C])

    def score(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.read(values, self.start(len(values)), mask)[1]

    def read(self, values: Tensor, state: dict[str, Tensor], mask: Tensor | None) -> tuple[dict[str, Tensor], Tensor]:
        """The state after values (B, T, C), and the log p (B, T) of each."""
        values, top = values.double().cpu(), self._top_rows()
        mask = torch.ones_like(values, dtype=torch.bool) if mask is None else mask.cpu()
        scores, known = [], 0  # steps before this one without a gap
        for t, whole in enumerate(mask.all(dim=2).all(dim=0).tolist()):
            if whole and known >= self.order:  # a state without doubt, and all values observed
                error = values[:, t] - (state["mean"] @ top.T + self.bias)
                log_p = _log_density(torch.linalg.cholesky(self.covariance), error)
                mean = self._shift(state["mean"], values[:, t])
                state = {"mean": mean, "covariance": torch.zeros_like(state["covariance"])}
            else:
                state, log_p = self._observe(self._predict(state, top), values[:, t], mask[:, t])
            known = known + 1 if whole else 0
            scores.append(log_p)
        return state, torch.stack(scores, dim=1)

    def exact_forecast(self, values: Tensor, mask: Tensor, horizon: int) -> tuple[Tensor, Tensor]:
        """Means (B, horizon, C) and covariances (B, horizon, C, C) of the steps after values (B, T, C)."""
        top, C, last = self._top_rows(), self.variables, values[:, -self.order :]
        if last.shape[1] == self.order and bool(mask[:, -self.order :].all()):  # without a gap, only the last are read
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
    """log N(error; 0, L Lᵀ) (B,) of differences (B, C) and factors L (C, C) or (B, C, C)."""
    whitened = torch.linalg.solve_triangular(factor, error.unsqueeze(2), upper=False).squeeze(2)
    logs = factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    return -0.5 * (whitened**2).sum(dim=1) - logs - 0.5 * math.log(2 * math.pi) * error.shape[1]


def _least_squares(seen: Tensor, wanted: Tensor, ridge: float) -> Tensor:
    """The solution (K, C) of the smallest ‖wanted − seen · solution‖² + ridge; the last row, of the 1s, is free."""
    if not ridge:
        solution: Tensor = torch.linalg.lstsq(seen, wanted, driver="gelsd").solution
        return solution
    size = seen[:, :-1].std(dim=0).clamp(min=1e-300)
    centre, goal = seen[:, :-1].mean(dim=0), wanted.mean(dim=0)
    z = (seen[:, :-1] - centre) / size
    penalty = (ridge * len(z)) ** 0.5 * torch.eye(z.shape[1], dtype=z.dtype)
    stacked = torch.cat([z, penalty]), torch.cat([wanted - goal, torch.zeros(len(penalty), wanted.shape[1]).to(z)])
    slopes = torch.linalg.lstsq(*stacked, driver="gelsd").solution / size.unsqueeze(1)
    return torch.cat([slopes, (goal - centre @ slopes).unsqueeze(0)])
