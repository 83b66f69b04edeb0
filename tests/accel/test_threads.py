"""Batches beside each other: results in order, one thread each, and everything as it was afterwards."""

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


def test_results_come_in_order_from_threads_of_their_own() -> None:
    barrier = threading.Barrier(2, timeout=20)

    def work(item: int) -> tuple[int, int, str]:
        if item < 2:
            barrier.wait()  # the first two are under way at once
        time.sleep(0.01 * (3 - item))
        return item, torch.get_num_threads(), threading.current_thread().name

    found = map_batches(work, [0, 1, 2, 3], CPU)
    assert [item for item, _, _ in found] == [0, 1, 2, 3]
    assert {threads for _, threads, _ in found} == {1}
    assert len({name for _, _, name in found}) == 2
    assert torch.get_num_threads() == 2
    seen: list[int] = []
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert seen == [2]


def test_one_batch_has_all_threads() -> None:
    assert map_batches(lambda _: torch.get_num_threads(), [0], CPU) == [2]


def test_an_error_comes_through_and_leaves_nothing_behind() -> None:
    def work(item: int) -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        map_batches(work, [1, 2, 3], CPU)
    assert torch.get_num_threads() == 2
    assert not module._threads.locked()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_nobody_waits_for_ends_soon(error: type[BaseException]) -> None:
    begun: list[int] = []
    ended: list[int] = []
    both = threading.Barrier(2, timeout=20)

    def work(item: int) -> None:
        begun.append(item)
        both.wait()
        if item == 0:
            raise error
        beam_search(Fixed([0.0, 0.6, 0.4]), options=BeamConfig(beam=2, max_length=5000), end=0)
        ended.append(item)

    with pytest.raises(error):
        map_batches(work, [0, 1], CPU)
    assert (sorted(begun), ended) == ([0, 1], [])
    assert not module._threads.locked()
    assert beam_search(Fixed([1.0, 0.0, 0.0]), options=BeamConfig(max_length=3), end=0)  # here nothing was stopped


def test_what_has_not_begun_does_not_begin() -> None:
    begun: list[int] = []
    interrupted = threading.Event()

    def work(item: int) -> None:
        begun.append(item)
        if item == 0:
            interrupted.set()
            raise KeyboardInterrupt
        interrupted.wait(20)
        time.sleep(0.05)

    with pytest.raises(KeyboardInterrupt):
        map_batches(work, list(range(50)), CPU)
    assert len(begun) < 10


@pytest.mark.parametrize("torch_mode", MODES, ids=lambda mode: type(mode).__name__)
def test_modes_are_those_of_the_caller(torch_mode: AbstractContextManager[object]) -> None:
    def modes(_: object = None) -> tuple[object, ...]:
        product = torch.ones(1, 1) @ torch.ones(1, 1)
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), product.dtype, product.is_inference()

    with torch_mode:
        wanted = modes()
        assert map_batches(modes, [1, 2, 3], CPU) == [wanted] * 3


def test_other_threads_keep_their_number() -> None:
    """Also one that begins to use torch while batches are decoded."""
    seen: list[int] = []

    def work(item: int) -> int:
        if item == 0:
            other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
            other.start()
            other.join()
        return torch.get_num_threads()

    assert map_batches(work, [0, 1, 2], CPU) == [1, 1, 1]
    assert seen == [2]


def test_inside_another_nothing_is_split_again() -> None:
    def work(item: int) -> list[int]:
        return map_batches(lambda inner: 10 * item + inner, [1, 2], CPU)

    assert map_batches(work, [1, 2], CPU) == [[11, 12], [21, 22]]


@pytest.mark.parametrize(
    ("sentences", "most", "together"), [(256, 128, 128), (100, 128, 50), (33, 128, 17), (20, 128, 128)]
)
def test_every_thread_gets_a_batch_where_that_is_worth_it(sentences: int, most: int, together: int) -> None:
    assert choose_batch_size(sentences, most, CPU) == together
    assert choose_batch_size(sentences, most, torch.device("meta")) == most
