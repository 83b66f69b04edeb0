"""State trees: nested values whose leaves are tensors with the batch in dimension 0.

A tree is a tensor, a `GrowingBuffer`, `None`, a number, a string, or a tuple, list or dict of trees. Models receive and
return their state as a tree and store nothing between calls. A caller can therefore clone, reorder, detach or save the
state of any model. Trees read from files are validated against a template with `check_tree`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqloom.core.errors import CheckpointError

Tree = Any


@dataclass(frozen=True)
class GrowingBuffer:
    """A preallocated buffer (B, …, capacity, …) in which each row uses the first `length` (B,) positions."""

    buffer: Tensor
    length: Tensor


def tree_map(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """Apply `function` to every tensor of a tree; leave other values unchanged."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, GrowingBuffer):
        return GrowingBuffer(function(tree.buffer), function(tree.length))
    if isinstance(tree, tuple | list):
        return type(tree)(tree_map(function, child) for child in tree)
    if isinstance(tree, dict):
        return {key: tree_map(function, child) for key, child in tree.items()}
    return tree


def leaves(tree: Tree) -> Iterator[Tensor]:
    """Yield every tensor of the tree in a fixed order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, GrowingBuffer):
        yield from (tree.buffer, tree.length)
    elif isinstance(tree, tuple | list):
        for child in tree:
            yield from leaves(child)
    elif isinstance(tree, dict):
        for child in tree.values():
            yield from leaves(child)


def clone(tree: Tree) -> Tree:
    """Copy a tree without sharing memory. Copy a state before branching, because `step` consumes it."""
    return tree_map(Tensor.clone, tree)


def detach(tree: Tree) -> Tree:
    """Detach a tree from the graph, for truncated backpropagation."""
    return tree_map(Tensor.detach, tree)


def to_device(tree: Tree, device: torch.device | str) -> Tree:
    return tree_map(lambda leaf: leaf.to(device, non_blocking=True), tree)


def select_rows(tree: Tree, rows: Tensor) -> Tree:
    """Select rows of every leaf in the given order; rows may be repeated or omitted."""
    return tree_map(lambda leaf: leaf.index_select(0, rows), tree)


def count_rows(tree: Tree) -> int:
    """Return the number of rows of a tree's tensors, or 1 if the tensors differ, so that the tree is not split."""
    sizes = {len(leaf) if leaf.dim() else 0 for leaf in leaves(tree)}
    return sizes.pop() if len(sizes) == 1 else 1


