"""Validation of tensors and trees that are read from files, before anything is computed with them.

A template describes what is expected: a tree (see `seqloom.core.tree`) whose leaves are tensors, `Expected`, plain
values or `ANYTHING`. A fresh model's `state_dict()` is such a template.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqloom.core.errors import CheckpointError
from seqloom.core.tree import Growing, Tree

ANYTHING = object()  # in a template: not checked here
SHOWN_NAMES = 3  # names of entries that a message lists


@dataclass(frozen=True)
class Expected:
    """The shape (None: any size), dtype and range of a tensor.

    NaN is always refused, and infinity too unless a bound is infinite.
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype
    low: float | None = None
    high: float | None = None

    @classmethod
    def like(cls, tensor: Tensor, low: float | None = None) -> "Expected":
        """The shape and dtype of a tensor."""
        return cls(tuple(tensor.shape), tensor.dtype, low)


def check_tree(tree: Tree, template: Tree, name: str = "") -> None:
    """Raise `CheckpointError` unless a tree has the structure, shapes and dtypes of the template, and finite numbers.

    Plain values must be of the same type as in the template. Messages call the tree `name`.
    """
    if template is ANYTHING:
        return
    if isinstance(template, Expected):
        _check_tensor(tree, template, name)
    elif isinstance(template, Tensor):
        _check_tensor(tree, Expected.like(template), name)
    elif type(tree) is not type(template):
        raise CheckpointError(f"{name or 'it'} must be {_kind(template)}, got {_kind(tree)}")
    elif isinstance(template, Growing):
        check_tree(tree.buffer, template.buffer, f"{name}.buffer")
        check_tree(tree.length, template.length, f"{name}.length")
    elif isinstance(template, dict):
        _check_names(tree.keys(), template.keys(), name)
        for key, child in template.items():
            check_tree(tree[key], child, f"{name}.{key}" if name else str(key))
    elif isinstance(template, tuple | list):
        if len(tree) != len(template):
            raise CheckpointError(f"{name} must have {len(template)} entries, got {len(tree)}")
        for index, (child, expected) in enumerate(zip(tree, template, strict=True)):
            check_tree(child, expected, f"{name}.{index}")
    elif isinstance(template, float) and not math.isfinite(tree):
        raise CheckpointError(f"{name} must be a finite number, got {tree}")


def require(holds: bool | Tensor, message: str) -> None:
    """Raise `CheckpointError` unless something holds that relates several tensors."""
    if not bool(holds):
        raise CheckpointError(message)


def is_ascending(keys: Tensor) -> Tensor:
    """Whether every key (n,) is larger than the one before it."""
    return (keys[1:] > keys[:-1]).all()


def _check_names(found: Collection[Any], expected: Collection[Any], name: str) -> None:
    lost = [key for key in expected if key not in found]
    extra = [key for key in found if key not in expected]
    if lost or extra:
        problems = [f"{_listed(lost)} missing"] * bool(lost) + [f"{_listed(extra)} unknown"] * bool(extra)
        raise CheckpointError(f"{name or 'it'} has other entries than expected: {', '.join(problems)}")


def _check_tensor(tensor: Any, expected: Expected, name: str) -> None:
    if not isinstance(tensor, Tensor):
        raise CheckpointError(f"{name} must be a tensor, got {_kind(tensor)}")
    shape = tuple(tensor.shape)
    if len(shape) != len(expected.shape) or any(
        wanted not in (None, size) for size, wanted in zip(shape, expected.shape, strict=True)
    ):
        raise CheckpointError(f"{name} must have the shape {_shape(expected.shape)}, got {_shape(shape)}")
    if tensor.dtype != expected.dtype:
        raise CheckpointError(f"{name} must be {_dtype(expected.dtype)}, got {_dtype(tensor.dtype)}")
    if tensor.numel() and tensor.dtype != torch.bool:
        _check_range(tensor, expected, name)


def _check_range(tensor: Tensor, expected: Expected, name: str) -> None:
    lowest, highest = (float(value) for value in torch.aminmax(tensor))  # NaN if any value is
    low = expected.low if expected.low is not None else -math.inf
    high = expected.high if expected.high is not None else math.inf
    infinite = (lowest == -math.inf and expected.low is None) or (highest == math.inf and expected.high is None)
    if math.isnan(lowest) or infinite:
        raise CheckpointError(f"{name} must hold finite numbers, and holds NaN or infinity")
    if lowest < low or highest > high:
        raise CheckpointError(f"{name} must lie between {low:g} and {high:g}; its values are {lowest:g} to {highest:g}")


def _shape(shape: tuple[int | None, ...]) -> str:
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"of type {type(value).__name__}"


def _listed(keys: list[Any]) -> str:
    more = f" and {len(keys) - SHOWN_NAMES} more" if len(keys) > SHOWN_NAMES else ""
    return ", ".join(map(str, keys[:SHOWN_NAMES])) + more
