"""A model that is a handful of tables: kept as named tensors, moved, loaded; what every run asks of its model."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from seqloom.core.tree import Expected, check_tree, require


def row_shares(counts: Tensor) -> Tensor:
    """Each row over its sum; one without counts is even."""
    total = counts.sum(dim=1, keepdim=True)
    return torch.where(total > 0, counts / total, 1 / counts.shape[1])


def check_log_shares(name: str, table: Tensor) -> None:
    """Raise `CheckpointError` unless each row (…, N) of log-probabilities sums to 1."""
    error = torch.logsumexp(table, dim=-1).abs()
    require((error < 1e-6).all(), f"{name} must hold log-probabilities whose rows sum to 1")


class Tables:
    """Its tables are its attributes of these names. Real numbers are float64, so that sums over many are still exact.

    `expected` says what each table must be, and `check` what must hold between them.
    """

    names: ClassVar[tuple[str, ...]] = ()

    def expected(self) -> dict[str, Expected]:
        raise NotImplementedError

    def check(self, tables: Mapping[str, Tensor]) -> None:
        """Raise `CheckpointError` if tables that are as expected, each by itself, contradict each other."""

    def validate(self, tables: Mapping[str, Any]) -> None:
        """Raise `CheckpointError` unless these can be the tables of such a model."""
        check_tree(dict(tables), self.expected())
        self.check(tables)

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.names}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.validate(state_dict)
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
