"""Expectation–maximisation for linear dynamical systems (Shumway and Stoffer, 1982), values missing or not.

The E-step is the smoother. The M-step is two regressions, of h_t on (h_{t-1}, x_t) and of y_t on
(h_t, 1), with expectations in place of the states nobody has seen:

    W = Σ E[target regressorᵀ] (Σ E[regressor regressorᵀ])⁻¹        noise = mean of E[(target − W regressor)(…)ᵀ]

The noise is summed up as residual · residualᵀ + factor · factorᵀ, so it cannot come out negative.
What a parameter is held to (a part of W that is fixed, noise that is diagonal, the same for
several, or above a floor) each M-step keeps while it finds the best there is, so that the
likelihood never falls.
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

BOLDEST = 256.0  # times EM's own step
LEARNED = ("transition", "drive", "process", "emission", "offset", "observation", "mean", "covariance")


@dataclass(frozen=True)
class Rules:
    """What EM may change, and what it must keep.

    The noise of the state is `shape` · u, u ~ N(0, W), and W is learned: any covariance where
    `groups` is None, else diagonal, with one variance for all places of a group. A floor is the
    least variance in any direction.
    """

    learn: frozenset[str] = frozenset(LEARNED)
    shape: Tensor | None = None  # (H, K), independent columns; None for the identity
    groups: tuple[int, ...] | None = None  # (K,)
    damped: tuple[int, ...] = ()  # places i of the state with W_hh[i, i] learned, from 0 to 1, whatever `learn` says
    diagonal: bool = True  # of the observations' noise
    process_floor: float = 1e-12
    observation_floor: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))  # (), or (C,)


@dataclass(frozen=True)
class Data:
    """Sequences side by side; what the mask does not mark is missing, at the end of the shorter ones too."""

    values: Tensor  # (B, T, C)
    mask: Tensor  # (B, T, C)
    inputs: Tensor | None = None  # (B, T, X)

    @classmethod
    def of(cls, sequences: Sequence[tuple[Tensor, Tensor]]) -> "Data":
        """From values and masks (T, C) each, of any lengths."""
        longest = max(len(values) for values, _ in sequences)
        whole = [pad(values.double(), (0, 0, 0, longest - len(values))) for values, _ in sequences]
        masks = [pad(mask & ~values.isnan(), (0, 0, 0, longest - len(mask))) for values, mask in sequences]
        return cls(torch.stack(whole), torch.stack(masks))

    @property
    def observed(self) -> Tensor:
        """Steps at which anything was observed (B, T)."""
        return self.mask.any(dim=2)

    @property
    def moved(self) -> Tensor:
        """Steps after the first and not after the last that was observed: those the transition is learned from."""
        until = self.observed.flip(1).cummax(dim=1).values.flip(1)
        return until[:, 1:]


def check_data(data: Data, rules: Rules, inputs: int = 0) -> None:
    """Refuse what nothing can be learned from."""
    if not bool(data.mask.any()):
        raise DataError("Every value is missing: there is nothing to learn from. Check how the file marks gaps.")
    if not bool(torch.isfinite(data.values[data.mask]).all()):
        raise DataError("Values must be finite numbers; one is infinite or not a number. Leave it empty, as missing.")
    if inputs and (data.inputs is None or not bool(torch.isfinite(data.inputs).all())):
        raise DataError(
            f"The model has {inputs} inputs, and some of them are missing. Only what is observed may have gaps."
        )
    if rules.learn & {"transition", "drive", "process"} and not bool(data.moved.any()):
        raise DataError("One step alone says nothing of how a state moves. Give at least two, observed at two times.")


@dataclass(frozen=True)
class Round:
    log_likelihood: float  # of the system the round began with
    system: System  # under which the data is at least as likely
    stretch: float  # how much farther than EM the next round will try to go


def expectation_maximisation(system: System, data: Data, rules: Rules, stretch: float = 1.0) -> Iterator[Round]:
    """Rounds, for ever.

    EM creeps where a variance is small. So each round also tries to go farther in its direction, on
    the logarithms of the variances, and is as bold as that paid off before; what is less likely
    than EM's own step is not taken.
    """
    filtered = kalman_filter(system, data.values, data.mask, data.inputs)
    while True:
        improved = maximise(system, data, kalman_smoother(system, filtered), rules)
        after = kalman_filter(improved, data.values, data.mask, data.inputs)
        farther = beyond(system, improved, rules, stretch)
        if farther is not None:
            there = kalman_filter(farther, data.values, data.mask, data.inputs)
            pays = bool(there.log_likelihood.sum() > after.log_likelihood.sum())
            improved, after = (farther, there) if pays else (improved, after)
            stretch = min(2 * stretch, BOLDEST) if pays else max(stretch / 4, 1.0)
        yield Round(float(filtered.log_likelihood.sum()), improved, stretch)
        system, filtered = improved, after


def beyond(system: System, improved: System, rules: Rules, stretch: float) -> System | None:
    """Past `improved`, by so many times the way to it, where noises are made of single variances; None elsewhere."""
    if rules.groups is None or rules.shape is None or not rules.diagonal:
        return None
    inverse = torch.linalg.pinv(rules.shape)
    observation = _farther(system.observation, improved.observation, rules.observation_floor, stretch)
    floor = improved.mean.new_tensor(rules.process_floor)
    process = rules.shape @ _farther(inverse @ system.process, inverse @ improved.process, floor, stretch)
    return replace(improved, process=process, observation=observation)


def _farther(before: Tensor, after: Tensor, floor: Tensor, stretch: float) -> Tensor:
    """Of diagonal factors."""
    old, new = before.diagonal(), after.diagonal()
    return torch.diag((new * (new / old) ** stretch).maximum(floor.sqrt()))


def maximise(system: System, data: Data, smoothed: SmoothedStates, rules: Rules) -> System:
    """The M-step: every parameter that may change, set to the best for what the E-step expects."""
    means, factors = smoothed.means[:, 0], smoothed.patterns[:, 0][smoothed.rows]  # (B, H), (B, H, H)
    mean, factor = means.mean(dim=0) if "mean" in rules.learn else system.mean, system.factor
    if "covariance" in rules.learn:
        apart = torch.cat([factors, (means - mean)[..., None]], dim=2)  # (B, H, H + 1)
        joined = apart.permute(1, 0, 2).flatten(1)  # (H, B · (H + 1))
        factor = triangular(joined / len(means) ** 0.5)
    system = _learn_transition(replace(system, mean=mean, factor=factor), data, smoothed, rules)
    return _learn_emission(system, data, smoothed, rules)


def _learn_transition(system: System, data: Data, smoothed: SmoothedStates, rules: Rules) -> System:
    """W_hh, W_hx and Q from every pair of states that follow each other."""
    if not rules.learn & {"transition", "drive", "process"} and not rules.damped:
        return system
    weight = data.moved.to(system.mean.dtype)[..., None, None]  # (B, T − 1, 1, 1)
    before, after = smoothed.means[:, :-1, :, None], smoothed.means[:, 1:, :, None]  # (B, T − 1, H, 1)
    factors, gains, rests = smoothed.factors, smoothed.gains[smoothed.rows], smoothed.rests[smoothed.rows]
    both = covariance(factors[:, 1:]) @ gains.mT  # cov(h_{t+1}, h_t)
    regressor = before  # (B, T − 1, H + X, 1)
    if system.drive is not None and data.inputs is not None:
        regressor = torch.cat([before, data.inputs[:, 1:, :, None]], dim=2)
    size, more = before.shape[2], regressor.shape[2] - before.shape[2]
    cross = _sum(weight * after, regressor) + pad((weight * both).sum(dim=(0, 1)), (0, more))
    square = _sum(weight * regressor, regressor)
    square += pad((weight * covariance(factors[:, :-1])).sum(dim=(0, 1)), (0, more, 0, more))
    learned = torch.tensor(["transition" in rules.learn] * size + ["drive" in rules.learn] * more)
    whole = system.transition if system.drive is None else torch.cat([system.transition, system.drive], dim=1)
    whole = regress(cross, square, whole, learned)
    for place in rules.damped:  # the best weight of a part of the state on itself, from 0 to 1, all others as they are
        whole = whole.clone()
        whole[place, place] = 0
        left = cross[place, place] - whole[place] @ square[:, place]
        whole[place, place] = (left / square[place, place].clamp_min(torch.finfo(square.dtype).tiny)).clamp(0, 1)
    drive = None if system.drive is None else whole[:, size:].clone()
    system = replace(system, transition=whole[:, :size], drive=drive)
    if "process" not in rules.learn:
        return system
    # h_{t+1} − W h_t = (I − W J) h_{t+1} − W D · noise, since h_t = … + J h_{t+1} + D · noise
    eye = torch.eye(size, dtype=whole.dtype)
    around = torch.cat([(eye - system.transition @ gains) @ factors[:, 1:], system.transition @ rests], dim=3)
    spread = torch.cat([after - whole @ regressor, around], dim=3)  # (B, T − 1, H, 1 + 2H)
    if rules.shape is not None:
        spread = torch.linalg.pinv(rules.shape) @ spread  # (B, T − 1, K, …): what u would have to be
    noise = (weight * covariance(spread)).sum(dim=(0, 1)) / weight.sum()
    factor = noise_factor(noise, rules.groups, noise.new_tensor(rules.process_floor))
    return replace(system, process=factor if rules.shape is None else rules.shape @ factor)


def _learn_emission(system: System, data: Data, smoothed: SmoothedStates, rules: Rules) -> System:
    """W_yh, d and R from every step at which anything was observed; what was not is expected, given what was."""
    if not rules.learn & {"emission", "offset", "observation"}:
        return system
    weight = data.observed.to(system.mean.dtype)[..., None, None]  # (B, T, 1, 1)
    means, factors = smoothed.means[..., None], smoothed.factors  # (B, T, H, 1), (B, T, H, H)
    fill, unsure = _filled(covariance(system.observation), data.mask)  # (B, T, C, C) both
    values = torch.where(data.mask, data.values, 0.0)[..., None]
    eye = torch.eye(len(system.offset), dtype=values.dtype)
    # y = fill (y observed) + (I − fill)(W h + d) + what is unsure: a line in h
    slope = (eye - fill) @ system.emission
    level = fill @ values + (eye - fill) @ system.offset[:, None]
    expected = level + slope @ means  # (B, T, C, 1)
    regressor = torch.cat([means, torch.ones_like(means[:, :, :1])], dim=2)
    spread = covariance(factors)
    cross = _sum(weight * expected, regressor) + pad((weight * (slope @ spread)).sum(dim=(0, 1)), (0, 1))
    square = _sum(weight * regressor, regressor) + pad((weight * spread).sum(dim=(0, 1)), (0, 1, 0, 1))
    learned = torch.tensor(["emission" in rules.learn] * means.shape[2] + ["offset" in rules.learn])
    whole = regress(cross, square, torch.cat([system.emission, system.offset[:, None]], dim=1), learned)
    system = replace(system, emission=whole[:, :-1].clone(), offset=whole[:, -1].clone())
    if "observation" not in rules.learn:
        return system
    residual = torch.cat([expected - whole @ regressor, (slope - system.emission) @ factors], dim=3)
    noise = (weight * (covariance(residual) + unsure)).sum(dim=(0, 1)) / weight.sum()
    groups = tuple(range(len(noise))) if rules.diagonal else None
    return replace(system, observation=noise_factor(noise, groups, rules.observation_floor))


def _filled(noise: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """F with E[δ | δ observed] = F δ, R Mᵀ (M R Mᵀ)⁻¹, and the covariance left, R − F R: of every step (B, T, C, C)."""
    patterns, rows = torch.unique(mask.flatten(0, 1), dim=0, return_inverse=True)
    both = (patterns[:, :, None] & patterns[:, None, :]).to(noise.dtype)
    fill = noise @ torch.linalg.pinv(noise * both, hermitian=True)  # (U, C, C), no column for what is missing
    fill[patterns.all(dim=1)] = torch.eye(len(noise), dtype=noise.dtype)  # nothing to fill in, and no rounding either
    unsure = noise - fill @ noise
    unsure = (unsure + unsure.mT) / 2 * (~patterns[:, :, None] & ~patterns[:, None, :])
    return fill[rows].view(*mask.shape, -1), unsure[rows].view(*mask.shape, -1)


def regress(cross: Tensor, square: Tensor, weights: Tensor, learned: Tensor) -> Tensor:
    """The weights (n, k) that explain the targets best, their columns that are not learned staying as they are."""
    if not bool(learned.any()):
        return weights
    given = weights[:, ~learned] @ square[~learned][:, learned]
    scale = square[learned][:, learned].diagonal().clamp_min(torch.finfo(square.dtype).tiny).sqrt()
    even = square[learned][:, learned] / scale[:, None] / scale
    solution = torch.linalg.lstsq(even, ((cross[:, learned] - given) / scale).mT, driver="gelsd").solution
    weights = weights.clone()
    weights[:, learned] = solution.mT / scale
    return weights


def noise_factor(noise: Tensor, groups: tuple[int, ...] | None, floor: Tensor) -> Tensor:
    """A factor of the likeliest covariance for noise with these second moments, of the form that the rules allow."""
    if groups is None:
        values, vectors = torch.linalg.eigh((noise + noise.mT) / 2)
        return triangular(vectors * values.clamp_min(floor.min()).sqrt())
    places = torch.tensor(groups)
    count = torch.zeros(int(places.max()) + 1, dtype=noise.dtype).index_add(0, places, torch.ones_like(noise[0]))
    total = torch.zeros_like(count).index_add(0, places, noise.diagonal())
    return torch.diag((total / count)[places].maximum(floor).sqrt())


def _sum(a: Tensor, b: Tensor) -> Tensor:
    """Σ a bᵀ over sequences and steps."""
    return (a @ b.mT).sum(dim=(0, 1))
