"""Named structures of linear dynamical systems: components of the state, their dynamics, and the learned parameters.

    level              h = level                 level_t = level_{t-1} + ε
    trend              h = (level, slope)        level_t = level_{t-1} + slope_{t-1} + ε,  slope_t = slope_{t-1} + ε'
    seasonal           trend with a season of s steps that sum to noise:  γ_t = −(γ_{t-1} + … + γ_{t-s+1}) + ε''
    … damped           level and slope decay: level_t = ρ level_{t-1} + …, slope_t = φ slope_{t-1} + ε'
                       ρ, φ and d, the offset to which the level decays, are learned
    constant-velocity  h = (position, velocity)  the velocity drifts and moves the position between two steps:
                                                 cov(ε_position, ε_velocity) = q [[1/3, 1/2], [1/2, 1]]
    free               W_hh, W_yh and the noises are learned

Each of the C values has a separate state, except in `free`, where all values share one state. The initial parameters
are computed from the data: half of the step-to-step change of a value is attributed to observation noise, and the other
half to the state.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from seqloom.classical.kalman.em import LEARNED, Data, Rules
from seqloom.classical.kalman.filter import System

Structure = Literal["free", "level", "trend", "seasonal", "constant-velocity"]
VAGUE_DEVIATION = 1e3  # standard deviation of a vague first state, relative to the standard deviation of the data
INITIAL_DAMPING = 0.95  # initial decay of a damped level or slope
MIN_VARIANCE_RATIO = 1e-10  # minimum noise variance relative to the variance of the data
PARTS = {  # names of the state components of one value; the remaining components are lagged copies
    "level": ("level",),
    "trend": ("level", "slope"),
    "seasonal": ("level", "slope", "season"),
    "constant-velocity": ("position", "velocity"),
}
NOISES = frozenset({"process", "observation"})


@dataclass(frozen=True)
class Block:
    """The state of one value: its transition, emission and noise."""

    transition: Tensor  # (h, h)
    emission: Tensor  # (h,)
    shape: Tensor  # (h, k): the state noise is shape · u
    groups: tuple[int, ...]  # components of u with equal numbers share a variance
    begin: tuple[float, ...]  # initial standard deviations of u, relative to the step-to-step change


def level(season: int) -> Block:
    return Block(_matrix([[1]]), _matrix([1]), _matrix([[1]]), (0,), (0.5,))


def trend(season: int) -> Block:
    return Block(_matrix([[1, 1], [0, 1]]), _matrix([1, 0]), torch.eye(2, dtype=torch.float64), (0, 1), (0.5, 0.05))


def seasonal(season: int) -> Block:
    size = season + 1  # level, slope and the last s − 1 seasonal effects
    transition = torch.zeros(size, size, dtype=torch.float64)
    transition[:2, :2] = trend(season).transition
    transition[2, 2:] = -1
    transition[3:, 2:-1] = torch.eye(season - 2, dtype=torch.float64)
    emission, shape = torch.zeros(size, dtype=torch.float64), torch.zeros(size, 3, dtype=torch.float64)
    emission[0] = emission[2] = 1
    shape[:3] = torch.eye(3, dtype=torch.float64)
    return Block(transition, emission, shape, (0, 1, 2), (0.5, 0.05, 0.1))


def constant_velocity(season: int) -> Block:
    drift = torch.linalg.cholesky(_matrix([[1 / 3, 1 / 2], [1 / 2, 1]]))
    return Block(_matrix([[1, 1], [0, 1]]), _matrix([1, 0]), drift, (0, 0), (0.3, 0.3))


BLOCKS: dict[str, Callable[[int], Block]] = {
    "level": level,
    "trend": trend,
    "seasonal": seasonal,
    "constant-velocity": constant_velocity,
}


def state_size(structure: Structure, variables: int, hidden: int, season: int) -> int:
    """Return the size of the state."""
    return hidden if structure == "free" else variables * len(BLOCKS[structure](season).emission)


def rules_for(
    structure: Structure, variables: int, season: int, learn: Collection[str], fixed: Collection[str], full: bool
) -> Rules:
    """Return the EM rules of a structure: `free` learns all parameters; other structures learn the noises and `learn`.

    Parameters in `fixed` are not learned. `learn` may contain `damping`, the decay of level and slope.
    """
    if structure == "free":
        return Rules(frozenset(LEARNED).difference(fixed), diagonal=not full)
    block = BLOCKS[structure](season)
    shape = torch.block_diag(*[block.shape] * variables)
    each = max(block.groups) + 1
    groups = tuple(group + column * each for column in range(variables) for group in block.groups)
    size = len(block.emission)
    indices = [column * size + part for column in range(variables) for part in range(min(size, 2))]
    damped = tuple(indices) if "damping" in learn and "transition" not in fixed else ()
    learned = (NOISES | frozenset(learn) & frozenset(LEARNED)).difference(fixed)
    return Rules(learned, shape, groups, damped, diagonal=not full)


def first_guess(
    structure: Structure, hidden: int, season: int, damped: bool, data: Data, rules: Rules
) -> tuple[System, Rules]:
    """Return the initial system of EM, computed from the data, and the rules with variance floors for the data."""
    centre, scale, change = _data_moments(data)
    state_variance = 1.0 if structure == "free" else float(change.square().min())  # a free state has unit scale
    floors = MIN_VARIANCE_RATIO * scale.square(), MIN_VARIANCE_RATIO * state_variance
    rules = replace(rules, observation_floor=floors[0], process_floor=floors[1])
    if structure == "free":
        system = _free_system(data, hidden, centre, scale)
    else:
        system = _named_system(BLOCKS[structure](season), centre, scale, change, data)
    if structure != "free" and damped:  # level and slope decay to the mean
        size, variables = len(system.mean), len(centre)
        transition, mean = system.transition.clone(), system.mean.clone()
        for column in range(variables):
            first = column * size // variables
            mean[first] -= centre[column]
            for i in range(first, min(first + 2, first + size // variables)):
                transition[i, i] = INITIAL_DAMPING
        system = replace(system, transition=transition, mean=mean, offset=centre.clone())
    if data.inputs is not None:
        system = replace(system, drive=torch.zeros(len(system.mean), data.inputs.shape[2], dtype=torch.float64))
    return system, rules


def _named_system(block: Block, centre: Tensor, scale: Tensor, change: Tensor, data: Data) -> System:
    """Return a system with one block per value; levels start at the mean first observation of all sequences."""
    first = data.mask.to(torch.int8).argmax(dim=1, keepdim=True)  # (B, 1, C)
    observed = data.mask.any(dim=1)
    values = torch.where(observed, data.values.nan_to_num().gather(1, first).squeeze(1), 0.0)
    beginning = values.sum(dim=0) / observed.sum(dim=0).clamp_min(1)
    variables = len(centre)
    mean = torch.zeros(variables, len(block.emission), dtype=torch.float64)
    mean[:, 0] = torch.where(observed.any(dim=0), beginning, centre)
    noise = [block.shape @ torch.diag(_matrix(block.begin) * deviation) for deviation in change]
    return System(
        transition=torch.block_diag(*[block.transition] * variables),
        process=torch.block_diag(*noise),
        emission=torch.block_diag(*[block.emission[None]] * variables),
        offset=torch.zeros(variables, dtype=torch.float64),
        observation=torch.diag(change / 2),
        mean=mean.flatten(),
        factor=torch.diag((VAGUE_DEVIATION * scale)[:, None].expand_as(mean).flatten()),
    )


def _free_system(data: Data, hidden: int, centre: Tensor, scale: Tensor) -> System:
    """Return a system found by subspace identification.

    The state consists of the leading principal components of the future values.
    """
    steps, variables = data.values.shape[1], len(centre)
    values = torch.where(data.mask, (data.values - centre) / scale, 0.0)  # (B, T, C)
    ahead = max(1, min(-(-2 * hidden // variables), steps // 2))
    window = torch.cat([values[:, lag : steps - ahead + lag + 1] for lag in range(ahead)], dim=2)  # (B, T', C · ahead)
    observed = data.observed[:, : window.shape[1]]
    flat = window[observed]
    _, _, directions = torch.linalg.svd(flat, full_matrices=False)
    basis = torch.zeros(window.shape[2], hidden, dtype=torch.float64)
    count = min(hidden, len(directions))
    basis[:, :count] = directions[:count].mT
    states = window @ basis  # (B, T', H)
    ridge = 1e-3 * torch.eye(hidden, dtype=torch.float64) * max(float(flat.square().mean()), 1e-6) * len(flat)
    pairs = (observed[:, 1:] & observed[:, :-1])[..., None]
    before, after = states[:, :-1] * pairs, states[:, 1:] * pairs
    transition = torch.linalg.solve(_gram(before, before) + ridge, _gram(before, after)).mT
    radius = float(torch.linalg.eigvals(transition).abs().max())
    transition = transition / max(1.0, radius / 0.999)
    kept_states, kept_values = states * observed[..., None], values[:, : window.shape[1]] * observed[..., None]
    emission = torch.linalg.solve(_gram(kept_states, kept_states) + ridge, _gram(kept_states, kept_values))
    spread = states[observed].std(dim=0, correction=0).clamp_min(1e-2)
    return System(
        transition=transition,
        process=torch.diag(spread / 2),
        emission=emission.mT * scale[:, None],
        offset=centre.clone(),
        observation=torch.diag(scale / 2),
        mean=states[observed].mean(dim=0),
        factor=torch.diag(spread),
    )


def _gram(a: Tensor, b: Tensor) -> Tensor:
    return (a.mT @ b).sum(dim=0)


def _data_moments(data: Data) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean, standard deviation and RMS step-to-step change of each value (C,)."""
    count = data.mask.sum(dim=(0, 1)).clamp_min(1)
    values = torch.where(data.mask, data.values, 0.0)
    centre = values.sum(dim=(0, 1)) / count
    scale = (torch.where(data.mask, values - centre, 0.0).square().sum(dim=(0, 1)) / count).sqrt()
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    both = data.mask[:, 1:] & data.mask[:, :-1]
    steps = torch.where(both, values[:, 1:] - values[:, :-1], 0.0).square().sum(dim=(0, 1))
    change = (steps / both.sum(dim=(0, 1)).clamp_min(1)).sqrt()
    return centre, scale, torch.where(change > 0, change, scale / 10)


def _matrix(rows: Sequence[Sequence[float]] | Sequence[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)
