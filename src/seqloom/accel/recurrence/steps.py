"""The steps of the cells over whole sequences, with hand-written gradients.

`STEPS` implements the equations of each cell. The contribution of x to all steps is one matrix product before the first
step (`project_inputs`). A step then consists of its products with h and a few in-place operations on cached data. The
backward pass stores `da`, the gradient of the pre-activations, for every step; dW is one product over all steps.

Padding requires no extra computation in a gated cell, whose gate is set to keep the state. Buffers are time-major: (T,
B, ·).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.nn.cells import CELLS, Cell, Elman

CHUNK_ELEMENTS = 1 << 17
SATURATED = 1e4  # a pre-activation with σ = 1 exactly; −SATURATED gives 0
Saved = dict[str, Tensor]  # tensors for the backward pass, by name


class Padding(NamedTuple):
    mask: Tensor  # (T, B, 1) bool, True at padding
    has_padding: list[bool]


class StepInputs(NamedTuple):
    """The inputs of the steps other than `a`."""

    initial: Sequence[Tensor]  # the initial state, (B, H) each
    weights: Sequence[Tensor]  # multiplied with h
    padding: Padding | None


def find_padding(mask: Tensor) -> Padding | None:
    """Return the padding, or None if no position is padding.

    On a GPU, padding is always assumed, because checking the mask would synchronize the device.
    """
    is_padding = ~mask.t()
    if mask.is_cuda:
        return Padding(is_padding.unsqueeze(2), [True] * len(is_padding))
    has_padding = is_padding.any(dim=1).tolist()
    return Padding(is_padding.unsqueeze(2), has_padding) if any(has_padding) else None


class Steps(ABC):
    """All steps of a cell, and their gradients."""

    def bias(self, cell: Cell) -> Tensor:
        """Return the bias (G·H,) of the input projection."""
        return cell.bias_x if cell.bias_h is None else cell.bias_x + cell.bias_h

    def weights(self, cell: Cell) -> list[Tensor]:
        """Return the recurrent weights."""
        return [cell.weight_h]

    def project_inputs(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Project x (T, B, D) to the pre-activations (T, B, G·H), which `forward` overwrites."""
        return torch.addmm(bias, x.flatten(0, 1), weight.t()).unflatten(0, x.shape[:2])

    def d_x(self, da: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return torch.mm(da.flatten(0, 1), weight).unflatten(0, x.shape[:2])

    def d_weight(self, da: Tensor, x: Tensor) -> Tensor:
        return torch.mm(da.flatten(0, 1).t(), x.flatten(0, 1))

    @abstractmethod
    def forward(self, a: Tensor, inputs: StepInputs) -> tuple[tuple[Tensor, ...], Saved]:
        """Return the outputs (T, B, H) with the last state, and the tensors for the backward pass."""

    @abstractmethod
    def backward(self, saved: Saved, dy: Tensor, d_last: list[Tensor], inputs: StepInputs) -> tuple[Tensor, ...]:
        """Return the gradients of `a`, the initial state and the weights.

        `d_last` is the gradient of the last state and includes dy (T, B, H). `d_last` is overwritten by the gradient of
        the initial state.
        """


def mask_outputs(h: Tensor, padding: Padding | None) -> Tensor:
    return h if padding is None else h.masked_fill(padding.mask, 0)


def previous_states(initial: Tensor, steps: Tensor) -> list[Tensor]:
    """Return the state before each step."""
    return [initial, *steps.unbind()][:-1]


def recurrent_dw(d: Tensor, initial: Tensor, steps: Tensor) -> Tensor:
    """Return dW of W h_{t−1} over all steps: Σ_t d_tᵀ h_{t−1}."""
    dw = torch.mm(d[0].t(), initial)
    return dw.addmm_(d[1:].flatten(0, 1).t(), steps[:-1].flatten(0, 1)) if len(d) > 1 else dw


def split_steps(h: Tensor) -> Iterator[slice]:
    """Split the steps (T, …) into chunks, last chunk first: large enough for all cores, small enough for the cache."""
    size = max(1, CHUNK_ELEMENTS // h[0].numel())
    for stop in range(len(h), 0, -size):
        yield slice(max(0, stop - size), stop)


def previous_states_of(initial: Tensor, steps: Tensor, chunk: slice) -> Tensor:
    """Return the states before the steps of a chunk."""
    if chunk.start > 0:
        return steps[chunk.start - 1 : chunk.stop - 1]
    return torch.cat([initial.unsqueeze(0), steps[: chunk.stop - 1]])


def iterate_backward(dy: Tensor, chunk: slice, *series: Any) -> Any:
    """Yield dy of the previous step and the elements of the series for each step of a chunk, last step first."""
    earlier = list(dy[max(0, chunk.start - 1) : chunk.stop - 1].unbind())
    if chunk.start == 0:
        earlier.insert(0, torch.zeros_like(dy[0]))
    values = (tensor.unbind() if isinstance(tensor, Tensor) else tensor for tensor in series)
    return reversed(list(zip(earlier, *values, strict=True)))


def padded_rows(padding: Padding | None, steps: Tensor) -> list[Tensor | None]:
    """Return the padded rows (B, 1) of each step, or None for a step without padding."""
    if padding is None:
        return [None] * len(steps)
    return [mask if some else None for mask, some in zip(padding.mask.unbind(), padding.has_padding, strict=True)]


def _linear(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> None:
    torch.addmm(bias, x.flatten(0, 1), weight.t(), out=out.flatten(0, 1))


def tanh_of_doubled(doubled: Tensor, out: Tensor) -> Tensor:
    """Compute tanh a = 2 σ(2a) − 1 from 2a, four times as fast as torch.tanh."""
    torch.sigmoid(doubled, out=out)
    return torch.add(_MINUS_ONE[out.dtype], out, alpha=2, out=out)


_MINUS_ONE = {
    dtype: torch.tensor(-1.0, dtype=dtype, device="cpu")
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
}
_ONE = {dtype: -minus_one for dtype, minus_one in _MINUS_ONE.items()}
_tanh_backward = torch.ops.aten.tanh_backward.grad_input  # (dy, y, grad_input=dx) of y = tanh x
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_relu_backward = torch.ops.aten.threshold_backward.grad_input


class ElmanSteps(Steps):
    """The Elman cell: h_t = g(a_t + W h_{t−1})."""

    def __init__(self, activation: str) -> None:
        self.activation = activation

    def forward(self, a: Tensor, inputs: StepInputs) -> tuple[tuple[Tensor, ...], Saved]:
        (initial,), (w,), padding = inputs
        h, w = torch.empty_like(a), w.t()
        factor = 2 if self.activation == "tanh" else 1
        series = (a.unbind(), previous_states(initial, h), h.unbind(), padded_rows(padding, a))
        for a_t, old, new, is_padded in zip(*series, strict=True):
            a_t.addmm_(old, w, beta=factor, alpha=factor)
            if self.activation == "tanh":
                tanh_of_doubled(a_t, new)
            elif self.activation == "relu":
                torch.clamp(a_t, min=0, out=new)
            else:
                torch.sigmoid(a_t, out=new)
            if is_padded is not None:
                torch.where(is_padded, old, new, out=new)
        return (mask_outputs(h, padding), h[-1].clone()), {"h": h}

    def backward(self, saved: Saved, dy: Tensor, d_last: list[Tensor], inputs: StepInputs) -> tuple[Tensor, ...]:
        (initial,), (w,), padding = inputs
        h, (dh,), da = saved["h"], d_last, torch.empty_like(saved["h"])
        for dy_before, h_t, da_t, is_padded in iterate_backward(dy, slice(0, len(h)), h, da, padded_rows(padding, h)):
            if self.activation == "tanh":
                _tanh_backward(dh, h_t, grad_input=da_t)
            elif self.activation == "relu":
                _relu_backward(dh, h_t, 0, grad_input=da_t)
            else:
                _sigmoid_backward(dh, h_t, grad_input=da_t)
            if is_padded is None:
                torch.addmm(dy_before, da_t, w, out=dh)
            else:
                torch.addcmul(dy_before, dh, is_padded, out=dh).addmm_(da_t.masked_fill_(is_padded, 0), w)
        return da, dh, recurrent_dw(da, initial, h)


class LSTMSteps(Steps):
    """i, f, g, o = a_t + W h_{t−1};  c_t = σ(f) ⊙ c_{t−1} + σ(i) ⊙ tanh(g);  h_t = σ(o) ⊙ tanh(c_t)"""

    def forward(self, a: Tensor, inputs: StepInputs) -> tuple[tuple[Tensor, ...], Saved]:
        (h_0, c_0), (w,), padding = inputs
        i, f, g, o = a.chunk(4, dim=2)
        if padding is not None:
            i.masked_fill_(padding.mask, -SATURATED)
            f.masked_fill_(padding.mask, SATURATED)
        g.mul_(2)
        w = w.clone()
        w.chunk(4)[2].mul_(2)  # gives 2g, so that one σ computes all four gates
        w, minus_one = w.t(), _MINUS_ONE[a.dtype]
        h, c, tanh_c = (torch.empty_like(i) for _ in range(3))
        series = (tensor.unbind() for tensor in (a, i, f, g, o, h, c, tanh_c))
        steps = zip(previous_states(h_0, h), previous_states(c_0, c), padded_rows(padding, a), *series, strict=True)
        for h_old, c_old, is_padded, a_t, i_t, f_t, g_t, o_t, h_t, c_t, tanh_t in steps:
            a_t.addmm_(h_old, w).sigmoid_()
            torch.add(minus_one, g_t, alpha=2, out=g_t)
            torch.mul(f_t, c_old, out=c_t).addcmul_(i_t, g_t)
            tanh_of_doubled(torch.add(c_t, c_t, out=tanh_t), tanh_t)
            torch.mul(o_t, tanh_t, out=h_t)
            if is_padded is not None:
                torch.where(is_padded, h_old, h_t, out=h_t)
        return (mask_outputs(h, padding), h[-1].clone(), c[-1].clone()), {"gates": a, "h": h, "c": c, "tanh": tanh_c}

    def backward(self, saved: Saved, dy: Tensor, d_last: list[Tensor], inputs: StepInputs) -> tuple[Tensor, ...]:
        (h_0, c_0), (w,), padding = inputs
        gates, h, c, tanh_c, (dh, dc) = *(saved[name] for name in ("gates", "h", "c", "tanh")), d_last
        da, gated = torch.empty_like(gates), 3 * h.shape[2]
        for chunk in split_steps(h):
            i, f, g, o = gates[chunk].chunk(4, dim=2)
            d_i, d_f, d_g, d_o = da[chunk].chunk(4, dim=2)
            # These are factors: below, d_i, d_f and d_g are multiplied by dc, and d_o and `dh_to_c` by dh.
            _sigmoid_backward(g, i, grad_input=d_i)
            _sigmoid_backward(previous_states_of(c_0, c, chunk), f, grad_input=d_f)
            _tanh_backward(i, g, grad_input=d_g)
            _sigmoid_backward(tanh_c[chunk], o, grad_input=d_o)
            dh_to_c = _tanh_backward(o, tanh_c[chunk], grad_input=torch.empty_like(h[chunk]))
            if padding is not None:
                d_o.masked_fill_(padding.mask[chunk], 0)
                dh_to_c.masked_fill_(padding.mask[chunk], 0)
            d_ifg = da[chunk][:, :, :gated].unflatten(2, (3, -1))
            series = (dh_to_c, f, da[chunk], d_ifg, d_o, padded_rows(padding, h)[chunk])
            for dy_before, dh_to_c_t, f_t, da_t, d_ifg_t, d_o_t, is_padded in iterate_backward(dy, chunk, *series):
                d_ifg_t.mul_(dc.addcmul_(dh, dh_to_c_t).unsqueeze(1))
                d_o_t.mul_(dh)
                dc.mul_(f_t)
                if is_padded is None:
                    torch.addmm(dy_before, da_t, w, out=dh)
                else:
                    torch.addcmul(dy_before, dh, is_padded, out=dh).addmm_(da_t, w)
        return da, dh, dc, recurrent_dw(da, h_0, h)


class GRUSteps(Steps):
    """r, z = σ(a_t + W h_{t−1});  h̃ = tanh(a_t + r ⊙ (W h_{t−1} + b));  h_t = z ⊙ h_{t−1} + (1 − z) ⊙ h̃"""

    def bias(self, cell: Cell) -> Tensor:
        assert cell.bias_h is not None
        return cell.bias_x + F.pad(cell.bias_h[: 2 * cell.hidden], (0, cell.hidden))  # the bias of h̃ is inside r ⊙ (…)

    def weights(self, cell: Cell) -> list[Tensor]:
        assert cell.bias_h is not None
        return [cell.weight_h, cell.bias_h[2 * cell.hidden :]]

    def forward(self, a: Tensor, inputs: StepInputs) -> tuple[tuple[Tensor, ...], Saved]:
        (initial,), (w, bias), padding = inputs
        hidden = initial.shape[1]
        w_rz, w_c = w[: 2 * hidden].t(), w[2 * hidden :].t()
        r, z, candidate = a.chunk(3, dim=2)
        if padding is not None:
            z.masked_fill_(padding.mask, SATURATED)
        h, inner = torch.empty_like(candidate), torch.empty_like(candidate).copy_(bias)  # W h + b
        series = (a[:, :, : 2 * hidden], r, z, candidate, inner, h)
        steps = zip(previous_states(initial, h), *(tensor.unbind() for tensor in series), strict=True)
        for old, rz_t, r_t, z_t, candidate_t, inner_t, new in steps:
            rz_t.addmm_(old, w_rz).sigmoid_()
            candidate_t.addcmul_(r_t, inner_t.addmm_(old, w_c))
            tanh_of_doubled(candidate_t.add_(candidate_t), candidate_t)
            torch.lerp(candidate_t, old, z_t, out=new)
        return (mask_outputs(h, padding), h[-1].clone()), {"gates": a, "inner": inner, "h": h}

    def backward(self, saved: Saved, dy: Tensor, d_last: list[Tensor], inputs: StepInputs) -> tuple[Tensor, ...]:
        (initial,), (w, _), _ = inputs
        gates, inner, h, (dh,) = saved["gates"], saved["inner"], saved["h"], d_last
        hidden = h.shape[2]
        w_rz, w_c = w[: 2 * hidden], w[2 * hidden :]
        da, da_inner = torch.empty_like(gates), torch.empty_like(h)
        for chunk in split_steps(h):
            r, z, candidate = gates[chunk].chunk(3, dim=2)
            rz, d_rz = gates[chunk][:, :, : 2 * hidden], da[chunk][:, :, : 2 * hidden]
            d_r, d_z, d_c = da[chunk].chunk(3, dim=2)
            # These are factors: all are multiplied by dh below.
            torch.sub(previous_states_of(initial, h, chunk), candidate, out=d_z)
            _tanh_backward(1 - z, candidate, grad_input=d_c)
            torch.mul(d_c, inner[chunk], out=d_r)
            torch.mul(d_c, r, out=da_inner[chunk])
            _sigmoid_backward(d_rz, rz, grad_input=d_rz)
            series = (z, da[chunk].unflatten(2, (3, hidden)), d_rz, da_inner[chunk])
            for dy_before, z_t, da_t, d_rz_t, d_inner_t in iterate_backward(dy, chunk, *series):
                da_t.mul_(dh.unsqueeze(1))
                d_inner_t.mul_(dh)
                torch.addcmul(dy_before, dh, z_t, out=dh).addmm_(d_rz_t, w_rz).addmm_(d_inner_t, w_c)
        return da, dh, *self.weight_gradient(da, da_inner, initial, h)

    def weight_gradient(self, da: Tensor, da_inner: Tensor, initial: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        gates = da[:, :, : 2 * h.shape[2]]
        return torch.cat([recurrent_dw(gates, initial, h), recurrent_dw(da_inner, initial, h)]), da_inner.sum((0, 1))


class ResetSteps(Steps):
    """r = σ(a_t + W_r h_{t−1});  z = σ(a_t + W_z s(h_{t−1}));  h̃ = tanh(a_t + W (r ⊙ h_{t−1}))
    h_t = z ⊙ h_{t−1} + (1 − z) ⊙ h̃, or with `gates_candidate` z ⊙ h̃ + (1 − z) ⊙ h_{t−1}

    s is the identity (`z_input` is "h"), tanh ("tanh") or 0 (None).
    """

    gates_candidate: ClassVar[bool] = True
    z_input: ClassVar[str | None] = "h"

    def forward(self, a: Tensor, inputs: StepInputs) -> tuple[tuple[Tensor, ...], Saved]:
        (initial,), (w,), padding = inputs
        hidden, (w_joint, w_z, w_c) = initial.shape[1], (block.t() for block in self.blocks(w))
        joint = w_joint.shape[1]
        r, z, candidate = a.chunk(3, dim=2)
        if padding is not None:
            z.masked_fill_(padding.mask, -SATURATED if self.gates_candidate else SATURATED)
        gates = a[:, :, : 2 * hidden]
        if self.z_input is None:
            gates = r
            z.sigmoid_()
        h, reset = torch.empty_like(candidate), torch.empty_like(candidate)
        tanh_h = torch.empty_like(h) if self.z_input == "tanh" else h
        series = (a[:, :, :joint], gates, r, z, candidate, reset, tanh_h, h)
        steps = zip(previous_states(initial, h), *(tensor.unbind() for tensor in series), strict=True)
        for old, joint_t, gates_t, r_t, z_t, candidate_t, reset_t, tanh_t, new in steps:
            joint_t.addmm_(old, w_joint)
            if self.z_input == "tanh":
                z_t.addmm_(tanh_of_doubled(torch.add(old, old, out=tanh_t), tanh_t), w_z)
            gates_t.sigmoid_()
            candidate_t.addmm_(torch.mul(r_t, old, out=reset_t), w_c, beta=2, alpha=2)
            tanh_of_doubled(candidate_t, candidate_t)
            if self.gates_candidate:
                torch.lerp(old, candidate_t, z_t, out=new)
            else:
                torch.lerp(candidate_t, old, z_t, out=new)
        saved = {"gates": a, "reset": reset, "h": h} | ({"tanh": tanh_h} if self.z_input == "tanh" else {})
        return (mask_outputs(h, padding), h[-1].clone()), saved

    def backward(self, saved: Saved, dy: Tensor, d_last: list[Tensor], inputs: StepInputs) -> tuple[Tensor, ...]:
        (initial,), (w,), _ = inputs
        gates, h, (dh,), tanh_h = saved["gates"], saved["h"], d_last, saved.get("tanh", saved["h"])
        hidden, (w_joint, w_z, w_c) = h.shape[2], self.blocks(w)
        joint, da = len(w_joint), torch.empty_like(gates)
        d_reset, d_tanh = torch.empty_like(dh), torch.empty_like(dh)
        for chunk in split_steps(h):
            r, z, candidate = gates[chunk].chunk(3, dim=2)
            rz, d_rz = gates[chunk][:, :, : 2 * hidden], da[chunk][:, :, : 2 * hidden]
            d_r, d_z, d_c = da[chunk].chunk(3, dim=2)
            old, one_minus_z = previous_states_of(initial, h, chunk), 1 - z
            # These are factors: below, d_z and d_c are multiplied by dh, and d_r by the gradient of r ⊙ h_{t−1}.
            d_r.copy_(old)
            torch.sub(*((candidate, old) if self.gates_candidate else (old, candidate)), out=d_z)
            _sigmoid_backward(d_rz, rz, grad_input=d_rz)
            _tanh_backward(z if self.gates_candidate else one_minus_z, candidate, grad_input=d_c)
            y, slope, keep = tanh_h[chunk], r, one_minus_z if self.gates_candidate else z
            if self.z_input == "tanh":
                slope = torch.addcmul(_ONE[h.dtype], y, y, value=-1)
            d_zc = da[chunk][:, :, hidden:].unflatten(2, (2, hidden))
            series = (r, keep, slope, d_zc, d_r, d_z, d_c, da[chunk][:, :, :joint])
            for dy_before, r_t, keep_t, slope_t, d_zc_t, d_r_t, d_z_t, d_c_t, d_joint_t in iterate_backward(
                dy, chunk, *series
            ):
                d_zc_t.mul_(dh.unsqueeze(1))
                d_r_t.mul_(torch.mm(d_c_t, w_c, out=d_reset))
                torch.addcmul(dy_before, dh, keep_t, out=dh).addcmul_(d_reset, r_t).addmm_(d_joint_t, w_joint)
                if self.z_input == "tanh":
                    dh.addcmul_(torch.mm(d_z_t, w_z, out=d_tanh), slope_t)
        return da, dh, self.weight_gradient(da, saved, initial)

    def blocks(self, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split W into the blocks of r (and z, if z reads h), of z (if it reads tanh h), and of the candidate."""
        hidden = w.shape[1]
        joint = (2 if self.z_input == "h" else 1) * hidden
        return w[:joint], w[joint:-hidden], w[-hidden:]

    def weight_gradient(self, da: Tensor, saved: Saved, initial: Tensor) -> Tensor:
        hidden = initial.shape[1]
        gates = da[:, :, : 2 * hidden] if self.z_input == "h" else da[:, :, :hidden]
        dw = [recurrent_dw(gates, initial, saved["h"])]
        if self.z_input == "tanh":
            dw.append(torch.mm(da[:, :, hidden:-hidden].flatten(0, 1).t(), saved["tanh"].flatten(0, 1)))
        dw.append(torch.mm(da[:, :, -hidden:].flatten(0, 1).t(), saved["reset"].flatten(0, 1)))
        return torch.cat(dw)


class GRUChoSteps(ResetSteps):
    gates_candidate = False


class MUT1Steps(ResetSteps):
    z_input = None

    def project_inputs(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        a = x.new_empty(*x.shape[:2], len(bias))
        gates, candidate = a.split([len(weight), x.shape[2]], dim=2)
        _linear(x, weight, bias[: len(weight)], out=gates)
        tanh_of_doubled(torch.add(x, x, out=candidate), candidate).add_(bias[len(weight) :])
        return a

    def d_x(self, da: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        tanh_x = torch.add(x, x)
        dx = _tanh_backward(da[:, :, len(weight) :], tanh_of_doubled(tanh_x, tanh_x), grad_input=tanh_x)
        dx.flatten(0, 1).addmm_(da[:, :, : len(weight)].flatten(0, 1), weight)
        return dx

    def d_weight(self, da: Tensor, x: Tensor) -> Tensor:
        return super().d_weight(da[:, :, : 2 * x.shape[2]], x)


class MUT2Steps(ResetSteps):
    def project_inputs(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        a = x.new_empty(*x.shape[:2], len(bias))
        r, others = a.split([x.shape[2], len(weight)], dim=2)
        torch.add(x, bias[: x.shape[2]], out=r)
        _linear(x, weight, bias[x.shape[2] :], out=others)
        return a

    def d_x(self, da: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return super().d_x(da[:, :, x.shape[2] :], x, weight).add_(da[:, :, : x.shape[2]])

    def d_weight(self, da: Tensor, x: Tensor) -> Tensor:
        return super().d_weight(da[:, :, x.shape[2] :], x)


class MUT3Steps(ResetSteps):
    z_input = "tanh"


STEPS: dict[str, Steps] = {
    **{f"elman-{activation}": ElmanSteps(activation) for activation in ("tanh", "relu", "sigmoid")},
    "lstm": LSTMSteps(),
    "gru": GRUSteps(),
    "gru-cho": GRUChoSteps(),
    "mut1": MUT1Steps(),
    "mut2": MUT2Steps(),
    "mut3": MUT3Steps(),
}

_CELL_NAMES = {cell: name for name, cell in CELLS.items()}


def steps_name(cell: Cell) -> str | None:
    """Return the key in `STEPS` for the equations of a cell, or None."""
    name = f"elman-{cell.activation}" if type(cell) is Elman else _CELL_NAMES.get(type(cell))
    return name if name in STEPS else None
