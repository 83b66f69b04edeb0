"""Chunked cross-entropy compared with torch, in value and gradients."""

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


def make_inputs(dtype: torch.dtype = torch.float64, ignored: int = 0) -> Any:
    generator = torch.Generator().manual_seed(1)
    hidden, weight, bias = (torch.randn(*shape, generator=generator).double() for shape in ((N, H), (V, H), (V,)))
    targets = torch.randint(V, (N,), generator=generator)
    targets[:ignored] = -100
    return *(part.to(dtype).requires_grad_() for part in (hidden, weight, bias)), targets


def torch_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, label_smoothing: float
) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight, bias), targets, reduction="sum", label_smoothing=label_smoothing)


@pytest.mark.parametrize("rows", [1, 5, 1000], ids="chunks of {}".format)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("ignored", [0, 4, N])
def test_loss_and_gradients_match_torch(
    rows: int, smoothing: float, ignored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy, "CPU_CHUNK_LOGITS", rows * V)
    monkeypatch.setattr(cross_entropy, "MIN_CHUNK_ROWS", 1)
    smoothed: Any = {"label_smoothing": smoothing}
    ours, theirs = make_inputs(ignored=ignored), make_inputs(ignored=ignored)
    actual, expected = linear_cross_entropy(*ours, **smoothed), torch_cross_entropy(*theirs, **smoothed)
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=0)
    (actual * 0.7).backward()
    (expected * 0.7).backward()
    for ours_part, theirs_part in zip(ours[:3], theirs[:3], strict=True):
        torch.testing.assert_close(ours_part.grad, theirs_part.grad, atol=1e-10, rtol=0)


def make_layer(dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    return FullSoftmax(H, V).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("ignored", [0, 4])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype, ignored: int) -> None:
    hidden, _, _, targets = make_inputs(dtype, ignored)
    output = make_layer(dtype)
    value = output.total_loss(hidden, targets, 0.1)
    assert value.dtype == torch.float32
    logits = output(hidden).float()
    expected = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(value, expected, atol=0, rtol=0)
    value.backward()
    assert output.weight.grad.dtype == dtype and output.weight.grad.isfinite().all()


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_total_loss_is_equal_with_and_without_gradients(gradients: bool, smoothing: float) -> None:
    hidden, _, _, targets = make_inputs(ignored=3)
    output = make_layer(torch.float64)
    with torch.set_grad_enabled(gradients):
        value = output.total_loss(hidden, targets, smoothing)
    expected = torch_cross_entropy(hidden, output.weight, output.bias, targets, smoothing)
    torch.testing.assert_close(value, expected, atol=1e-10, rtol=0, check_dtype=True)
    twice = consistent_cross_entropy(
        output(torch.cat([hidden, hidden])), torch.cat([targets, targets]), smoothing, consistency=3.0
    )  # the two forward passes are identical
    torch.testing.assert_close(twice, 2 * expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("needs_gradient", [(True, True, True), (True, False, False), (False, True, True)])
def test_ignored_targets_do_not_count_without_synchronization(
    smoothing: float, needs_gradient: tuple[bool, ...]
) -> None:
    ours, theirs = make_inputs(ignored=4), make_inputs(ignored=4)
    for ours_part, theirs_part, needed in zip(ours[:3], theirs[:3], needs_gradient, strict=True):
        ours_part.requires_grad_(needed)
        theirs_part.requires_grad_(needed)
    actual = cross_entropy._LinearCrossEntropy.apply(*ours, smoothing, 5, True)
    smoothed: Any = {"label_smoothing": smoothing}
    expected = torch_cross_entropy(*theirs, **smoothed)
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=0)
    actual.backward()
    expected.backward()
    for ours_part, theirs_part, needed in zip(ours[:3], theirs[:3], needs_gradient, strict=True):
        assert (ours_part.grad is not None) == needed
        if needed:
            torch.testing.assert_close(ours_part.grad, theirs_part.grad, atol=1e-10, rtol=0)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler raises this warning
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_compiled_cross_entropy_matches_torch(smoothing: float) -> None:
    hidden, weight, bias, targets = make_inputs(ignored=4)
    logits = F.linear(hidden, weight, bias)
    with compile_regions(RegionCompiler(backend="aot_eager")):
        actual = summed_cross_entropy(logits, targets, smoothing)
    torch.testing.assert_close(
        actual, torch_cross_entropy(hidden, weight, bias, targets, smoothing), atol=1e-10, rtol=0
    )


def test_autocast_rounds_products_but_not_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "MIN_CHUNK_ROWS", 5)
    monkeypatch.setattr(cross_entropy, "CPU_CHUNK_LOGITS", 1)
    hidden, _, _, targets = make_inputs(torch.float32, 3)
    output, plain = make_layer(torch.float32), make_layer(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = output.total_loss(hidden, targets)
        expected = F.cross_entropy(plain(hidden).float(), targets, reduction="sum")
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected, atol=1e-4, rtol=1e-5)
    value.backward()
    expected.backward()
    assert output.weight.grad.dtype == torch.float32
    torch.testing.assert_close(output.weight.grad, plain.weight.grad, atol=0.05, rtol=0.02)


@pytest.mark.parametrize("gradients", [True, False])
def test_memory_does_not_grow_with_positions(gradients: bool) -> None:
    """V is so large that the logits of a few thousand positions would need gigabytes."""
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


def test_invalid_target_is_rejected() -> None:
    hidden, weight = torch.randn(5, 4, requires_grad=True), torch.randn(9, 4)
    with pytest.raises((IndexError, RuntimeError), match="index"):
        linear_cross_entropy(hidden, weight, None, torch.tensor([1, 2, -1, 3, 4]))


def test_second_derivative_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight = torch.randn(5, 4, requires_grad=True), torch.randn(9, 4)
    loss = linear_cross_entropy(hidden, weight, None, torch.tensor([1, 2, 0, 3, 4]))
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.autograd.grad(loss, hidden, create_graph=True)
