"""Whole sequences on the CPU with numba kernels: `seqloom.accel.recurrence.numba_loops`, run by torch's own threads.

They need numba, MKL and GNU OpenMP, and run where they pay (`applies`); `steps` computes the same
everywhere else. The products of the steps and of the inputs are oneDNN's, which is fast for few
rows too (MKL's where oneDNN has none for the processor); all other products are MKL's.
"""

import ctypes
import functools
import importlib
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from seqloom.accel.recurrence.steps import (
    SURE,
    ElmanSteps,
    Given,
    GRUChoSteps,
    GRUSteps,
    Kept,
    LSTMSteps,
    MUT1Steps,
    MUT2Steps,
    MUT3Steps,
    Padding,
    ResetSteps,
    Steps,
    of_products,
    outputs_of,
)
from seqloom.core.device import compile_cached, has_numba

WORTH = 1 << 18  # numbers in h over all steps: below, it is not worth loading
FEWEST_ROWS = 2  # of a thread
NAMES = {
    "seqloom_thread_number": "omp_get_thread_num",
    "seqloom_thread_count": "omp_get_num_threads",
    "seqloom_set_threads": "MKL_Set_Num_Threads_Local",
    "seqloom_brgemm": "_ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb",  # at::native::cpublas::brgemm of floats
}


def applies(state: Tensor, steps: int) -> bool:
    """Whether so many steps of a state (B, H) like this are computed so: in training, where loading it is worth it."""
    return (
        torch.is_grad_enabled()
        and state.dtype == torch.float32
        and state.device.type == "cpu"
        and steps * state.numel() >= WORTH
        and len(state) >= FEWEST_ROWS * torch.get_num_threads()
        and library() is not None
    )


