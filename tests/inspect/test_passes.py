"""Time and memory of passes with known costs, and the memory limit."""

import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seqloom.core.errors import is_out_of_memory
from seqloom.inspect.views import passes
from seqloom.inspect.views.passes import TrainingPass, memory_limit, peak_memory, seconds

CPU = torch.device("cpu")
MEBI = 2**20


def mebibytes(number: int) -> Tensor:
    return torch.empty(number * MEBI, dtype=torch.uint8)


class Known(torch.autograd.Function):
    """A layer that allocates and frees `early` MiB and saves `kept` MiB. Its backward pass allocates `late` MiB."""

    @staticmethod
    def forward(context: Any, x: Tensor, early: int, kept: int, late: int) -> Tensor:
        mebibytes(early)
        context.kept, context.late = mebibytes(kept), late
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        mebibytes(context.late)
        return gradient, None, None, None


class Made(nn.Module):
    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes, self.calls = sizes, 0

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        self.calls += 1
        return Known.apply(x, *self.sizes), None


@pytest.mark.parametrize(("sizes", "peak"), [((40, 1, 1), 40), ((1, 10, 3), 13), ((5, 0, 7), 7), ((2, 9, 0), 9)])
def test_peak_memory_is_the_maximum_of_allocated_memory(sizes: tuple[int, ...], peak: int) -> None:
    measured = peak_memory(TrainingPass(Made(*sizes), torch.ones(1).requires_grad_()), CPU)
    assert measured is not None and 0 <= measured - peak * MEBI < 1000


def test_earlier_allocations_are_not_counted() -> None:
    x, layer = torch.ones(1).requires_grad_(), Made(3, 1, 0)
    first = peak_memory(TrainingPass(layer, x), CPU)
    held = torch.ones(50, MEBI, dtype=torch.uint8)
    assert peak_memory(TrainingPass(layer, x), CPU) == first
    assert held.sum() == 50 * MEBI


def test_profiler_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    passing = TrainingPass(Made(1, 1, 0), torch.ones(1).requires_grad_())
    passing.run()
    peak_memory(passing, CPU)
    assert capfd.readouterr() == ("", "")


def test_pass_computes_gradients_and_clear_removes_them() -> None:
    layer = nn.Linear(3, 3)
    x = torch.randn(2, 3).requires_grad_()

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor, weights: bool = False) -> tuple[Tensor, bool]:
            assert weights
            return self.layer(x), weights

    passing = TrainingPass(Layer(), x, weights=True)
    passing.run()
    assert all(leaf.grad is not None for leaf in (x, *layer.parameters()))
    passing.clear()
    assert all(leaf.grad is None for leaf in (x, *layer.parameters()))


def test_warm_up_runs_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    layer = Made(0, 1, 0)

    def passing(cost: float) -> Any:
        class Costly(TrainingPass):
            def run(self) -> None:
                now[0] += cost
                super().run()

        return Costly(layer, torch.ones(1).requires_grad_())

    monkeypatch.setattr("seqloom.inspect.views.passes.time.perf_counter", lambda: now[0])
    assert seconds(passing(0.1), CPU, 4) == pytest.approx([0.1] * 4)
    assert layer.calls == passes.WARM_UP + 4
    layer.calls = 0
    assert len(seconds(passing(11.0), CPU, 9)) == 2, "slow passes are repeated less often"
    assert layer.calls == 1 + 2, "the warm-up, too"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory limit needs Linux")
def test_memory_limit_is_enforced() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with memory_limit(200 * MEBI, CPU):
        torch.empty(100, MEBI, dtype=torch.uint8)
        with pytest.raises(RuntimeError) as caught:
            torch.empty(300, MEBI, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    torch.empty(300, MEBI, dtype=torch.uint8)


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs /proc of Linux")
def test_load_of_other_processes_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter([(10.0, 500.0, 30.0), (20.0, 525.0, 42.0), (10.01, 500.0, 30.0)])
    monkeypatch.setattr(passes, "_processor_times", lambda: next(used))
    other_load = passes.OtherLoad()
    assert other_load.cores() == pytest.approx((25 - 12) / 10)
    assert other_load.cores() is None, "too short to measure"
    monkeypatch.undo()
    before = passes._processor_times()
    sum(range(3_000_000))
    after = passes._processor_times()
    assert before is not None and after is not None
    assert after[2] > before[2] and after[1] >= before[1] and after[0] > before[0]


def test_memory_is_not_limited_by_default() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with memory_limit(None, CPU):
        assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_out_of_memory_errors_are_recognized() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_failed_pass_stops_profiler() -> None:
    class Failing(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            raise MemoryError

    x = torch.ones(1).requires_grad_()
    with pytest.raises(MemoryError):
        peak_memory(TrainingPass(Failing(), x), CPU)
    assert not torch._C._autograd._profiler_enabled()
    assert peak_memory(TrainingPass(Made(1, 10, 3), x), CPU) is not None
