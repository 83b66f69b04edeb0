"""The loss that never holds all logits: against torch, in value and gradients."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.accel import cross_entropy
from seqloom.accel.training.compiled_regions import RegionCompiler
from seqloom.core.memory import measure_peak
from seqloom.core.operations import compile_regions
from seqloom.nn.softmax import FullSoftmax, consistent_cross_entropy, linear_cross_entropy, summed_cross_entropy

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
    monkeypatch.setattr(cross_entropy, "CPU_CHUNK_LOGITS", rows * V)
    monkeypatch.setattr(cross_entropy, "MIN_CHUNK_ROWS", 1)
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
    twice = consistent_cross_entropy(
        output(torch.cat([hidden, hidden])), torch.cat([targets, targets]), smoothing, consistency=3.0
    )  # two readings that agree
    torch.testing.assert_close(twice, 2 * wanted, atol=1e-10, rtol=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, False), (False, True, True)])
def test_where_a_gpu_may_not_look_what_does_not_count_is_computed_and_left_out(
    smoothing: float, wanted: tuple[bool, ...]
) -> None:
    ours, theirs = given(uncounted=4), given(uncounted=4)
    for own, other, want in zip(ours[:3], theirs[:3], wanted, strict=True):
        own.requires_grad_(want)
        other.requires_grad_(want)
    found = cross_entropy._LinearCrossEntropy.apply(*ours, smoothing, 5, True)
    smoothed: Any = {"label_smoothing": smoothing}
    expected = torchs(*theirs, **smoothed)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    found.backward()
    expected.backward()
    for own, other, want in zip(ours[:3], theirs[:3], wanted, strict=True):
        assert (own.grad is not None) == want
        if want:
            torch.testing.assert_close(own.grad, other.grad, atol=1e-10, rtol=0)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler's own
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_form_a_compiler_can_fuse_is_torchs(smoothing: float) -> None:
    hidden, weight, bias, targets = given(uncounted=4)
    logits = F.linear(hidden, weight, bias)
    with compile_regions(RegionCompiler(backend="aot_eager")):
        found = summed_cross_entropy(logits, targets, smoothing)
    torch.testing.assert_close(found, torchs(hidden, weight, bias, targets, smoothing), atol=1e-10, rtol=0)


def test_under_autocast_products_are_rounded_and_sums_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "MIN_CHUNK_ROWS", 5)
    monkeypatch.setattr(cross_entropy, "CPU_CHUNK_LOGITS", 1)
    hidden, _, _, targets = given(torch.float32, 3)
    output, plain = layer(torch.float32), layer(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = output.total_loss(hidden, targets)
        wanted = F.cross_entropy(plain(hidden).float(), targets, reduction="sum")
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, wanted, atol=1e-4, rtol=1e-5)
    value.backward()
    wanted.backward()
    assert output.weight.grad.dtype == torch.float32
    torch.testing.assert_close(output.weight.grad, plain.weight.grad, atol=0.05, rtol=0.02)


@pytest.mark.parametrize("gradients", [True, False])
def test_more_positions_need_no_more_logits(gradients: bool) -> None:
    """V is large enough that a few thousand positions would have gigabytes of them."""
    output = FullSoftmax(2, 100_000)

    def peak_of(positions: int) -> int:
        hidden, targets = torch.ones(positions, 2, requires_grad=gradients), torch.arange(positions)
        with torch.set_grad_enabled(gradients), measure_peak(torch.device("cpu"), output.parameters()) as peak:
            output.target_log_probs(hidden.detach(), targets) if not gradients else output.loss(
                hidden, targets
            ).backward()
            output.zero_grad()
        return peak.bytes

    few, many = peak_of(128), peak_of(512)
    assert many - few < 100_000
    assert many < 512 * 100_000 * 4 / 2


def test_a_target_that_is_no_token_is_refused() -> None:
    hidden, weight = torch.randn(5, 4, requires_grad=True), torch.randn(9, 4)
    with pytest.raises((IndexError, RuntimeError), match="index"):
        linear_cross_entropy(hidden, weight, None, torch.tensor([1, 2, -1, 3, 4]))


def test_a_gradient_by_hand_has_no_gradient_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight = torch.randn(5, 4, requires_grad=True), torch.randn(9, 4)
    loss = linear_cross_entropy(hidden, weight, None, torch.tensor([1, 2, 0, 3, 4]))
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.autograd.grad(loss, hidden, create_graph=True)
