"""Minimum ratios of the speeds of fast and plain implementations, measured alternately on one thread.

Each time is the minimum CPU time over several rounds, which other load hardly affects. The bounds are lower than the
usual ratios, which are listed in `docs/explanations/performance.md`.
"""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.nn.run_layer import run
from torch import Tensor, nn

from seqloom.accel.recurrence.steps import STEPS, steps_name
from seqloom.cli.app import main
from seqloom.core.device import seed_step
from seqloom.core.protocols import Loss, Monitor, Task
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.models.transformer import Transformer, TransformerConfig
from seqloom.nn.cells import CELLS
from seqloom.nn.masks import drop
from seqloom.nn.recurrent import Recurrent
from seqloom.nn.softmax import linear_cross_entropy
from seqloom.train.config import FitConfig
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState

ROUNDS = 7


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def speedup(ours: Callable[[], object], plain: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return the ratio of the times of `plain` and `ours`, each the minimum over the rounds after a warm-up round."""
    best = {ours: float("inf"), plain: float("inf")}
    for number in range(rounds + 1):
        for function in best:
            start = time.thread_time()
            function()
            if number:
                best[function] = min(best[function], time.thread_time() - start)
    return best[plain] / best[ours]


def gradients(outputs: Tensor, *of: Tensor) -> None:
    torch.autograd.grad(outputs, of, torch.ones_like(outputs))


@pytest.mark.parametrize("name", [name for name in CELLS if steps_name(CELLS[name](1, 1)) in STEPS])
def test_sequence_kernel_is_faster_than_loop(name: str) -> None:
    layer = Recurrent(CELLS[name](64, 64))
    x = torch.randn(16, 32, 64, requires_grad=True)
    leaves = [x, *layer.parameters()]

    def step(fused: bool) -> None:
        gradients(run(layer, x, fused=fused)[0], *leaves)

    assert speedup(lambda: step(True), lambda: step(False)) > 1.3


def test_gru_is_as_fast_as_torch() -> None:
    ours, theirs = Recurrent(CELLS["gru"](128, 128)), nn.GRU(128, 128, batch_first=True)
    x = torch.randn(32, 32, 128, requires_grad=True)
    ratio = speedup(
        lambda: gradients(ours(x)[0], x, *ours.parameters()), lambda: gradients(theirs(x)[0], x, *theirs.parameters())
    )
    assert ratio > 0.95


def test_dropout_is_faster_than_torch() -> None:
    x = torch.randn(512, 256, requires_grad=True)
    assert speedup(lambda: gradients(drop(x, 0.3), x), lambda: gradients(F.dropout(x, 0.3), x)) > 1.5


def test_chunked_loss_is_faster_for_large_vocabulary() -> None:
    hidden, weight = (torch.randn(rows, 64, requires_grad=True) for rows in (2048, 8000))
    bias, targets = torch.zeros(8000, requires_grad=True), torch.randint(8000, (2048,))
    leaves = hidden, weight, bias

    def whole() -> None:
        logits = F.linear(hidden, weight, bias)
        gradients(F.cross_entropy(logits, targets, reduction="sum", label_smoothing=0.1), *leaves)

    ratio = speedup(
        lambda: gradients(linear_cross_entropy(hidden, weight, bias, targets, 0.1), *leaves), whole, rounds=3
    )
    assert ratio > 1.2


def transformer() -> Transformer:
    config = TransformerConfig(d_model=64, encoder_layers=2, decoder_layers=2, dropout=0.3, tied="all")
    return config.build(1000)


def test_transformer_trains_faster_than_torch() -> None:
    ours = transformer()
    theirs = nn.Transformer(64, 4, 2, 2, 256, dropout=0.3, batch_first=True)
    embed = nn.Embedding(1000, 64)
    source, target = torch.randint(1, 1000, (2, 64, 20))
    real = torch.ones(64, 20, dtype=torch.bool)
    batch = {"source": source, "source_mask": real, "inputs": target, "targets": target, "target_mask": real}
    causal = nn.Transformer.generate_square_subsequent_mask(20)

    def plain() -> None:
        y = theirs(embed(source), embed(target), tgt_mask=causal, tgt_is_causal=True)
        loss = F.cross_entropy(F.linear(y, embed.weight).flatten(0, 1), target.flatten())
        gradients(loss, *theirs.parameters(), *embed.parameters())

    assert speedup(lambda: gradients(ours.loss(batch)[0], *ours.parameters()), plain) > 1.2


def test_beam_search_time_is_linear_in_length() -> None:
    """Three times as many tokens take about three times as long, not nine times."""
    model = transformer().eval()
    source = {"tokens": torch.randint(1, 1000, (8, 12)), "mask": torch.ones(8, 12, dtype=torch.bool)}

    def search(length: int) -> None:
        options = BeamConfig(beam=4, min_length=length, max_length=length)
        beam_search(model, source=source, options=options, end=0)

    assert speedup(lambda: search(16), lambda: search(48), rounds=3) < 5.5


def test_seeding_a_step_is_fast() -> None:
    """Compare a call with a small matrix product. `torch.manual_seed` is slower if there is no GPU."""
    a = torch.randn(128, 128)

    def seed() -> None:
        for step in range(20):
            seed_step(1, step)

    assert speedup(seed, lambda: [a @ a for _ in range(20)]) > 2


class Regression(Task):
    """A minimal task: a few layers and one batch."""

    monitor = Monitor("loss")

    def model(self) -> nn.Module:
        return nn.Sequential(*(nn.Linear(128, 128) for _ in range(8)))

    def steps_per_epoch(self) -> int:
        return 1000

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> dict[str, Tensor]:
        return {"x": torch.ones(256, 128)}

    def loss(self, model: Any, batch: Any, carry: Any) -> Loss:
        return Loss(model(batch["x"]).square().mean(), None, 256)

    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        return {"loss": 0.0}


def test_trainer_has_little_overhead() -> None:
    task = Regression()
    trainer = TrainState(task, FitConfig(steps=1000, device="cpu"), seed=1)
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def bare() -> None:
        for step in range(5):
            optimizer.zero_grad(set_to_none=True)
            loss = task.loss(model, task.batch(1, step), None).value
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            loss.item()

    assert speedup(lambda: [make_step(trainer) for _ in range(5)], bare) > 0.7


def test_idle_threads_stop_spinning(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the user has set a spin time, it is kept."""
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert main(["--version"]) == 0
    assert os.environ["GOMP_SPINCOUNT"] == "7"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    assert main(["--version"]) == 0
    assert os.environ["GOMP_SPINCOUNT"] == "10000"
