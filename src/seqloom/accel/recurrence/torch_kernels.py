"""`run_cell` by torch's fused recurrent kernels: oneDNN, cuDNN and torch's own."""

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

_laying = threading.Lock()


def kernel_name(cell: Cell) -> str | None:
    """The kernel that computes the equations of this cell, if there is one. A subclass may have other equations."""
    if type(cell) is Elman:
        return {"tanh": "rnn_tanh", "relu": "rnn_relu"}.get(cell.activation)
    return {LSTM: "lstm", GRU: "gru"}.get(type(cell))


def applies(cell: Cell, x: Tensor, state: State, mask: Tensor | None = None) -> bool:
    """Whether a kernel exists for this cell and for inputs (B, T, D) like these, and pays."""
    if kernel_name(cell) is None or x.numel() == 0:
        return False
    if x.is_cuda:
        return True
    # On the CPU preparing the kernel takes longer than a single step does.
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and x.shape[1] > 1


def run(cell: Cell, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
    """Return the outputs (B, T, H) and the state after the last real step of each row."""
    packing = None if mask is None else pack(mask)
    return _run_whole(cell, x, state) if packing is None else _run_packed(cell, x, state, packing)


def _run_whole(cell: Cell, x: Tensor, state: State) -> tuple[Tensor, State]:
    first = {name: leaf.unsqueeze(0).contiguous() for name, leaf in state.items()}  # cuDNN asks for it
    outputs, *last = _call(cell, (x,), first, (True,))
    return outputs, _named(cell, last)


@dataclass(frozen=True)
class Packing:
    """The real steps of a batch in the order the kernels want: first steps of all rows, second steps, and so on.

    Skipping a masked step and freezing the state there are the same thing, so it does not matter
    where in a row the padding stands.
    """

    rows: Tensor  # rows with at least one real step, the longest first
    places: Tensor  # of each real step in the flattened (B·T) batch
    sizes: Tensor  # on the CPU: how many rows are still running at each step


def pack(mask: Tensor) -> Packing | None:
    """How to skip the masked steps of (B, T), or None where there are none. Waits for the device: sizes are needed."""
    steps = mask.shape[1]
    lengths = mask.sum(dim=1)  # (B,)
    order = lengths.argsort(descending=True, stable=True)
    times = (~mask[order]).to(torch.uint8).argsort(dim=1, stable=True)  # real times first, in their order
    running = torch.arange(steps, device=mask.device) < lengths[order].unsqueeze(1)  # (B, T)
    sizes = running.sum(dim=0).cpu()
    if bool((sizes == len(mask)).all()):
        return None
    step, row = running.t().nonzero(as_tuple=True)  # time-major, as the kernels want it
    return Packing(order[: int(sizes[0])], order[row] * steps + times[row, step], sizes[sizes > 0])


def _run_packed(cell: Cell, x: Tensor, state: State, packing: Packing) -> tuple[Tensor, State]:
    rows, steps, _ = x.shape
    if len(packing.rows) == 0:  # zeros, whose gradients are zeros
        nothing = sum(part.flatten()[:0].sum() for part in (x, *cell.parameters()))
        return x.new_zeros(rows, steps, cell.hidden) + nothing, state
    real = x.flatten(0, 1).index_select(0, packing.places)
    first = {name: leaf.index_select(0, packing.rows).unsqueeze(0) for name, leaf in state.items()}
    values, *last = _call(cell, (real, packing.sizes), first, ())
    outputs = values.new_zeros(rows * steps, cell.hidden).index_copy(0, packing.places, values)
    after = _named(cell, last)
    state = {name: state[name].to(leaf.dtype).index_copy(0, packing.rows, leaf) for name, leaf in after.items()}
    return outputs.unflatten(0, (rows, steps)), state


def _call(cell: Cell, data: tuple[Tensor, ...], first: State, layout: tuple[bool, ...]) -> tuple[Tensor, ...]:
    """One layer, one direction, no dropout. Only `train` makes cuDNN keep what a backward pass needs."""
    name = kernel_name(cell)
    assert name is not None and cell.bias_h is not None
    weights: list[Tensor] = [cell.weight_x, cell.weight_h, cell.bias_x, cell.bias_h]
    if cell.weight_x.is_cuda:
        weights = _in_one_piece(cell, weights)
    hidden = tuple(first[name] for name in cell.state_names)
    train = torch.is_grad_enabled()
    arguments = (hidden if len(hidden) > 1 else hidden[0], weights, True, 1, 0.0, train, False, *layout)
    return KERNELS[name](*data, *arguments)


def _named(cell: Cell, last: list[Tensor]) -> State:
    return {name: leaf.squeeze(0) for name, leaf in zip(cell.state_names, last, strict=True)}


def _in_one_piece(cell: Cell, weights: list[Tensor]) -> list[Tensor]:
    """The weights in the one piece of memory cuDNN wants.

    Parameters are laid there once and stay: looking every time costs a microsecond and needs no
    hook, and a module moved, copied or loaded is put right by itself. Weights computed for this
    call (by weight dropout) are copied there.
    """
    if _is_one_piece(weights) or not _cudnn_takes(weights):
        return weights

    def lay(tensors: list[Tensor]) -> None:
        with torch.no_grad(), torch.cuda.device_of(tensors[0]):
            torch._cudnn_rnn_flatten_weight(
                tensors, len(tensors), cell.inputs, CUDNN_MODES[str(kernel_name(cell))], cell.hidden, 0, 1, True, False
            )

    if not all(isinstance(weight, torch.nn.Parameter) for weight in weights):
        return list(OnePiece.apply(lay, *weights))
    with _laying:  # one thread lays them for all
        if not _is_one_piece(weights):
            lay(weights)
    return weights


def _is_one_piece(weights: list[Tensor]) -> bool:
    """Each at another place of it: one that another thread is just moving there is still at the place it had."""
    places = {(weight.untyped_storage().data_ptr(), weight.storage_offset()) for weight in weights}
    return len(places) == len(weights) and len({storage for storage, _ in places}) == 1


class OnePiece(torch.autograd.Function):
    """Copies of tensors, laid out by `lay`, which moves those it is given; gradients go to the tensors as they are."""

    @staticmethod
    def forward(context: Any, lay: Callable[[list[Tensor]], None], *tensors: Tensor) -> tuple[Tensor, ...]:
        copies = [tensor.clone() for tensor in tensors]
        lay(copies)
        return tuple(copies)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *gradients


def _cudnn_takes(weights: list[Tensor]) -> bool:
    return torch._use_cudnn_rnn_flatten_weight() and all(torch.backends.cudnn.is_acceptable(w) for w in weights)
