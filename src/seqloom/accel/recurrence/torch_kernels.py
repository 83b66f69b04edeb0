"""`run_cell` with torch's fused recurrent kernels, from oneDNN, cuDNN and PyTorch."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqloom.nn.cells import GRU, LSTM, Cell, Elman, State

KERNELS: dict[str, Callable[..., Any]] = {
    "lstm": torch.lstm,
    "gru": torch.gru,
    "rnn_tanh": torch.rnn_tanh,
    "rnn_relu": torch.rnn_relu,
}
CUDNN_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}

_flatten_lock = threading.Lock()


def kernel_name(cell: Cell) -> str | None:
    """Return the name of a cell's kernel, or None. Subclasses have no kernel, because their equations may differ."""
    if type(cell) is Elman:
        return {"tanh": "rnn_tanh", "relu": "rnn_relu"}.get(cell.activation)
    return {LSTM: "lstm", GRU: "gru"}.get(type(cell))


def applies(cell: Cell, x: Tensor, state: State, mask: Tensor | None = None) -> bool:
    """Return whether a kernel supports the cell and inputs (B, T, D), and is faster."""
    if kernel_name(cell) is None or x.numel() == 0:
        return False
    if x.is_cuda:
        return True
    # On a CPU, preparing the kernel takes longer than a single step.
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and x.shape[1] > 1


def run(cell: Cell, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
    """Return the outputs (B, T, H) and the state after the last real step of each row."""
    packing = None if mask is None else pack(mask)
    return _run_unpadded(cell, x, state) if packing is None else _run_packed(cell, x, state, packing)


def _run_unpadded(cell: Cell, x: Tensor, state: State) -> tuple[Tensor, State]:
    initial = {name: leaf.unsqueeze(0).contiguous() for name, leaf in state.items()}  # required by cuDNN
    outputs, *last = _call_kernel(cell, (x,), initial, (True,))
    return outputs, _name_states(cell, last)


@dataclass(frozen=True)
class Packing:
    """The real steps of a batch in the order of the kernels: the first steps of all rows, the second steps, and so on.

    Skipping a masked step is the same as keeping its state, so padding can be anywhere in a row.
    """

    rows: Tensor  # rows with at least one real step, the longest first
    positions: Tensor  # positions of the real steps in the flattened (B·T) batch
    sizes: Tensor  # number of rows at each step, on the CPU


def pack(mask: Tensor) -> Packing | None:
    """Return the packing of a mask (B, T), or None if all steps are real. Reading the sizes synchronizes the device."""
    steps = mask.shape[1]
    lengths = mask.sum(dim=1)  # (B,)
    order = lengths.argsort(descending=True, stable=True)
    times = (~mask[order]).to(torch.uint8).argsort(dim=1, stable=True)  # real steps first, in order
    running = torch.arange(steps, device=mask.device) < lengths[order].unsqueeze(1)  # (B, T)
    sizes = running.sum(dim=0).cpu()
    if bool((sizes == len(mask)).all()):
        return None
    step, row = running.t().nonzero(as_tuple=True)  # time-major
    return Packing(order[: int(sizes[0])], order[row] * steps + times[row, step], sizes[sizes > 0])


def _run_packed(cell: Cell, x: Tensor, state: State, packing: Packing) -> tuple[Tensor, State]:
    batch, steps, _ = x.shape
    if len(packing.rows) == 0:  # return zeros with zero gradients
        zero = sum(part.flatten()[:0].sum() for part in (x, *cell.parameters()))
        return x.new_zeros(batch, steps, cell.hidden) + zero, state
    real = x.flatten(0, 1).index_select(0, packing.positions)
    initial = {name: leaf.index_select(0, packing.rows).unsqueeze(0) for name, leaf in state.items()}
    values, *last = _call_kernel(cell, (real, packing.sizes), initial, ())
    outputs = values.new_zeros(batch * steps, cell.hidden).index_copy(0, packing.positions, values)
    final = _name_states(cell, last)
    state = {name: state[name].to(leaf.dtype).index_copy(0, packing.rows, leaf) for name, leaf in final.items()}
    return outputs.unflatten(0, (batch, steps)), state


def _call_kernel(cell: Cell, data: tuple[Tensor, ...], initial: State, layout: tuple[bool, ...]) -> tuple[Tensor, ...]:
    """Call the kernel for one layer in one direction. `train` makes cuDNN save tensors for the backward pass."""
    name = kernel_name(cell)
    assert name is not None and cell.bias_h is not None
    weights: list[Tensor] = [cell.weight_x, cell.weight_h, cell.bias_x, cell.bias_h]
    if cell.weight_x.is_cuda:
        weights = _flatten_weights(cell, weights)
    hidden = tuple(initial[name] for name in cell.state_names)
    train = torch.is_grad_enabled()
    arguments = (hidden if len(hidden) > 1 else hidden[0], weights, True, 1, 0.0, train, False, *layout)
    return KERNELS[name](*data, *arguments)


def _name_states(cell: Cell, last: list[Tensor]) -> State:
    return {name: leaf.squeeze(0) for name, leaf in zip(cell.state_names, last, strict=True)}


def _flatten_weights(cell: Cell, weights: list[Tensor]) -> list[Tensor]:
    """Return the weights in one contiguous buffer, as cuDNN requires.

    Parameters are moved to the buffer once. The check in every call takes a microsecond and also detects modules that
    were moved, copied or loaded. Weights that were computed for this call (weight dropout) are copied.
    """
    if _are_flattened(weights) or not _cudnn_accepts(weights):
        return weights

    def flatten(tensors: list[Tensor]) -> None:
        with torch.no_grad(), torch.cuda.device_of(tensors[0]):
            torch._cudnn_rnn_flatten_weight(
                tensors, len(tensors), cell.inputs, CUDNN_MODES[str(kernel_name(cell))], cell.hidden, 0, 1, True, False
            )

    if not all(isinstance(weight, torch.nn.Parameter) for weight in weights):
        return list(FlattenedWeights.apply(flatten, *weights))
    with _flatten_lock:
        if not _are_flattened(weights):
            flatten(weights)
    return weights


def _are_flattened(weights: list[Tensor]) -> bool:
    """Return whether the weights share a storage at different offsets. Another thread may be moving the weights."""
    offsets = {(weight.untyped_storage().data_ptr(), weight.storage_offset()) for weight in weights}
    return len(offsets) == len(weights) and len({storage for storage, _ in offsets}) == 1


class FlattenedWeights(torch.autograd.Function):
    """Copies of tensors, flattened in place by `flatten`; gradients pass through unchanged."""

    @staticmethod
    def forward(context: Any, flatten: Callable[[list[Tensor]], None], *tensors: Tensor) -> tuple[Tensor, ...]:
        copies = [tensor.clone() for tensor in tensors]
        flatten(copies)
        return tuple(copies)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *gradients


def _cudnn_accepts(weights: list[Tensor]) -> bool:
    return torch._use_cudnn_rnn_flatten_weight() and all(torch.backends.cudnn.is_acceptable(w) for w in weights)
