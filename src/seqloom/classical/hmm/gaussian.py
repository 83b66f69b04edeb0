"""A hidden Markov model of vectors: every state has a Gaussian. Learned by Baum–Welch.

    z_t ~ A(z_{t−1}, ·)      y_t ~ N(μ_{z_t}, Σ_{z_t})

Values may be missing. What was not observed is summed out: log b uses the rows and columns o of μ
and Σ that were. When it learns, it counts with what it expects there, and with how unsure it is of
that:

    ŷ_o = y_o     ŷ_m = μ_m + Σ_mo Σ_oo⁻¹ (y_o − μ_o)     S_mm = Σ_mm − Σ_mo Σ_oo⁻¹ Σ_om      and S is 0 elsewhere

    w_k = Σ_t p(z_t = k | y)        μ_k = Σ_t p(z_t = k | y) ŷ_t / w_k
    Σ_k = Σ_t p(z_t = k | y) ((ŷ_t − μ_k)(ŷ_t − μ_k)ᵀ + S_t) / w_k

Inside, every variable has mean 0 and variance 1 over the training values; what comes in and goes
out is in the units of the data. A state that is left with values on a line, or with one value
alone, would have a singular Σ and an infinite density: no eigenvalue of Σ falls below
`min_variance`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from seqloom.classical.hmm.inference import MarkovModel, forward, posterior, row_shares, times
from seqloom.classical.tensor_model import Bounds, check_log_shares
from seqloom.config import config
from seqloom.config.constraints import NonNegativeFloat, PositiveInt
from seqloom.core.device import generator
from seqloom.core.errors import DataError
from seqloom.core.protocols import FutureStep
from seqloom.core.tree import require

STAY = 0.8  # how probable a beginning finds it that the state stays what it is


@config
class GaussianHMMConfig:
    kind: Literal["gaussian-hmm"] = "gaussian-hmm"
    states: PositiveInt = 3  # N
    covariance: Literal["diagonal", "full"] = "full"  # diagonal: within a state the variables vary independently
    min_variance: NonNegativeFloat = 1e-3  # floor of the variances in a state, as a share of the variance of all values
    smoothing: NonNegativeFloat = 0.01  # added to every count of transitions

    def build(self, variables: int) -> "GaussianHMM":
        return GaussianHMM(self, variables)


class GapPattern(NamedTuple):
    """Rows of which the same variables were observed."""

    rows: Tensor  # their positions
    seen: list[int]
    missing: list[int]


def gap_patterns(values: Tensor) -> list[GapPattern]:
    """Group the rows of values (T, C), NaN where missing."""
    lacking, width = values.isnan(), values.shape[1]
    rows = torch.arange(len(values), device=values.device)
    some = lacking.any(dim=1)
    whole = rows[~some]
    patterns = [GapPattern(whole, list(range(width)), [])] if len(whole) else []
    kinds, inverse = torch.unique(lacking[some], dim=0, return_inverse=True)
    for number, kind in enumerate(kinds):
        missing = kind.nonzero().flatten().tolist()
        seen = [c for c in range(width) if c not in missing]
        patterns.append(GapPattern(rows[some][inverse == number], seen, missing))
    return patterns


class GaussianHMM(MarkovModel):
    """A hidden Markov model of vectors. Before it is estimated or loaded its states are alike: mean 0, variance 1."""

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
    center: Tensor  # (C,), of the training values
    scale: Tensor  # (C,), their standard deviations

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
            check_log_shares(name, tensors[name])
        definite = torch.linalg.cholesky_ex(tensors["covariances"]).info == 0
        require(definite.all(), "covariances must be positive definite")
        require((tensors["scale"] > 0).all(), "scale must be above 0")

    def copy_with(self, **tensors: Tensor) -> "GaussianHMM":
        """A copy in which these tensors are others."""
        other = GaussianHMM(self.config, self.variables)
        other.assign({name: tensor.clone() for name, tensor in self.tensors().items()} | tensors)
        return other

    # --- asking, in the units of the data ---------------------------------------------------------------------------

    def emitted(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """log b (B, T, N) of values (B, T, C); NaN, or False in the mask, is unobserved."""
        values = values.to(self.means)
        hidden = values if mask is None else values.masked_fill(~mask.to(values.device), math.nan)
        scaled = (hidden - self.center) / self.scale
        flat = scaled.flatten(0, 1)
        lost = (~flat.isnan()).to(flat) @ self.scale.log()  # densities are per unit of the data
        patterns = gap_patterns(flat)
        if len(patterns) == 1:
            densities = self._log_densities(flat, patterns[0].seen)
        else:
            densities = flat.new_zeros(len(flat), self.states)
            for rows, seen, _ in patterns:
                densities[rows] = self._log_densities(flat[rows], seen)
        return (densities - lost.unsqueeze(1)).view(*values.shape[:2], self.states)

    def start(self, rows: int) -> Tensor:
        """log p of the state that says the next values (B, N)."""
        return self.initial.expand(rows, -1).clone()

    def step(self, values: Tensor, state: Tensor, mask: Tensor | None = None) -> FutureStep:
        """What comes after values (B, T, C): mean and covariance of the mixture of all states."""
        found = forward(state, self.transition, self.emitted(values, mask))
        known = times(found.alpha[:, -1], self.transition)
        known = known - torch.logsumexp(known, dim=1, keepdim=True)
        weights = known.exp()
        mean = weights @ self.means  # (B, C)
        apart = self.means - mean.unsqueeze(1)  # (B, N, C)
        spread = torch.einsum("bn,ncd->bcd", weights, self.covariances)
        spread = spread + torch.einsum("bn,bnc,bnd->bcd", weights, apart, apart)
        return FutureStep(
            mean * self.scale + self.center, known, covariance=spread * torch.outer(self.scale, self.scale)
        )

    def score(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """log p of what was observed at each step (B, T), given all steps before it; 0 where nothing was."""
        found = forward(self.start(len(values)), self.transition, self.emitted(values, mask))
        return torch.logsumexp(found.alpha, dim=2) - torch.logsumexp(found.predicted, dim=2)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _log_densities(self, values: Tensor, seen: list[int]) -> Tensor:
        """log N(y; μ_k, Σ_k) (n, N) of rows of which the same variables were observed."""
        if not seen:
            return values.new_zeros(len(values), self.states)
        part, found = values[:, seen].T, []
        for k in range(self.states):
            factor = self._factor(k, seen)
            apart = torch.linalg.solve_triangular(factor, part - self.means[k, seen].unsqueeze(1), upper=False)
            size = factor.diagonal().log().sum() + len(seen) / 2 * math.log(2 * math.pi)
            found.append(-apart.square().sum(dim=0) / 2 - size)
        return torch.stack(found, dim=1)

    def _factor(self, state: int, seen: Sequence[int]) -> Tensor:
        """The Cholesky factor of Σ_oo."""
        part = self.covariances[state][list(seen)][:, list(seen)]
        factor, failed = torch.linalg.cholesky_ex(part)
        if int(failed):
            raise singular(state)
        return factor

    # --- learning ---------------------------------------------------------------------------------------------------

    def fit_scale(self, series: Sequence[Tensor], names: Sequence[str]) -> "GaussianHMM":
        """With the means and deviations of these series (T, C)."""
        values = torch.cat(list(series))
        if bool(values.isinf().any()):
            raise DataError("Values must be finite, or missing; this series has an infinite one.")
        seen = ~values.isnan()
        for place, name in enumerate(names):
            own = values[seen[:, place], place]
            if not len(own):
                raise DataError(f"The variable {name} has no value in train. Leave it out: data.columns.")
            if own.min() == own.max():
                raise DataError(f"The variable {name} is the same everywhere in train. Leave it out: data.columns.")
        count = seen.sum(dim=0)
        center = values.nan_to_num().sum(dim=0) / count
        scale = ((values - center).nan_to_num().square().sum(dim=0) / count).sqrt()
        return self.copy_with(center=center, scale=scale)

    def draw_start(self, series: Sequence[Tensor], seed: int, restart: int) -> "GaussianHMM":
        """A beginning: means at values far from each other (k-means++), every variance 1."""
        draws = generator(seed, "gaussian-hmm", restart)
        values = ((torch.cat(list(series)) - self.center) / self.scale).nan_to_num()
        chosen = [int(torch.randint(len(values), (), generator=draws))]
        for _ in range(self.states - 1):
            apart = torch.stack([(values - values[place]).square().sum(dim=1) for place in chosen]).amin(dim=0) + 1e-9
            chosen.append(int(torch.multinomial(apart, 1, generator=draws)))
        rest = (1 - STAY) / max(self.states - 1, 1)
        stays = torch.full((self.states, self.states), rest, dtype=torch.float64).fill_diagonal_(STAY)
        transition = (stays / stays.sum(dim=1, keepdim=True)).log()
        return self.copy_with(means=values[chosen].clone(), transition=transition)

    def improve(self, series: Sequence[Tensor]) -> tuple["GaussianHMM", float]:
        """One iteration of Baum–Welch over series (T, C), and log p per observed value of this model."""
        first = torch.full((self.states,), self.config.smoothing, dtype=torch.float64)
        moves = torch.full((self.states, self.states), self.config.smoothing, dtype=torch.float64)
        shares, total = [], 0.0
        for one in series:
            found = posterior(self.initial, self.transition, self.emitted(one[None]))
            shares.append(found.states[0])
            first, moves = first + found.states[0, 0], moves + found.pairs[0]
            total += float(found.log_likelihood)
        values = torch.cat(list(series))
        means, covariances = self._moments((values - self.center) / self.scale, torch.cat(shares))
        initial, transition = (first / first.sum()).log(), row_shares(moves).log()
        better = self.copy_with(initial=initial, transition=transition, means=means, covariances=covariances)
        return better, total / int((~values.isnan()).sum())

    def _moments(self, values: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """μ and Σ of every state, given p(z_t = k | y) (T, N)."""
        means, covariances, patterns = [], [], gap_patterns(values)
        for k in range(self.states):
            weight = shares[:, k].sum()
            apart = torch.zeros_like(values)  # ŷ − μ, μ being the old one
            unsure = torch.zeros_like(self.covariances[k])  # Σ_t p S_t
            for pattern in patterns:
                apart[pattern.rows], cover = self._expected(k, values[pattern.rows], pattern)
                unsure = unsure + shares[pattern.rows, k].sum() * cover
            if float(weight) < 1e-8:  # a state that nothing comes from stays as it is
                means.append(self.means[k])
                covariances.append(self.covariances[k])
                continue
            moved = (shares[:, k] @ apart) / weight
            spread = ((apart.T * shares[:, k]) @ apart + unsure) / weight - torch.outer(moved, moved)
            means.append(self.means[k] + moved)
            covariances.append(self._apply_floor(spread, k))
        return torch.stack(means), torch.stack(covariances)

    def _expected(self, k: int, values: Tensor, pattern: GapPattern) -> tuple[Tensor, Tensor]:
        """ŷ − μ_k (n, C) of rows with one pattern, and S (C, C)."""
        apart, cover = (values - self.means[k]).nan_to_num(), torch.zeros_like(self.covariances[k])
        _, seen, missing = pattern
        if not missing:
            return apart, cover
        whole = self.covariances[k]
        inside = whole[missing][:, missing]
        if seen:
            across = whole[missing][:, seen]
            weights = torch.cholesky_solve(across.T, self._factor(k, seen)).T  # Σ_mo Σ_oo⁻¹
            apart[:, missing] = apart[:, seen] @ weights.T
            inside = inside - weights @ across.T
        cover[torch.tensor(missing)[:, None], torch.tensor(missing)] = inside
        return apart, cover

    def _apply_floor(self, spread: Tensor, k: int) -> Tensor:
        """Σ without a variance below the floor; one that is singular without a floor is refused."""
        floor = self.config.min_variance
        if self.config.covariance == "diagonal":
            found = spread.diagonal().clamp(min=floor).diag_embed()
            smallest = float(found.diagonal().min())
        else:
            values, vectors = torch.linalg.eigh((spread + spread.T) / 2)
            smallest = float(values.clamp(min=floor)[0])
            found = vectors @ values.clamp(min=floor).diag_embed() @ vectors.T
        if not smallest > 1e-12:
            raise singular(k)
        return found


def singular(state: int) -> DataError:
    return DataError(
        f"The covariance of state {state + 1} has become singular: the values it stands for lie on a line, or are one "
        "value. Set model.min_variance above 0, say 1e-3, or take fewer model.states."
    )
