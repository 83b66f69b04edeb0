"""How far apart the ends of a sequence are for a layer, followed through the real layer and its gradients.

`longest_chain`: the operations that must wait for each other, counted in the graph that torch keeps of a computation.
`path`: how many layers, or steps of a recurrent one, ∂y_n/∂x_1 passes until it is not zero.

Neither depends on how wide a layer is, so both are found with narrow ones.
"""

import time
from collections.abc import Callable, Iterable
from functools import reduce
from itertools import count

import torch
from torch import Tensor

from seqloom.core.operations import definitions_only
from seqloom.nn.mixers import DilatedConvolution, Mixer, RecurrentMixer

PATIENCE = 30.0  # seconds after which a path is given up


def longest_chain(y: Tensor) -> int:
    """The most operations in a row between y and what it was made from, each of which needs the one before it."""
    depth: dict[object, int] = {}
    waiting = [y.grad_fn]
    while waiting:
        node = waiting[-1]
        before = [] if node is None else [other for other, _ in node.next_functions if other is not None]
        unknown = [other for other in before if other not in depth]
        if unknown:
            waiting += unknown
            continue
        waiting.pop()
        leaf = node is None or node.name().endswith("AccumulateGrad")
        depth[node] = 0 if leaf else 1 + max((depth[other] for other in before), default=0)
    return depth[y.grad_fn]


def chain(mixer: Mixer, width: int, n: int) -> int:
    """Of a layer's computation for n places, by the definition: kernels hide what they do."""
    x = torch.randn(1, n, width).requires_grad_()
    with definitions_only():
        return longest_chain(mixer(x)[0])


def path(make: Callable[[int], Mixer], width: int, n: int) -> int | None:
    """How many layers, `make(depth)` at each depth, or steps lie between y_n and x_1; None if it takes too long."""
    mixer = make(0).double()
    if isinstance(mixer, RecurrentMixer):
        return _steps(mixer, n)
    if isinstance(mixer, DilatedConvolution):
        return _deeper_and_deeper(make, width, n)
    return _again_and_again(mixer, width, n)


Hop = Callable[[Tensor], Tensor]


def _hop(mixer: Mixer, width: int, n: int) -> Hop:
    """A gradient (1, n, D) of y to one of x, through the layer's own backward pass.

    Where it is not zero it is drawn anew, so that no number of hops can make it vanish or explode: only which places it
    comes to is of interest.
    """
    x = torch.randn(1, n, width, dtype=torch.float64).requires_grad_()
    y, _ = mixer(x)

    def hop(gradient: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(y, x, gradient, retain_graph=True)
        return torch.randn_like(found) * (found != 0)

    return hop


def _at_the_end(width: int, n: int) -> Tensor:
    gradient = torch.zeros(1, n, width, dtype=torch.float64)
    gradient[:, -1] = torch.randn(width, dtype=torch.float64)
    return gradient


def _arrived(gradient: Tensor) -> bool:
    return bool((gradient[:, 0] != 0).any())


def _again_and_again(mixer: Mixer, width: int, n: int) -> int | None:
    """Through one layer after another that are all alike."""
    hop, gradient = _hop(mixer, width, n), _at_the_end(width, n)
    for layers in _patiently(count(1)):
        gradient = hop(gradient)
        if _arrived(gradient):
            return layers
    return None


def _deeper_and_deeper(make: Callable[[int], Mixer], width: int, n: int) -> int | None:
    """Where a layer depends on its depth: through stacks of one, two, three …, each from its top."""
    hops: list[Hop] = []
    for layers in _patiently(count(1)):
        hops.append(_hop(make(layers - 1).double(), width, n))
        if _arrived(reduce(lambda gradient, hop: hop(gradient), reversed(hops), _at_the_end(width, n))):
            return layers
    return None


def _steps(mixer: RecurrentMixer, n: int) -> int | None:
    """From the last state back: each step of the cell hands its gradient to its own input and to the state before."""
    cell = mixer.layer.forwards.cell
    gradients = {name: torch.randn(1, cell.hidden).double() for name in cell.state_names}
    for step in _patiently(range(1, n + 1)):
        x_t = torch.randn(1, cell.inputs, dtype=torch.float64).requires_grad_()
        state = {name: torch.randn(1, cell.hidden).double().requires_grad_() for name in cell.state_names}
        after = cell(x_t, state)
        outputs = [after[name] for name in gradients]
        found = torch.autograd.grad(outputs, [x_t, *state.values()], list(gradients.values()), allow_unused=True)
        gradients = {
            name: torch.randn_like(gradient) * (gradient != 0)
            for name, gradient in zip(state, found[1:], strict=True)
            if gradient is not None
        }
        if step == n:
            return step if found[0] is not None and bool((found[0] != 0).any()) else None
    return None


def _patiently(numbers: Iterable[int]) -> Iterable[int]:
    """As many of them as there is time for."""
    began = time.perf_counter()
    for number in numbers:
        if time.perf_counter() - began > PATIENCE:
            return
        yield number
