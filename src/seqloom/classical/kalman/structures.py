"""Linear dynamical systems by name: what the parts of the state are, how they move, and what is left to be learned.

    level              h = level                 level_t = level_{t-1} + ε
    trend              h = (level, slope)        level_t = level_{t-1} + slope_{t-1} + ε,  slope_t = slope_{t-1} + ε'
    seasonal           the same, and a season of s steps that add up to noise:  γ_t = −(γ_{t-1} + … + γ_{t-s+1}) + ε''
    … damped           of these three: level and slope fade, level_t = ρ level_{t-1} + …, slope_t = φ slope_{t-1} + ε'
                       ρ, φ and the offset d the level fades to are learned
    constant-velocity  h = (place, velocity)     the velocity drifts, and takes the place along between two steps:
                                                 cov(ε_place, ε_velocity) = q [[1/3, 1/2], [1/2, 1]]
    free               h is whatever explains the values best: all of W_hh, W_yh and the noises are learned

Each of the C values has a state of its own; only `free` shares one among them. Where learning
begins is computed from the data: half of how much a value changes from step to step is put down to
noise, half to the state.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from seqloom.classical.kalman.em import LEARNED, Data, Rules
from seqloom.classical.kalman.filter import System

Structure = Literal["free", "level", "trend", "seasonal", "constant-velocity"]
VAGUE = 1e3  # deviations of the data that the first state may lie away, where nothing is known of it
FADING = 0.95  # of a damped level or slope that is left a step later, to begin with
FLOOR = 1e-10  # the least variance of an observation's noise, beside that of its values
PARTS = {  # of the state of one value, by what they mean; what follows them repeats earlier ones
    "level": ("level",),
    "trend": ("level", "slope"),
    "seasonal": ("level", "slope", "season"),
    "constant-velocity": ("place", "velocity"),
}
NOISES = frozenset({"process", "observation"})


@dataclass(frozen=True)
class Block:
    """The state of one value: how it moves, how it is seen, and what noise reaches it."""

    transition: Tensor  # (h, h)
    emission: Tensor  # (h,)
    shape: Tensor  # (h, k): noise of the state is shape · u
    groups: tuple[int, ...]  # which of u have one variance
    begin: tuple[float, ...]  # deviations of u to begin with, beside how much the values change


def level(season: int) -> Block:
    return Block(_matrix([[1]]), _matrix([1]), _matrix([[1]]), (0,), (0.5,))


def trend(season: int) -> Block:
    return Block(_matrix([[1, 1], [0, 1]]), _matrix([1, 0]), torch.eye(2, dtype=torch.float64), (0, 1), (0.5, 0.05))


def seasonal(season: int) -> Block:
    size = season + 1  # level, slope, and the last s − 1 of the season
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
    """The size of the state."""
    return hidden if structure == "free" else variables * len(BLOCKS[structure](season).emission)


def rules_for(
    structure: Structure, variables: int, season: int, learn: Collection[str], fixed: Collection[str], full: bool
) -> Rules:
    """What is learned of a structure: of free everything, of one with a name the noises and `learn`; less `fixed`.

    Among what can be learned besides is `damping`: how fast level and slope fade.
    """
    if structure == "free":
        return Rules(frozenset(LEARNED).difference(fixed), diagonal=not full)
    block = BLOCKS[structure](season)
    shape = torch.block_diag(*[block.shape] * variables)
    each = max(block.groups) + 1
    groups = tuple(group + column * each for column in range(variables) for group in block.groups)
    size = len(block.emission)
    places = [column * size + part for column in range(variables) for part in range(min(size, 2))]
    fading = tuple(places) if "damping" in learn and "transition" not in fixed else ()
    learned = (NOISES | frozenset(learn) & frozenset(LEARNED)).difference(fixed)
    return Rules(learned, shape, groups, fading, diagonal=not full)


def first_guess(
    structure: Structure, hidden: int, season: int, damped: bool, data: Data, rules: Rules
) -> tuple[System, Rules]:
    """Where EM begins, computed from the data alone; and the rules with a floor that suits it."""
    centre, scale, change = _spread(data)
    moves = 1.0 if structure == "free" else float(change.square().min())  # a free state has a scale of its own
    rules = replace(rules, observation_floor=FLOOR * scale.square(), process_floor=FLOOR * moves)
    if structure == "free":
        system = _free(data, hidden, centre, scale)
    else:
        system = _named(BLOCKS[structure](season), centre, scale, change, data)
    if structure != "free" and damped:  # level and slope lose a little at every step, down to the mean
        size, variables = len(system.mean), len(centre)
        transition, mean = system.transition.clone(), system.mean.clone()
        for column in range(variables):
            first = column * size // variables
            mean[first] -= centre[column]
            for place in range(first, min(first + 2, first + size // variables)):
                transition[place, place] = FADING
        system = replace(system, transition=transition, mean=mean, offset=centre.clone())
    if data.inputs is not None:
        system = replace(system, drive=torch.zeros(len(system.mean), data.inputs.shape[2], dtype=torch.float64))
    return system, rules


def _named(block: Block, centre: Tensor, scale: Tensor, change: Tensor, data: Data) -> System:
    """A system of these blocks that begins with the first observation of each value, averaged over all sequences."""
    first = data.mask.to(torch.int8).argmax(dim=1, keepdim=True)  # (B, 1, C)
    seen = data.mask.any(dim=1)
    values = torch.where(seen, data.values.nan_to_num().gather(1, first).squeeze(1), 0.0)
    beginning = values.sum(dim=0) / seen.sum(dim=0).clamp_min(1)
    variables = len(centre)
    mean = torch.zeros(variables, len(block.emission), dtype=torch.float64)
    mean[:, 0] = torch.where(seen.any(dim=0), beginning, centre)
    noise = [block.shape @ torch.diag(_matrix(block.begin) * one) for one in change]
    return System(
        transition=torch.block_diag(*[block.transition] * variables),
        process=torch.block_diag(*noise),
        emission=torch.block_diag(*[block.emission[None]] * variables),
        offset=torch.zeros(variables, dtype=torch.float64),
        observation=torch.diag(change / 2),
        mean=mean.flatten(),
        factor=torch.diag((VAGUE * scale)[:, None].expand_as(mean).flatten()),
    )


def _free(data: Data, hidden: int, centre: Tensor, scale: Tensor) -> System:
    """By subspaces: the state is what the next few values have in common, their largest principal directions."""
    steps, variables = data.values.shape[1], len(centre)
    values = torch.where(data.mask, (data.values - centre) / scale, 0.0)  # (B, T, C)
    ahead = max(1, min(-(-2 * hidden // variables), steps // 2))
    window = torch.cat([values[:, lag : steps - ahead + lag + 1] for lag in range(ahead)], dim=2)  # (B, T', C · ahead)
    kept = data.observed[:, : window.shape[1]]
    flat = window[kept]
    _, _, directions = torch.linalg.svd(flat, full_matrices=False)
    basis = torch.zeros(window.shape[2], hidden, dtype=torch.float64)
    count = min(hidden, len(directions))
    basis[:, :count] = directions[:count].mT
    states = window @ basis  # (B, T', H)
    ridge = 1e-3 * torch.eye(hidden, dtype=torch.float64) * max(float(flat.square().mean()), 1e-6) * len(flat)
    pairs = (kept[:, 1:] & kept[:, :-1])[..., None]
    before, after = states[:, :-1] * pairs, states[:, 1:] * pairs
    transition = torch.linalg.solve(_gram(before, before) + ridge, _gram(before, after)).mT
    radius = float(torch.linalg.eigvals(transition).abs().max())
    transition = transition / max(1.0, radius / 0.999)
    everything = kept[..., None]
    seen = values[:, : window.shape[1]] * everything
    emission = torch.linalg.solve(
        _gram(states * everything, states * everything) + ridge, _gram(states * everything, seen)
    )
    spread = states[kept].std(dim=0, correction=0).clamp_min(1e-2)
    return System(
        transition=transition,
        process=torch.diag(spread / 2),
        emission=emission.mT * scale[:, None],
        offset=centre.clone(),
        observation=torch.diag(scale / 2),
        mean=states[kept].mean(dim=0),
        factor=torch.diag(spread),
    )


def _gram(a: Tensor, b: Tensor) -> Tensor:
    return (a.mT @ b).sum(dim=0)


def _spread(data: Data) -> tuple[Tensor, Tensor, Tensor]:
    """Of each value (C,): its mean, its deviation, and how much it changes from one step to the next."""
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
