"""Base of models that are a few named tensors: how they are saved, checked when loaded, and moved."""

from collections.abc import Collection, Mapping
from typing import ClassVar, Self

import torch
from torch import Tensor

from seqloom.core.tree import Expected, check_tree, require

Bounds = tuple[float | None, float | None]


class TensorModel:
    """A model whose tensors are its attributes of these `names`, and which does what runs ask of an `nn.Module`."""

    names: Collection[str] = ()
    bounds: Mapping[str, Bounds] = {}  # the least and the largest value of some tensors
    resizable: Collection[str] = ()  # tensors with any number of rows; all others keep their shape
    real: ClassVar[torch.dtype] = torch.float64  # so that sums over many are still exact
    cpu_only: ClassVar[bool] = False

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {name: getattr(self, name) for name in self.names}

    def assign(self, tensors: Mapping[str, Tensor]) -> None:
        """Take tensors that were checked, or moved to a device."""
        for name, tensor in tensors.items():
            setattr(self, name, tensor)

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise `CheckpointError` if tensors that are as expected, each by itself, contradict each other."""

    def validate(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise `CheckpointError` unless these can be the tensors of such a model."""
        expected = {}
        for name, tensor in self.tensors().items():
            rows = (None,) if name in self.resizable else tensor.shape[:1]
            expected[name] = Expected((*rows, *tensor.shape[1:]), tensor.dtype, *self.bounds.get(name, (None, None)))
        check_tree(dict(tensors), expected)
        self.check(tensors)

    def state_dict(self) -> dict[str, Tensor]:
        return self.tensors()

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        self.validate(state_dict)
        self.assign(state_dict)

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors().values())).device

    def to(self, device: torch.device | str) -> Self:
        """Move the tensors, in place. Apple's GPUs have no float64: there they become float32."""
        if not self.cpu_only:
            real = torch.float32 if torch.device(device).type == "mps" else self.real
            moved = self.tensors().items()
            self.assign({name: one.to(device, real if one.is_floating_point() else None) for name, one in moved})
        return self

    def eval(self) -> Self:
        return self

    def train(self, mode: bool = True) -> Self:
        return self


def check_log_shares(name: str, table: Tensor) -> None:
    """Raise `CheckpointError` unless each row (…, N) of log-probabilities sums to 1."""
    error = torch.logsumexp(table, dim=-1).abs()
    require((error < 1e-6).all(), f"{name} must hold log-probabilities whose rows sum to 1")
