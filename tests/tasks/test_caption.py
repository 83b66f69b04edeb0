"""Captioning of images: batches, loss, training, evaluation and prediction."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqloom import load, train_recipe
from seqloom.cli.app import main
from seqloom.core.errors import DataError, UsageError
from seqloom.core.files import tensors_from_file
from seqloom.recipes import read_recipe
from seqloom.tasks.caption import Task
from seqloom.train.events import Saved

SMALL = ["data.train=60", "data.dev=12", "data.test=12", "data.side=24", "model.image.channels=[8,16]", "batch.size=16"]
HARD = [
    "model.seq2seq={kind: recurrent-seq2seq, hidden: 16, encoder_layers: 0, attention: {order: bahdanau, hard: {}}}"
]
STEPS = ["train.epochs=null", "train.steps=12", "train.evaluate_every=6", "train.warmup=2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("captions") / "run"
    train_recipe("caption-shapes", *SMALL, *STEPS, out=path)
    return path


@pytest.fixture(scope="module")
def task() -> Task:
    return Task.prepare(read_recipe("caption-shapes", [*SMALL, "augment.shift=1"])[1])


def test_epoch_reads_every_caption_once_with_its_image() -> None:
    task = Task.prepare(read_recipe("caption-shapes", [*SMALL, "batch.size=1"])[1])
    examples = task.corpus.split("train")
    expected = sorted(
        (example.image.decode().pixels.tobytes(), text) for example in examples for text in example.target_texts
    )
    read = []
    for step in range(task.steps_per_epoch()):
        batch = task.batch(5, step)
        ids = batch["targets"][0][batch["target_mask"][0]].tolist()
        assert ids[-1] == task.tokenizer.end and batch["inputs"][0].tolist() == [task.tokenizer.end, *ids[:-1]]
        read.append((batch["source"]["images"].numpy().tobytes(), task.tokenizer.decode(ids[:-1])))
    assert len(expected) > len(examples) and sorted(read) == expected


def test_batch_depends_only_on_seed_and_step(task: Task) -> None:
    first, again, other = task.batch(1, 3), task.batch(1, 3), task.batch(2, 3)
    assert torch.equal(first["source"]["images"], again["source"]["images"])
    assert torch.equal(first["targets"], again["targets"])
    assert not torch.equal(first["source"]["images"], other["source"]["images"])
    assert first["source_mask"].shape == (16, task.vectors_per_image) and bool(first["source_mask"].all())
    ranks = [task.batch(1, 1, rank, 2)["targets"] for rank in (0, 1)]
    steps = [task.batch(1, step)["targets"] for step in (2, 3)]
    assert all(torch.equal(a, b) for a, b in zip(ranks, steps, strict=True))


def test_loss_of_a_split_is_the_mean_over_all_captions(run: Path) -> None:
    """The losses of single captions, computed one by one, have the same mean."""
    model = load(run, "cpu")
    task, total, count = model.task(), 0.0, 0
    for example in task.corpus.split("dev"):
        for caption in example.captions:
            ids = [*model.tokenizer.encode(caption), model.tokenizer.end]
            source = {"images": torch.from_numpy(example.image.pixels[None])}
            mask = torch.ones(1, task.vectors_per_image, dtype=torch.bool)
            with torch.no_grad():
                logits = model.model(source, mask, torch.tensor([[model.tokenizer.end, *ids[:-1]]]))
            total -= torch.log_softmax(logits[0].double(), dim=-1)[range(len(ids)), ids].sum().item()
            count += len(ids)
    assert task.losses(model.model, "dev")["loss"] == pytest.approx(total / count, rel=1e-5)


def test_report_scores_the_written_captions(run: Path) -> None:
    model = load(run, "cpu")
    report = model.report("test")
    assert [line.example for line in report.lines] == list(model.training_task.corpus.split("test"))
    assert report.metrics["exact_match"] == np.mean([line.text in line.example.captions for line in report.lines])
    assert set(report.metrics) >= {"loss", "perplexity", "bleu_1", "bleu_2", "bleu_3", "bleu_4", "chrf"}
    assert (
        report.decoding.startswith("beam search, 5") and model.run.metrics("test")["bleu_1"] == report.metrics["bleu_1"]
    )


def stop_at_checkpoint(event: Any) -> None:
    if isinstance(event, Saved):
        raise KeyboardInterrupt


def test_resumed_training_gives_the_same_weights(run: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_recipe("caption-shapes", *SMALL, *STEPS, out=tmp_path / "b", on_event=stop_at_checkpoint)
    train_recipe("caption-shapes", *SMALL, *STEPS, out=tmp_path / "b", resume=True)
    a, b = (tensors_from_file(path / "model.safetensors") for path in (run, tmp_path / "b"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_resuming_with_hard_attention_is_exact(tmp_path: Path) -> None:
    """The sampled positions of a step depend only on the seed and the step. Control: another seed."""
    words = ["caption-shapes", *SMALL, *STEPS, *HARD, "batch.dev_images=0", "monitor=loss"]
    train_recipe(*words, out=tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        train_recipe(*words, out=tmp_path / "b", on_event=stop_at_checkpoint)
    train_recipe(*words, out=tmp_path / "b", resume=True)
    train_recipe(*words, "seed=2", out=tmp_path / "c")
    a, b, c = (tensors_from_file(tmp_path / name / "model.safetensors") for name in "abc")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not all(torch.equal(a[name], c[name]) for name in a)


def test_training_loss_with_hard_attention_has_a_remark() -> None:
    task = Task.prepare(read_recipe("caption-shapes", [*SMALL, *HARD])[1])
    assert task.loss_remark == "with policy"


def test_recurrent_decoder_can_be_trained(tmp_path: Path) -> None:
    recurrent = ["model.seq2seq={kind: recurrent-seq2seq, hidden: 16, encoder_layers: 0}", "batch.dev_images=3"]
    model = train_recipe("caption-shapes", *SMALL, *STEPS, *recurrent, out=tmp_path / "run")
    assert "bleu_4" in model.evaluate("test")


def test_corpus_is_shown_with_captions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data", "show", "captioned-shapes", "train=12", "dev=5", "test=5"]
    assert main([*words, "--lines", "2", "--out", str(tmp_path / "grid.png")]) == 0
    output = capsys.readouterr().out
    assert "captions" in output and "train 1\n    a " in output.replace("  train", "train")
    assert (tmp_path / "grid.png").stat().st_size > 1000


def test_monitor_of_texts_needs_dev_images() -> None:
    with pytest.raises(UsageError, match=r"monitor exact_match needs texts of dev: set batch.dev_images above 0"):
        read_recipe("caption-shapes", [*SMALL, "batch.dev_images=0"])


def test_doubly_stochastic_loss_needs_attention() -> None:
    options = [*SMALL, "loss.doubly_stochastic=1"]
    task = Task.prepare(read_recipe("caption-shapes", options)[1])
    assert task.loss_remark == "regularized" and task.loss(task.model(), task.batch(1, 0), None).value.item() > 0
    nic = "model.seq2seq={kind: recurrent-seq2seq, hidden: 8, encoder_layers: 0, attention: null, context: first}"
    Task.prepare(read_recipe("caption-shapes", [*SMALL, nic])[1])
    with pytest.raises(UsageError, match=r"loss\.doubly_stochastic needs attention"):
        read_recipe("caption-shapes", [*options, nic])


@pytest.mark.parametrize(("length", "side"), [(20, "source"), (40, "target")])
def test_model_with_too_few_positions_is_rejected(length: int, side: str) -> None:
    positions = ["model.seq2seq.positions.kind=learned", f"model.seq2seq.positions.max_length={length}"]
    unit = "characters" if side == "target" else "words"
    _, recipe = read_recipe("caption-shapes", [*SMALL, *positions, f"tokenizer.kind={unit}"])
    with pytest.raises(DataError, match=rf"A {side} of train has .* but the model has only {length} positions\. Set"):
        Task.prepare(recipe)
