"""Runs on a GPU: exact resume of deterministic training, and models that run on the selected device."""

import pytest
import torch

from seqloom.core.files import tensors_from_file
from seqloom.predict.loader import load
from seqloom.train.events import Evaluated, Finished, Progress
from seqloom.train.stop import Stop
from seqloom.training import begin, resume

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.fixture(autouse=True)
def restore_determinism():
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("cell", ["lstm", "gru-cho"])
def test_resumed_training_is_bit_identical(recipe, tmp_path, cell, precision):
    options = ["train.device=cuda", "train.deterministic=true", f"train.precision={precision}", f"model.cell={cell}"]
    config = recipe(*options, "model.layers=2", "train.log_every=1", "train.steps=20")
    list(begin(config, tmp_path / "full").events())
    stop = Stop()
    for event in begin(config, tmp_path / "parts").events(stop):
        if isinstance(event, Progress) and event.step == 7:
            stop.request()
    assert isinstance(list(resume(tmp_path / "parts").events())[-1], Finished)
    for name in (
        "model.safetensors",
        *(f"checkpoints/step-20/{part}.safetensors" for part in ("model", "optimizer", "carry")),
    ):
        full, parts = (tensors_from_file(tmp_path / run / name) for run in ("full", "parts"))
        assert full.keys() == parts.keys()
        for tensor in full:
            assert torch.equal(full[tensor], parts[tensor]), f"{name}: {tensor}"


@pytest.mark.parametrize("task", ["language-model", "ngram"])
def test_gpu_results_match_cpu_results(recipe, tmp_path, task):
    overrides = ["train.device=cpu"] if task == "language-model" else []
    events = list(begin(recipe(*overrides, task=task), tmp_path / "run").events())
    best = min(event.metrics["loss"] for event in events if isinstance(event, Evaluated))
    here, there = load(tmp_path / "run", device="cpu"), load(tmp_path / "run", device="cuda")
    assert there.device.type == "cuda"
    assert there.evaluate("dev")["loss"] == pytest.approx(best, rel=1e-5)
    assert there.score(["abc|abc"])[0].log_probs == pytest.approx(here.score(["abc|abc"])[0].log_probs, abs=1e-4)
    greedy = [list(model.generate("abc|", max_tokens=5, temperature=0.0)) for model in (here, there)]
    assert greedy[0] == greedy[1]
