"""The steps of every cell over whole sequences, with the gradient of every step by hand.

Each of `STEPS` computes what its cell's equations say. What x gives to all steps is one product,
made before the first (`inputs`). A step then is its products with h and a few calls that write
where memory is ready and find what they read still in the cache. On the way back each step leaves
`da`, the gradient of what stands before its σ and tanh, and all steps share the products that make
dW of it.

Padding costs a gated cell nothing: its gate is told to keep. Buffers are time-major: (T, B, ·).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.nn.cells import CELLS, Cell, Elman

PIECE = 1 << 17  # numbers
SURE = 1e4  # before σ: a gate that is 1 to the last digit; −SURE is one that is 0
Kept = dict[str, Tensor]  # what the way back needs, by name


class Padding(NamedTuple):
    there: Tensor  # (T, B, 1) bool, True at padding
    steps: list[bool]  # which steps have any


class Given(NamedTuple):
    """What the steps are given besides `a`."""

    first: Sequence[Tensor]  # the state, each (B, H)
    weights: Sequence[Tensor]  # of h
    padding: Padding | None


def find_padding(mask: Tensor) -> Padding | None:
    """Where it is, if there is any. On a GPU it may be anywhere: to look would be to wait."""
    there = ~mask.t()
    if mask.is_cuda:
        return Padding(there.unsqueeze(2), [True] * len(there))
    steps = there.any(dim=1).tolist()
    return Padding(there.unsqueeze(2), steps) if any(steps) else None


class Steps(ABC):
    """All steps of one cell, and their gradients."""

    def bias(self, cell: Cell) -> Tensor:
        """What is added to all that x gives (G·H,)."""
        return cell.bias_x if cell.bias_h is None else cell.bias_x + cell.bias_h

    def weights(self, cell: Cell) -> list[Tensor]:
        """What h is multiplied with."""
        return [cell.weight_h]

    def inputs(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """What x (T, B, D) and the biases give to every step: (T, B, G·H), for `forward` to overwrite."""
        return torch.addmm(bias, x.flatten(0, 1), weight.t()).unflatten(0, x.shape[:2])

    def d_x(self, da: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return torch.mm(da.flatten(0, 1), weight).unflatten(0, x.shape[:2])

    def d_weight(self, da: Tensor, x: Tensor) -> Tensor:
        return torch.mm(da.flatten(0, 1).t(), x.flatten(0, 1))

    @abstractmethod
    def forward(self, a: Tensor, given: Given) -> tuple[tuple[Tensor, ...], Kept]:
        """Outputs (T, B, H), the last state, and what to keep."""

    @abstractmethod
    def backward(self, kept: Kept, dy: Tensor, d_last: list[Tensor], given: Given) -> tuple[Tensor, ...]:
        """Gradients of `a`, the first state and the weights.

        `d_last`, that of the last state by all ways, dy (T, B, H) included, becomes that of the
        first.
        """


def outputs_of(h: Tensor, padding: Padding | None) -> Tensor:
    return h if padding is None else h.masked_fill(padding.there, 0)


def before(first: Tensor, steps: Tensor) -> list[Tensor]:
    """Of each step, what the step before left."""
    return [first, *steps.unbind()][:-1]


def of_products(d: Tensor, first: Tensor, steps: Tensor) -> Tensor:
    """dW of d = W h_{t−1} at all steps: Σ_t d_tᵀ h_{t−1}."""
    dw = torch.mm(d[0].t(), first)
    return dw.addmm_(d[1:].flatten(0, 1).t(), steps[:-1].flatten(0, 1)) if len(d) > 1 else dw


def parts(h: Tensor) -> Iterator[slice]:
    """Steps (T, …) in pieces, the last first: enough for all cores, and not too much for the cache."""
    size = max(1, PIECE // h[0].numel())
    for stop in range(len(h), 0, -size):
        yield slice(max(0, stop - size), stop)


def before_part(first: Tensor, steps: Tensor, part: slice) -> Tensor:
    """What the steps before those of a part left."""
    if part.start > 0:
        return steps[part.start - 1 : part.stop - 1]
    return torch.cat([first.unsqueeze(0), steps[: part.stop - 1]])


def backwards(dy: Tensor, part: slice, *series: Any) -> Any:
    """Of each step of a part, the last first: dy of the step before, and what the series have for it."""
    earlier = list(dy[max(0, part.start - 1) : part.stop - 1].unbind())
    if part.start == 0:
        earlier.insert(0, torch.zeros_like(dy[0]))
    values = (one.unbind() if isinstance(one, Tensor) else one for one in series)
    return reversed(list(zip(earlier, *values, strict=True)))


def standing(padding: Padding | None, steps: Tensor) -> list[Tensor | None]:
    """Of each step the rows that stand still, (B, 1), or None where none does."""
    if padding is None:
        return [None] * len(steps)
    return [there if some else None for there, some in zip(padding.there.unbind(), padding.steps, strict=True)]


def _linear(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> None:
    torch.addmm(bias, x.flatten(0, 1), weight.t(), out=out.flatten(0, 1))


def tanh_of_doubled(doubled: Tensor, out: Tensor) -> Tensor:
    """tanh a = 2 σ(2a) − 1 of 2a, in a quarter of the time of torch's tanh. Products double for nothing."""
    torch.sigmoid(doubled, out=out)
    return torch.add(_minus_one[out.dtype], out, alpha=2, out=out)


