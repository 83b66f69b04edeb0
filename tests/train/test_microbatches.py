"""A batch that does not fit in memory is split into microbatches. The result is equal, and the split is reported."""

import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.train.conftest import TinyModel, TinyTask
from torch import Tensor

from seqloom import accel
from seqloom.core.protocols import Loss
from seqloom.core.tree import GrowingBuffer, Tree, concatenate_rows, count_rows, leaves, slice_rows, tree_map
from seqloom.recipes import read_recipe
from seqloom.tasks import task_info
from seqloom.train.config import FitConfig
from seqloom.train.events import BatchSplit
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState
from seqloom.train.wrappers import accelerate, microbatch_count, microbatch_gradient, split_on_oom

pytestmark = pytest.mark.usefixtures("quick_disk")
ROWS = 6


class FullInBackward(torch.autograd.Function):
    """A function that is the identity in the forward pass and raises an out-of-memory error in the backward pass."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")


class LimitedMemoryTask(TinyTask):
    """A task with memory for a given number of examples, which have different numbers of targets."""

    def __init__(self, fits: int = 100, backward: bool = False, dropout: float = 0.0) -> None:
        super().__init__(dropout, batch_rows=ROWS)
        self.fits, self.in_backward, self.refused = fits, backward, 0
        self.is_counted = torch.rand(ROWS, 4, generator=torch.Generator().manual_seed(3)) < 0.6
        self.is_counted[0] = False  # an example without targets, and possibly a microbatch without targets

    def model(self) -> TinyModel:
        return super().model().double()

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        return {**super().batch(seed, step), "counted": self.is_counted, "read": 23}

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        full = len(batch["inputs"]) > self.fits
        self.refused += full
        if full and not self.in_backward:
            raise torch.OutOfMemoryError("CUDA out of memory")
        logits, h = model(batch["inputs"], None if batch["fresh"] or carry is None else carry["h"])
        targets = batch["targets"].masked_fill(~batch["counted"], -100)
        total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        count = batch["counted"].sum()
        value = total / count.clamp(min=1)
        if full:  # after part of the gradient has been accumulated
            value = value + 0 * FullInBackward.apply(model.embed.weight).sum()
        return Loss(value, {"h": h}, batch["read"], count)


def train(task: LimitedMemoryTask, **options: Any) -> TrainState:
    state = TrainState(task, FitConfig(**{"steps": 7, "device": "cpu", "lr": 0.05, **options}), 3)
    step = accelerate(split_on_oom, state)
    for _ in range(state.total):
        make_step(state, step)
    return state


@pytest.mark.parametrize("backward", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("fits", [5, 3, 2, 1])
def test_microbatches_give_the_step_of_the_full_batch(fits: int, accumulate: int, backward: bool) -> None:
    task = LimitedMemoryTask(fits, backward)
    unsplit, split = train(LimitedMemoryTask(), accumulate_steps=accumulate), train(task, accumulate_steps=accumulate)
    assert task.refused == {5: 1, 3: 1, 2: 2, 1: 3}[fits]  # each size is refused only once
    for name, value in unsplit.model.state_dict().items():
        torch.testing.assert_close(split.model.state_dict()[name], value, atol=1e-12, rtol=0)
    torch.testing.assert_close(split.carry["h"], unsplit.carry["h"], atol=1e-12, rtol=0)
    assert split.tally.recent_loss == pytest.approx(unsplit.tally.recent_loss, abs=1e-12)
    assert split.tally.tokens == unsplit.tally.tokens


def test_invalid_split_is_reported_once(session) -> None:
    events = session(steps=5).train(LimitedMemoryTask(2))
    assert [event for event in events if isinstance(event, BatchSplit)] == [BatchSplit(1, ROWS, 4)]


def test_resuming_uses_the_same_microbatches(session, same) -> None:
    """Dropout is drawn for each microbatch, so the split must not depend on whether the run was resumed."""
    complete, stopped = session("whole", steps=6), session("stopped", steps=6)
    complete.train(LimitedMemoryTask(3, dropout=0.3))
    stopped.train(LimitedMemoryTask(3, dropout=0.3), until=3)
    again = LimitedMemoryTask(3, dropout=0.3)
    stopped.train(again, resume=True)
    assert again.refused == 0
    assert same(stopped.checkpoint(6), complete.checkpoint(6))


def test_single_example_that_does_not_fit_raises_an_error() -> None:
    task = LimitedMemoryTask(0)
    with pytest.raises(torch.OutOfMemoryError):
        train(task)
    assert task.refused == 4  # 1, 2, 4 and 6 microbatches


def test_other_errors_are_not_caught() -> None:
    class Broken(LimitedMemoryTask):
        def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
            raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes"):
        train(Broken())


def test_smaller_batches_are_not_split() -> None:
    large, small = {"tokens": torch.zeros(8, 10)}, {"tokens": torch.zeros(8, 9)}
    counts = [[microbatch_count(limit, batch) for batch in (large, small)] for limit in (None, 80, 40, 20, 10)]
    assert counts == [[1, 1], [2, 1], [4, 2], [8, 4], [8, 8]]
    assert microbatch_count(10, {"tokens": torch.zeros(3, 99)}) == 3


def test_batches_are_sliced_and_concatenated() -> None:
    tree = {
        "a": torch.arange(10).view(5, 2),
        "b": (GrowingBuffer(torch.rand(5, 3), torch.arange(5)), None),
        "read": 17,
        "fresh": True,
        "name": "x",
    }
    parts = [slice_rows(tree, first, last, 5) for first, last in ((0, 1), (1, 3), (3, 5))]
    assert [count_rows(part) for part in parts] == [1, 2, 2]
    assert sum(part["read"] for part in parts) == 17
    assert all(part["fresh"] is True and part["name"] == "x" for part in parts)
    for original, joined in zip(leaves(tree), leaves(concatenate_rows(parts)), strict=True):
        assert torch.equal(original, joined)


def test_tensors_without_a_batch_dimension_are_not_split() -> None:
    assert microbatch_count(1, {"a": torch.zeros(4, 2), "b": torch.zeros(3)}) == 1
    assert microbatch_count(1, {"a": torch.zeros(4, 2)}, {"h": torch.zeros(1, 4, 3)}) == 1
    assert microbatch_count(1, {"a": torch.zeros(4, 2), "b": torch.tensor(1.0)}) == 1


TASKS = {
    "translate-cldr": ["data.train=40", "data.dev=5", "data.test=5", "batch.tokens=200", "tokenizer.size=300"],
    "lm-char-lstm": ["data.corpus=toys", "batch.size=6", "batch.length=8", "model.hidden=8"],
    "gpt-facts": ["batch.size=6", "batch.length=16", "model.d_model=8"],
    "names": ["batch.tokens=200", "loss.class_weights=balanced"],
    "tag-people": ["data.train=40", "data.dev=5", "data.test=5", "batch.tokens=200"],
    "toys-adding": ["batch.size=6", "model.hidden=8"],
    "bert-pydocs": ["batch.size=6", "batch.max_length=32", "model.d_model=8", "tokenizer.size=300", "objective=mlm"],
    "series-forecast": ["batch.size=6"],
}


@pytest.mark.parametrize("name", TASKS)
def test_every_task_counts_the_predictions_of_its_loss(name: str) -> None:
    _, recipe = read_recipe(name, TASKS[name])
    task: Any = task_info(recipe.task).task.prepare(recipe)
    torch.manual_seed(1)
    model = task.model().double().eval()
    if getattr(task, "class_weights", None) is not None:
        task.class_weights = task.class_weights.double()
    batch = tree_map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, task.batch(1, 0))
    assert count_rows(batch) > 3

    def gradients(parts: int) -> tuple[Loss, list[Tensor]]:
        model.zero_grad()
        actual = microbatch_gradient(
            model, batch, None, parts, lambda *arguments: task.loss(model, *arguments), Tensor.backward
        )
        return actual, [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    (unsplit, expected), (split, actual) = gradients(1), gradients(3)
    assert split.tokens == unsplit.tokens
    torch.testing.assert_close(split.value, unsplit.value, atol=1e-9, rtol=1e-9)
    for split_gradient, unsplit_gradient in zip(actual, expected, strict=True):
        torch.testing.assert_close(split_gradient, unsplit_gradient, atol=1e-9, rtol=1e-9)


class LargeTask(LimitedMemoryTask):
    """A model that needs a quarter of a gigabyte per example."""

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        loss = super().loss(model, batch, carry)
        weight = torch.zeros(len(batch["inputs"]), 1 << 26, device=loss.value.device)
        return Loss(loss.value + weight[:, 0].sum(), loss.carry, loss.tokens, loss.count)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("fast", [True, False])
def test_full_gpu_splits_batches(fast: bool) -> None:
    accel.install()
    unsplit = train(LargeTask(), device="cuda", cuda_graphs=fast)
    expected, tokens = {name: value.clone() for name, value in unsplit.model.state_dict().items()}, unsplit.tally.tokens
    del unsplit  # also frees its graphs
    gc.collect()
    torch.cuda.empty_cache()
    room = torch.cuda.memory_reserved() + (1 << 30)  # space for four of six examples
    torch.cuda.set_per_process_memory_fraction(room / torch.cuda.get_device_properties(0).total_memory)
    try:
        divided = train(LargeTask(), device="cuda", cuda_graphs=fast)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    (split,) = [event for event in divided.events if isinstance(event, BatchSplit)]
    assert split.microbatches in (2, 4)  # because of fragmentation, there may be no space for three examples
    for name, value in expected.items():
        torch.testing.assert_close(divided.model.state_dict()[name], value, atol=1e-6, rtol=0)
    assert divided.tally.tokens == tokens


@pytest.mark.parametrize("weight", [0.05, 1.0, 0.0])
def test_microbatches_with_small_prediction_weights_give_equal_gradients(weight: float) -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(3, 2).double(), torch.randn(4, 3).double()

    def loss_of(batch: Tree, carry: Tree) -> Loss:
        count = torch.tensor(weight * len(batch["x"])).double()
        return Loss(layer(batch["x"]).square().mean() * (weight > 0), None, 1, count)

    gradients = []
    for parts in (1, 2, 4):
        layer.zero_grad()
        loss = microbatch_gradient(layer, {"x": x}, None, parts, loss_of, Tensor.backward)
        assert layer.weight.grad is not None
        gradients.append((loss.value, layer.weight.grad.clone()))
    for value, gradient in gradients[1:]:
        torch.testing.assert_close(value, gradients[0][0])
        torch.testing.assert_close(gradient, gradients[0][1])
