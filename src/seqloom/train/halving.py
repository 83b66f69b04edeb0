"""A batch that does not fit in memory, in parts that do.

The loss of a batch is a mean over its n predictions, so its gradient is that of its parts, each weighted by its share
of them:

    L = Σ_i (n_i / n) · L_i          ∇L = Σ_i (n_i / n) · ∇L_i

Rows are shared out, and so is the state they carry on; afterwards it is put together again. A part that does not fit
either is halved in turn, down to single rows. What was too much once is not tried again: `Fitting` remembers it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.protocols import Loss
from seqloom.core.tree import Growing, Tree, detach, leaves, tree_map


class DoesNotFit(Exception):
    """There is not enough memory for a batch as it was taken; in more parts there may be."""


@dataclass
class Fitting:
    """What fits: batches with fewer values than `limit`; any, while there is none."""

    limit: int | None = None

    def parts(self, batch: Tree, carry: Tree = None) -> int:
        """In how many parts to take this batch: 1, 2, 4 … and at most one for each row."""
        size, rows, parts = size_of(batch), rows_of((batch, carry)), 1
        while self.limit is not None and size >= parts * self.limit and parts < rows:
            parts = min(2 * parts, rows)
        return parts

    def halve(self, batch: Tree, carry: Tree = None) -> bool:
        """This batch did not fit as it was taken: can it be taken in more parts? Then it will be."""
        parts = self.parts(batch, carry)
        if parts == rows_of((batch, carry)):
            return False
        self.limit = max(1, size_of(batch) // parts)
        return True


def size_of(batch: Tree) -> int:
    return sum(leaf.numel() for leaf in leaves(batch))


def rows_of(tree: Tree) -> int:
    """How many rows the tensors of a tree have. 1 where they do not agree: then it cannot be parted."""
    found = {len(leaf) if leaf.dim() else 0 for leaf in leaves(tree)}
    return found.pop() if len(found) == 1 else 1


def gradient_in_parts(
    model: nn.Module,
    batch: Tree,
    carry: Tree,
    parts: int,
    loss_of: Callable[[Tree, Tree], Loss],
    backward: Callable[[Tensor], None],
) -> Loss:
    """Add the gradient of a batch to that of the model, part by part: the loss of the whole, without a graph.

    `loss_of` gives the loss of a batch and a carried state, `backward` adds the gradient of a scalar.
    """
    if parts == 1:
        whole = loss_of(batch, carry)
        backward(whole.value)
        return Loss(whole.value.detach(), detach(whole.carry), whole.tokens)
    held = [parameter.grad for parameter in model.parameters()]  # of other batches of this update
    model.zero_grad(set_to_none=True)
    losses, counts = [], []
    for part, state in portions(batch, carry, parts):
        loss = loss_of(part, state)
        counts.append(
            torch.as_tensor(rows_of(part)).to(loss.value) if loss.count is None else loss.count.to(loss.value)
        )
        backward(loss.value * counts[-1] / counts[0].clamp(min=1) / parts)  # near its size as a mean, in any precision
        losses.append(Loss(loss.value.detach(), detach(loss.carry), loss.tokens))
        del loss
    n = torch.stack(counts)
    total = n.sum().clamp(min=torch.finfo(n.dtype).tiny)  # weighted predictions may be less than one
    _scale(model.parameters(), held, torch.where(n.sum() > 0, counts[0].clamp(min=1) * parts / total, 0))
    value = (torch.stack([loss.value for loss in losses]) * n).sum() / total
    return Loss(value, join([loss.carry for loss in losses]), sum(loss.tokens for loss in losses))


def _scale(parameters: Iterable[nn.Parameter], held: list[Tensor | None], factor: Tensor) -> None:
    """Gradients times a factor, and those that were held back added."""
    for parameter, other in zip(parameters, held, strict=True):
        if parameter.grad is not None:
            parameter.grad.mul_(factor)
        if other is not None:
            parameter.grad = other if parameter.grad is None else parameter.grad.add_(other)


def portions(batch: Tree, carry: Tree, parts: int) -> Iterator[tuple[Tree, Tree]]:
    """The parts of a batch, each with its rows of the carried state."""
    rows = rows_of(batch)
    for first, last in pairwise(rows * i // parts for i in range(parts + 1)):
        yield _between(batch, first, last, rows), _between(carry, first, last, rows)


def _between(tree: Tree, first: int, last: int, rows: int) -> Tree:
    """Of a number, which counts something in all rows, the share of these."""
    if isinstance(tree, dict):
        return {key: _between(child, first, last, rows) for key, child in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(_between(child, first, last, rows) for child in tree)
    if isinstance(tree, int) and not isinstance(tree, bool):
        return tree * last // rows - tree * first // rows
    return tree_map(lambda leaf: leaf[first:last], tree)


def join(trees: list[Tree]) -> Tree:
    """The tree whose rows are those of these, one after the other."""
    first = trees[0]
    if isinstance(first, Tensor):
        return torch.cat(trees)
    if isinstance(first, Growing):
        return Growing(join([tree.buffer for tree in trees]), join([tree.length for tree in trees]))
    if isinstance(first, dict):
        return {key: join([tree[key] for tree in trees]) for key in first}
    if isinstance(first, tuple | list):
        children: Any = zip(*trees, strict=True)
        return type(first)(join(list(each)) for each in children)
    return first
