"""The tagging task: words and their tags, pieces of long sentences, spans, and that a resume changes nothing."""

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


def test_every_word_is_read_once_an_epoch_with_its_tag(task: Task) -> None:
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
        list(zip(task.tokenizer.encode(" ".join(one.words)), one.tags, strict=True))
        for one in task.corpus.split("train")
    ]
    assert sorted(read) == sorted(expected)


def test_only_valid_tags_are_ever_said(task: Task) -> None:
    torch.manual_seed(0)
    model = task.model().eval()
    torch.nn.init.normal_(model.output.weight, std=5.0)
    found, loss = task.outputs(model, "train")
    assert [len(tags) for tags in found] == [len(one.words) for one in task.corpus.split("train")]
    assert len({tag for tags in found for tag in tags}) > 2
    assert not any(read_tags(tags).mistakes for tags in found)
    assert task.measure((found, loss), "train").invalid == 0


def test_without_constraints_they_may_be_anything(tmp_path: Path) -> None:
    """The control of the test above."""
    task = Task.prepare(tag_recipe(tmp_path, "model.constrain=false"))
    torch.manual_seed(0)
    model = task.model().eval()
    torch.nn.init.normal_(model.output.weight, std=5.0)
    found, loss = task.outputs(model, "train")
    assert task.measure((found, loss), "train").invalid > 0


@pytest.fixture
def long_task(tmp_path: Path) -> Task:
    """All sentences in one, read in pieces of at most four words."""
    whole = [pair for one in sentences() for pair in one]
    write_sentences(tmp_path / "mine.conll", [whole, *sentences()])
    return Task.prepare(tag_recipe(tmp_path, "batch.max_length=5"))


def test_long_sentences_are_learned_and_answered_whole(long_task: Task) -> None:
    task = long_task
    pieces = task.pieces("train")
    assert task.cut() == len({piece.sentence for piece in pieces if piece.start}) > 0
    assert any("training sentences are longer than 5 tokens" in line for line in task.warnings())
    assert task.batches.cut == task.batches.words_cut == 0
    torch.manual_seed(0)
    found, loss = task.outputs(task.model().eval(), "train")
    assert [len(tags) for tags in found] == [len(one.words) for one in task.corpus.split("train")]
    assert 0 < loss < 10  # no piece begins with a tag that may not begin a sentence


def test_a_span_that_is_cut_begins_anew(long_task: Task) -> None:
    task, begun = long_task, 0
    split = task.corpus.split("train")
    for piece, tags in zip(task.pieces("train"), task.tags("train"), strict=True):
        own = split[piece.sentence].tags[piece.start : piece.end]
        said = [task.names[tag] for tag in tags]
        assert said[1:] == list(own[1:])
        assert said[0] in (own[0], f"B{own[0][1:]}")
        assert not read_tags(said).mistakes
        begun += said[0] != own[0]
    assert begun > 0


def test_words_with_tags_of_the_test_file_alone_are_said_and_wrong(tmp_path: Path) -> None:
    test = write_sentences(tmp_path / "test.conll", [[("Ann", "B-PER"), ("Monday", "B-DAY")], [("Bob", "B-PER")]])
    task = Task.prepare(tag_recipe(tmp_path, f"data.test={test}", "data.test_fraction=0"))
    assert any("1 test word has a tag that train lacks (B-DAY): it counts as wrong" in w for w in task.warnings())
    assert task.tags("test") == [[1, -1], [1]]  # no tag of the model's
    torch.manual_seed(0)
    found = task.report(task.model().eval(), "test")
    assert found.unseen == {"B-DAY": 1}
    assert found.metrics["token_accuracy"] <= 2 / 3


def test_one_tag_only_is_refused(tmp_path: Path) -> None:
    write_sentences(tmp_path / "mine.conll", [[(f"w{n}", "X")] for n in range(30)])
    with pytest.raises(DataError, match="must have at least two tags"):
        Task.prepare(tag_recipe(tmp_path))


def test_the_goal_follows_the_tags(tmp_path: Path) -> None:
    assert Task.prepare(tag_recipe(tmp_path)).monitor.metric == "span_f1"
    plain = [[(word, "NAME" if tag != "O" else "OTHER") for word, tag in one] for one in sentences()]
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
def test_recipes_that_make_no_sense(tmp_path: Path, overrides: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        tag_recipe(tmp_path, *overrides)


KINDS = {
    "crf": [],
    "alone": ["model.crf=false", "model.characters=null", "tokenizer.min_count=1"],
    "bytes": ["tokenizer.kind=byte-pair", "tokenizer.size=270", "model.characters.kind=rnn", "batch.max_shapes=3"],
}


@pytest.mark.parametrize("overrides", KINDS.values(), ids=list(KINDS))
def test_it_learns_and_a_resume_changes_nothing(tmp_path: Path, overrides: list[str]) -> None:
    recipe = tag_recipe(tmp_path, *overrides)
    whole = trained(recipe, tmp_path / "whole")
    metrics = Run.open(whole).metrics("dev") or {}
    assert metrics["span_f1"] > 0.9
    stop, training = Stop(), begin(recipe, tmp_path / "halves")
    for event in training.events(stop):
        if isinstance(event, Progress) and event.step >= 35:
            stop.request()
    for _ in resume(tmp_path / "halves").events():
        pass
    assert_same_checkpoints(whole, tmp_path / "halves")
    run = Run.open(whole)
    assert run.labels == ["B-LOC", "B-PER", "I-LOC", "O"]
    assert run.sizes["tags"] == 4
    assert bool(run.model("cpu").chain.allowed.all()) is False  # what may follow what is kept with the weights