_minus_one = {
    dtype: torch.tensor(-1.0, dtype=dtype, device="cpu")
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
}
_one = {dtype: -minus_one for dtype, minus_one in _minus_one.items()}
_through_tanh = torch.ops.aten.tanh_backward.grad_input  # (dy, y, grad_input=dx) of y = tanh x
_through_sigmoid = torch.ops.aten.sigmoid_backward.grad_input
_through_relu = torch.ops.aten.threshold_backward.grad_input


class ElmanSteps(Steps):
    """h_t = g(a_t + W h_{t−1})"""

    def __init__(self, activation: str) -> None:
        self.activation = activation

    def forward(self, a: Tensor, given: Given) -> tuple[tuple[Tensor, ...], Kept]:
        (first,), (w,), padding = given
        h, w = torch.empty_like(a), w.t()
        times = 2 if self.activation == "tanh" else 1
        for a_t, old, new, stands in zip(a.unbind(), before(first, h), h.unbind(), standing(padding, a), strict=True):
            a_t.addmm_(old, w, beta=times, alpha=times)
            if self.activation == "tanh":
                tanh_of_doubled(a_t, new)
            elif self.activation == "relu":
                torch.clamp(a_t, min=0, out=new)
            else:
                torch.sigmoid(a_t, out=new)
            if stands is not None:
                torch.where(stands, old, new, out=new)
        return (outputs_of(h, padding), h[-1].clone()), {"h": h}

    def backward(self, kept: Kept, dy: Tensor, d_last: list[Tensor], given: Given) -> tuple[Tensor, ...]:
        (first,), (w,), padding = given
        h, (dh,), da = kept["h"], d_last, torch.empty_like(kept["h"])
        for dy_before, h_t, da_t, stands in backwards(dy, slice(0, len(h)), h, da, standing(padding, h)):
            if self.activation == "tanh":
                _through_tanh(dh, h_t, grad_input=da_t)
            elif self.activation == "relu":
                _through_relu(dh, h_t, 0, grad_input=da_t)
            else:
                _through_sigmoid(dh, h_t, grad_input=da_t)
            if stands is None:
                torch.addmm(dy_before, da_t, w, out=dh)
            else:
                torch.addcmul(dy_before, dh, stands, out=dh).addmm_(da_t.masked_fill_(stands, 0), w)
        return da, dh, of_products(da, first, h)


