"""The square-root Kalman filter and Rauch–Tung–Striebel smoother.

    h_1 ~ N(m, P)                                         state (H) at the first step
    h_t = W_hh h_{t-1} + W_hx x_t + ε,    ε ~ N(0, Q)     dynamics, optionally with inputs x (X)
    y_t = W_yh h_t + d + δ,               δ ~ N(0, R)     observation (C values, some of them missing)

A covariance P is stored as a factor S with P = S Sᵀ. Every update is one orthogonal triangularization (QR
decomposition): [A | B] Θ = [L | 0] means A Aᵀ + B Bᵀ = L Lᵀ. Covariances are never subtracted, so they remain symmetric
and positive, and half as many digits suffice for the same accuracy.

Covariances depend on which values are observed, not on the values themselves. Covariances are therefore computed once
per pattern of gaps. Only the means are computed for each sequence.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seqloom.core.errors import DataError

LOG_2_PI = math.log(2 * math.pi)
SINGULAR = 1e-13  # a smaller relative standard deviation counts as 0


@dataclass(frozen=True)
class System:
    """The parameters of a linear dynamical system, in float64; covariances are stored as factors."""

    transition: Tensor  # W_hh (H, H)
    process: Tensor  # factor of Q (H, K), K ≤ H
    emission: Tensor  # W_yh (C, H)
    offset: Tensor  # d (C,)
    observation: Tensor  # factor of R (C, C)
    mean: Tensor  # m (H,)
    factor: Tensor  # factor of P (H, H)
    drive: Tensor | None = None  # W_hx (H, X)


@dataclass(frozen=True)
class Belief:
    """The distribution N(mean, factor factorᵀ) of the state of each sequence."""

    mean: Tensor  # (B, H)
    factor: Tensor  # (B, H, H)

    def predict(self, system: System, inputs: Tensor | None = None) -> "Belief":
        """Predict the next state without an observation; `inputs` (B, X) are the inputs x of the next step."""
        mean = self.mean @ system.transition.mT
        process = system.process.expand(len(self.factor), -1, -1)
        factor = triangular(torch.cat([system.transition @ self.factor, process], dim=2))
        return Belief(mean if inputs is None or system.drive is None else mean + inputs @ system.drive.mT, factor)

    def emit(self, system: System) -> tuple[Tensor, Tensor]:
        """Return the mean (B, C) and the covariance (B, C, C) of the observation."""
        noise = system.observation.expand(len(self.mean), -1, -1)
        spread = torch.cat([system.emission @ self.factor, noise], dim=2)
        return self.mean @ system.emission.mT + system.offset, covariance(spread)


@dataclass(frozen=True)
class Filtered:
    """The distributions of h_t given y_1 … y_t; `expected_…` describes h_t given y_1 … y_{t-1}."""

    means: Tensor  # (B, T, H)
    expected_means: Tensor  # (B, T, H)
    patterns: Tensor  # (U, T, H, H): factors per pattern of gaps
    expected_patterns: Tensor  # (U, T, H, H)
    rows: Tensor  # (B,): the pattern of each sequence
    log_densities: Tensor  # (B, T): log p(y_t | y_1 … y_{t-1}); 0 if nothing is observed

    @property
    def factors(self) -> Tensor:
        return self.patterns[self.rows]

    @property
    def last(self) -> Belief:
        """The distribution of the last state."""
        return Belief(self.means[:, -1], self.factors[:, -1])

    @property
    def log_likelihood(self) -> Tensor:
        """log p(y_1 … y_T) of each sequence (B,)."""
        return self.log_densities.sum(dim=1)


@dataclass(frozen=True)
class SmoothedStates:
    """The distributions of h_t given y_1 … y_T, with h_t = … + gain_t h_{t+1} + residual_t · N(0, I)."""

    means: Tensor  # (B, T, H)
    patterns: Tensor  # (U, T, H, H)
    gains: Tensor  # (U, T−1, H, H)
    residuals: Tensor  # (U, T−1, H, H)
    rows: Tensor  # (B,)
    log_likelihood: Tensor  # (B,)

    @property
    def factors(self) -> Tensor:
        return self.patterns[self.rows]


def triangular(array: Tensor) -> Tensor:
    """Return the lower triangular L (…, n, n) with L Lᵀ = A Aᵀ, for A (…, n, k) with k ≥ n."""
    return torch.linalg.qr(array.mT, mode="r").R.mT


def covariance(factor: Tensor) -> Tensor:
    """Return S Sᵀ."""
    return factor @ factor.mT


def kalman_filter(
    system: System, values: Tensor, mask: Tensor, inputs: Tensor | None = None, belief: Belief | None = None
) -> Filtered:
    """Filter values (B, T, C) observed where `mask` is True; `belief` replaces the prior of the first state."""
    if belief is None:
        patterns, rows = torch.unique(mask, dim=0, return_inverse=True)
        first = system.factor.expand(len(patterns), -1, -1)
        mean = system.mean.expand(len(mask), -1)
    else:
        patterns, rows = mask, torch.arange(len(mask), device=mask.device)
        first, mean = belief.factor, belief.mean
    expected = _expected_factors(system, patterns, first)
    innovation, cross, filtered = _update_factors(system, patterns, expected)
    whiten = _inverse(innovation)  # (U, T, C, C)
    gain = cross @ whiten  # (U, T, H, C)
    values = torch.where(mask, values - system.offset, 0.0)
    means, expected_means, errors = _means(system, values, mask, inputs, mean, gain[rows])
    surprise = (whiten[rows] @ errors[..., None]).square().sum(dim=(2, 3)) + mask.sum(dim=2).to(errors.dtype) * LOG_2_PI
    volume = innovation.diagonal(dim1=2, dim2=3).abs().log().sum(dim=2)[rows]
    return Filtered(means, expected_means, filtered, expected, rows, -surprise / 2 - volume)


def _expected_factors(system: System, mask: Tensor, first: Tensor) -> Tensor:
    """Return the factors of h_t given the past (U, T, H, H), computed step by step:

    [ √R   W_yh S   0  ]       [ √(W_yh P W_yhᵀ + R)   0      ]
    [ 0    W_hh S   √Q ]  Θ =  [ …                     S_next ]
    """
    observe, noise = _mask_observations(system, mask)  # (U, T, C, H), (U, T, C, 2C)
    width = observe.shape[2]
    expected, factor = [first], first
    zeros_left = system.process.new_zeros(len(mask), len(system.transition), 2 * width)
    zeros_right = system.process.new_zeros(len(mask), width, system.process.shape[1])
    process = system.process.expand(len(mask), -1, -1)
    for t in range(mask.shape[1] - 1):
        above = torch.cat([noise[:, t], observe[:, t] @ factor, zeros_right], dim=2)
        below = torch.cat([zeros_left, system.transition @ factor, process], dim=2)
        factor = triangular(torch.cat([above, below], dim=1))[:, width:, width:]
        expected.append(factor)
    return torch.stack(expected, dim=1)


def _update_factors(system: System, mask: Tensor, expected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Update with y_t at all steps in parallel; return factors of y_t given the past, cross terms, and factors of h_t.

    [ √R   W_yh S ]       [ √(W_yh P W_yhᵀ + R)   0          ]
    [ 0    S      ]  Θ =  [ cross                 S_filtered ]     gain = cross · inverse of the block above
    """
    observe, noise = _mask_observations(system, mask)
    width = observe.shape[2]
    zeros = expected.new_zeros(*expected.shape[:3], 2 * width)
    above, below = torch.cat([noise, observe @ expected], dim=3), torch.cat([zeros, expected], dim=3)
    both = triangular(torch.cat([above, below], dim=2))
    innovation, cross, filtered = both[..., :width, :width], both[..., width:, :width], both[..., width:, width:]
    if not bool(torch.isfinite(innovation).all()):
        raise DataError(
            "The covariance of the state is not finite: the state diverges over this series. "
            "Use a stable structure or fewer steps, or rescale the values."
        )
    sizes = innovation.square().sum(dim=3).sqrt()
    small = innovation.diagonal(dim1=2, dim2=3).abs() <= SINGULAR * sizes
    if bool(small.any()):
        step = int(small.any(dim=2).any(dim=0).nonzero()[0])
        raise DataError(
            f"The covariance of the observation at step {step + 1} is singular: a variable is constant or a "
            "linear combination of other variables. Remove this variable, or add noise."
        )
    return innovation, cross, filtered


