"""The tagging task: words and tags, pieces of long sentences, spans, and exact resume."""

from pathlib import Path

import pytest
import torch
from tests.understanding import assert_same_checkpoints, sentences, tag_recipe, trained, write_sentences

from seqloom.core.errors import DataError, UsageError
from seqloom.core.iob import read_tags
from seqloom.runs.run import Run
from seqloom.tasks.tag import Task
from seqloom.train.events import Progress
from seqloom.train.stop import Stop
from seqloom.training import begin, resume


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task.prepare(tag_recipe(tmp_path))


def test_epoch_reads_every_word_once_with_its_tag(task: Task) -> None:
    read = []
    for step in range(task.steps_per_epoch()):
        batch = task.batch(1, step)
        assert batch["read"] == int(batch["mask"].sum())
        assert batch["characters"].shape[:2] == batch["words"].shape
        for row in range(len(batch["tokens"])):
            words = batch["words"][row]
            ids = batch["tokens"][row][batch["first"][row][words]].tolist()
            tags = [task.names[tag] for tag in batch["tags"][row][words]]
            read.append(list(zip(ids, tags, strict=True)))
    expected = [
        list(zip(task.tokenizer.encode(" ".join(sentence.words)), sentence.tags, strict=True))
        for sentence in task.corpus.split("train")
    ]
    assert sorted(read) == sorted(expected)


def test_predicted_tags_are_valid_sequences(task: Task) -> None:
    torch.manual_seed(0)
    model = task.model().eval()
    torch.nn.init.normal_(model.output.weight, std=5.0)
    predicted, loss = task.outputs(model, "train")
    assert [len(tags) for tags in predicted] == [len(sentence.words) for sentence in task.corpus.split("train")]
    assert len({tag for tags in predicted for tag in tags}) > 2
    assert not any(read_tags(tags).mistakes for tags in predicted)
    assert task.measure((predicted, loss), "train").invalid == 0


def test_unconstrained_tags_may_be_invalid(tmp_path: Path) -> None:
    """Control for the previous test."""
    task = Task.prepare(tag_recipe(tmp_path, "model.constrain=false"))
    torch.manual_seed(0)
    model = task.model().eval()
    torch.nn.init.normal_(model.output.weight, std=5.0)
    predicted, loss = task.outputs(model, "train")
    assert task.measure((predicted, loss), "train").invalid > 0


@pytest.fixture
def long_task(tmp_path: Path) -> Task:
    """A task with a single long sentence, which is read in pieces of at most four words."""
    uninterrupted = [pair for sentence in sentences() for pair in sentence]
    write_sentences(tmp_path / "mine.conll", [uninterrupted, *sentences()])
    return Task.prepare(tag_recipe(tmp_path, "batch.max_length=5"))


def test_long_sentences_are_split_and_rejoined(long_task: Task) -> None:
    task = long_task
    pieces = task.pieces("train")
    assert task.truncated_count() == len({piece.sentence for piece in pieces if piece.start}) > 0
    assert any("training sentences are longer than 5 tokens" in line for line in task.warnings())
    assert task.batches.cut == task.batches.words_cut == 0
    torch.manual_seed(0)
    predicted, loss = task.outputs(task.model().eval(), "train")
    assert [len(tags) for tags in predicted] == [len(sentence.words) for sentence in task.corpus.split("train")]
    assert 0 < loss < 10  # no piece starts with a tag that is invalid at the start of a sentence


def test_split_span_starts_with_b_tag(long_task: Task) -> None:
    task, split_spans = long_task, 0
    split = task.corpus.split("train")
    for piece, tags in zip(task.pieces("train"), task.tags("train"), strict=True):
        expected = split[piece.sentence].tags[piece.start : piece.end]
        tag_names = [task.names[tag] for tag in tags]
        assert tag_names[1:] == list(expected[1:])
        assert tag_names[0] in (expected[0], f"B{expected[0][1:]}")
        assert not read_tags(tag_names).mistakes
        split_spans += tag_names[0] != expected[0]
    assert split_spans > 0


def test_tags_missing_in_train_are_reported_and_count_as_wrong(tmp_path: Path) -> None:
    test = write_sentences(tmp_path / "test.conll", [[("Ann", "B-PER"), ("Monday", "B-DAY")], [("Bob", "B-PER")]])
    task = Task.prepare(tag_recipe(tmp_path, f"data.test={test}", "data.test_fraction=0"))
    assert any("1 test word has a tag not in train (B-DAY): it counts as wrong" in w for w in task.warnings())
    assert task.tags("test") == [[1, -1], [1]]  # the second tag is not a tag of the model
    torch.manual_seed(0)
    predicted = task.report(task.model().eval(), "test")
    assert predicted.unseen == {"B-DAY": 1}
    assert predicted.metrics["token_accuracy"] <= 2 / 3


def test_single_tag_is_rejected(tmp_path: Path) -> None:
    write_sentences(tmp_path / "mine.conll", [[(f"w{n}", "X")] for n in range(30)])
    with pytest.raises(DataError, match="must have at least two tags"):
        Task.prepare(tag_recipe(tmp_path))


def test_monitor_depends_on_tags(tmp_path: Path) -> None:
    assert Task.prepare(tag_recipe(tmp_path)).monitor.metric == "span_f1"
    plain = [[(word, "NAME" if tag != "O" else "OTHER") for word, tag in sentence] for sentence in sentences()]
    write_sentences(tmp_path / "mine.conll", plain)
    task = Task.prepare(tag_recipe(tmp_path))
    assert task.monitor.metric == "token_accuracy"
    assert task.names == ("NAME", "OTHER")
    with pytest.raises(UsageError, match=r"monitor span_f1 needs tags that mark spans.*Set monitor=token_accuracy"):
        Task.prepare(tag_recipe(tmp_path, "monitor=span_f1"))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.pooling=max"], "pooling"),
        (["tokenizer.kind=characters"], "leave one of them out"),
        (["batch.max_shapes=0", "batch.eval_tokens=0"], "shapes: must be at least 1"),
        (["monitor=f1"], "monitor"),
        (["loss.class_weights=balanced"], "loss"),
    ],
)
def test_inconsistent_recipe_is_rejected(tmp_path: Path, overrides: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        tag_recipe(tmp_path, *overrides)


KINDS = {
    "crf": [],
    "alone": ["model.crf=false", "model.characters=null", "tokenizer.min_count=1"],
    "bytes": ["tokenizer.kind=byte-pair", "tokenizer.size=270", "model.characters.kind=rnn", "batch.max_shapes=3"],
}


@pytest.mark.parametrize("overrides", KINDS.values(), ids=list(KINDS))
def test_training_is_accurate_and_resuming_is_exact(tmp_path: Path, overrides: list[str]) -> None:
    recipe = tag_recipe(tmp_path, *overrides)
    uninterrupted = trained(recipe, tmp_path / "whole")
    metrics = Run.open(uninterrupted).metrics("dev") or {}
    assert metrics["span_f1"] > 0.9
    stop, training = Stop(), begin(recipe, tmp_path / "halves")
    for event in training.events(stop):
        if isinstance(event, Progress) and event.step >= 35:
            stop.request()
    for _ in resume(tmp_path / "halves").events():
        pass
    assert_same_checkpoints(uninterrupted, tmp_path / "halves")
    run = Run.open(uninterrupted)
    assert run.labels == ["B-LOC", "B-PER", "I-LOC", "O"]
    assert run.sizes["tags"] == 4
    assert bool(run.model("cpu").chain.allowed.all()) is False  # the weights include the allowed transitions
