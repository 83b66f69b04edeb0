"""A model that is a handful of tables: kept as named tensors, moved, loaded; what every run asks of its model."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from seqloom.core.errors import CheckpointError


def row_shares(counts: Tensor) -> Tensor:
    """Each row over its sum; one without counts is even."""
    total = counts.sum(dim=1, keepdim=True)
    return torch.where(total > 0, counts / total, 1 / counts.shape[1])


class Tables:
    """Its tables are its attributes of these names. Real numbers are float64, so that sums over many are still exact.

    `shapes` says how large each must be; None stands for whatever the data gave.
    """

    names: ClassVar[tuple[str, ...]] = ()

    def shapes(self) -> Mapping[str, tuple[int | None, ...]]:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.names}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        if set(state_dict) != set(self.names):
            other = ", ".join(sorted(set(self.names) ^ set(state_dict)))
            raise CheckpointError(f"These are the tables of another model: they differ in {other}.")
        for name, shape in self.shapes().items():
            found = tuple(state_dict[name].shape)
            if len(found) != len(shape) or any(b not in (None, a) for a, b in zip(found, shape, strict=True)):
                wanted = " × ".join("any" if one is None else str(one) for one in shape)
                raise CheckpointError(f"{name} must be {wanted} numbers; here it is {' × '.join(map(str, found))}.")
        for name in self.names:
            setattr(self, name, state_dict[name])

    @property
    def device(self) -> torch.device:
        found: Tensor = getattr(self, self.names[0])
        return found.device

    def to(self, device: torch.device | str) -> Self:
        """Move the tables, in place. Apple's GPUs have no float64: there they become float32."""
        real = torch.float32 if torch.device(device).type == "mps" else torch.float64
        for name in self.names:
            table: Tensor = getattr(self, name)
            setattr(self, name, table.to(device, real) if table.is_floating_point() else table.to(device))
        return self

    def eval(self) -> Self:
        return self

    def train(self, mode: bool = True) -> Self:
        return self
