"""The word-vector task: words with vectors, exact resume after a stop or a kill, and evaluation."""

import random
import signal
import subprocess
import sys
import time

import pytest
import torch

from seqloom.config import build
from seqloom.core.errors import CheckpointError, DataError, UsageError
from seqloom.core.files import tensors_from_file
from seqloom.predict.loader import load
from seqloom.predict.word_vectors import WordVectorsPredictor, export_vectors, import_vectors
from seqloom.tasks import word_vectors
from seqloom.tasks.word_vectors import Recipe, Task, plain_words, text_of
from seqloom.text import Words, WordsConfig, encode_documents
from seqloom.train.events import Evaluated, Progress, Saved, Started, Stopped
from seqloom.train.stop import Stop
from seqloom.training import begin, resume

OBJECTIVES = ("skipgram", "cbow", "glove")


@pytest.fixture
def recipe(tmp_path):
    """A recipe with sentences about three subjects."""
    subjects = [("cat", "dog", "owl", "milk"), ("sun", "rain", "snow", "wind"), ("red", "blue", "green", "grey")]
    generator = random.Random(1)
    for split, count in (("train", 120), ("dev", 25), ("test", 25)):
        lines = [" ".join(["the", *generator.choices(generator.choice(subjects), k=8)]) for _ in range(count)]
        (tmp_path / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def make(**keys):
        files = {split: str(tmp_path / f"{split}.txt") for split in ("train", "dev", "test")}
        train = {"epochs": 3, "block": 100, "log_every": 2, "device": "cpu", "batch": 64, "lr": 0.2}
        content = {
            "task": "word-vectors",
            "data": {"corpus": "text", "documents": "line", **files},
            "tokenizer": {"kind": "words"},
            "model": {"kind": "word-vectors", "vector_size": 8, "window": 3, "subsample": 0.0, **keys.pop("model", {})},
            "train": {**train, **keys.pop("train", {})},
        }
        return build(Recipe, {**content, **keys})

    return make


def weights(path):
    return tensors_from_file(path / "model.safetensors")


# --- words ------------------------------------------------------------------------------------------------------------


def test_word_is_the_same_token_in_any_context():
    documents = ["(the cat, the dog)\nthe end", "dog <unk> (cat)"]
    tokenizer = Words.train(WordsConfig(split="punctuation"), documents)
    text = text_of(tokenizer, encode_documents(tokenizer, documents))
    words = [tokenizer.token(word) for word in text.words.tolist()]
    glue = next(token for token in tokenizer.words if token.endswith(",") and len(token) > 1)[0]
    assert [word.removeprefix(glue) for word in words] == [
        *("(", "the", "cat", ",", "the", "dog", ")", "the", "end"), *("dog", "(", "cat", ")"),
    ]  # fmt: skip
    assert words.count("the") == 3 and words.count("cat") == 2
    assert text.documents.tolist() == [0] * 9 + [1] * 4
    assert plain_words(tokenizer)[:2].tolist() == [-1, -1]


def test_only_words_have_vectors(recipe):
    with pytest.raises(UsageError, match=r"tokenizer.kind must be words.*got characters"):
        recipe(tokenizer={"kind": "characters"})
    with pytest.raises(DataError, match="at least two different words"):
        Task.prepare(recipe(tokenizer={"kind": "words", "max_size": 3}))


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_training_creates_a_complete_run(recipe, tmp_path, objective):
    training = begin(recipe(model={"objective": objective}, train={"epochs": 25}), tmp_path / "run")
    events = list(training.events())
    assert isinstance(events[0], Started) and events[0].parameters > 0
    progress = [event for event in events if isinstance(event, Progress)]
    assert all(event.tokens_per_second > 0 for event in progress)
    assert {event.speed_unit for event in progress} == {"pairs" if objective == "glove" else "words"}
    assert progress[-1].step == progress[-1].total
    assert len([event for event in events if isinstance(event, Saved)]) == 25  # once per epoch
    (evaluated,) = [event for event in events if isinstance(event, Evaluated)]
    assert evaluated.metrics["neighbours"] > 0.7
    assert (tmp_path / "run" / "card.md").exists()
    model = load(tmp_path / "run")
    assert isinstance(model, WordVectorsPredictor)
    assert {near.word for near in model.nearest("cat", 3)} <= {"dog", "owl", "milk"}
    assert model.evaluate("dev") == pytest.approx(dict(evaluated.metrics))
    assert model.embed(["cat dog", "nothing known"]).shape == (2, 8)
    assert not model.embed("nothing known").any()


@pytest.mark.parametrize("engine", ["numba", "torch"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_stopped_training_resumes_exactly(recipe, tmp_path, objective, engine):
    if engine == "numba":
        pytest.importorskip("numba")
    chosen = recipe(model={"objective": objective}, train={"engine": engine, "block": 40, "save_every": 80})
    list(begin(chosen, tmp_path / "whole").events())
    stop, training = Stop(), begin(chosen, tmp_path / "halves")
    for event in training.events(stop):
        if isinstance(event, Progress) and event.step > event.total // 2:
            stop.request()
    assert isinstance(event, Stopped) and 0 < event.step < progress_total(training)
    resumed = list(resume(tmp_path / "halves").events())
    assert isinstance(resumed[0], Started) and resumed[0].step == event.step
    uninterrupted, halves = weights(tmp_path / "whole"), weights(tmp_path / "halves")
    assert all(torch.equal(uninterrupted[name], halves[name]) for name in uninterrupted)
    other = list(
        begin(recipe(model={"objective": objective}, seed=2, train={"engine": engine}), tmp_path / "x").events()
    )
    assert other and not torch.equal(weights(tmp_path / "x")["vectors"], uninterrupted["vectors"])  # control


def progress_total(training):
    return next(entry["total"] for entry in training.run.log() if entry["event"] == "progress")


@pytest.mark.slow
def test_killed_training_resumes_exactly(recipe, tmp_path):
    from seqloom.config import dump_yaml, to_mapping

    chosen = recipe(train={"epochs": 50, "save_every": 1000, "engine": "torch"})
    (tmp_path / "r.yaml").write_text(dump_yaml(to_mapping(chosen)))
    list(begin(chosen, tmp_path / "whole").events())
    command = [sys.executable, "-m", "seqloom", "train", str(tmp_path / "r.yaml"), "--out", str(tmp_path / "killed")]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and child.poll() is None:
        if (tmp_path / "killed" / "checkpoints" / "latest.json").exists():
            break
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (tmp_path / "killed" / "model.safetensors").exists(), "training ended before it was killed"
    list(resume(tmp_path / "killed").events())
    uninterrupted, killed = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert all(torch.equal(uninterrupted[name], killed[name]) for name in uninterrupted)


def test_longer_training_follows_the_schedule_of_the_new_length(recipe, tmp_path):
    list(begin(recipe(), tmp_path / "linear").events())
    longer = resume(tmp_path / "linear", ["train.epochs=9"])
    assert "the linear schedule of the new length" in longer.warnings()[0]
    rates = [event.values["learning_rate"] for event in longer.events() if isinstance(event, Progress)]
    complete = begin(recipe(train={"epochs": 9}), tmp_path / "complete").events()
    assert rates == [event.values["learning_rate"] for event in complete if isinstance(event, Progress)][-len(rates) :]
    list(begin(recipe(train={"schedule": "constant"}), tmp_path / "short").events())
    list(begin(recipe(train={"schedule": "constant", "epochs": 5}), tmp_path / "long").events())
    list(resume(tmp_path / "short", ["train.epochs=5"]).events())
    assert torch.equal(weights(tmp_path / "short")["vectors"], weights(tmp_path / "long")["vectors"])


def test_diverged_training_is_reported(recipe, tmp_path, monkeypatch):
    from seqloom.classical.word_vectors import negative_sampling
    from seqloom.core.errors import DivergedError

    monkeypatch.setattr(negative_sampling, "MAX_TOTAL_RATE", 1e9)  # the limit keeps large batches stable
    training = begin(recipe(train={"engine": "torch", "lr": 1e6, "batch": 4096}), tmp_path / "run")
    with pytest.raises(DivergedError, match=r"Lower train\.lr, or train\.batch"):
        list(training.events())


# --- evaluation and files ---------------------------------------------------------------------------------------------


def test_other_texts_are_evaluated_and_imported_vectors_need_data(recipe, tmp_path, monkeypatch):
    monkeypatch.delenv("SEQLOOM_DATA", raising=False)
    list(begin(recipe(), tmp_path / "run").events())
    model = load(tmp_path / "run")
    assert model.evaluate_documents(["cat dog owl cat milk"])["neighbours"] >= 0
    with pytest.raises(DataError, match="No word of other has a vector"):
        model.evaluate_documents(["nothing of this"])
    export_vectors(tmp_path / "run", tmp_path / "v.bin", "binary")
    other = import_vectors(tmp_path / "v.bin", tmp_path / "imported")
    assert [near.word for near in other.nearest("cat")] == [near.word for near in model.nearest("cat")]
    assert other.space.words == model.space.words
    with pytest.raises(DataError, match=r"was imported without data.*SEQLOOM_DATA"):
        other.evaluate()
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        (tmp_path / "imported" / "model.safetensors").write_bytes(b"no")
        load(tmp_path / "imported").nearest("cat")


def test_held_out_samples_are_equal_for_every_run(recipe, tmp_path):
    task = Task.prepare(recipe())
    model = task.model().draw(1, task.counts())
    assert word_vectors.neighbour_accuracy(model, task.text("dev")) == word_vectors.neighbour_accuracy(
        model, task.text("dev")
    )
    untrained = task.evaluate(model, "dev")
    # U is zero, so that every probability is 1/2
    assert untrained["loss"] == pytest.approx(0.693147 * (1 + 5), rel=0.25)
    assert "wordsim353" not in untrained