class LSTMSteps(Steps):
    """i, f, g, o = a_t + W h_{t−1};  c_t = σ(f) ⊙ c_{t−1} + σ(i) ⊙ tanh(g);  h_t = σ(o) ⊙ tanh(c_t)"""

    def forward(self, a: Tensor, given: Given) -> tuple[tuple[Tensor, ...], Kept]:
        (h_0, c_0), (w,), padding = given
        i, f, g, o = a.chunk(4, dim=2)
        if padding is not None:
            i.masked_fill_(padding.there, -SURE)
            f.masked_fill_(padding.there, SURE)
        g.mul_(2)
        w = w.clone()
        w.chunk(4)[2].mul_(2)  # of 2g, so that one σ serves all four
        w, minus_one = w.t(), _minus_one[a.dtype]
        h, c, tanh_c = (torch.empty_like(i) for _ in range(3))
        series = (one.unbind() for one in (a, i, f, g, o, h, c, tanh_c))
        each = zip(before(h_0, h), before(c_0, c), standing(padding, a), *series, strict=True)
        for h_old, c_old, stands, a_t, i_t, f_t, g_t, o_t, h_t, c_t, tanh_t in each:
            a_t.addmm_(h_old, w).sigmoid_()
            torch.add(minus_one, g_t, alpha=2, out=g_t)
            torch.mul(f_t, c_old, out=c_t).addcmul_(i_t, g_t)
            tanh_of_doubled(torch.add(c_t, c_t, out=tanh_t), tanh_t)
            torch.mul(o_t, tanh_t, out=h_t)
            if stands is not None:
                torch.where(stands, h_old, h_t, out=h_t)
        return (outputs_of(h, padding), h[-1].clone(), c[-1].clone()), {"gates": a, "h": h, "c": c, "tanh": tanh_c}

    def backward(self, kept: Kept, dy: Tensor, d_last: list[Tensor], given: Given) -> tuple[Tensor, ...]:
        (h_0, c_0), (w,), padding = given
        gates, h, c, tanh_c, (dh, dc) = *(kept[name] for name in ("gates", "h", "c", "tanh")), d_last
        da, gated = torch.empty_like(gates), 3 * h.shape[2]
        for part in parts(h):
            i, f, g, o = gates[part].chunk(4, dim=2)
            d_i, d_f, d_g, d_o = da[part].chunk(4, dim=2)
            # Of i, f and g still to be multiplied with dc, of o with dh; and what dh adds to dc.
            _through_sigmoid(g, i, grad_input=d_i)
            _through_sigmoid(before_part(c_0, c, part), f, grad_input=d_f)
            _through_tanh(i, g, grad_input=d_g)
            _through_sigmoid(tanh_c[part], o, grad_input=d_o)
            to_c = _through_tanh(o, tanh_c[part], grad_input=torch.empty_like(h[part]))
            if padding is not None:
                d_o.masked_fill_(padding.there[part], 0)
                to_c.masked_fill_(padding.there[part], 0)
            d_ifg = da[part][:, :, :gated].unflatten(2, (3, -1))
            series = (to_c, f, da[part], d_ifg, d_o, standing(padding, h)[part])
            for dy_before, to_c_t, f_t, da_t, d_ifg_t, d_o_t, stands in backwards(dy, part, *series):
                d_ifg_t.mul_(dc.addcmul_(dh, to_c_t).unsqueeze(1))
                d_o_t.mul_(dh)
                dc.mul_(f_t)
                if stands is None:
                    torch.addmm(dy_before, da_t, w, out=dh)
                else:
                    torch.addcmul(dy_before, dh, stands, out=dh).addmm_(da_t, w)
        return da, dh, dc, of_products(da, h_0, h)


