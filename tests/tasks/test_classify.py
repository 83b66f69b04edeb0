"""The classification task: batches, loss, metrics and exact resume."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.understanding import assert_same_checkpoints, classify_recipe, reviews, trained, write_reviews

from seqloom.core.errors import DataError, UsageError
from seqloom.core.files import tensors_from_file
from seqloom.predict.loader import load
from seqloom.runs.run import Run
from seqloom.tasks.classify import Task
from seqloom.train.events import Evaluated, Progress
from seqloom.train.stop import Stop
from seqloom.training import begin, resume


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task.prepare(classify_recipe(tmp_path))


def test_epoch_reads_every_text_once_with_its_label(task: Task) -> None:
    read = []
    for step in range(task.steps_per_epoch()):
        batch = task.batch(1, step)
        assert batch["read"] == int(batch["mask"].sum())
        assert batch["tokens"].numel() <= 64
        for row, mask, label in zip(batch["tokens"], batch["mask"], batch["labels"], strict=True):
            ids = row[mask].tolist()
            assert ids.pop() == 0  # END
            read.append((task.tokenizer.decode(ids), task.names[label]))
    examples = [(example.text, example.label) for example in task.corpus.split("train")]
    assert sorted(read) == sorted(examples)
    assert set(examples) <= set(reviews())


def test_batches_depend_only_on_seed_and_step(task: Task, tmp_path: Path) -> None:
    again = Task.prepare(classify_recipe(tmp_path))
    other = [task.batch(2, step)["tokens"].tolist() for step in range(5)]
    for step in (7, 0, 3):
        first, second = task.batch(1, step), again.batch(1, step)
        assert all(torch.equal(first[name], second[name]) for name in ("tokens", "mask", "labels"))
    assert [task.batch(1, step)["tokens"].tolist() for step in range(5)] != other


def test_labels_missing_in_train_are_reported_and_count_as_wrong(tmp_path: Path) -> None:
    test = write_reviews(tmp_path / "test.csv", [("a gripping film", "good"), ("odd", "strange"), ("odder", "strange")])
    task = Task.prepare(classify_recipe(tmp_path, f"data.test={test}", "data.test_fraction=0"))
    assert task.names == ("bad", "good")
    assert task.labels("test") == [1, -1, -1]  # the second label is not a label of the model
    assert any("2 test examples have labels not in train (strange)" in line for line in task.warnings())
    torch.manual_seed(0)
    model = task.model().eval()
    metrics = task.report(model, "test")
    assert metrics.unseen == {"strange": 2}
    assert metrics.metrics["accuracy"] <= 1 / 3
    assert np.isfinite(metrics.metrics["loss"])


def test_single_class_is_rejected(tmp_path: Path) -> None:
    write_reviews(tmp_path / "reviews.csv", [(f"text {n}", "same") for n in range(30)])
    with pytest.raises(DataError, match=r"must have at least two labels, but all .* have the label 'same'"):
        Task.prepare(classify_recipe(tmp_path))


def test_balanced_classes_have_equal_weight(tmp_path: Path) -> None:
    rows = [row for row in reviews() if row[1] == "good"] + [row for row in reviews() if row[1] == "bad"][:10]
    write_reviews(tmp_path / "reviews.csv", rows)
    task = Task.prepare(classify_recipe(tmp_path, "loss.class_weights=balanced"))
    counts = [task.labels("train").count(number) for number in range(2)]
    weights = task.class_weights
    assert weights is not None
    assert (weights * torch.tensor(counts)).tolist() == pytest.approx([sum(counts) / 2] * 2)
    assert (task.monitor.unit, task.monitor.remark) == ("nats per text", "weighted")


def test_training_loss_is_weighted_mean(tmp_path: Path) -> None:
    recipe = classify_recipe(tmp_path, "loss.class_weights=balanced", "loss.label_smoothing=0.1", "model.dropout=0.0")
    task = Task.prepare(recipe)
    torch.manual_seed(0)
    model, batch = task.model().eval(), task.batch(1, 0)
    log_probs = model(batch).log_softmax(dim=1)
    weights = task.class_weights
    assert weights is not None
    class_weights = weights[batch["labels"]]
    losses = -0.9 * class_weights * log_probs.gather(1, batch["labels"].unsqueeze(1)).squeeze(1)
    losses = losses - 0.1 * (weights * log_probs).mean(dim=1)
    assert task.loss(model, batch, None).value.item() == pytest.approx(
        (losses.sum() / class_weights.sum()).item(), abs=1e-6
    )


def test_tf_idf_uses_training_texts(tmp_path: Path) -> None:
    task = Task.prepare(classify_recipe(tmp_path, "model.encoder.kind=bag", "model.encoder.weights=tf-idf"))
    texts = [example.text for example in task.corpus.split("train")]
    metrics, documents = task.document_frequencies()
    assert documents == len(texts)
    assert metrics[task.tokenizer.end] == documents
    for word in ("gripping", "film", "a"):
        (number,) = task.tokenizer.encode(word)
        assert metrics[number] == sum(number in task.tokenizer.encode(text) for text in texts)
    idf = task.model().bag.idf
    assert idf[0] == pytest.approx(1.0)
    assert idf[task.tokenizer.encode("gripping")[0]] > idf[task.tokenizer.encode("a")[0]]


def test_model_starts_with_vectors_of_file(tmp_path: Path) -> None:
    (tmp_path / "vectors.txt").write_text("film " + "1.5 " * 12 + "\nunheard " + "0 " * 12 + "\n")
    recipe = classify_recipe(tmp_path, f"model.vectors.file={tmp_path / 'vectors.txt'}")
    task = Task.prepare(recipe)
    (film,) = task.tokenizer.encode("film")
    weight = task.model().lexicon.embed.weight
    assert weight[film].tolist() == [1.5] * 12
    assert any("1 of " in line and "have a vector in vectors.txt" in line for line in task.warnings())
    with pytest.raises(DataError, match="no_file"):
        Task.prepare(classify_recipe(tmp_path, f"model.vectors.file={tmp_path / 'no_file.txt'}"))


def test_evaluation_is_independent_of_batching(tmp_path: Path) -> None:
    torch.manual_seed(0)
    task = Task.prepare(classify_recipe(tmp_path))
    model = task.model().eval()
    other = Task.prepare(classify_recipe(tmp_path, "batch.eval_tokens=9"))
    assert torch.allclose(task.outputs(model, "dev"), other.outputs(model, "dev"), atol=1e-6)
    assert task.outputs(model, "dev").exp().sum(dim=1).tolist() == pytest.approx([1.0] * len(task.eval_batches("dev")))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["batch.max_length=1"], "max_length: must be at least 2; got 1"),
        (["batch.tokens=0", "loss.label_smoothing=1.0"], "tokens: must be at least 1"),
        (["monitor=f1"], "monitor"),
        (["loss.class_weights=even"], "class_weights"),
        (["tokenizer.kind=byte-pair", "tokenizer.dropout=0.1"], "tokenizer.dropout is supported only for translation"),
        (["tokenizer.kind=characters", "model.characters.kind=cnn"], "leave one of them out"),
        (["model.encoder.kind=bag", "model.pooling=max"], "pooling needs an encoder other than bag"),
    ],
)
def test_inconsistent_recipe_is_rejected(tmp_path: Path, overrides: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        classify_recipe(tmp_path, *overrides)


# --- learning ---------------------------------------------------------------------------------------------------------


ENCODERS = {
    "bag": ["model.encoder.kind=bag"],
    "recurrent": ["model.pooling=attention"],
    "convolution": ["model.encoder.kind=convolution", "model.encoder.filters=6", "model.pooling=max"],
    "letters": ["model.characters.kind=rnn", "model.characters.hidden=6", "model.pooling=last"],
}


@pytest.mark.parametrize("overrides", ENCODERS.values(), ids=list(ENCODERS))
def test_training_is_accurate_and_resuming_is_exact(tmp_path: Path, overrides: list[str]) -> None:
    recipe = classify_recipe(tmp_path, *overrides)
    uninterrupted = trained(recipe, tmp_path / "whole")
    metrics = Run.open(uninterrupted).metrics("dev") or {}
    assert metrics["accuracy"] > 0.9
    assert metrics["loss"] < 0.4
    stop, training = Stop(), begin(recipe, tmp_path / "halves")
    for event in training.events(stop):
        if isinstance(event, Progress) and event.step >= 25:
            stop.request()
    seen = [event for event in resume(tmp_path / "halves").events() if isinstance(event, Evaluated)]
    assert [event.step for event in seen] == [40]
    assert_same_checkpoints(uninterrupted, tmp_path / "halves")


def test_other_seeds_give_other_models(tmp_path: Path, weights: Callable[[Path], Any]) -> None:
    """Control for the previous test."""
    first = trained(classify_recipe(tmp_path), tmp_path / "one")
    second = trained(classify_recipe(tmp_path, "seed=2"), tmp_path / "two")
    assert weights(first) != weights(second)


@pytest.fixture
def weights() -> Callable[[Path], Any]:
    return lambda run: {name: t.tolist() for name, t in tensors_from_file(run / "model.safetensors").items()}


# --- the run ----------------------------------------------------------------------------------------------------------


def test_run_stores_labels(tmp_path: Path) -> None:
    run = Run.open(trained(classify_recipe(tmp_path, "model.characters.kind=cnn"), tmp_path / "run"))
    assert run.labels == ["bad", "good"]
    assert run.characters is not None
    assert run.sizes == {"vocabulary": len(run.tokenizer), "labels": 2, "characters": len(run.characters)}
    assert run.data["counts"]["train"].keys() == {"examples", "labels", "words", "characters"}
    card = (run.path / "card.md").read_text()
    assert "| split | examples | labels | words | characters | sha256 |" in card
    assert "end counts as one word" not in card


def test_changed_data_is_rejected(tmp_path: Path) -> None:
    run = trained(classify_recipe(tmp_path, "train.steps=1"), tmp_path / "run")
    write_reviews(tmp_path / "reviews.csv", [("one more", "good"), *reviews()])
    with pytest.raises(DataError, match="has changed since it was trained"):
        load(run).evaluate("train")
