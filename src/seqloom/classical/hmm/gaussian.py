"""The hidden Markov model with Gaussian emissions, estimated by Baum–Welch.

    z_t ~ A(z_{t−1}, ·)      y_t ~ N(μ_{z_t}, Σ_{z_t})

Values may be missing. Missing values m are marginalized out: log b uses the rows and columns of the
observed values o in μ and Σ. Estimation uses the conditional means and covariances of the missing values:

    ŷ_o = y_o     ŷ_m = μ_m + Σ_mo Σ_oo⁻¹ (y_o − μ_o)     S_mm = Σ_mm − Σ_mo Σ_oo⁻¹ Σ_om      and S is 0 elsewhere

    w_k = Σ_t p(z_t = k | y)        μ_k = Σ_t p(z_t = k | y) ŷ_t / w_k
    Σ_k = Σ_t p(z_t = k | y) ((ŷ_t − μ_k)(ŷ_t − μ_k)ᵀ + S_t) / w_k

Internally, variables are standardized with the mean and variance of the training values; inputs and
outputs are in the units of the data. A state that explains a single value, or values on a line,
would have a singular Σ and an infinite density. Therefore, all eigenvalues of Σ are at least
`min_variance`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from seqloom.classical.hmm.inference import MarkovModel, forward, log_matmul, normalize_rows, posterior
from seqloom.classical.tensor_model import Bounds, check_log_probabilities
from seqloom.config import config
from seqloom.config.constraints import NonNegativeFloat, PositiveInt
from seqloom.core.device import make_generator
from seqloom.core.errors import DataError
from seqloom.core.protocols import FutureStep
from seqloom.core.tree import require

SELF_TRANSITION_PROBABILITY = 0.8  # probability in an initial model that a state is repeated


@config
class GaussianHMMConfig:
    kind: Literal["gaussian-hmm"] = "gaussian-hmm"
    states: PositiveInt = 3  # number of states N
    covariance: Literal["diagonal", "full"] = "full"  # diagonal: the variables are independent given the state
    min_variance: NonNegativeFloat = 1e-3  # minimum variance of a state, relative to the variance of all values
    smoothing: NonNegativeFloat = 0.01  # constant added to every count of transitions

    def build(self, variables: int) -> "GaussianHMM":
        return GaussianHMM(self, variables)


class GapPattern(NamedTuple):
    """Rows in which the same variables are observed."""

    rows: Tensor  # indices of the rows
    observed: list[int]
    missing: list[int]


def gap_patterns(values: Tensor) -> list[GapPattern]:
    """Group the rows of values (T, C) by their gaps; missing values are NaN."""
    is_missing, variables = values.isnan(), values.shape[1]
    rows = torch.arange(len(values), device=values.device)
    has_gap = is_missing.any(dim=1)
    complete = rows[~has_gap]
    patterns = [GapPattern(complete, list(range(variables)), [])] if len(complete) else []
    masks, inverse = torch.unique(is_missing[has_gap], dim=0, return_inverse=True)
    for number, mask in enumerate(masks):
        missing = mask.nonzero().flatten().tolist()
        observed = [c for c in range(variables) if c not in missing]
        patterns.append(GapPattern(rows[has_gap][inverse == number], observed, missing))
    return patterns


class GaussianHMM(MarkovModel):
    """A hidden Markov model with Gaussian emissions; initially every state has mean 0 and variance 1."""

    names = ("initial", "transition", "means", "covariances", "center", "scale")
    bounds: Mapping[str, Bounds] = {
        "initial": (-math.inf, 1e-9),
        "transition": (-math.inf, 1e-9),
        "scale": (0, None),
    }
    initial: Tensor  # log π (N,)
    transition: Tensor  # log A (N, N)
    means: Tensor  # μ (N, C)
    covariances: Tensor  # Σ (N, C, C)
    center: Tensor  # (C,), mean of the training values
    scale: Tensor  # (C,), standard deviation of the training values

    def __init__(self, config: GaussianHMMConfig, variables: int) -> None:
        self.config, self.states, self.variables = config, config.states, variables
        size, real = config.states, torch.float64
        self.initial = torch.full((size,), -math.log(size), dtype=real)
        self.transition = torch.full((size, size), -math.log(size), dtype=real)
        self.means = torch.zeros(size, variables, dtype=real)
        self.covariances = torch.eye(variables, dtype=real).repeat(size, 1, 1)
        self.center, self.scale = torch.zeros(variables, dtype=real), torch.ones(variables, dtype=real)

    @property
    def log_initial(self) -> Tensor:
        return self.initial

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        for name in ("initial", "transition"):
            check_log_probabilities(name, tensors[name])
        definite = torch.linalg.cholesky_ex(tensors["covariances"]).info == 0
        require(definite.all(), "covariances must be positive definite")
        require((tensors["scale"] > 0).all(), "scale must be above 0")

    def copy_with(self, **tensors: Tensor) -> "GaussianHMM":
        """Return a copy with some tensors replaced."""
        other = GaussianHMM(self.config, self.variables)
        other.assign({name: tensor.clone() for name, tensor in self.tensors().items()} | tensors)
        return other

    # --- inference, in the units of the data ------------------------------------------------------------------------

    def emission_log_probs(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return log b (B, T, N) of values (B, T, C); NaN and masked-out values are unobserved."""
        values = values.to(self.means)
        masked = values if mask is None else values.masked_fill(~mask.to(values.device), math.nan)
        flat = ((masked - self.center) / self.scale).flatten(0, 1)
        log_scale = (~flat.isnan()).to(flat) @ self.scale.log()  # densities are per unit of the data
        patterns = gap_patterns(flat)
        if len(patterns) == 1:
            densities = self._log_densities(flat, patterns[0].observed)
        else:
            densities = flat.new_zeros(len(flat), self.states)
            for rows, observed, _ in patterns:
                densities[rows] = self._log_densities(flat[rows], observed)
        return (densities - log_scale.unsqueeze(1)).view(*values.shape[:2], self.states)

    def start(self, rows: int) -> Tensor:
        """Return log p (B, N) of the state that emits the next values."""
        return self.initial.expand(rows, -1).clone()

    def step(self, values: Tensor, state: Tensor, mask: Tensor | None = None) -> FutureStep:
        """Predict the step after values (B, T, C) by the mean and covariance of the mixture over all states."""
        filtered = forward(state, self.transition, self.emission_log_probs(values, mask))
        predicted = log_matmul(filtered.alpha[:, -1], self.transition)
        predicted = predicted - torch.logsumexp(predicted, dim=1, keepdim=True)
        weights = predicted.exp()
        mean = weights @ self.means  # (B, C)
        deviations = self.means - mean.unsqueeze(1)  # (B, N, C)
        covariance = torch.einsum("bn,ncd->bcd", weights, self.covariances)
        covariance = covariance + torch.einsum("bn,bnc,bnd->bcd", weights, deviations, deviations)
        covariance = covariance * torch.outer(self.scale, self.scale)
        return FutureStep(mean * self.scale + self.center, predicted, covariance=covariance)

    def score(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return log p (B, T) of each step's observed values given all previous values; 0 if all values are missing."""
        filtered = forward(self.start(len(values)), self.transition, self.emission_log_probs(values, mask))
        return torch.logsumexp(filtered.alpha, dim=2) - torch.logsumexp(filtered.predicted, dim=2)

    # --- densities --------------------------------------------------------------------------------------------------

    def _log_densities(self, values: Tensor, observed: list[int]) -> Tensor:
        """Return log N(y; μ_k, Σ_k) (n, N) of rows with the same observed variables."""
        if not observed:
            return values.new_zeros(len(values), self.states)
        y, densities = values[:, observed].T, []
        for k in range(self.states):
            factor = self._factor(k, observed)
            centred = y - self.means[k, observed].unsqueeze(1)
            whitened = torch.linalg.solve_triangular(factor, centred, upper=False)
            log_normalizer = factor.diagonal().log().sum() + len(observed) / 2 * math.log(2 * math.pi)
            densities.append(-whitened.square().sum(dim=0) / 2 - log_normalizer)
        return torch.stack(densities, dim=1)

    def _factor(self, state: int, observed: Sequence[int]) -> Tensor:
        """Return the Cholesky factor of Σ_oo."""
        part = self.covariances[state][list(observed)][:, list(observed)]
        factor, failed = torch.linalg.cholesky_ex(part)
        if int(failed):
            raise singular_error(state)
        return factor

    # --- estimation -------------------------------------------------------------------------------------------------

    def fit_scale(self, series: Sequence[Tensor], names: Sequence[str]) -> "GaussianHMM":
        """Return a copy that standardizes values with the means and standard deviations of these series (T, C)."""
        values = torch.cat(list(series))
        if bool(values.isinf().any()):
            raise DataError("Values must be finite or missing; the series contains an infinite value.")
        observed = ~values.isnan()
        for column, name in enumerate(names):
            column_values = values[observed[:, column], column]
            if not len(column_values):
                raise DataError(f"The variable {name} has no value in train. Remove it from data.columns.")
            if column_values.min() == column_values.max():
                raise DataError(f"The variable {name} is constant in train. Remove it from data.columns.")
        count = observed.sum(dim=0)
        center = values.nan_to_num().sum(dim=0) / count
        scale = ((values - center).nan_to_num().square().sum(dim=0) / count).sqrt()
        return self.copy_with(center=center, scale=scale)

    def draw_start(self, series: Sequence[Tensor], seed: int, restart: int) -> "GaussianHMM":
        """Draw an initial model with means at distant values (k-means++) and unit variances."""
        draws = make_generator(seed, "gaussian-hmm", restart)
        values = ((torch.cat(list(series)) - self.center) / self.scale).nan_to_num()
        chosen = [int(torch.randint(len(values), (), generator=draws))]
        for _ in range(self.states - 1):
            distances = torch.stack([(values - values[row]).square().sum(dim=1) for row in chosen]).amin(dim=0)
            chosen.append(int(torch.multinomial(distances + 1e-9, 1, generator=draws)))
        other_probability = (1 - SELF_TRANSITION_PROBABILITY) / max(self.states - 1, 1)
        transition = torch.full((self.states, self.states), other_probability, dtype=torch.float64)
        transition.fill_diagonal_(SELF_TRANSITION_PROBABILITY)
        transition = (transition / transition.sum(dim=1, keepdim=True)).log()
        return self.copy_with(means=values[chosen].clone(), transition=transition)

    def improve(self, series: Sequence[Tensor]) -> tuple["GaussianHMM", float]:
        """Run one Baum–Welch iteration over series (T, C).

        Return the improved model, and the log p per observed value of this model.
        """
        first = torch.full((self.states,), self.config.smoothing, dtype=torch.float64)
        transitions = torch.full((self.states, self.states), self.config.smoothing, dtype=torch.float64)
        posteriors, total = [], 0.0
        for values in series:
            expected = posterior(self.initial, self.transition, self.emission_log_probs(values[None]))
            posteriors.append(expected.states[0])
            first, transitions = first + expected.states[0, 0], transitions + expected.pairs[0]
            total += float(expected.log_likelihood)
        values = torch.cat(list(series))
        means, covariances = self._moments((values - self.center) / self.scale, torch.cat(posteriors))
        initial, transition = (first / first.sum()).log(), normalize_rows(transitions).log()
        improved = self.copy_with(initial=initial, transition=transition, means=means, covariances=covariances)
        return improved, total / int((~values.isnan()).sum())

    def _moments(self, values: Tensor, posteriors: Tensor) -> tuple[Tensor, Tensor]:
        """Return μ and Σ of every state, given p(z_t = k | y) (T, N)."""
        means, covariances, patterns = [], [], gap_patterns(values)
        for k in range(self.states):
            weight = posteriors[:, k].sum()
            deviations = torch.zeros_like(values)  # ŷ − μ with the old μ
            uncertainty = torch.zeros_like(self.covariances[k])  # Σ_t p S_t
            for pattern in patterns:
                deviations[pattern.rows], conditional = self._impute(k, values[pattern.rows], pattern)
                uncertainty = uncertainty + posteriors[pattern.rows, k].sum() * conditional
            if float(weight) < 1e-8:  # an unused state stays unchanged
                means.append(self.means[k])
                covariances.append(self.covariances[k])
                continue
            shift = (posteriors[:, k] @ deviations) / weight
            covariance = ((deviations.T * posteriors[:, k]) @ deviations + uncertainty) / weight
            means.append(self.means[k] + shift)
            covariances.append(self._apply_floor(covariance - torch.outer(shift, shift), k))
        return torch.stack(means), torch.stack(covariances)

    def _impute(self, k: int, values: Tensor, pattern: GapPattern) -> tuple[Tensor, Tensor]:
        """Return ŷ − μ_k (n, C) of rows with one pattern, and S (C, C)."""
        deviations, conditional = (values - self.means[k]).nan_to_num(), torch.zeros_like(self.covariances[k])
        _, observed, missing = pattern
        if not missing:
            return deviations, conditional
        covariance = self.covariances[k]
        remaining = covariance[missing][:, missing]
        if observed:
            cross = covariance[missing][:, observed]
            weights = torch.cholesky_solve(cross.T, self._factor(k, observed)).T  # Σ_mo Σ_oo⁻¹
            deviations[:, missing] = deviations[:, observed] @ weights.T
            remaining = remaining - weights @ cross.T
        conditional[torch.tensor(missing)[:, None], torch.tensor(missing)] = remaining
        return deviations, conditional

    def _apply_floor(self, covariance: Tensor, k: int) -> Tensor:
        """Raise the variances of Σ to the minimum; raise an error if Σ is singular."""
        floor = self.config.min_variance
        if self.config.covariance == "diagonal":
            floored = covariance.diagonal().clamp(min=floor).diag_embed()
            smallest = float(floored.diagonal().min())
        else:
            values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
            smallest = float(values.clamp(min=floor)[0])
            floored = vectors @ values.clamp(min=floor).diag_embed() @ vectors.T
        if not smallest > 1e-12:
            raise singular_error(k)
        return floored


def singular_error(state: int) -> DataError:
    """Return the error for a state with a singular covariance."""
    return DataError(
        f"The covariance of state {state + 1} has become singular: the observations assigned to "
        "this state are collinear or identical. "
        "Set model.min_variance above 0, for example 1e-3, or lower model.states."
    )
