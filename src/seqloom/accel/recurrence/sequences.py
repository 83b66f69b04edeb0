"""`run_cell` over whole sequences: one autograd function with a hand-written gradient.

PyTorch (`steps`), numba kernels (`numba_steps`) or Triton kernels (`triton_steps`) compute the steps.
"""

from typing import Any

import torch
from torch import Tensor

from seqloom.accel.double_backward import refuse_double_backward
from seqloom.accel.recurrence import numba_steps, triton_steps
from seqloom.accel.recurrence.steps import STEPS, Padding, StepInputs, Steps, find_padding, steps_name
from seqloom.accel.recurrence.torch_kernels import kernel_name
from seqloom.core.device import has_triton
from seqloom.nn.cells import Cell, State
from seqloom.nn.masks import zero_padding

MIN_STEPS = 4  # with fewer steps, the plain loop is as fast
MIN_STEPS_WITH_TORCH_KERNEL = 16  # with fewer steps, torch's kernels are as fast
FULL_PRECISION = (torch.float32, torch.float64)


def applies(cell: Cell, x: Tensor, state: State, mask: Tensor | None = None) -> bool:
    """Return whether this implementation supports the cell and inputs (B, T, D), and is faster."""
    if steps_name(cell) is None or x.numel() == 0 or torch.compiler.is_compiling():
        return False
    if x.device.type == "cuda":
        return _applies_on_gpu(cell, x, mask)
    if x.device.type != "cpu" or torch.is_autocast_enabled("cpu") or x.dtype not in FULL_PRECISION:
        return False
    kernel = kernel_name(cell)
    if x.dtype != cell.weight_h.dtype or x.shape[1] < (MIN_STEPS if kernel is None else MIN_STEPS_WITH_TORCH_KERNEL):
        return False
    has_padding = mask is not None and not bool(mask.all())
    return kernel != "lstm" or not _uses_onednn(x) or (torch.is_grad_enabled() and has_padding)


def _uses_onednn(x: Tensor) -> bool:
    """Return whether torch computes an unpadded LSTM with oneDNN, which is as fast as the CPU allows."""
    return x.dtype == torch.float32 and torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)


def _applies_on_gpu(cell: Cell, x: Tensor, mask: Tensor | None) -> bool:
    """Return whether this implementation is used on a GPU.

    Unlike cuDNN, this implementation reads no lengths on the CPU, so it never synchronizes the device.
    """
    if not torch.is_autocast_enabled("cuda") and x.dtype != cell.weight_h.dtype:
        return False
    if steps_name(cell) in triton_steps.STEPS and has_triton():
        return x.shape[1] > 1 or mask is not None
    if cell.weight_h.dtype not in FULL_PRECISION:
        return False
    must_not_synchronize = torch.is_grad_enabled() or torch.cuda.is_current_stream_capturing()
    return x.shape[1] >= MIN_STEPS if kernel_name(cell) is None else mask is not None and must_not_synchronize


def run(cell: Cell, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
    """Return the outputs (B, T, H) and the state after the last real step of each row."""
    name = steps_name(cell)
    assert name is not None
    steps, state_dtype = select_steps(name, x, state["h"]), cell.weight_h.dtype
    is_autocast = isinstance(steps, triton_steps.TritonResetSteps) and torch.is_autocast_enabled("cuda")
    product_dtype = torch.get_autocast_dtype("cuda") if is_autocast else state_dtype
    padding = None if mask is None else find_padding(mask)
    x = zero_padding(x, None if padding is None else mask).transpose(0, 1)  # (T, B, D)
    x, initial = cell.project(x), [state[name].to(state_dtype) for name in cell.state_names]
    with torch.autocast(x.device.type, enabled=False):
        arguments = [x.to(product_dtype), cell.weight_x.to(product_dtype), steps.bias(cell).to(product_dtype), *initial]
        arguments += [weight.to(product_dtype) for weight in steps.weights(cell)]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in arguments):
            outputs, *last = WholeSequence.apply(steps, padding, len(initial), *arguments)
        else:
            inputs = StepInputs(initial, arguments[3 + len(initial) :], padding)
            outputs, *last = steps.forward(steps.project_inputs(*arguments[:3]), inputs)[0]
    outputs = outputs.transpose(0, 1)
    if kernel_name(cell) is None or padding is not None:  # dropout draws its random numbers in memory order
        outputs = outputs.contiguous()
    return outputs, dict(zip(cell.state_names, last, strict=True))


def select_steps(name: str, x: Tensor, h: Tensor) -> Steps:
    """Select the implementation of the steps for x (B, T, D) and a state (B, H)."""
    if x.device.type == "cuda" and name in triton_steps.STEPS and has_triton():
        return triton_steps.STEPS[name]
    return numba_steps.STEPS[name] if name in numba_steps.STEPS and numba_steps.applies(h, x.shape[1]) else STEPS[name]


class WholeSequence(torch.autograd.Function):
    """`Steps` as one autograd function. Only the plain loop supports second derivatives; this class raises an error."""

    @staticmethod
    def forward(context: Any, steps: Steps, padding: Padding | None, states: int, *arguments: Tensor) -> Any:
        x, weight_x, bias, *rest = arguments
        x = x.contiguous()
        (outputs, *last), saved = steps.forward(
            steps.project_inputs(x, weight_x, bias), StepInputs(rest[:states], rest[states:], padding)
        )
        context.steps, context.padding, context.names, context.states = steps, padding, tuple(saved), states
        context.save_for_backward(*saved.values(), x, weight_x, *rest)
        return outputs, *last

    @staticmethod
    def backward(context: Any, d_outputs: Tensor, *d_last: Tensor) -> Any:
        refuse_double_backward()
        steps, names, tensors = context.steps, context.names, context.saved_tensors
        saved, (x, weight_x, *rest) = dict(zip(names, tensors, strict=False)), tensors[len(names) :]
        inputs = StepInputs(rest[: context.states], rest[context.states :], context.padding)
        dy = d_outputs if inputs.padding is None else d_outputs.masked_fill(inputs.padding.mask, 0)
        d_state = [
            dy[-1] + d_last[0],
            *(gradient.clone() for gradient in d_last[1:]),
        ]  # overwritten by `steps.backward`
        needs_x, needs_weight, needs_bias = context.needs_input_grad[3:6]
        with torch.autocast(x.device.type, enabled=False):
            da, *gradients = steps.backward(saved, dy, d_state, inputs)
            return (
                *(None, None, None),
                steps.d_x(da, x, weight_x) if needs_x else None,
                steps.d_weight(da, x) if needs_weight else None,
                da.sum((0, 1)) if needs_bias else None,
                *gradients,
            )
