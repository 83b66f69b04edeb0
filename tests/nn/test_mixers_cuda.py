"""Encoder layers on a GPU: equality with the CPU, no synchronization, and measured costs."""

import pytest
import torch
from tests.device_sync import forbid_device_sync

from seqloom.inspect.views.layers import LayersPlan, measure
from seqloom.nn.mixers import MIXERS, make_mixer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.parametrize("kind", MIXERS)
def test_gpu_results_match_cpu_results(kind: str) -> None:
    torch.manual_seed(0)
    mixer = make_mixer(kind, 16, 2, depth=1, window=3 if kind == "windowed" else None).double()
    mask = torch.arange(50) < torch.tensor([[50], [7], [0]])  # the last row consists of padding
    x = torch.randn(3, 50, 16, dtype=torch.float64).requires_grad_()
    results = []
    for device in ("cpu", "cuda"):
        mixer.to(device).zero_grad(set_to_none=True)
        on_gpu = x.detach().to(device).requires_grad_()
        y, _ = mixer(on_gpu, mask.to(device))
        y = torch.where(mask.to(device).unsqueeze(-1), y, 0)
        y.square().sum().backward()
        assert on_gpu.grad is not None
        results.append(
            [
                y.detach().cpu(),
                on_gpu.grad.cpu(),
                *(p.grad.cpu().clone() for p in mixer.parameters() if p.grad is not None),
            ]
        )
    assert all(torch.isfinite(part).all() for part in results[1])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("kind", [kind for kind in MIXERS if kind != "recurrent"])
def test_layers_need_no_device_synchronization(kind: str) -> None:
    """Only recurrent layers need the lengths of their rows."""
    mixer = make_mixer(kind, 16, 2).cuda()
    x, mask = torch.randn(2, 40, 16, device="cuda"), torch.ones(2, 40, dtype=torch.bool, device="cuda")
    mixer(x, mask)[0].sum().backward()
    with forbid_device_sync():
        mixer(x, mask)[0].sum().backward()


def test_costs_are_measured_on_a_gpu() -> None:
    plan = LayersPlan(lengths=(16, 32), d_model=16, heads=2, repeats=2, device="cuda")
    for measurement in measure(plan):
        assert measurement.failure is None and len(measurement.seconds) == 2
        assert measurement.memory is not None and measurement.memory >= 4 * 16 * measurement.length
