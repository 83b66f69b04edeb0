"""Random linear dynamical systems, and their joint Gaussian computed by brute force without recursion."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.classical.kalman import LinearDynamical
from seqloom.classical.kalman.filter import System

Array = NDArray[np.float64]


def random_system(hidden: int, columns: int, seed: int = 0, inputs: int = 0, rank: int | None = None) -> System:
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    transition = normal(hidden, hidden)
    return System(
        transition=0.9 * transition / torch.linalg.eigvals(transition).abs().max(),
        process=normal(hidden, rank or hidden) / 2,
        emission=normal(columns, hidden),
        offset=normal(columns),
        observation=normal(columns, columns).tril() / 2 + torch.eye(columns, dtype=torch.float64) / 4,
        mean=normal(hidden),
        factor=normal(hidden, hidden),
        drive=normal(hidden, inputs) if inputs else None,
    )


def random_values(batch: int, steps: int, columns: int, seed: int = 0, missing: float = 0.3) -> tuple[Tensor, Tensor]:
    """Return values and their mask. Some complete steps and some single values are missing (NaN)."""
    draw = torch.Generator().manual_seed(seed + 1000)
    values = 2 * torch.randn(batch, steps, columns, generator=draw, dtype=torch.float64)
    mask = torch.rand(batch, steps, columns, generator=draw) >= missing
    mask &= torch.rand(batch, steps, 1, generator=draw) >= missing / 2
    return values.masked_fill(~mask, torch.nan), mask


class Joint:
    """The joint Gaussian of all states and values of one sequence, and its conditionals."""

    def __init__(self, system: System, steps: int, inputs: Array | None = None) -> None:
        plain = {name: value.numpy() for name, value in vars(system).items() if value is not None}
        move, see = plain["transition"], plain["emission"]
        self.hidden, self.columns, self.steps = len(move), len(see), steps
        means, covariance = [plain["mean"]], np.zeros((steps, steps, self.hidden, self.hidden))
        covariance[0, 0] = plain["factor"] @ plain["factor"].T
        for t in range(1, steps):
            driven = 0 if inputs is None else plain["drive"] @ inputs[t]
            means.append(move @ means[-1] + driven)
            covariance[t, t] = move @ covariance[t - 1, t - 1] @ move.T + plain["process"] @ plain["process"].T
        for t in range(steps):
            for later in range(t + 1, steps):
                covariance[later, t] = move @ covariance[later - 1, t]
                covariance[t, later] = covariance[later, t].T
        self.mean = np.concatenate(means)
        self.states = covariance.transpose(0, 2, 1, 3).reshape(steps * self.hidden, -1)
        self.see = np.kron(np.eye(steps), see)
        noise = np.kron(np.eye(steps), plain["observation"] @ plain["observation"].T)
        self.expected = self.see @ self.mean + np.tile(plain["offset"], steps)
        self.values = self.see @ self.states @ self.see.T + noise

    def states_given(self, values: Array, mask: NDArray[np.bool_]) -> tuple[Array, Array]:
        """Return means (T, H) and covariances (T, H, H) of the states given the observed values (T, C)."""
        seen = mask.reshape(-1)
        cross = self.states @ self.see.T[:, seen]
        gain = np.linalg.solve(self.values[np.ix_(seen, seen)], cross.T).T
        mean = self.mean + gain @ (values.reshape(-1)[seen] - self.expected[seen])
        joint = self.states - gain @ cross.T
        blocks = joint.reshape(self.steps, self.hidden, self.steps, self.hidden)
        return mean.reshape(self.steps, -1), np.stack([blocks[t, :, t] for t in range(self.steps)])

    def values_given(self, values: Array, mask: NDArray[np.bool_]) -> tuple[Array, Array]:
        """Return means (T, C) and covariances (T, C, C) of all values given the observed values."""
        seen = mask.reshape(-1)
        gain = np.linalg.solve(self.values[np.ix_(seen, seen)], self.values[seen]).T
        mean = self.expected + gain @ (values.reshape(-1)[seen] - self.expected[seen])
        joint = (self.values - gain @ self.values[seen]).reshape(self.steps, self.columns, self.steps, self.columns)
        return mean.reshape(self.steps, -1), np.stack([joint[t, :, t] for t in range(self.steps)])

    def all_given(self, values: Array, mask: NDArray[np.bool_]) -> tuple[Array, Array]:
        """Return mean and covariance of all states followed by all values, given the observed values."""
        seen = np.concatenate([np.zeros(len(self.mean), dtype=bool), mask.reshape(-1)])
        cross = self.see @ self.states
        joint = np.block([[self.states, cross.T], [cross, self.values]])
        gain = np.linalg.solve(joint[np.ix_(seen, seen)], joint[seen]).T
        expected = np.concatenate([self.mean, self.expected])
        known = np.concatenate([self.mean, values.reshape(-1)])
        return expected + gain @ (known - expected)[seen], joint - gain @ joint[seen]

    def log_density(self, values: Array, mask: NDArray[np.bool_]) -> float:
        seen = mask.reshape(-1)
        error = values.reshape(-1)[seen] - self.expected[seen]
        part = self.values[np.ix_(seen, seen)]
        volume = np.linalg.slogdet(part)[1]
        return float(-(error @ np.linalg.solve(part, error) + volume + seen.sum() * np.log(2 * np.pi)) / 2)


def sample(model: LinearDynamical, rows: int, steps: int, generator: torch.Generator) -> Tensor:
    """Draw values (rows, steps, C) from a model without inputs."""
    system, drawn = model.system, []

    def noise(factor: Tensor) -> Tensor:
        return torch.randn(rows, factor.shape[1], generator=generator, dtype=torch.float64) @ factor.mT

    state = system.mean + noise(system.factor)
    for t in range(steps):
        if t:
            state = state @ system.transition.mT + noise(system.process)
        drawn.append(state @ system.emission.mT + system.offset + noise(system.observation))
    return torch.stack(drawn, dim=1)
