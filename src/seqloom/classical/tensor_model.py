"""Base class of models that consist of a few named tensors: saving, validation on load, devices."""

from collections.abc import Collection, Mapping
from typing import ClassVar, Self

import torch
from torch import Tensor

from seqloom.core.tree import Expected, check_tree, require

Bounds = tuple[float | None, float | None]


class TensorModel:
    """A model whose tensors are the attributes listed in `names`, with the `nn.Module` methods that runs use."""

    names: Collection[str] = ()
    bounds: Mapping[str, Bounds] = {}  # smallest and largest valid value for each tensor name
    resizable: Collection[str] = ()  # tensors with any number of rows; all others have a fixed shape
    float_dtype: ClassVar[torch.dtype] = torch.float64  # double precision keeps sums over large tables accurate
    cpu_only: ClassVar[bool] = False

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {name: getattr(self, name) for name in self.names}

    def assign(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the tensors without validation."""
        for name, tensor in tensors.items():
            setattr(self, name, tensor)

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise `CheckpointError` if individually valid tensors contradict each other."""

    def validate(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise `CheckpointError` unless the tensors match this model."""
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
        """Move the tensors in place. Convert float64 to float32 for MPS, which does not support float64."""
        if not self.cpu_only:
            dtype = torch.float32 if torch.device(device).type == "mps" else self.float_dtype
            tensors = self.tensors().items()
            self.assign({name: part.to(device, dtype if part.is_floating_point() else None) for name, part in tensors})
        return self

    def eval(self) -> Self:
        return self

    def train(self, mode: bool = True) -> Self:
        return self


def check_log_probabilities(name: str, table: Tensor) -> None:
    """Raise `CheckpointError` unless the probabilities in each row of log-probabilities (…, N) sum to 1."""
    error = torch.logsumexp(table, dim=-1).abs()
    require((error < 1e-6).all(), f"{name} must hold log-probabilities whose rows sum to 1")