class GRUSteps(Steps):
    """r, z = σ(a_t + W h_{t−1});  h̃ = tanh(a_t + r ⊙ (W h_{t−1} + b));  h_t = z ⊙ h_{t−1} + (1 − z) ⊙ h̃"""

    def bias(self, cell: Cell) -> Tensor:
        assert cell.bias_h is not None
        return cell.bias_x + F.pad(cell.bias_h[: 2 * cell.hidden], (0, cell.hidden))  # h̃'s own is within r ⊙ (…)

    def weights(self, cell: Cell) -> list[Tensor]:
        assert cell.bias_h is not None
        return [cell.weight_h, cell.bias_h[2 * cell.hidden :]]

    def forward(self, a: Tensor, given: Given) -> tuple[tuple[Tensor, ...], Kept]:
        (first,), (w, bias), padding = given
        hidden = first.shape[1]
        w_rz, w_c = w[: 2 * hidden].t(), w[2 * hidden :].t()
        r, z, candidate = a.chunk(3, dim=2)
        if padding is not None:
            z.masked_fill_(padding.there, SURE)
        h, inner = torch.empty_like(candidate), torch.empty_like(candidate).copy_(bias)  # W h + b of the candidate
        series = (a[:, :, : 2 * hidden], r, z, candidate, inner, h)
        each = zip(before(first, h), *(one.unbind() for one in series), strict=True)
        for old, rz_t, r_t, z_t, candidate_t, inner_t, new in each:
            rz_t.addmm_(old, w_rz).sigmoid_()
            candidate_t.addcmul_(r_t, inner_t.addmm_(old, w_c))
            tanh_of_doubled(candidate_t.add_(candidate_t), candidate_t)
            torch.lerp(candidate_t, old, z_t, out=new)
        return (outputs_of(h, padding), h[-1].clone()), {"gates": a, "inner": inner, "h": h}

    def backward(self, kept: Kept, dy: Tensor, d_last: list[Tensor], given: Given) -> tuple[Tensor, ...]:
        (first,), (w, _), _ = given
        gates, inner, h, (dh,) = kept["gates"], kept["inner"], kept["h"], d_last
        hidden = h.shape[2]
        w_rz, w_c = w[: 2 * hidden], w[2 * hidden :]
        da, da_inner = torch.empty_like(gates), torch.empty_like(h)
        for part in parts(h):
            r, z, candidate = gates[part].chunk(3, dim=2)
            rz, d_rz = gates[part][:, :, : 2 * hidden], da[part][:, :, : 2 * hidden]
            d_r, d_z, d_c = da[part].chunk(3, dim=2)
            # All of them still to be multiplied with dh.
            torch.sub(before_part(first, h, part), candidate, out=d_z)
            _through_tanh(1 - z, candidate, grad_input=d_c)
            torch.mul(d_c, inner[part], out=d_r)
            torch.mul(d_c, r, out=da_inner[part])
            _through_sigmoid(d_rz, rz, grad_input=d_rz)
            series = (z, da[part].unflatten(2, (3, hidden)), d_rz, da_inner[part])
            for dy_before, z_t, da_t, d_rz_t, d_inner_t in backwards(dy, part, *series):
                da_t.mul_(dh.unsqueeze(1))
                d_inner_t.mul_(dh)
                torch.addcmul(dy_before, dh, z_t, out=dh).addmm_(d_rz_t, w_rz).addmm_(d_inner_t, w_c)
        return da, dh, *self.of_weights(da, da_inner, first, h)

    def of_weights(self, da: Tensor, da_inner: Tensor, first: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        gates = da[:, :, : 2 * h.shape[2]]
        return torch.cat([of_products(gates, first, h), of_products(da_inner, first, h)]), da_inner.sum((0, 1))


class ResetSteps(Steps):
    """r = σ(a_t + W_r h_{t−1});  z = σ(a_t + W_z s(h_{t−1}));  h̃ = tanh(a_t + W (r ⊙ h_{t−1}))
    h_t = z ⊙ h_{t−1} + (1 − z) ⊙ h̃, or with `takes` z ⊙ h̃ + (1 − z) ⊙ h_{t−1}

    s is nothing (`looks` at "h"), tanh, or 0: a z that does not look at h.
    """

    takes: ClassVar[bool] = True
    looks: ClassVar[str | None] = "h"

    def forward(self, a: Tensor, given: Given) -> tuple[tuple[Tensor, ...], Kept]:
        (first,), (w,), padding = given
        hidden, (w_joint, w_z, w_c) = first.shape[1], (block.t() for block in self.blocks(w))
        joint = w_joint.shape[1]
        r, z, candidate = a.chunk(3, dim=2)
        if padding is not None:
            z.masked_fill_(padding.there, -SURE if self.takes else SURE)
        gates = a[:, :, : 2 * hidden]
        if self.looks is None:
            gates = r
            z.sigmoid_()
        h, reset = torch.empty_like(candidate), torch.empty_like(candidate)
        tanh_h = torch.empty_like(h) if self.looks == "tanh" else h
        series = (a[:, :, :joint], gates, r, z, candidate, reset, tanh_h, h)
        each = zip(before(first, h), *(one.unbind() for one in series), strict=True)
        for old, joint_t, gates_t, r_t, z_t, candidate_t, reset_t, tanh_t, new in each:
            joint_t.addmm_(old, w_joint)
            if self.looks == "tanh":
                z_t.addmm_(tanh_of_doubled(torch.add(old, old, out=tanh_t), tanh_t), w_z)
            gates_t.sigmoid_()
            candidate_t.addmm_(torch.mul(r_t, old, out=reset_t), w_c, beta=2, alpha=2)
            tanh_of_doubled(candidate_t, candidate_t)
            if self.takes:
                torch.lerp(old, candidate_t, z_t, out=new)
            else:
                torch.lerp(candidate_t, old, z_t, out=new)
        kept = {"gates": a, "reset": reset, "h": h} | ({"tanh": tanh_h} if self.looks == "tanh" else {})
        return (outputs_of(h, padding), h[-1].clone()), kept

    def backward(self, kept: Kept, dy: Tensor, d_last: list[Tensor], given: Given) -> tuple[Tensor, ...]:
        (first,), (w,), _ = given
        gates, h, (dh,), tanh_h = kept["gates"], kept["h"], d_last, kept.get("tanh", kept["h"])
        hidden, (w_joint, w_z, w_c) = h.shape[2], self.blocks(w)
        joint, da = len(w_joint), torch.empty_like(gates)
        d_reset, d_tanh = torch.empty_like(dh), torch.empty_like(dh)
        for part in parts(h):
            r, z, candidate = gates[part].chunk(3, dim=2)
            rz, d_rz = gates[part][:, :, : 2 * hidden], da[part][:, :, : 2 * hidden]
            d_r, d_z, d_c = da[part].chunk(3, dim=2)
            old, other = before_part(first, h, part), 1 - z
            # Of z and the candidate still to be multiplied with dh, of r with the gradient of r ⊙ h_{t−1}.
            d_r.copy_(old)
            torch.sub(*((candidate, old) if self.takes else (old, candidate)), out=d_z)
            _through_sigmoid(d_rz, rz, grad_input=d_rz)
            _through_tanh(z if self.takes else other, candidate, grad_input=d_c)
            slope = torch.addcmul(_one[h.dtype], tanh_h[part], tanh_h[part], value=-1) if self.looks == "tanh" else r
            d_zc = da[part][:, :, hidden:].unflatten(2, (2, hidden))
            series = (r, other if self.takes else z, slope, d_zc, d_r, d_z, d_c, da[part][:, :, :joint])
            for dy_before, r_t, stays_t, slope_t, d_zc_t, d_r_t, d_z_t, d_c_t, d_joint_t in backwards(
                dy, part, *series
            ):
                d_zc_t.mul_(dh.unsqueeze(1))
                d_r_t.mul_(torch.mm(d_c_t, w_c, out=d_reset))
                torch.addcmul(dy_before, dh, stays_t, out=dh).addcmul_(d_reset, r_t).addmm_(d_joint_t, w_joint)
                if self.looks == "tanh":
                    dh.addcmul_(torch.mm(d_z_t, w_z, out=d_tanh), slope_t)
        return da, dh, self.of_weights(da, kept, first)

    def blocks(self, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """W of r, and of z where it looks at h like r; of z where it looks at tanh h; of the candidate."""
        hidden = w.shape[1]
        joint = (2 if self.looks == "h" else 1) * hidden
        return w[:joint], w[joint:-hidden], w[-hidden:]

    def of_weights(self, da: Tensor, kept: Kept, first: Tensor) -> Tensor:
        hidden = first.shape[1]
        gates = da[:, :, : 2 * hidden] if self.looks == "h" else da[:, :, :hidden]
        dw = [of_products(gates, first, kept["h"])]
        if self.looks == "tanh":
            dw.append(torch.mm(da[:, :, hidden:-hidden].flatten(0, 1).t(), kept["tanh"].flatten(0, 1)))
        dw.append(torch.mm(da[:, :, -hidden:].flatten(0, 1).t(), kept["reset"].flatten(0, 1)))
        return torch.cat(dw)


class GRUChoSteps(ResetSteps):
    takes = False


class MUT1Steps(ResetSteps):
    looks = None

    def inputs(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        a = x.new_empty(*x.shape[:2], len(bias))
        gates, candidate = a.split([len(weight), x.shape[2]], dim=2)
        _linear(x, weight, bias[: len(weight)], out=gates)
        tanh_of_doubled(torch.add(x, x, out=candidate), candidate).add_(bias[len(weight) :])
        return a

    def d_x(self, da: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        tanh_x = torch.add(x, x)
        dx = _through_tanh(da[:, :, len(weight) :], tanh_of_doubled(tanh_x, tanh_x), grad_input=tanh_x)
        dx.flatten(0, 1).addmm_(da[:, :, : len(weight)].flatten(0, 1), weight)
        return dx

    def d_weight(self, da: Tensor, x: Tensor) -> Tensor:
        return super().d_weight(da[:, :, : 2 * x.shape[2]], x)


class MUT2Steps(ResetSteps):
    def inputs(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
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
    looks = "tanh"


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
    """The entry of `STEPS` that computes the equations of this cell, if there is one."""
    name = f"elman-{cell.activation}" if type(cell) is Elman else _CELL_NAMES.get(type(cell))
    return name if name in STEPS else None
