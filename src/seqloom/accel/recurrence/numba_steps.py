"""Complete sequences on the CPU, computed by the numba kernels of `numba_loops` in torch's threads.

The kernels require numba, MKL and GNU OpenMP. Without these libraries, or if the kernels are not faster (`applies`),
`steps` computes the same results. The products of the steps and of the inputs use oneDNN, which is fast for few rows,
or MKL if oneDNN does not support the CPU. All other products use MKL.
"""

import ctypes
import functools
import importlib
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from seqloom.accel.recurrence.steps import (
    SATURATED,
    ElmanSteps,
    GRUChoSteps,
    GRUSteps,
    LSTMSteps,
    MUT1Steps,
    MUT2Steps,
    MUT3Steps,
    Padding,
    ResetSteps,
    Saved,
    StepInputs,
    Steps,
    mask_outputs,
    recurrent_dw,
)
from seqloom.core.device import compile_cached, has_numba

MIN_STATE_ELEMENTS = 1 << 18  # with fewer elements of h over all steps, loading the kernels takes longer than they save
MIN_ROWS_PER_THREAD = 2
SYMBOLS = {
    "seqloom_thread_number": "omp_get_thread_num",
    "seqloom_thread_count": "omp_get_num_threads",
    "seqloom_set_threads": "MKL_Set_Num_Threads_Local",
    "seqloom_brgemm": "_ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb",  # at::native::cpublas::brgemm of floats
}


def applies(state: Tensor, steps: int) -> bool:
    """Return whether the kernels are used for a state (B, H): only in training, and only for large enough sequences."""
    return (
        torch.is_grad_enabled()
        and state.dtype == torch.float32
        and state.device.type == "cpu"
        and steps * state.numel() >= MIN_STATE_ELEMENTS
        and len(state) >= MIN_ROWS_PER_THREAD * torch.get_num_threads()
        and library() is not None
    )


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return torch's library if it exports the required symbols and numba works, else None."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if not torch.backends.mkl.is_available() or not path.is_file():
        return None
    torch_library = ctypes.CDLL(str(path))
    has_symbols = all(hasattr(torch_library, name) for name in (*SYMBOLS.values(), "GOMP_parallel"))
    return torch_library if has_symbols and has_numba() else None


@functools.cache
def loop_address(loop: str) -> int:
    """Return the address of a loop. The loop is compiled at its first use and cached on disk."""
    from numba import cfunc

    from seqloom.accel.recurrence.numba_loops import LOOPS, OPTIONS, SIGNATURE

    for symbol, name in SYMBOLS.items():
        importlib.import_module("llvmlite.binding").add_symbol(
            symbol, ctypes.cast(getattr(library(), name), ctypes.c_void_p).value
        )
    kernel = compile_cached(cfunc, SIGNATURE, **OPTIONS)(LOOPS[loop])
    return int(kernel.address or 0)


def run(loop: str, sizes: tuple[int, ...], *tensors: Tensor) -> None:
    """Run a loop in all threads, on contiguous tensors."""
    numbers = (ctypes.c_float * len(sizes))(*sizes)
    assert all(tensor.is_contiguous() for tensor in tensors)
    addresses = ctypes.addressof(numbers), *(tensor.data_ptr() for tensor in tensors)
    args = (ctypes.c_void_p * len(addresses))(*addresses)
    torch_library = library()
    assert torch_library is not None
    torch_library.GOMP_parallel(ctypes.c_void_p(loop_address(loop)), args, torch.get_num_threads(), 0)


def transpose(weight: Tensor) -> Tensor:
    """Return a contiguous Wᵀ."""
    return weight.t().contiguous()


def padding_flags(h: Tensor, padding: Padding | None) -> Tensor:
    """Return flags (T, B), which are 1 at padded positions."""
    flags = None if padding is None else padding.mask.squeeze(2)
    return h.new_zeros(h.shape[:2]) if flags is None else flags.to(h.dtype).contiguous()


