"""Triton kernels that run recurrent cells over whole sequences on a GPU.

The cells apply the reset gate before the matrix product; cuDNN has no kernel for these cells. In the forward and the
backward pass, a step has two matrix products (three if z reads tanh h) and two kernels. The steps do not synchronize
the device, so CUDA graphs can capture them. Products use the dtype of x and the weights; the state and its gradient
keep their own dtype.

`states` (T + 1, B, H) begins with the initial state, so `states[t]` is the state before step t.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from seqloom.accel.recurrence.steps import (
    SATURATED,
    GRUChoSteps,
    MUT1Steps,
    MUT2Steps,
    MUT3Steps,
    ResetSteps,
    Saved,
    StepInputs,
    Steps,
    mask_outputs,
)


class TritonResetSteps(ResetSteps):
    def forward(self, a: Tensor, inputs: StepInputs) -> tuple[tuple[Tensor, ...], Saved]:
        (initial,), (w,), padding = inputs
        (steps, batch), hidden = a.shape[:2], initial.shape[1]
        if padding is not None:
            a[:, :, hidden : 2 * hidden].masked_fill_(padding.mask, -SATURATED if self.gates_candidate else SATURATED)
        states = initial.new_empty(steps + 1, batch, hidden)
        states[0] = initial
        states_cast = states if states.dtype == a.dtype else a.new_empty(states.shape)  # dtype of products
        states_cast[0] = initial
        tanh_h = states_cast
        if self.z_input == "tanh":
            tanh_h = torch.empty_like(states_cast)
            tanh_h[0] = initial.tanh()
        reset = a.new_empty(steps, batch, hidden)
        kernels = Kernels(self, a, states)
        saved = {"gates": a, "reset": reset, "states": states, "states_cast": states_cast, "tanh": tanh_h}
        w_joint, w_z, w_c = (block.t() for block in self.blocks(w))
        gates_product, z_product = a.new_empty(batch, w_joint.shape[1]), a.new_empty(batch, hidden)
        steps_in = zip(states_cast.unbind(), tanh_h.unbind(), reset.unbind(), strict=False)
        with torch.cuda.device_of(a):
            for t, (previous, tanh_previous, reset_t) in enumerate(steps_in):
                torch.mm(previous, w_joint, out=gates_product)
                if self.z_input == "tanh":
                    torch.mm(tanh_previous, w_z, out=z_product)
                kernels.gates(t, a, gates_product, z_product, states, reset)
                torch.mm(reset_t, w_c, out=z_product)
                kernels.mix(t, a, z_product, states, states_cast, tanh_h)
        return (mask_outputs(states[1:], padding), states[-1].clone()), saved

    def backward(self, saved: Saved, dy: Tensor, d_last: list[Tensor], inputs: StepInputs) -> tuple[Tensor, ...]:
        _, (w,), _ = inputs
        gates, states, states_cast, tanh_h = (saved[name] for name in ("gates", "states", "states_cast", "tanh"))
        batch, hidden = states.shape[1:]
        w_joint, w_z, w_c = self.blocks(w)
        dh, da = d_last[0].contiguous(), torch.empty_like(gates)
        d_joint, d_z, d_c = (da[:, :, columns].unbind() for columns in self.columns(hidden))
        d_gates, d_reset_product, d_tanh_product = (gates.new_empty(batch, hidden) for _ in range(3))
        kernels = Kernels(self, gates, states)
        with torch.cuda.device_of(gates):
            for t in range(len(gates) - 1, -1, -1):
                kernels.mix_backward(t, gates, states, dy, d_gates, dh, da)
                torch.mm(d_c[t], w_c, out=d_reset_product)
                if self.z_input == "tanh":
                    torch.mm(d_z[t], w_z, out=d_tanh_product)
                kernels.reset_backward(t, gates, states, tanh_h, d_reset_product, d_tanh_product, dh, da)
                torch.mm(d_joint[t], w_joint, out=d_gates)
        multiplicands = {"h": states_cast[1:], "reset": saved["reset"], "tanh": tanh_h[:-1]}
        return da, dh + d_gates, self.weight_gradient(da, multiplicands, states_cast[0])

    def columns(self, hidden: int) -> tuple[slice, slice, slice]:
        """Return the columns of `da` for the blocks of W."""
        joint = (2 if self.z_input == "h" else 1) * hidden
        return slice(0, joint), slice(hidden, 2 * hidden), slice(2 * hidden, 3 * hidden)


class Kernels:
    """The kernels of `triton_kernels` over one sequence.

    Triton inspects the arguments of every call, and this inspection takes longer than the kernel. All steps use the
    same tensors, so only the arguments of the first call are inspected.
    """

    def __init__(self, steps: ResetSteps, a: Tensor, states: Tensor) -> None:
        from seqloom.accel.recurrence import triton_kernels

        self.module, self.last = triton_kernels, len(a) - 1
        self.hidden, self.size = states.shape[2], states[0].numel()
        self.grid = (-(-self.size // triton_kernels.BLOCK), 1, 1)
        z_input = {None: 0, "h": 1, "tanh": 2}[steps.z_input]
        self.constants = (int(steps.gates_candidate), z_input, int(states.dtype == torch.float64), triton_kernels.BLOCK)
        self.compiled: dict[str, Callable[..., Any]] = {}

    def gates(self, t: int, a: Tensor, gates_product: Tensor, z_product: Tensor, states: Tensor, reset: Tensor) -> None:
        self._run("gates", t, a, gates_product, z_product, states, reset)

    def mix(self, t: int, a: Tensor, c_product: Tensor, states: Tensor, states_cast: Tensor, tanh_h: Tensor) -> None:
        self._run("mix", t, a, c_product, states, states_cast, tanh_h)

    def mix_backward(
        self, t: int, a: Tensor, states: Tensor, dy: Tensor, d_gates: Tensor, dh: Tensor, da: Tensor
    ) -> None:
        self._run("mix_backward", t, self.last, a, states, dy, *dy.stride(), d_gates, dh, da)

    def reset_backward(
        self,
        t: int,
        a: Tensor,
        states: Tensor,
        tanh_h: Tensor,
        d_reset_product: Tensor,
        d_tanh_product: Tensor,
        dh: Tensor,
        da: Tensor,
    ) -> None:
        self._run("reset_backward", t, a, states, tanh_h, d_reset_product, d_tanh_product, dh, da)

    def _run(self, name: str, *arguments: Any) -> None:
        if name in self.compiled:
            self.compiled[name](*arguments, self.hidden, self.size, *self.constants)
        else:
            kernel = getattr(self.module, name)[self.grid](*arguments, self.hidden, self.size, *self.constants)
            if kernel is not None:  # Triton's interpreter returns None
                self.compiled[name] = kernel[self.grid]


class TritonGRUCho(TritonResetSteps, GRUChoSteps): ...


class TritonMUT1(TritonResetSteps, MUT1Steps): ...


class TritonMUT2(TritonResetSteps, MUT2Steps): ...


class TritonMUT3(TritonResetSteps, MUT3Steps): ...


STEPS: dict[str, Steps] = {"gru-cho": TritonGRUCho(), "mut1": TritonMUT1(), "mut2": TritonMUT2(), "mut3": TritonMUT3()}
