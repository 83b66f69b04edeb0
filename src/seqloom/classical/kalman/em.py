"""Expectation–maximization for linear dynamical systems with missing values (Shumway and Stoffer, 1982).

The E-step is the smoother. The M-step consists of two regressions, of h_t on (h_{t-1}, x_t) and of
y_t on (h_t, 1), with expectations over the hidden states:

    W = Σ E[target regressorᵀ] (Σ E[regressor regressorᵀ])⁻¹        noise = mean of E[(target − W regressor)(…)ᵀ]

The noise is accumulated as residual · residualᵀ + factor · factorᵀ, so it cannot become negative.
Each M-step maximizes under the constraints on the parameters (fixed parts of W, diagonal or shared
variances, variance floors), so the likelihood never decreases.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from seqloom.classical.kalman.filter import (
    SmoothedStates,
    System,
    covariance,
    kalman_filter,
    kalman_smoother,
    triangular,
)
from seqloom.core.errors import DataError

MAX_STRETCH = 256.0  # largest extrapolation, in EM steps
LEARNED = ("transition", "drive", "process", "emission", "offset", "observation", "mean", "covariance")


@dataclass(frozen=True)
class Rules:
    """The parameters that EM learns and their constraints.

    The state noise is `shape` · u with u ~ N(0, W). W is learned: a full covariance if `groups` is
    None, else a diagonal covariance with one variance per group. A floor is the minimum variance in any
    direction.
    """

    learn: frozenset[str] = frozenset(LEARNED)
    shape: Tensor | None = None  # (H, K), independent columns; None for the identity
    groups: tuple[int, ...] | None = None  # (K,)
    damped: tuple[int, ...] = ()  # indices i with W_hh[i, i] learned in [0, 1], regardless of `learn`
    diagonal: bool = True  # whether the covariance of the observation noise is diagonal
    process_floor: float = 1e-12
    observation_floor: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))  # (), or (C,)


@dataclass(frozen=True)
class Data:
    """A batch of sequences; values outside the mask are missing or padding."""

    values: Tensor  # (B, T, C)
    mask: Tensor  # (B, T, C)
    inputs: Tensor | None = None  # (B, T, X)

    @classmethod
    def of(cls, sequences: Sequence[tuple[Tensor, Tensor]]) -> "Data":
        """Batch values and masks (T, C) of different lengths."""
        longest = max(len(values) for values, _ in sequences)
        padded = [pad(values.double(), (0, 0, 0, longest - len(values))) for values, _ in sequences]
        masks = [pad(mask & ~values.isnan(), (0, 0, 0, longest - len(mask))) for values, mask in sequences]
        return cls(torch.stack(padded), torch.stack(masks))

    @property
    def observed(self) -> Tensor:
        """Whether any value of a step is observed (B, T)."""
        return self.mask.any(dim=2)

    @property
    def has_transition(self) -> Tensor:
        """Mask (B, T − 1) of the steps that determine the transition: from step 2 to the last observed step."""
        return self.observed.flip(1).cummax(dim=1).values.flip(1)[:, 1:]


def check_data(data: Data, rules: Rules, inputs: int = 0) -> None:
    """Raise `DataError` if the parameters cannot be estimated from the data."""
    if not bool(data.mask.any()):
        raise DataError("All values are missing. Check how the file marks missing values.")
    if not bool(torch.isfinite(data.values[data.mask]).all()):
        raise DataError("Values must be finite; one value is infinite or NaN. Leave missing values empty.")
    if inputs and (data.inputs is None or not bool(torch.isfinite(data.inputs).all())):
        raise DataError(f"Some of the {inputs} inputs have missing values. Only the observations may have gaps.")
    if rules.learn & {"transition", "drive", "process"} and not bool(data.has_transition.any()):
        raise DataError("Learning the transition needs at least two observed steps. Use more data.")


@dataclass(frozen=True)
class Round:
    log_likelihood: float  # log-likelihood of the system before the round
    system: System  # the system after the round, which is at least as likely
    stretch: float  # extrapolation that the next round tries, in EM steps


def expectation_maximization(system: System, data: Data, rules: Rules, stretch: float = 1.0) -> Iterator[Round]:
    """Yield EM rounds indefinitely.

    EM converges slowly if a variance is small. Each round therefore also tries to extrapolate the
    logarithms of the variances, and accepts the extrapolation if it is more likely than the EM step. The
    extrapolation grows after a success and shrinks after a failure.
    """
    filtered = kalman_filter(system, data.values, data.mask, data.inputs)
    while True:
        improved = maximize(system, data, kalman_smoother(system, filtered), rules)
        after = kalman_filter(improved, data.values, data.mask, data.inputs)
        candidate = extrapolate(system, improved, rules, stretch)
        if candidate is not None:
            candidate_filtered = kalman_filter(candidate, data.values, data.mask, data.inputs)
            is_better = bool(candidate_filtered.log_likelihood.sum() > after.log_likelihood.sum())
            improved, after = (candidate, candidate_filtered) if is_better else (improved, after)
            stretch = min(2 * stretch, MAX_STRETCH) if is_better else max(stretch / 4, 1.0)
        yield Round(float(filtered.log_likelihood.sum()), improved, stretch)
        system, filtered = improved, after


def extrapolate(system: System, improved: System, rules: Rules, stretch: float) -> System | None:
    """Extrapolate the variances past `improved` by `stretch` EM steps; return None unless the noises are diagonal."""
    if rules.groups is None or rules.shape is None or not rules.diagonal:
        return None
    inverse = torch.linalg.pinv(rules.shape)
    observation = _extrapolate_factor(system.observation, improved.observation, rules.observation_floor, stretch)
    floor = improved.mean.new_tensor(rules.process_floor)
    process = rules.shape @ _extrapolate_factor(inverse @ system.process, inverse @ improved.process, floor, stretch)
    return replace(improved, process=process, observation=observation)


def _extrapolate_factor(before: Tensor, after: Tensor, floor: Tensor, stretch: float) -> Tensor:
    """Extrapolate a diagonal factor."""
    old, new = before.diagonal(), after.diagonal()
    return torch.diag((new * (new / old) ** stretch).maximum(floor.sqrt()))


def maximize(system: System, data: Data, smoothed: SmoothedStates, rules: Rules) -> System:
    """Run the M-step for all parameters that are learned."""
    means, factors = smoothed.means[:, 0], smoothed.patterns[:, 0][smoothed.rows]  # (B, H), (B, H, H)
    mean, factor = means.mean(dim=0) if "mean" in rules.learn else system.mean, system.factor
    if "covariance" in rules.learn:
        deviations = torch.cat([factors, (means - mean)[..., None]], dim=2)  # (B, H, H + 1)
        joined = deviations.permute(1, 0, 2).flatten(1)  # (H, B · (H + 1))
        factor = triangular(joined / len(means) ** 0.5)
    system = _learn_transition(replace(system, mean=mean, factor=factor), data, smoothed, rules)
    return _learn_emission(system, data, smoothed, rules)


def _learn_transition(system: System, data: Data, smoothed: SmoothedStates, rules: Rules) -> System:
    """Learn W_hh, W_hx and Q from consecutive states."""
    if not rules.learn & {"transition", "drive", "process"} and not rules.damped:
        return system
    weight = data.has_transition.to(system.mean.dtype)[..., None, None]  # (B, T − 1, 1, 1)
    before, after = smoothed.means[:, :-1, :, None], smoothed.means[:, 1:, :, None]  # (B, T − 1, H, 1)
    factors, gains, residuals = smoothed.factors, smoothed.gains[smoothed.rows], smoothed.residuals[smoothed.rows]
    both = covariance(factors[:, 1:]) @ gains.mT  # cov(h_{t+1}, h_t)
    regressor = before  # (B, T − 1, H + X, 1)
    if system.drive is not None and data.inputs is not None:
        regressor = torch.cat([before, data.inputs[:, 1:, :, None]], dim=2)
    size, more = before.shape[2], regressor.shape[2] - before.shape[2]
    cross = _sum(weight * after, regressor) + pad((weight * both).sum(dim=(0, 1)), (0, more))
    square = _sum(weight * regressor, regressor)
    square += pad((weight * covariance(factors[:, :-1])).sum(dim=(0, 1)), (0, more, 0, more))
    learned = torch.tensor(["transition" in rules.learn] * size + ["drive" in rules.learn] * more)
    weights = system.transition if system.drive is None else torch.cat([system.transition, system.drive], dim=1)
    weights = regress(cross, square, weights, learned)
    for i in rules.damped:  # find the best W_hh[i, i] in [0, 1] with all other weights unchanged
        weights = weights.clone()
        weights[i, i] = 0
        residual = cross[i, i] - weights[i] @ square[:, i]
        weights[i, i] = (residual / square[i, i].clamp_min(torch.finfo(square.dtype).tiny)).clamp(0, 1)
    drive = None if system.drive is None else weights[:, size:].clone()
    system = replace(system, transition=weights[:, :size], drive=drive)
    if "process" not in rules.learn:
        return system
    # h_{t+1} − W h_t = (I − W J) h_{t+1} − W D · noise, since h_t = … + J h_{t+1} + D · noise
    eye = torch.eye(size, dtype=weights.dtype)
    around = torch.cat([(eye - system.transition @ gains) @ factors[:, 1:], system.transition @ residuals], dim=3)
    spread = torch.cat([after - weights @ regressor, around], dim=3)  # (B, T − 1, H, 1 + 2H)
    if rules.shape is not None:
        spread = torch.linalg.pinv(rules.shape) @ spread  # (B, T − 1, K, …): in terms of u
    noise = (weight * covariance(spread)).sum(dim=(0, 1)) / weight.sum()
    factor = noise_factor(noise, rules.groups, noise.new_tensor(rules.process_floor))
    return replace(system, process=factor if rules.shape is None else rules.shape @ factor)


def _learn_emission(system: System, data: Data, smoothed: SmoothedStates, rules: Rules) -> System:
    """Learn W_yh, d and R from observed steps; missing values are replaced by their conditional expectations."""
    if not rules.learn & {"emission", "offset", "observation"}:
        return system
    weight = data.observed.to(system.mean.dtype)[..., None, None]  # (B, T, 1, 1)
    means, factors = smoothed.means[..., None], smoothed.factors  # (B, T, H, 1), (B, T, H, H)
    fill, uncertainty = _impute_noise(covariance(system.observation), data.mask)  # (B, T, C, C) both
    values = torch.where(data.mask, data.values, 0.0)[..., None]
    eye = torch.eye(len(system.offset), dtype=values.dtype)
    # y = fill (y observed) + (I − fill)(W h + d) + noise is linear in h
    slope = (eye - fill) @ system.emission
    level = fill @ values + (eye - fill) @ system.offset[:, None]
    expected = level + slope @ means  # (B, T, C, 1)
    regressor = torch.cat([means, torch.ones_like(means[:, :, :1])], dim=2)
    spread = covariance(factors)
    cross = _sum(weight * expected, regressor) + pad((weight * (slope @ spread)).sum(dim=(0, 1)), (0, 1))
    square = _sum(weight * regressor, regressor) + pad((weight * spread).sum(dim=(0, 1)), (0, 1, 0, 1))
    learned = torch.tensor(["emission" in rules.learn] * means.shape[2] + ["offset" in rules.learn])
    weights = regress(cross, square, torch.cat([system.emission, system.offset[:, None]], dim=1), learned)
    system = replace(system, emission=weights[:, :-1].clone(), offset=weights[:, -1].clone())
    if "observation" not in rules.learn:
        return system
    residual = torch.cat([expected - weights @ regressor, (slope - system.emission) @ factors], dim=3)
    noise = (weight * (covariance(residual) + uncertainty)).sum(dim=(0, 1)) / weight.sum()
    groups = tuple(range(len(noise))) if rules.diagonal else None
    return replace(system, observation=noise_factor(noise, groups, rules.observation_floor))


def _impute_noise(noise: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return F = R Mᵀ (M R Mᵀ)⁻¹, so that E[δ | δ observed] = F δ, and R − F R of every step (B, T, C, C)."""
    patterns, rows = torch.unique(mask.flatten(0, 1), dim=0, return_inverse=True)
    both = (patterns[:, :, None] & patterns[:, None, :]).to(noise.dtype)
    fill = noise @ torch.linalg.pinv(noise * both, hermitian=True)  # (U, C, C), columns of missing values are 0
    fill[patterns.all(dim=1)] = torch.eye(len(noise), dtype=noise.dtype)  # exact if no value is missing
    uncertainty = noise - fill @ noise
    uncertainty = (uncertainty + uncertainty.mT) / 2 * (~patterns[:, :, None] & ~patterns[:, None, :])
    return fill[rows].view(*mask.shape, -1), uncertainty[rows].view(*mask.shape, -1)