class NumbaSteps(Steps):
    direct_input: ClassVar[int] = 0  # input that is added without a matrix: 0 (none), DIRECT_X or DIRECT_TANH_X

    def project_inputs(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        a = x.new_empty(*x.shape[:2], len(bias))
        sizes = *x.shape, self.direct_input, len(weight), len(bias)
        run("project_inputs", sizes, x.contiguous(), transpose(weight), bias.contiguous(), a)
        return a

    def d_x(self, da: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        dx = torch.empty_like(x)
        sizes = *x.shape, self.direct_input, len(weight), da.shape[2]
        run("project_inputs_backward", sizes, x, weight.contiguous(), da, dx)
        return dx


class NumbaElman(NumbaSteps, ElmanSteps):
    @property
    def kind(self) -> int:
        return ("tanh", "relu", "sigmoid").index(self.activation)

    def forward(self, a: Tensor, inputs: StepInputs) -> tuple[tuple[Tensor, ...], Saved]:
        (initial,), (w,), padding = inputs
        run("elman_forward", (*a.shape, self.kind), initial.contiguous(), transpose(w), a, padding_flags(a, padding))
        return (mask_outputs(a, padding), a[-1].clone()), {"h": a}

    def backward(self, saved: Saved, dy: Tensor, d_last: list[Tensor], inputs: StepInputs) -> tuple[Tensor, ...]:
        (initial,), (w,), padding = inputs
        h, dh, da = saved["h"], d_last[0].contiguous(), torch.empty_like(saved["h"])
        tensors = w.contiguous(), padding_flags(h, padding), h, dy.contiguous(), dh, da
        run("elman_backward", (*h.shape, self.kind), *tensors)
        return da, dh, recurrent_dw(da, initial, h)


class NumbaLSTM(NumbaSteps, LSTMSteps):
    def forward(self, a: Tensor, inputs: StepInputs) -> tuple[tuple[Tensor, ...], Saved]:
        initial, (w,), padding = inputs
        hidden = a.shape[2] // 4
        if padding is not None:
            a[:, :, :hidden].masked_fill_(padding.mask, -SATURATED)
            a[:, :, hidden : 2 * hidden].masked_fill_(padding.mask, SATURATED)
        h, c, tanh_c = (a.new_empty(*a.shape[:2], hidden) for _ in range(3))
        initial_tensors = (tensor.contiguous() for tensor in initial)
        run("lstm_forward", (*h.shape, 0), *initial_tensors, transpose(w), a, padding_flags(a, padding), h, c, tanh_c)
        return (mask_outputs(h, padding), h[-1].clone(), c[-1].clone()), {"gates": a, "h": h, "c": c, "tanh": tanh_c}

    def backward(self, saved: Saved, dy: Tensor, d_last: list[Tensor], inputs: StepInputs) -> tuple[Tensor, ...]:
        (h_0, c_0), (w,), padding = inputs
        gates, h, c, tanh_c = (saved[name] for name in ("gates", "h", "c", "tanh"))
        (dh, dc), da = (gradient.contiguous() for gradient in d_last), torch.empty_like(gates)
        tensors = c_0.contiguous(), w.contiguous(), padding_flags(h, padding)
        run("lstm_backward", (*h.shape, 0), *tensors, gates, c, tanh_c, dy.contiguous(), dh, dc, da)
        return da, dh, dc, recurrent_dw(da, h_0, h)


class NumbaGRU(NumbaSteps, GRUSteps):
    def forward(self, a: Tensor, inputs: StepInputs) -> tuple[tuple[Tensor, ...], Saved]:
        (initial,), (w, bias), padding = inputs
        hidden = initial.shape[1]
        if padding is not None:
            a[:, :, hidden : 2 * hidden].masked_fill_(padding.mask, SATURATED)
        h, inner = (a.new_empty(*a.shape[:2], hidden) for _ in range(2))
        weights = transpose(w[: 2 * hidden]), transpose(w[2 * hidden :]), bias.contiguous()
        run("gru_forward", (*h.shape, 0), initial.contiguous(), *weights, a, inner, h)
        return (mask_outputs(h, padding), h[-1].clone()), {"gates": a, "inner": inner, "h": h}

    def backward(self, saved: Saved, dy: Tensor, d_last: list[Tensor], inputs: StepInputs) -> tuple[Tensor, ...]:
        (initial,), (w, _), _ = inputs
        gates, inner, h, dh = saved["gates"], saved["inner"], saved["h"], d_last[0].contiguous()
        hidden, da, da_inner = h.shape[2], torch.empty_like(gates), torch.empty_like(h)
        weights = initial.contiguous(), w[: 2 * hidden].contiguous(), w[2 * hidden :].contiguous()
        run("gru_backward", (*h.shape, 0), *weights, gates, inner, h, dy.contiguous(), dh, da, da_inner)
        return da, dh, *self.weight_gradient(da, da_inner, initial, h)


class NumbaReset(NumbaSteps, ResetSteps):
    """`ResetSteps` with numba kernels.

    Outputs and their gradients have the memory layout (B, T, H), as in all cells without a torch kernel.
    """

    @property
    def kind(self) -> int:
        return self.gates_candidate + {None: 0, "h": 2, "tanh": 4}[self.z_input]

    def forward(self, a: Tensor, inputs: StepInputs) -> tuple[tuple[Tensor, ...], Saved]:
        (initial,), (w,), padding = inputs
        (steps, batch), hidden = a.shape[:2], initial.shape[1]
        if padding is not None:
            a[:, :, hidden : 2 * hidden].masked_fill_(padding.mask, -SATURATED if self.gates_candidate else SATURATED)
        h, reset = (a.new_empty(steps, batch, hidden) for _ in range(2))
        tanh_h = torch.empty_like(h) if self.z_input == "tanh" else h
        outputs = h.new_empty_strided(h.shape, (hidden, steps * hidden, 1))
        weights = [transpose(block) for block in self.blocks(w)]
        tensors = initial.contiguous(), *weights, a, reset, h, tanh_h, outputs.transpose(0, 1)
        run("reset_forward", (*h.shape, self.kind), *tensors)
        return (mask_outputs(outputs, padding), h[-1].clone()), {"gates": a, "reset": reset, "h": h, "tanh": tanh_h}

    def backward(self, saved: Saved, dy: Tensor, d_last: list[Tensor], inputs: StepInputs) -> tuple[Tensor, ...]:
        (initial,), (w,), _ = inputs
        gates, h, dh, tanh_h = saved["gates"], saved["h"], d_last[0].contiguous(), saved["tanh"]
        da, scratch, dy = torch.empty_like(gates), torch.empty_like(dh), dy.transpose(0, 1).contiguous()
        tensors = initial.contiguous(), *self.blocks(w.contiguous()), gates, h, tanh_h, dy, dh, da, scratch
        run("reset_backward", (*h.shape, self.kind), *tensors)
        return da, dh, self.weight_gradient(da, saved, initial)


class NumbaGRUCho(NumbaReset, GRUChoSteps): ...


class NumbaMUT1(NumbaReset, MUT1Steps):
    direct_input = 2  # DIRECT_TANH_X


class NumbaMUT2(NumbaReset, MUT2Steps):
    direct_input = 1  # DIRECT_X


class NumbaMUT3(NumbaReset, MUT3Steps): ...


STEPS: dict[str, Steps] = {
    **{f"elman-{activation}": NumbaElman(activation) for activation in ("tanh", "relu", "sigmoid")},
    "lstm": NumbaLSTM(),
    "gru": NumbaGRU(),
    "gru-cho": NumbaGRUCho(),
    "mut1": NumbaMUT1(),
    "mut2": NumbaMUT2(),
    "mut3": NumbaMUT3(),
}
