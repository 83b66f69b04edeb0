"""The loss that never holds all logits: against torch, in value and gradients."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.nn import cross_entropy
from seqloom.nn.cross_entropy import linear_cross_entropy
from seqloom.nn.softmax import FullSoftmax

V, H, N = 40, 8, 23


def given(dtype: torch.dtype = torch.float64, uncounted: int = 0) -> Any:
    generator = torch.Generator().manual_seed(1)
    hidden, weight, bias = (torch.randn(*shape, generator=generator).double() for shape in ((N, H), (V, H), (V,)))
    targets = torch.randint(V, (N,), generator=generator)
    targets[:uncounted] = -100
    return *(part.to(dtype).requires_grad_() for part in (hidden, weight, bias)), targets


def torchs(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight, bias), targets, reduction="sum", label_smoothing=label_smoothing)


@pytest.mark.parametrize("rows", [1, 5, 1000], ids="chunks of {}".format)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("uncounted", [0, 4, N])
def test_loss_and_gradients_are_torchs(
    rows: int, smoothing: float, uncounted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy, "LOGITS_AT_ONCE", rows * V)
    smoothed: Any = {"label_smoothing": smoothing}
    ours, theirs = given(uncounted=uncounted), given(uncounted=uncounted)
    found, wanted = linear_cross_entropy(*ours, **smoothed), torchs(*theirs, **smoothed)
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=0)
    (found * 0.7).backward()
    (wanted * 0.7).backward()
    for own, other in zip(ours[:3], theirs[:3], strict=True):
        torch.testing.assert_close(own.grad, other.grad, atol=1e-10, rtol=0)


def layer(dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    return FullSoftmax(H, V).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("uncounted", [0, 4])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype, uncounted: int) -> None:
    hidden, _, _, targets = given(dtype, uncounted)
    output = layer(dtype)
    value = output.total_loss(hidden, targets, 0.1)
    assert value.dtype == torch.float32
    logits = output(hidden).float()
    wanted = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(value, wanted, atol=0, rtol=0)
    value.backward()
    assert output.weight.grad.dtype == dtype and output.weight.grad.isfinite().all()


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_layer_counts_alike_whichever_way_it_takes(gradients: bool, smoothing: float) -> None:
    hidden, _, _, targets = given(uncounted=3)
    output = layer(torch.float64)
    with torch.set_grad_enabled(gradients):
        value = output.total_loss(hidden, targets, smoothing)
    wanted = torchs(hidden, output.weight, output.bias, targets, smoothing)
    torch.testing.assert_close(value, wanted, atol=1e-10, rtol=0, check_dtype=True)
    known = output.loss_of(output.log_probs(hidden), targets, smoothing)
    torch.testing.assert_close(known, wanted, atol=1e-10, rtol=0)