def slice_rows(tree: Tree, first: int, last: int, rows: int) -> Tree:
    """Return rows `first` to `last` (exclusive) of a tree with `rows` rows.

    Integers are counts over all rows, so they are divided in proportion.
    """
    if isinstance(tree, dict):
        return {key: slice_rows(child, first, last, rows) for key, child in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(slice_rows(child, first, last, rows) for child in tree)
    if isinstance(tree, int) and not isinstance(tree, bool):
        return tree * last // rows - tree * first // rows
    return tree_map(lambda leaf: leaf[first:last], tree)


def concatenate_rows(trees: list[Tree]) -> Tree:
    """Concatenate the rows of trees."""
    first = trees[0]
    if isinstance(first, Tensor):
        return torch.cat(trees)
    if isinstance(first, GrowingBuffer):
        return GrowingBuffer(torch.cat([tree.buffer for tree in trees]), torch.cat([tree.length for tree in trees]))
    if isinstance(first, dict):
        return {key: concatenate_rows([tree[key] for tree in trees]) for key in first}
    if isinstance(first, tuple | list):
        return type(first)(concatenate_rows(list(children)) for children in zip(*trees, strict=True))
    return first


def pack(tree: Tree) -> tuple[Tree, dict[str, Tensor]]:
    """Split a tree into a JSON skeleton and named tensors, which can be written without pickle."""
    tensors: dict[str, Tensor] = {}

    def walk(node: Tree) -> Tree:
        if isinstance(node, Tensor):
            name = f"leaf{len(tensors)}"
            tensors[name] = node
            return {"tensor": name}
        if isinstance(node, GrowingBuffer):
            return {"growing": [walk(node.buffer), walk(node.length)]}
        if isinstance(node, tuple):
            return {"tuple": [walk(child) for child in node]}
        if isinstance(node, list):
            return {"list": [walk(child) for child in node]}
        if isinstance(node, dict):
            return {"dict": [[key, walk(child)] for key, child in node.items()]}
        return {"value": node}

    return walk(tree), tensors


def unpack(skeleton: Tree, tensors: Mapping[str, Tensor]) -> Tree:
    """Rebuild a tree from the result of `pack`; raise `ValueError` unless the skeleton names each tensor once."""
    unused = dict(tensors)

    def walk(node: Tree) -> Tree:
        ((kind, content),) = node.items()
        if kind == "tensor":
            return unused.pop(content)
        if kind == "growing":
            buffer, length = content
            return GrowingBuffer(walk(buffer), walk(length))
        if kind == "tuple":
            return tuple([walk(child) for child in content])
        if kind == "list":
            return [walk(child) for child in content]
        if kind == "dict":
            return {key: walk(child) for key, child in content}
        if kind == "value" and isinstance(content, str | int | float | None):
            return content
        raise ValueError(f"unknown entry {kind!r}")

    try:
        tree = walk(skeleton)
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not the skeleton of a tree ({type(error).__name__})") from error
    if unused:
        raise ValueError(f"tensors that are not part of the tree: {', '.join(sorted(unused)[:3])}")
    return tree


# --- validation -------------------------------------------------------------------------------------------------------

ANYTHING = object()  # in a template, a value that is not checked here
SHOWN_NAMES = 3  # maximum number of names listed in a message


@dataclass(frozen=True)
class Expected:
    """The expected shape (None: any size), dtype and range of a tensor.

    NaN is never allowed. Infinity is allowed only if a bound is infinite.
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype
    low: float | None = None
    high: float | None = None

    @classmethod
    def like(cls, tensor: Tensor, low: float | None = None) -> "Expected":
        """Expect the shape and dtype of a tensor."""
        return cls(tuple(tensor.shape), tensor.dtype, low)

    def check(self, tensor: Tree, name: str) -> None:
        """Raise `CheckpointError` unless `tensor` meets these expectations."""
        if not isinstance(tensor, Tensor):
            raise CheckpointError(f"{name} must be a tensor; got {_kind(tensor)}")
        shape = tuple(tensor.shape)
        if len(shape) != len(self.shape) or any(e not in (None, s) for s, e in zip(shape, self.shape, strict=True)):
            expected, actual = (
                "(" + ", ".join("any" if size is None else str(size) for size in sizes) + ")"
                for sizes in (self.shape, shape)
            )
            raise CheckpointError(f"{name} must have the shape {expected}; got {actual}")
        if tensor.dtype != self.dtype:
            dtypes = [str(dtype).removeprefix("torch.") for dtype in (self.dtype, tensor.dtype)]
            raise CheckpointError(f"{name} must be {dtypes[0]}; got {dtypes[1]}")
        if not tensor.numel() or tensor.dtype == torch.bool:
            return
        lowest, highest = (float(value) for value in torch.aminmax(tensor))  # NaN if any value is NaN
        low = self.low if self.low is not None else -math.inf
        high = self.high if self.high is not None else math.inf
        infinite = (lowest == -math.inf and self.low is None) or (highest == math.inf and self.high is None)
        if math.isnan(lowest) or infinite:
            raise CheckpointError(f"{name} must contain finite numbers, but contains NaN or infinity")
        if lowest < low or highest > high:
            raise CheckpointError(
                f"{name} must lie between {low:g} and {high:g}; its values are {lowest:g} to {highest:g}"
            )


def check_tree(tree: Tree, template: Tree, name: str = "") -> None:
    """Raise `CheckpointError` unless a tree has the structure, shapes and dtypes of the template, and finite numbers.

    The leaves of a template are tensors, `Expected`, plain values or `ANYTHING`; a fresh model's `state_dict()` is a
    valid template. Plain values must be of the same type as in the template. Messages refer to the tree as `name`.
    """
    if template is ANYTHING:
        return
    if isinstance(template, Expected):
        template.check(tree, name)
    elif isinstance(template, Tensor):
        Expected.like(template).check(tree, name)
    elif type(tree) is not type(template):
        raise CheckpointError(f"{name or 'it'} must be {_kind(template)}; got {_kind(tree)}")
    elif isinstance(template, GrowingBuffer):
        check_tree(tree.buffer, template.buffer, f"{name}.buffer")
        check_tree(tree.length, template.length, f"{name}.length")
    elif isinstance(template, dict):
        missing, unknown = ([key for key in a if key not in b] for a, b in ((template, tree), (tree, template)))
        problems = []
        for keys, what in ((missing, "missing"), (unknown, "unknown")):
            more = f" and {len(keys) - SHOWN_NAMES} more" if len(keys) > SHOWN_NAMES else ""
            problems += [f"{', '.join(map(str, keys[:SHOWN_NAMES]))}{more} {what}"] if keys else []
        if problems:
            raise CheckpointError(f"{name or 'it'} does not have the expected entries: {', '.join(problems)}")
        for key, child in template.items():
            check_tree(tree[key], child, f"{name}.{key}" if name else str(key))
    elif isinstance(template, tuple | list):
        if len(tree) != len(template):
            raise CheckpointError(f"{name} must have {len(template)} entries; got {len(tree)}")
        for index, (child, expected) in enumerate(zip(tree, template, strict=True)):
            check_tree(child, expected, f"{name}.{index}")
    elif isinstance(template, float) and not math.isfinite(tree):
        raise CheckpointError(f"{name} must be a finite number; got {tree}")


def _kind(value: Tree) -> str:
    return "nothing" if value is None else f"of type {type(value).__name__}"


def require(holds: bool | Tensor, message: str) -> None:
    """Raise `CheckpointError` unless a condition on several tensors holds."""
    if not bool(holds):
        raise CheckpointError(message)


def is_ascending(keys: Tensor) -> Tensor:
    """Return whether the keys (n,) are strictly increasing."""
    return (keys[1:] > keys[:-1]).all()