@functools.cache
def library() -> ctypes.CDLL | None:
    """torch's own library, if it has within what the loops ask for; None where it has not, or numba does not work."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if not torch.backends.mkl.is_available() or not path.is_file():
        return None
    found = ctypes.CDLL(str(path))
    there = all(hasattr(found, name) for name in (*NAMES.values(), "GOMP_parallel"))
    return found if there and has_numba() else None


@functools.cache
def address(loop: str) -> int:
    """Of a loop, which is compiled at its first use and kept for the next process."""
    from numba import cfunc

    from seqloom.accel.recurrence.numba_loops import LOOPS, OPTIONS, SIGNATURE

    for symbol, known in NAMES.items():
        importlib.import_module("llvmlite.binding").add_symbol(
            symbol, ctypes.cast(getattr(library(), known), ctypes.c_void_p).value
        )
    made = compile_cached(cfunc, SIGNATURE, **OPTIONS)(LOOPS[loop])
    return int(made.address or 0)


def run(loop: str, sizes: tuple[int, ...], *tensors: Tensor) -> None:
    """A loop of all threads, on tensors as they lie in memory."""
    numbers = (ctypes.c_float * len(sizes))(*sizes)
    assert all(one.is_contiguous() for one in tensors)
    given = (ctypes.c_void_p * (1 + len(tensors)))(ctypes.addressof(numbers), *(one.data_ptr() for one in tensors))
    found = library()
    assert found is not None
    found.GOMP_parallel(ctypes.c_void_p(address(loop)), given, torch.get_num_threads(), 0)


def turned(weight: Tensor) -> Tensor:
    """Wᵀ as it lies in memory."""
    return weight.t().contiguous()


def standing(h: Tensor, padding: Padding | None) -> Tensor:
    """(T, B) 1 where a row stands still."""
    there = None if padding is None else padding.there.squeeze(2)
    return h.new_zeros(h.shape[:2]) if there is None else there.to(h.dtype).contiguous()


class Compiled(Steps):
    beside: ClassVar[int] = 0  # what x gives without a matrix: `X`, `TANH_X`

    def inputs(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        a = x.new_empty(*x.shape[:2], len(bias))
        sizes = *x.shape, self.beside, len(weight), len(bias)
        run("inputs", sizes, x.contiguous(), turned(weight), bias.contiguous(), a)
        return a

    def d_x(self, da: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        dx = torch.empty_like(x)
        run("inputs_backward", (*x.shape, self.beside, len(weight), da.shape[2]), x, weight.contiguous(), da, dx)
        return dx


class CompiledElman(Compiled, ElmanSteps):
    @property
    def kind(self) -> int:
        return ("tanh", "relu", "sigmoid").index(self.activation)

    def forward(self, a: Tensor, given: Given) -> tuple[tuple[Tensor, ...], Kept]:
        (first,), (w,), padding = given
        run("elman_forward", (*a.shape, self.kind), first.contiguous(), turned(w), a, standing(a, padding))
        return (outputs_of(a, padding), a[-1].clone()), {"h": a}

    def backward(self, kept: Kept, dy: Tensor, d_last: list[Tensor], given: Given) -> tuple[Tensor, ...]:
        (first,), (w,), padding = given
        h, dh, da = kept["h"], d_last[0].contiguous(), torch.empty_like(kept["h"])
        run("elman_backward", (*h.shape, self.kind), w.contiguous(), standing(h, padding), h, dy.contiguous(), dh, da)
        return da, dh, of_products(da, first, h)


class CompiledLSTM(Compiled, LSTMSteps):
    def forward(self, a: Tensor, given: Given) -> tuple[tuple[Tensor, ...], Kept]:
        first, (w,), padding = given
        hidden = a.shape[2] // 4
        if padding is not None:
            a[:, :, :hidden].masked_fill_(padding.there, -SURE)
            a[:, :, hidden : 2 * hidden].masked_fill_(padding.there, SURE)
        h, c, tanh_c = (a.new_empty(*a.shape[:2], hidden) for _ in range(3))
        before = (one.contiguous() for one in first)
        run("lstm_forward", (*h.shape, 0), *before, turned(w), a, standing(a, padding), h, c, tanh_c)
        return (outputs_of(h, padding), h[-1].clone(), c[-1].clone()), {"gates": a, "h": h, "c": c, "tanh": tanh_c}

    def backward(self, kept: Kept, dy: Tensor, d_last: list[Tensor], given: Given) -> tuple[Tensor, ...]:
        (h_0, c_0), (w,), padding = given
        gates, h, c, tanh_c = (kept[name] for name in ("gates", "h", "c", "tanh"))
        (dh, dc), da = (one.contiguous() for one in d_last), torch.empty_like(gates)
        weights = c_0.contiguous(), w.contiguous(), standing(h, padding)
        run("lstm_backward", (*h.shape, 0), *weights, gates, c, tanh_c, dy.contiguous(), dh, dc, da)
        return da, dh, dc, of_products(da, h_0, h)


class CompiledGRU(Compiled, GRUSteps):
    def forward(self, a: Tensor, given: Given) -> tuple[tuple[Tensor, ...], Kept]:
        (first,), (w, bias), padding = given
        hidden = first.shape[1]
        if padding is not None:
            a[:, :, hidden : 2 * hidden].masked_fill_(padding.there, SURE)
        h, inner = (a.new_empty(*a.shape[:2], hidden) for _ in range(2))
        weights = turned(w[: 2 * hidden]), turned(w[2 * hidden :]), bias.contiguous()
        run("gru_forward", (*h.shape, 0), first.contiguous(), *weights, a, inner, h)
        return (outputs_of(h, padding), h[-1].clone()), {"gates": a, "inner": inner, "h": h}

    def backward(self, kept: Kept, dy: Tensor, d_last: list[Tensor], given: Given) -> tuple[Tensor, ...]:
        (first,), (w, _), _ = given
        gates, inner, h, dh = kept["gates"], kept["inner"], kept["h"], d_last[0].contiguous()
        hidden, da, da_inner = h.shape[2], torch.empty_like(gates), torch.empty_like(h)
        weights = first.contiguous(), w[: 2 * hidden].contiguous(), w[2 * hidden :].contiguous()
        run("gru_backward", (*h.shape, 0), *weights, gates, inner, h, dy.contiguous(), dh, da, da_inner)
        return da, dh, *self.of_weights(da, da_inner, first, h)


class CompiledReset(Compiled, ResetSteps):
    """Outputs and their gradients lie (B, T, H), as those of cells without a kernel do everywhere."""

    @property
    def kind(self) -> int:
        return self.takes + {None: 0, "h": 2, "tanh": 4}[self.looks]

    def forward(self, a: Tensor, given: Given) -> tuple[tuple[Tensor, ...], Kept]:
        (first,), (w,), padding = given
        (steps, rows), hidden = a.shape[:2], first.shape[1]
        if padding is not None:
            a[:, :, hidden : 2 * hidden].masked_fill_(padding.there, -SURE if self.takes else SURE)
        h, reset = (a.new_empty(steps, rows, hidden) for _ in range(2))
        tanh_h = torch.empty_like(h) if self.looks == "tanh" else h
        outputs = h.new_empty_strided(h.shape, (hidden, steps * hidden, 1))
        weights = [turned(block) for block in self.blocks(w)]
        tensors = first.contiguous(), *weights, a, reset, h, tanh_h, outputs.transpose(0, 1)
        run("reset_forward", (*h.shape, self.kind), *tensors)
        return (outputs_of(outputs, padding), h[-1].clone()), {"gates": a, "reset": reset, "h": h, "tanh": tanh_h}

    def backward(self, kept: Kept, dy: Tensor, d_last: list[Tensor], given: Given) -> tuple[Tensor, ...]:
        (first,), (w,), _ = given
        gates, h, dh, tanh_h = kept["gates"], kept["h"], d_last[0].contiguous(), kept["tanh"]
        da, spare, dy = torch.empty_like(gates), torch.empty_like(dh), dy.transpose(0, 1).contiguous()
        tensors = first.contiguous(), *self.blocks(w.contiguous()), gates, h, tanh_h, dy, dh, da, spare
        run("reset_backward", (*h.shape, self.kind), *tensors)
        return da, dh, self.of_weights(da, kept, first)


class CompiledGRUCho(CompiledReset, GRUChoSteps): ...


class CompiledMUT1(CompiledReset, MUT1Steps):
    beside = 2  # TANH_X


class CompiledMUT2(CompiledReset, MUT2Steps):
    beside = 1  # X


class CompiledMUT3(CompiledReset, MUT3Steps): ...


STEPS: dict[str, Steps] = {
    **{f"elman-{activation}": CompiledElman(activation) for activation in ("tanh", "relu", "sigmoid")},
    "lstm": CompiledLSTM(),
    "gru": CompiledGRU(),
    "gru-cho": CompiledGRUCho(),
    "mut1": CompiledMUT1(),
    "mut2": CompiledMUT2(),
    "mut3": CompiledMUT3(),
}
