"""`run_cell` over whole sequences: the gradient of every step is written by hand, so that autograd sees one function.

The steps are those of `steps`, computed by PyTorch, by numba kernels (`numba_steps`) or by Triton
(`triton_steps`).
"""

from typing import Any

import torch
from torch import Tensor

from seqloom.accel.double_backward import refuse_double_backward
from seqloom.accel.recurrence import numba_steps, triton_steps
from seqloom.accel.recurrence.steps import STEPS, Given, Padding, Steps, find_padding, steps_name
from seqloom.accel.recurrence.torch_kernels import kernel_name
from seqloom.core.device import has_triton
from seqloom.nn.cells import Cell, State
from seqloom.nn.masks import zero_padding

FEWEST = 4  # steps: below, the plain loop is as fast
FEWEST_BESIDE_A_KERNEL = 16  # below, so are torch's kernels
FULL = (torch.float32, torch.float64)


def applies(cell: Cell, x: Tensor, state: State, mask: Tensor | None = None) -> bool:
    """Whether this cell, on inputs (B, T, D) like these, can be run so, and it pays."""
    if steps_name(cell) is None or x.numel() == 0 or torch.compiler.is_compiling():
        return False
    if x.device.type == "cuda":
        return _applies_on_a_gpu(cell, x, mask)
    if x.device.type != "cpu" or torch.is_autocast_enabled("cpu") or x.dtype not in FULL:
        return False
    kernel = kernel_name(cell)
    if x.dtype != cell.weight_h.dtype or x.shape[1] < (FEWEST if kernel is None else FEWEST_BESIDE_A_KERNEL):
        return False
    padded = mask is not None and not bool(mask.all())
    return kernel != "lstm" or not _onednn(x) or (torch.is_grad_enabled() and padded)


def _onednn(x: Tensor) -> bool:
    """Whether torch's LSTM is that of oneDNN, as long as there is no padding: that is as fast as the processor."""
    return x.dtype == torch.float32 and torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)


def _applies_on_a_gpu(cell: Cell, x: Tensor, mask: Tensor | None) -> bool:
    """cuDNN's kernels must know where padding is, and so would wait; no step of training or in a graph may do that."""
    if not torch.is_autocast_enabled("cuda") and x.dtype != cell.weight_h.dtype:
        return False
    if steps_name(cell) in triton_steps.STEPS and has_triton():
        return x.shape[1] > 1 or mask is not None
    if cell.weight_h.dtype not in FULL:
        return False
    may_not_wait = torch.is_grad_enabled() or torch.cuda.is_current_stream_capturing()
    return x.shape[1] >= FEWEST if kernel_name(cell) is None else mask is not None and may_not_wait


def run(cell: Cell, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
    """Return the outputs (B, T, H) and the state after the last real step of each row."""
    name = steps_name(cell)
    assert name is not None
    steps, own = steps_of(name, x, state["h"]), cell.weight_h.dtype
    low = isinstance(steps, triton_steps.GPUReset) and torch.is_autocast_enabled("cuda")
    kind = torch.get_autocast_dtype("cuda") if low else own  # of products; the state has that of the weights
    padding = None if mask is None else find_padding(mask)
    x = zero_padding(x, None if padding is None else mask).transpose(0, 1)  # (T, B, D)
    x, first = cell.project(x), [state[name].to(own) for name in cell.state_names]
    with torch.autocast(x.device.type, enabled=False):
        given = [x.to(kind), cell.weight_x.to(kind), steps.bias(cell).to(kind), *first]
        given += [weight.to(kind) for weight in steps.weights(cell)]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
            outputs, *last = WholeSequence.apply(steps, padding, len(first), *given)
        else:
            weights = given[3 + len(first) :]
            outputs, *last = steps.forward(steps.inputs(*given[:3]), Given(first, weights, padding))[0]
    outputs = outputs.transpose(0, 1)
    if kernel_name(cell) is None or padding is not None:  # laid out as by loop and kernels: dropout draws in that order
        outputs = outputs.contiguous()
    return outputs, dict(zip(cell.state_names, last, strict=True))


def steps_of(name: str, x: Tensor, h: Tensor) -> Steps:
    """What computes x (B, T, D) from a state (B, H) on."""
    if x.device.type == "cuda" and name in triton_steps.STEPS and has_triton():
        return triton_steps.STEPS[name]
    return numba_steps.STEPS[name] if name in numba_steps.STEPS and numba_steps.applies(h, x.shape[1]) else STEPS[name]


class WholeSequence(torch.autograd.Function):
    """`Steps` as one function to autograd. It cannot be differentiated twice, and says so; the plain loop can."""

    @staticmethod
    def forward(context: Any, steps: Steps, padding: Padding | None, states: int, *given: Tensor) -> Any:
        x, weight_x, bias, *rest = given
        x = x.contiguous()
        (outputs, *last), kept = steps.forward(
            steps.inputs(x, weight_x, bias), Given(rest[:states], rest[states:], padding)
        )
        context.steps, context.padding, context.names, context.states = steps, padding, tuple(kept), states
        context.save_for_backward(*kept.values(), x, weight_x, *rest)
        return outputs, *last

    @staticmethod
    def backward(context: Any, d_outputs: Tensor, *d_last: Tensor) -> Any:
        refuse_double_backward()
        steps, names, saved = context.steps, context.names, context.saved_tensors
        kept, (x, weight_x, *rest) = dict(zip(names, saved, strict=False)), saved[len(names) :]
        given = Given(rest[: context.states], rest[context.states :], context.padding)
        dy = d_outputs if given.padding is None else d_outputs.masked_fill(given.padding.there, 0)
        d_state = [dy[-1] + d_last[0], *(one.clone() for one in d_last[1:])]  # to be written to
        for_x, for_weight, for_bias = context.needs_input_grad[3:6]
        with torch.autocast(x.device.type, enabled=False):
            da, *gradients = steps.backward(kept, dy, d_state, given)
            return (
                *(None, None, None),
                steps.d_x(da, x, weight_x) if for_x else None,
                steps.d_weight(da, x) if for_weight else None,
                da.sum((0, 1)) if for_bias else None,
                *gradients,
            )
