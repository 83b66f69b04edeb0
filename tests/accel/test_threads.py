"""Batches in parallel threads: the order of results, one torch thread each, and restored settings."""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
import torch
from tests.decoding.test_beam_rules import Fixed

from seqloom import accel
from seqloom.accel.search import threads as module
from seqloom.decoding.beam import BeamConfig, beam_search, choose_batch_size, map_batches

CPU = torch.device("cpu")
MODES = [torch.autocast("cpu", torch.bfloat16), torch.inference_mode(), torch.no_grad(), torch.enable_grad()]


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    accel.install()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_results_are_in_order_and_use_one_thread_each() -> None:
    barrier = threading.Barrier(2, timeout=20)

    def work(item: int) -> tuple[int, int, str]:
        if item < 2:
            barrier.wait()  # the first two batches run in parallel
        time.sleep(0.01 * (3 - item))
        return item, torch.get_num_threads(), threading.current_thread().name

    results = map_batches(work, [0, 1, 2, 3], CPU)
    assert [item for item, _, _ in results] == [0, 1, 2, 3]
    assert {threads for _, threads, _ in results} == {1}
    assert len({name for _, _, name in results}) == 2
    assert torch.get_num_threads() == 2
    counts: list[int] = []
    later = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert counts == [2]


def test_single_batch_uses_all_threads() -> None:
    assert map_batches(lambda _: torch.get_num_threads(), [0], CPU) == [2]


def test_error_is_raised_and_settings_are_restored() -> None:
    def work(item: int) -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        map_batches(work, [1, 2, 3], CPU)
    assert torch.get_num_threads() == 2
    assert not module._pool_lock.locked()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_error_stops_other_threads(error: type[BaseException]) -> None:
    started: list[int] = []
    finished: list[int] = []
    barrier = threading.Barrier(2, timeout=20)

    def work(item: int) -> None:
        started.append(item)
        barrier.wait()
        if item == 0:
            raise error
        beam_search(Fixed([0.0, 0.6, 0.4]), options=BeamConfig(beam=2, max_length=5000), end=0)
        finished.append(item)

    with pytest.raises(error):
        map_batches(work, [0, 1], CPU)
    assert (sorted(started), finished) == ([0, 1], [])
    assert not module._pool_lock.locked()
    assert beam_search(Fixed([1.0, 0.0, 0.0]), options=BeamConfig(max_length=3), end=0)  # this thread is not cancelled


def test_interrupt_cancels_pending_batches() -> None:
    started: list[int] = []
    interrupted = threading.Event()

    def work(item: int) -> None:
        started.append(item)
        if item == 0:
            interrupted.set()
            raise KeyboardInterrupt
        interrupted.wait(20)
        time.sleep(0.05)

    with pytest.raises(KeyboardInterrupt):
        map_batches(work, list(range(50)), CPU)
    assert len(started) < 10


@pytest.mark.parametrize("torch_mode", MODES, ids=lambda mode: type(mode).__name__)
def test_threads_inherit_torch_modes_of_the_caller(torch_mode: AbstractContextManager[object]) -> None:
    def modes(_: object = None) -> tuple[object, ...]:
        product = torch.ones(1, 1) @ torch.ones(1, 1)
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), product.dtype, product.is_inference()

    with torch_mode:
        expected = modes()
        assert map_batches(modes, [1, 2, 3], CPU) == [expected] * 3


def test_settings_of_other_threads_are_unchanged() -> None:
    """Threads that start during decoding are also included."""
    counts: list[int] = []

    def work(item: int) -> int:
        if item == 0:
            other = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
            other.start()
            other.join()
        return torch.get_num_threads()

    assert map_batches(work, [0, 1, 2], CPU) == [1, 1, 1]
    assert counts == [2]


def test_nested_calls_run_sequentially() -> None:
    def work(item: int) -> list[int]:
        return map_batches(lambda inner: 10 * item + inner, [1, 2], CPU)

    assert map_batches(work, [1, 2], CPU) == [[11, 12], [21, 22]]


@pytest.mark.parametrize(
    ("sentences", "max_size", "size"), [(256, 128, 128), (100, 128, 50), (33, 128, 17), (20, 128, 128)]
)
def test_batch_size_gives_each_thread_a_batch(sentences: int, max_size: int, size: int) -> None:
    assert choose_batch_size(sentences, max_size, CPU) == size
    assert choose_batch_size(sentences, max_size, torch.device("meta")) == max_size
