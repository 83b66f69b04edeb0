"""CPU time of whole sequences relative to the plain loop and an LSTM, on one core, with tolerance."""

import time
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from benchmarks.cells import VARIANTS, Program, arithmetic, measure
from tests.nn.run_layer import run
from tests.standard import STANDARD_CELLS
from torch import nn

from seqloom.accel.recurrence import numba_steps, sequences
from seqloom.nn.cells import CELLS
from seqloom.nn.recurrent import Recurrent

WITH_KERNELS = [name for name, (cell, _) in VARIANTS.items() if cell in STANDARD_CELLS]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def measure_seconds(programs: dict[str, Program], rounds: int) -> dict[str, float]:
    measure(programs, rounds, time.thread_time)
    return {name: program.unit for name, program in programs.items()}


def run_layer(layer, x):
    return layer(x)[0]


def make_layer(name, size):
    kind, options = VARIANTS[name]
    return Recurrent(CELLS[kind](size, size, **options))


@pytest.mark.parametrize("name", WITH_KERNELS)
def test_sequence_kernel_is_faster_than_the_plain_loop(name):
    layer, x = make_layer(name, 64), torch.randn(16, 32, 64, requires_grad=True)
    first, leaves = layer.cell.initial_state(16), [x, *layer.parameters()]
    programs = {
        "whole": Program(lambda: sequences.run(layer.cell, x, first)[0], 1, leaves),
        "loop": Program(lambda: run(layer, x, first, fused=False)[0], 1, leaves),
    }
    seconds = measure_seconds(programs, 7)
    assert seconds["loop"] > 1.2 * seconds["whole"]  # measured: 1.7 to 2.6


@pytest.mark.slow
def test_time_per_operation_is_close_to_lstm():
    x = torch.randn(32, 64, 256, requires_grad=True)
    lstm = nn.LSTM(256, 256, batch_first=True)
    programs = {"lstm itself": Program(lambda: lstm(x)[0], 4 * 256 * 512, [x, *lstm.parameters()])}
    for name in WITH_KERNELS:
        layer = make_layer(name, 256)
        programs[name] = Program(partial(run_layer, layer, x), arithmetic(layer.cell), [x, *layer.parameters()])
    seconds = measure_seconds(programs, 7)
    ratios = {name: duration / seconds["lstm itself"] for name, duration in seconds.items()}
    limit = 1.6 if numba_steps.library() is None else 1.4  # measured with numba: 1.0 to 1.15
    assert max(ratios.values()) < limit, ratios
