"""The Kalman filter and the Rauch–Tung–Striebel smoother, on factors of the covariances instead of the covariances.

    h_1 ~ N(m, P)                                         the state (H) at the first step
    h_t = W_hh h_{t-1} + W_hx x_t + ε,    ε ~ N(0, Q)     it moves, driven by inputs x (X) where there are any
    y_t = W_yh h_t + d + δ,               δ ~ N(0, R)     what is observed of it (C values, any of them perhaps missing)

A covariance P is kept as a factor S with P = S Sᵀ. Whatever happens to it is then one orthogonal
triangularisation, a QR decomposition: [A | B] Θ = [L | 0] says A Aᵀ + B Bᵀ = L Lᵀ. No covariance is
ever subtracted from another, so none can lose its symmetry or become negative, and half of the
digits are needed.

Covariances depend on which values were observed, not on what they were. So they are computed once
for every pattern of gaps, and only the means for every sequence.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seqloom.core.errors import DataError

LOG_2_PI = math.log(2 * math.pi)
SINGULAR = 1e-13  # a deviation this small beside what it is a part of is none


@dataclass(frozen=True)
class System:
    """All that a linear dynamical system is. Float64; covariances by their factors."""

    transition: Tensor  # W_hh (H, H)
    process: Tensor  # of Q (H, K), K ≤ H
    emission: Tensor  # W_yh (C, H)
    offset: Tensor  # d (C,)
    observation: Tensor  # of R (C, C)
    mean: Tensor  # m (H,)
    factor: Tensor  # of P (H, H)
    drive: Tensor | None = None  # W_hx (H, X)


@dataclass(frozen=True)
class Belief:
    """What is believed of the state of each sequence: N(mean, factor factorᵀ)."""

    mean: Tensor  # (B, H)
    factor: Tensor  # (B, H, H)

    def predict(self, system: System, inputs: Tensor | None = None) -> "Belief":
        """The state one step later, nothing being observed; `inputs` x (B, X) are those of that step."""
        mean = self.mean @ system.transition.mT
        process = system.process.expand(len(self.factor), -1, -1)
        factor = triangular(torch.cat([system.transition @ self.factor, process], dim=2))
        return Belief(mean if inputs is None or system.drive is None else mean + inputs @ system.drive.mT, factor)

    def emit(self, system: System) -> tuple[Tensor, Tensor]:
        """Mean (B, C) and covariance (B, C, C) of what will be observed of such a state."""
        noise = system.observation.expand(len(self.mean), -1, -1)
        spread = torch.cat([system.emission @ self.factor, noise], dim=2)
        return self.mean @ system.emission.mT + system.offset, covariance(spread)


@dataclass(frozen=True)
class Filtered:
    """h_t given y_1 … y_t; `expected_…` is h_t given y_1 … y_{t-1}."""

    means: Tensor  # (B, T, H)
    expected_means: Tensor  # (B, T, H)
    patterns: Tensor  # (U, T, H, H): factors of each pattern of gaps
    expected_patterns: Tensor  # (U, T, H, H)
    rows: Tensor  # (B,): the pattern of each sequence
    log_densities: Tensor  # (B, T): log p(y_t | y_1 … y_{t-1}); 0 where nothing was observed

    @property
    def factors(self) -> Tensor:
        return self.patterns[self.rows]

    @property
    def last(self) -> Belief:
        """The state at the last step."""
        return Belief(self.means[:, -1], self.factors[:, -1])

    @property
    def log_likelihood(self) -> Tensor:
        """log p(y_1 … y_T) of each sequence (B,)."""
        return self.log_densities.sum(dim=1)


@dataclass(frozen=True)
class SmoothedStates:
    """h_t given y_1 … y_T, and how h_t hangs on h_{t+1}: h_t = … + gain_t h_{t+1} + rest_t · N(0, I)."""

    means: Tensor  # (B, T, H)
    patterns: Tensor  # (U, T, H, H)
    gains: Tensor  # (U, T−1, H, H)
    rests: Tensor  # (U, T−1, H, H)
    rows: Tensor  # (B,)
    log_likelihood: Tensor  # (B,)

    @property
    def factors(self) -> Tensor:
        return self.patterns[self.rows]


def triangular(array: Tensor) -> Tensor:
    """The lower triangular L (…, n, n) with L Lᵀ = A Aᵀ, for A (…, n, k) with k ≥ n."""
    return torch.linalg.qr(array.mT, mode="r").R.mT


def covariance(factor: Tensor) -> Tensor:
    return factor @ factor.mT


def kalman_filter(
    system: System, values: Tensor, mask: Tensor, inputs: Tensor | None = None, belief: Belief | None = None
) -> Filtered:
    """Read values (B, T, C), of which those of `mask` (B, T, C) were observed. `belief` is that of the first state."""
    if belief is None:
        patterns, rows = torch.unique(mask, dim=0, return_inverse=True)
        first = system.factor.expand(len(patterns), -1, -1)
        mean = system.mean.expand(len(mask), -1)
    else:
        patterns, rows = mask, torch.arange(len(mask), device=mask.device)
        first, mean = belief.factor, belief.mean
    expected = _expected_factors(system, patterns, first)
    innovation, cross, filtered = _observed(system, patterns, expected)
    whiten = _inverse(innovation)  # (U, T, C, C)
    gain = cross @ whiten  # (U, T, H, C)
    values = torch.where(mask, values - system.offset, 0.0)
    means, expected_means, errors = _means(system, values, mask, inputs, mean, gain[rows])
    surprise = (whiten[rows] @ errors[..., None]).square().sum(dim=(2, 3)) + mask.sum(dim=2).to(errors.dtype) * LOG_2_PI
    volume = innovation.diagonal(dim1=2, dim2=3).abs().log().sum(dim=2)[rows]
    return Filtered(means, expected_means, filtered, expected, rows, -surprise / 2 - volume)


def _expected_factors(system: System, mask: Tensor, first: Tensor) -> Tensor:
    """Factors of h_t given the past, step by step (U, T, H, H).

    [ √R   W_yh S   0  ]       [ √(W_yh P W_yhᵀ + R)   0      ]
    [ 0    W_hh S   √Q ]  Θ =  [ …                     S_next ]
    """
    observe, noise = _rows_observed(system, mask)  # (U, T, C, H), (U, T, C, 2C)
    width = observe.shape[2]
    expected, factor = [first], first
    still = system.process.new_zeros(len(mask), len(system.transition), 2 * width)
    none = system.process.new_zeros(len(mask), width, system.process.shape[1])
    process = system.process.expand(len(mask), -1, -1)
    for t in range(mask.shape[1] - 1):
        above = torch.cat([noise[:, t], observe[:, t] @ factor, none], dim=2)
        below = torch.cat([still, system.transition @ factor, process], dim=2)
        factor = triangular(torch.cat([above, below], dim=1))[:, width:, width:]
        expected.append(factor)
    return torch.stack(expected, dim=1)


def _observed(system: System, mask: Tensor, expected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What y_t adds, of all steps at once: factors of y_t given the past, its weight in h_t, factors of h_t given y_t.

    [ √R   W_yh S ]       [ √(W_yh P W_yhᵀ + R)   0          ]
    [ 0    S      ]  Θ =  [ cross                 S_filtered ]     gain = cross · inverse of what stands above it
    """
    observe, noise = _rows_observed(system, mask)
    width = observe.shape[2]
    still = expected.new_zeros(*expected.shape[:3], 2 * width)
    above, below = torch.cat([noise, observe @ expected], dim=3), torch.cat([still, expected], dim=3)
    both = triangular(torch.cat([above, below], dim=2))
    innovation, cross, filtered = both[..., :width, :width], both[..., width:, :width], both[..., width:, width:]
    if not bool(torch.isfinite(innovation).all()):
        raise DataError(
            "The covariance of the model is no longer finite: its state grows without bound over this series. "
            "Use a structure that does not, fewer steps, or values on a smaller scale."
        )
    sizes = innovation.square().sum(dim=3).sqrt()
    small = innovation.diagonal(dim1=2, dim2=3).abs() <= SINGULAR * sizes
    if bool(small.any()):  # a density of what cannot vary does not exist
        step = int(small.any(dim=2).any(dim=0).nonzero()[0])
        raise DataError(
            f"The covariance of what is observed at step {step + 1} is singular: a value is a sum of others, or does "
            "not vary at all, so it has no density. Leave out the value that repeats others, or give it noise."
        )
    return innovation, cross, filtered


