"""Classifiers and taggers on a GPU: equality with the CPU, no synchronization, precision and determinism."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.device_sync import forbid_device_sync
from torch import Tensor

from seqloom.config import build
from seqloom.core.tree import to_device
from seqloom.models.classifier import ClassifierConfig
from seqloom.models.tagger import TaggerConfig

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
V, K, C = 12, 5, 7
NAMES = ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
LSTM: dict[str, Any] = {"kind": "recurrent", "hidden": 8, "layers": 2}
ENCODERS: dict[str, dict[str, Any]] = {
    "lstm": LSTM,
    "gru-apart": {**LSTM, "cell": "gru", "depth": "apart", "combine": "mix"},
    "gru-cho": {"kind": "recurrent", "hidden": 8, "cell": "gru-cho"},
    "one-way": {**LSTM, "bidirectional": False, "weight_dropout": 0.1, "dropout": 0.1, "variational_dropout": True},
    "convolution": {"kind": "convolution", "widths": [2, 3], "filters": 8, "layers": 2},
    "transformer": {"kind": "transformer", "d_model": 16, "heads": 2},
}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    **{
        f"bag-{kind}": (ClassifierConfig, {"encoder": {"kind": "bag", "weights": kind}})
        for kind in ("one-hot", "tf-idf")
    },
    **{f"classifier-{name}": (ClassifierConfig, {"encoder": encoder}) for name, encoder in ENCODERS.items()},
    **{
        f"classifier-{kind}": (ClassifierConfig, {"encoder": LSTM, "pooling": kind})
        for kind in ("last", "max", "attention")
    },
    "classifier-characters": (ClassifierConfig, {"encoder": LSTM, "characters": {"kind": "cnn"}}),
    **{f"tagger-{name}": (TaggerConfig, {"encoder": encoder}) for name, encoder in ENCODERS.items()},
    "tagger-softmax": (TaggerConfig, {"encoder": LSTM, "crf": False, "characters": {"kind": "cnn"}}),
    "tagger-characters": (TaggerConfig, {"encoder": LSTM, "characters": {"kind": "rnn"}}),
}


@pytest.fixture(params=KINDS)
def model(request) -> Any:
    config, options = KINDS[request.param]
    torch.manual_seed(0)
    made = build(config, {"embedding": 16, "dropout": 0.1, "embedding_dropout": 0.1, **options})
    built = made.build(V, K, C).double()
    if config is TaggerConfig:
        built.constrain(NAMES)
    return built


def batch_of(model: Any) -> dict[str, Tensor]:
    """Return four texts, one of which is empty. For taggers, every second word has two tokens."""
    torch.manual_seed(1)
    mask = torch.arange(6) < torch.tensor([6, 2, 0, 4]).unsqueeze(1)
    tokens, labels = torch.randint(V, mask.shape), torch.tensor([0, 3, -1, 1])
    if isinstance(model.config, ClassifierConfig):
        characters = torch.randint(1, C, (*mask.shape, 4)) * mask.unsqueeze(2)
        return {"tokens": tokens, "mask": mask, "labels": labels, "characters": characters}
    words, first = torch.arange(4) < torch.tensor([4, 1, 0, 3]).unsqueeze(1), torch.tensor([[0, 2, 3, 5]] * 4)
    first = first.masked_fill(~words, 0)
    tags = torch.tensor([[1, 3, 4, 0], [4, 0, 0, 0], [0, 0, 0, 0], [0, 2, 4, 0]])
    characters = torch.randint(1, C, (*words.shape, 4)) * words.unsqueeze(2)
    return {"tokens": tokens, "mask": mask, "first": first, "words": words, "tags": tags, "characters": characters}


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def test_loss_gradients_and_predictions_match_cpu_results(model) -> None:
    model.eval()
    batch, gpu_model = batch_of(model), copy.deepcopy(model).cuda()
    results = []
    for each_model, each_batch in ((model, batch), (gpu_model, to_device(batch, "cuda"))):
        value, count = each_model.loss(each_batch)
        value.backward()
        gradients = [p.grad.cpu() for p in each_model.parameters() if p.grad is not None]
        results.append([value.cpu(), count.cpu(), each_model.probabilities(each_batch).cpu(), *gradients])
    torch.testing.assert_close(*results, atol=1e-9, rtol=0)
    if isinstance(model.config, TaggerConfig):
        assert torch.equal(gpu_model.predict(to_device(batch, "cuda")).cpu(), model.predict(batch))
    else:
        torch.testing.assert_close(gpu_model.influence(to_device(batch, "cuda")).cpu(), model.influence(batch))


def test_training_step_needs_no_device_synchronization(model) -> None:
    model, batch = model.float().cuda().train(), to_device(batch_of(model), "cuda")
    weights = torch.ones(K, device="cuda")
    options = (weights, 0.1) if isinstance(model.config, ClassifierConfig) else ()
    for _ in range(2):  # the first call loads libraries and may synchronize
        model.loss(batch, *options)[0].backward()
    torch.cuda.synchronize()
    with forbid_device_sync():
        value, _ = model.loss(batch, *options)
        value.backward()
    assert value.isfinite()


def test_device_synchronization_is_detected() -> None:
    """Negative control for the tests above."""
    with pytest.raises(RuntimeError, match="synchroniz"), forbid_device_sync():
        torch.ones(3, device="cuda").sum().item()


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_autocast_returns_a_single_precision_loss(model, precision) -> None:
    model, batch = model.float().eval().cuda(), to_device(batch_of(model), "cuda")
    expected = model.loss(batch)[0]
    with torch.autocast("cuda", precision):
        value, _ = model.loss(batch)
        assert value.dtype == torch.float32 == model.probabilities(batch).dtype
    value.backward()
    torch.testing.assert_close(value, expected, atol=0.05, rtol=0)
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_deterministic_training_is_reproducible(model) -> None:
    """The models do not use torch operations without a deterministic implementation."""
    model, batch = model.float().cuda().train(), to_device(batch_of(model), "cuda")
    results = []
    with deterministic():
        for _ in range(2):
            torch.manual_seed(5)
            model.zero_grad()
            value, _ = model.loss(batch)
            value.backward()
            results.append([value, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)