def regress(cross: Tensor, square: Tensor, weights: Tensor, learned: Tensor) -> Tensor:
    """Return the least-squares weights (n, k); columns that are not learned keep their values."""
    if not bool(learned.any()):
        return weights
    explained = weights[:, ~learned] @ square[~learned][:, learned]
    scale = square[learned][:, learned].diagonal().clamp_min(torch.finfo(square.dtype).tiny).sqrt()
    scaled = square[learned][:, learned] / scale[:, None] / scale
    solution = torch.linalg.lstsq(scaled, ((cross[:, learned] - explained) / scale).mT, driver="gelsd").solution
    weights = weights.clone()
    weights[:, learned] = solution.mT / scale
    return weights


def noise_factor(noise: Tensor, groups: tuple[int, ...] | None, floor: Tensor) -> Tensor:
    """Return a factor of the most likely covariance for these second moments: full, or with one variance per group."""
    if groups is None:
        values, vectors = torch.linalg.eigh((noise + noise.mT) / 2)
        return triangular(vectors * values.clamp_min(floor.min()).sqrt())
    members = torch.tensor(groups)
    count = torch.zeros(int(members.max()) + 1, dtype=noise.dtype).index_add(0, members, torch.ones_like(noise[0]))
    total = torch.zeros_like(count).index_add(0, members, noise.diagonal())
    return torch.diag((total / count)[members].maximum(floor).sqrt())


def _sum(a: Tensor, b: Tensor) -> Tensor:
    """Sum a bᵀ over sequences and steps."""
    return (a @ b.mT).sum(dim=(0, 1))
