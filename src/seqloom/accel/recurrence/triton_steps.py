"""Cells that reset before their matrix, over whole sequences on a GPU: what lies between products, in Triton.

No kernel of cuDNN's computes them. A step is two products (three where z looks at tanh h) and two
kernels, forward and back, and nothing waits for the device, so that a captured step of training can
hold them. Products are made in the precision of x and the weights, the state and its gradient are
kept in their own, and the tests hold all of it to the plain loop.

`states` (T + 1, B, H) has the first state before all others: that of step t is what step t − 1
left.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from seqloom.accel.recurrence.steps import (
    SURE,
    Given,
    GRUChoSteps,
    Kept,
    MUT1Steps,
    MUT2Steps,
    MUT3Steps,
    ResetSteps,
    Steps,
    outputs_of,
)


class GPUReset(ResetSteps):
    def forward(self, a: Tensor, given: Given) -> tuple[tuple[Tensor, ...], Kept]:
        (first,), (w,), padding = given
        (steps, rows), hidden = a.shape[:2], first.shape[1]
        if padding is not None:
            a[:, :, hidden : 2 * hidden].masked_fill_(padding.there, -SURE if self.takes else SURE)
        states = first.new_empty(steps + 1, rows, hidden)
        states[0] = first
        seen = states if states.dtype == a.dtype else a.new_empty(states.shape)  # by products
        seen[0] = first
        tanh_h = seen
        if self.looks == "tanh":
            tanh_h = torch.empty_like(seen)
            tanh_h[0] = first.tanh()
        reset = a.new_empty(steps, rows, hidden)
        kernels = Kernels(self, a, states)
        kept = {"gates": a, "reset": reset, "states": states, "seen": seen, "tanh": tanh_h}
        w_joint, w_z, w_c = (block.t() for block in self.blocks(w))
        for_gates, for_z = a.new_empty(rows, w_joint.shape[1]), a.new_empty(rows, hidden)
        each = zip(seen.unbind(), tanh_h.unbind(), reset.unbind(), strict=False)
        with torch.cuda.device_of(a):
            for t, (old, tanh_old, reset_t) in enumerate(each):
                torch.mm(old, w_joint, out=for_gates)
                if self.looks == "tanh":
                    torch.mm(tanh_old, w_z, out=for_z)
                kernels.gates(t, a, for_gates, for_z, states, reset)
                torch.mm(reset_t, w_c, out=for_z)
                kernels.mix(t, a, for_z, states, seen, tanh_h)
        return (outputs_of(states[1:], padding), states[-1].clone()), kept

    def backward(self, kept: Kept, dy: Tensor, d_last: list[Tensor], given: Given) -> tuple[Tensor, ...]:
        _, (w,), _ = given
        gates, states, seen, tanh_h = (kept[name] for name in ("gates", "states", "seen", "tanh"))
        rows, hidden = states.shape[1:]
        w_joint, w_z, w_c = self.blocks(w)
        dh, da = d_last[0].contiguous(), torch.empty_like(gates)
        d_joint, d_z, d_c = (da[:, :, part].unbind() for part in self.columns(hidden))
        by_gates, by_reset, by_tanh = (gates.new_empty(rows, hidden) for _ in range(3))
        kernels = Kernels(self, gates, states)
        with torch.cuda.device_of(gates):
            for t in range(len(gates) - 1, -1, -1):
                kernels.unmix(t, gates, states, dy, by_gates, dh, da)
                torch.mm(d_c[t], w_c, out=by_reset)
                if self.looks == "tanh":
                    torch.mm(d_z[t], w_z, out=by_tanh)
                kernels.unreset(t, gates, states, tanh_h, by_reset, by_tanh, dh, da)
                torch.mm(d_joint[t], w_joint, out=by_gates)
        multiplied = {"h": seen[1:], "reset": kept["reset"], "tanh": tanh_h[:-1]}
        return da, dh + by_gates, self.of_weights(da, multiplied, seen[0])

    def columns(self, hidden: int) -> tuple[slice, slice, slice]:
        """Those of `da` that belong to the blocks of W."""
        joint = (2 if self.looks == "h" else 1) * hidden
        return slice(0, joint), slice(hidden, 2 * hidden), slice(2 * hidden, 3 * hidden)


class Kernels:
    """The kernels of `triton_kernels` over one sequence.

    Triton looks at what it is given at every call, which takes it longer than the call. Here all
    steps are given the same tensors, so it looks at those of the first.
    """

    def __init__(self, steps: ResetSteps, a: Tensor, states: Tensor) -> None:
        from seqloom.accel.recurrence import triton_kernels

        self.module, self.last = triton_kernels, len(a) - 1
        self.hidden, self.numbers = states.shape[2], states[0].numel()
        self.grid = (-(-self.numbers // triton_kernels.BLOCK), 1, 1)
        looks = {None: 0, "h": 1, "tanh": 2}[steps.looks]
        self.kind = (int(steps.takes), looks, int(states.dtype == torch.float64), triton_kernels.BLOCK)
        self.ready: dict[str, Callable[..., Any]] = {}

    def gates(self, t: int, a: Tensor, for_gates: Tensor, for_z: Tensor, states: Tensor, reset: Tensor) -> None:
        self._run("gates", t, a, for_gates, for_z, states, reset)

    def mix(self, t: int, a: Tensor, for_c: Tensor, states: Tensor, seen: Tensor, tanh_h: Tensor) -> None:
        self._run("mix", t, a, for_c, states, seen, tanh_h)

    def unmix(self, t: int, a: Tensor, states: Tensor, dy: Tensor, by_gates: Tensor, dh: Tensor, da: Tensor) -> None:
        self._run("unmix", t, self.last, a, states, dy, *dy.stride(), by_gates, dh, da)

    def unreset(
        self,
        t: int,
        a: Tensor,
        states: Tensor,
        tanh_h: Tensor,
        by_reset: Tensor,
        by_tanh: Tensor,
        dh: Tensor,
        da: Tensor,
    ) -> None:
        self._run("unreset", t, a, states, tanh_h, by_reset, by_tanh, dh, da)

    def _run(self, name: str, *given: Any) -> None:
        if name in self.ready:
            self.ready[name](*given, self.hidden, self.numbers, *self.kind)
        else:
            kernel = getattr(self.module, name)[self.grid](*given, self.hidden, self.numbers, *self.kind)
            if kernel is not None:  # Triton's interpreter has none
                self.ready[name] = kernel[self.grid]


class GPUGRUCho(GPUReset, GRUChoSteps): ...


class GPUMUT1(GPUReset, MUT1Steps): ...


class GPUMUT2(GPUReset, MUT2Steps): ...


class GPUMUT3(GPUReset, MUT3Steps): ...


STEPS: dict[str, Steps] = {"gru-cho": GPUGRUCho(), "mut1": GPUMUT1(), "mut2": GPUMUT2(), "mut3": GPUMUT3()}
