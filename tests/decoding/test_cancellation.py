"""Cancelled searches, generations and projections stop at their next step."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from tests.decoding.test_beam_rules import Fixed
from torch import Tensor

from seqloom.accel.search.threads import run_in_threads
from seqloom.core.progress import Cancellation, Cancelled
from seqloom.core.protocols import DecodeState, StepOutput
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.decoding.generate import generate
from seqloom.decoding.processors import SamplingConfig
from seqloom.inspect.views.points import tsne
from seqloom.predict.base import batch_by_length

STEPS = 7  # number of steps before the model below cancels the computation


class CancelsItself(Fixed):
    """A model that never predicts END and cancels the computation after some steps."""

    def __init__(self, cancellation: Cancellation) -> None:
        super().__init__([0.0, 0.6, 0.4])
        self.cancellation, self.steps = cancellation, 0

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        self.steps += 1
        if self.steps == STEPS:
            self.cancellation.cancel()
        return super().step(tokens, state, mask)


def search(model: Fixed) -> None:
    beam_search(model, options=BeamConfig(beam=2, max_length=5000), end=0)


def write(model: Fixed) -> None:
    options = SamplingConfig(temperature=0)
    list(generate(model, torch.zeros(1, 1, dtype=torch.long), options=options, max_tokens=5000, end=0))


@pytest.mark.parametrize("compute", [search, write])
def test_cancelled_decoding_stops_at_its_next_step(compute: Callable[[Fixed], None]) -> None:
    cancellation = Cancellation()
    model = CancelsItself(cancellation)
    with cancellation.active(), pytest.raises(Cancelled):
        compute(model)
    assert model.steps == STEPS


def test_batches_in_threads_are_cancelled_with_their_caller() -> None:
    cancellation = Cancellation()
    models = [CancelsItself(cancellation) for _ in range(3)]
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with cancellation.active(), pytest.raises(Cancelled):
            run_in_threads(search, models, torch.device("cpu"))
    finally:
        torch.set_num_threads(before)
    assert all(model.steps < 5000 for model in models)


def test_cancelled_tsne_stops_between_two_frames() -> None:
    cancellation = Cancellation()
    vectors = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    with cancellation.active():
        layouts: Iterator[object] = tsne(vectors, vectors[:, :2], perplexity=5, steps=1000, every=10)
        next(layouts)
        cancellation.cancel()
        with pytest.raises(Cancelled):
            next(layouts)


def test_cancelled_reading_stops_before_the_next_batch() -> None:
    cancellation, read = Cancellation(), list[list[int]]()
    with cancellation.active(), pytest.raises(Cancelled):
        for batch in batch_by_length([5] * 100, 10):
            read.append(batch)
            cancellation.cancel()
    assert len(read) == 1
