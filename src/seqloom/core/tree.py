"""State trees: nested values whose leaves are tensors with the batch in dimension 0.

A tree is a tensor, a `Growing`, `None`, a number, a string, or a tuple, list or dict of trees. Models receive and
return their state as such a value and keep nothing on themselves between calls, so whoever holds a state may clone it,
reorder its rows, cut its gradient or write it to disk without knowing which model it belongs to.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Tree = Any


@dataclass(frozen=True)
class Growing:
    """A preallocated buffer (B, …, capacity, …) of which each row has filled the first `length` (B,) places."""

    buffer: Tensor
    length: Tensor


def tree_map(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """The same tree with `function` applied to every tensor; everything that is not a tensor stays as it is."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, Growing):
        return Growing(function(tree.buffer), function(tree.length))
    if isinstance(tree, tuple | list):
        return type(tree)(tree_map(function, child) for child in tree)
    if isinstance(tree, dict):
        return {key: tree_map(function, child) for key, child in tree.items()}
    return tree


def leaves(tree: Tree) -> Iterator[Tensor]:
    """Every tensor of the tree, in a fixed order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Growing):
        yield from (tree.buffer, tree.length)
    elif isinstance(tree, tuple | list):
        for child in tree:
            yield from leaves(child)
    elif isinstance(tree, dict):
        for child in tree.values():
            yield from leaves(child)


def clone(tree: Tree) -> Tree:
    """A copy that shares no memory: what a caller makes before branching, since `step` consumes its state."""
    return tree_map(Tensor.clone, tree)


def detach(tree: Tree) -> Tree:
    """The same values, cut from the graph: what truncated backpropagation carries into the next chunk."""
    return tree_map(Tensor.detach, tree)


def to_device(tree: Tree, device: Any) -> Tree:
    return tree_map(lambda leaf: leaf.to(device, non_blocking=True), tree)


def select_rows(tree: Tree, rows: Tensor) -> Tree:
    """Rows of every leaf, in the given order; a row may be repeated or left out."""
    return tree_map(lambda leaf: leaf.index_select(0, rows), tree)


def count_rows(tree: Tree) -> int:
    """How many rows the tensors of a tree have; 1 if they do not agree, since it cannot be split then."""
    sizes = {len(leaf) if leaf.dim() else 0 for leaf in leaves(tree)}
    return sizes.pop() if len(sizes) == 1 else 1


def slice_rows(tree: Tree, first: int, last: int, rows: int) -> Tree:
    """Rows `first` to `last` of the `rows` of a tree; an integer counts something in all rows and is shared out."""
    if isinstance(tree, dict):
        return {key: slice_rows(child, first, last, rows) for key, child in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(slice_rows(child, first, last, rows) for child in tree)
    if isinstance(tree, int) and not isinstance(tree, bool):
        return tree * last // rows - tree * first // rows
    return tree_map(lambda leaf: leaf[first:last], tree)


def concatenate_rows(trees: list[Tree]) -> Tree:
    """The tree whose rows are those of these, one after the other."""
    first = trees[0]
    if isinstance(first, Tensor):
        return torch.cat(trees)
    if isinstance(first, Growing):
        return Growing(torch.cat([tree.buffer for tree in trees]), torch.cat([tree.length for tree in trees]))
    if isinstance(first, dict):
        return {key: concatenate_rows([tree[key] for tree in trees]) for key in first}
    if isinstance(first, tuple | list):
        return type(first)(concatenate_rows(list(children)) for children in zip(*trees, strict=True))
    return first


def pack(tree: Tree) -> tuple[Any, dict[str, Tensor]]:
    """Split a tree into a JSON skeleton and its named tensors, so that it can be written without pickling."""
    tensors: dict[str, Tensor] = {}

    def walk(node: Tree) -> Any:
        if isinstance(node, Tensor):
            name = f"leaf{len(tensors)}"
            tensors[name] = node
            return {"tensor": name}
        if isinstance(node, Growing):
            return {"growing": [walk(node.buffer), walk(node.length)]}
        if isinstance(node, tuple):
            return {"tuple": [walk(child) for child in node]}
        if isinstance(node, list):
            return {"list": [walk(child) for child in node]}
        if isinstance(node, dict):
            return {"dict": [[key, walk(child)] for key, child in node.items()]}
        return {"value": node}

    return walk(tree), tensors


def unpack(skeleton: Any, tensors: Mapping[str, Tensor]) -> Tree:
    """Rebuild the tree that `pack` split; `ValueError` unless the skeleton names each tensor once."""
    unused = dict(tensors)

    def walk(node: Any) -> Tree:
        ((kind, content),) = node.items()
        if kind == "tensor":
            return unused.pop(content)
        if kind == "growing":
            buffer, length = content
            return Growing(walk(buffer), walk(length))
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
        raise ValueError(f"tensors without a place in the tree: {', '.join(sorted(unused)[:3])}")
    return tree