def _rows_observed(system: System, mask: Tensor) -> tuple[Tensor, Tensor]:
    """W_yh and a factor of R where a value was observed.

    A missing value has no row in either, and noise of its own that tells nothing: a deviation of 1,
    whose log is 0.
    """
    seen = mask[..., None].to(system.emission.dtype)  # (U, T, C, 1)
    alone = torch.diag_embed((~mask).to(system.emission.dtype))
    return seen * system.emission, torch.cat([seen * system.observation, alone], dim=3)


def _means(
    system: System, values: Tensor, mask: Tensor, inputs: Tensor | None, mean: Tensor, gain: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """m_t = e_t + K_t (y_t − W_yh e_t) with e_t = W_hh m_{t-1} + W_hx x_t: m, e, and how far off e was (B, T, …)."""
    driven = None if system.drive is None or inputs is None else inputs @ system.drive.mT  # (B, T, H)
    means: list[Tensor] = []
    expected, errors = [mean], []
    for t in range(values.shape[1]):
        if t:
            moved = means[-1] @ system.transition.mT
            expected.append(moved if driven is None else moved + driven[:, t])
        errors.append((values[:, t] - expected[-1] @ system.emission.mT) * mask[:, t])
        means.append(expected[-1] + (gain[:, t] @ errors[-1][..., None]).squeeze(2))
    return torch.stack(means, dim=1), torch.stack(expected, dim=1), torch.stack(errors, dim=1)


def _inverse(lower: Tensor) -> Tensor:
    eye = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
    return torch.linalg.solve_triangular(lower, eye.expand_as(lower), upper=False)


def kalman_smoother(system: System, filtered: Filtered) -> SmoothedStates:
    """Back from the last step: what later observations say of earlier states.

    mean_t = m_t + J_t (mean_{t+1} − e_{t+1}),   P_t = D_t D_tᵀ + J_t P_{t+1} J_tᵀ
    """
    gains, rests = _looking_back(system, filtered.patterns[:, :-1])
    factor, mean = filtered.patterns[:, -1], filtered.means[:, -1]
    factors, means = [factor], [mean]
    by_row = gains[filtered.rows]
    for t in range(gains.shape[1] - 1, -1, -1):
        factor = triangular(torch.cat([rests[:, t], gains[:, t] @ factor], dim=2))
        change = (mean - filtered.expected_means[:, t + 1])[..., None]
        mean = filtered.means[:, t] + (by_row[:, t] @ change).squeeze(2)
        factors.append(factor)
        means.append(mean)
    means_forward, factors_forward = (torch.stack(parts[::-1], dim=1) for parts in (means, factors))
    return SmoothedStates(means_forward, factors_forward, gains, rests, filtered.rows, filtered.log_likelihood)


def _looking_back(system: System, factors: Tensor) -> tuple[Tensor, Tensor]:
    """J (…, H, H) and D (…, H, H) with h_t = … + J h_{t+1} + D · noise, from the factors of h_t, all steps at once.

        [ W_hh S   √Q ]       [ √(W_hh P W_hhᵀ + Q)   0 ]
        [ S         0 ]  Θ =  [ Γ                     Δ ]     J = Γ · inverse of what stands above it

    Where the next state cannot vary in some direction, that inverse is a pseudo-inverse, and the
    part of Γ it does not reach is left over beside Δ.
    """
    size = len(system.transition)
    process = system.process.expand(*factors.shape[:-2], -1, -1)
    above = torch.cat([system.transition @ factors, process], dim=-1)
    below = torch.cat([factors, torch.zeros_like(process)], dim=-1)
    both = torch.cat([above, below], dim=-2)
    if process.shape[-1] < size:  # as many columns as rows, where the noise has fewer dimensions than the state
        both = torch.nn.functional.pad(both, (0, 2 * size - both.shape[-1]))
    both = triangular(both)
    ahead, along, rest = both[..., :size, :size], both[..., size:, :size], both[..., size:, size:]
    scale = ahead.square().sum(dim=-1).sqrt()  # deviations of the next state
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    even = ahead / scale[..., None]
    regular = bool((even.diagonal(dim1=-2, dim2=-1).abs() > SINGULAR).all())
    inverse = _inverse(even) if regular else torch.linalg.pinv(even, rtol=SINGULAR)
    gains = along @ inverse / scale[..., None, :]
    left = along - gains @ ahead  # zero, or what a singular covariance leaves
    return gains, rest if regular else triangular(torch.cat([rest, left], dim=-1))