def _mask_observations(system: System, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return W_yh and a factor of R for the observed values.

    The rows of a missing value are 0. The noise of a missing value is replaced by independent unit noise, whose
    log-deviation is 0.
    """
    observed = mask[..., None].to(system.emission.dtype)  # (U, T, C, 1)
    unit_noise = torch.diag_embed((~mask).to(system.emission.dtype))
    return observed * system.emission, torch.cat([observed * system.observation, unit_noise], dim=3)


def _means(
    system: System, values: Tensor, mask: Tensor, inputs: Tensor | None, mean: Tensor, gain: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return m, e and errors (B, T, …): m_t = e_t + K_t (y_t − W_yh e_t) with e_t = W_hh m_{t-1} + W_hx x_t."""
    driven = None if system.drive is None or inputs is None else inputs @ system.drive.mT  # (B, T, H)
    means: list[Tensor] = []
    expected, errors = [mean], []
    for t in range(values.shape[1]):
        if t:
            mean = means[-1] @ system.transition.mT
            expected.append(mean if driven is None else mean + driven[:, t])
        errors.append((values[:, t] - expected[-1] @ system.emission.mT) * mask[:, t])
        means.append(expected[-1] + (gain[:, t] @ errors[-1][..., None]).squeeze(2))
    return torch.stack(means, dim=1), torch.stack(expected, dim=1), torch.stack(errors, dim=1)


def _inverse(lower: Tensor) -> Tensor:
    eye = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
    return torch.linalg.solve_triangular(lower, eye.expand_as(lower), upper=False)


def kalman_smoother(system: System, filtered: Filtered) -> SmoothedStates:
    """Run the backward pass from the last step:

    mean_t = m_t + J_t (mean_{t+1} − e_{t+1}),   P_t = D_t D_tᵀ + J_t P_{t+1} J_tᵀ
    """
    gains, residuals = _smoother_gains(system, filtered.patterns[:, :-1])
    factor, mean = filtered.patterns[:, -1], filtered.means[:, -1]
    factors, means = [factor], [mean]
    by_row = gains[filtered.rows]
    for t in range(gains.shape[1] - 1, -1, -1):
        factor = triangular(torch.cat([residuals[:, t], gains[:, t] @ factor], dim=2))
        change = (mean - filtered.expected_means[:, t + 1])[..., None]
        mean = filtered.means[:, t] + (by_row[:, t] @ change).squeeze(2)
        factors.append(factor)
        means.append(mean)
    means_forward, factors_forward = (torch.stack(parts[::-1], dim=1) for parts in (means, factors))
    return SmoothedStates(means_forward, factors_forward, gains, residuals, filtered.rows, filtered.log_likelihood)


def _smoother_gains(system: System, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Return J and D (…, H, H) with h_t = … + J h_{t+1} + D · noise, computed from the factors of h_t at all steps.

        [ W_hh S   √Q ]       [ √(W_hh P W_hhᵀ + Q)   0 ]
        [ S         0 ]  Θ =  [ Γ                     Δ ]     J = Γ · inverse of the block above

    If the next state cannot vary in some direction, the pseudo-inverse is used, and the remaining
    part of Γ is added to Δ.
    """
    size = len(system.transition)
    process = system.process.expand(*factors.shape[:-2], -1, -1)
    above = torch.cat([system.transition @ factors, process], dim=-1)
    below = torch.cat([factors, torch.zeros_like(process)], dim=-1)
    both = torch.cat([above, below], dim=-2)
    if process.shape[-1] < size:  # QR needs at least as many columns as rows
        both = torch.nn.functional.pad(both, (0, 2 * size - both.shape[-1]))
    both = triangular(both)
    ahead, cross, residual = both[..., :size, :size], both[..., size:, :size], both[..., size:, size:]
    scale = ahead.square().sum(dim=-1).sqrt()  # standard deviations of the next state
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    scaled = ahead / scale[..., None]
    is_regular = bool((scaled.diagonal(dim1=-2, dim2=-1).abs() > SINGULAR).all())
    inverse = _inverse(scaled) if is_regular else torch.linalg.pinv(scaled, rtol=SINGULAR)
    gains = cross @ inverse / scale[..., None, :]
    unexplained = cross - gains @ ahead  # 0 unless the covariance is singular
    return gains, residual if is_regular else triangular(torch.cat([residual, unexplained], dim=-1))
