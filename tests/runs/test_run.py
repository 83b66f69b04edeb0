"""Run directories are created atomically, and any damage is reported with the right exit code."""

import errno
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from seqloom.core import files
from seqloom.core.errors import CheckpointError, ResourceError, UsageError
from seqloom.predict.loader import load
from seqloom.runs import layout
from seqloom.runs.layout import reject_existing
from seqloom.runs.run import Run
from seqloom.training import begin, resume


def close(events: Any) -> None:
    """Abort training in the same way as a crash."""
    events.close()


@pytest.fixture(params=["language-model", "ngram"])
def trained(request, recipe, tmp_path):
    training = begin(recipe(task=request.param), tmp_path / "runs" / "one")
    list(training.events())
    return training.run


# --- creating a run ---------------------------------------------------------------------------------------------------


def test_created_run_can_be_opened(tmp_path):
    recipe = {"task": "x", "seed": 7, "model": {"kind": "recurrent-lm", "sizes": [1, 2]}}
    created = Run.create(tmp_path / "deep" / "er" / "one", recipe, {"data.json": {"a": 1}})
    opened = Run.open(created.path)
    assert opened.recipe == created.recipe == recipe
    assert json.loads((created.path / "data.json").read_text()) == {"a": 1}


@pytest.mark.parametrize("failing", [1, 2, 3])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_run_is_written_completely_or_not_at_all(tmp_path, monkeypatch, failing, error):
    calls: list[Path] = []
    write = files.write_flushed

    def fail(path, content):
        calls.append(path)
        if len(calls) == failing:
            write(path, content[: len(content) // 2])
            raise error
        write(path, content)

    monkeypatch.setattr(layout, "write_flushed", fail)
    expected = ResourceError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        Run.create(tmp_path / "one", {"seed": 1}, {"tokenizer.json": {"b": 2}, "data.json": {"a": 1}})
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    Run.create(tmp_path / "one", {"seed": 1}, {})


def test_existing_run_is_rejected_with_alternatives(tmp_path):
    Run.create(tmp_path / "one", {}, {})
    (tmp_path / "one-2").mkdir()
    with pytest.raises(UsageError) as caught:
        reject_existing(tmp_path / "one")
    assert caught.value.exit_code == 2
    assert f"--resume {tmp_path / 'one'}" in str(caught.value)
    assert f"--out {tmp_path / 'one-3'}" in str(caught.value)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_existing_file_or_folder_is_rejected_and_unchanged(tmp_path, kind):
    path = tmp_path / "one"
    _ = (path.mkdir(), (path / "thesis.txt").write_text("x")) if kind == "folder" else path.write_text("x")
    for attempt in (lambda: reject_existing(path), lambda: Run.create(path, {}, {})):
        with pytest.raises(UsageError, match="is not a run") as caught:
            attempt()
        assert "--resume" not in str(caught.value)
        assert "--out" in str(caught.value)
    assert ((path / "thesis.txt") if kind == "folder" else path).read_text() == "x"


# --- opening invalid or damaged runs ----------------------------------------------------------------------------------


def test_path_that_is_not_a_run_is_rejected(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    for name, words in (("folder", "no recipe.yaml"), ("file", "is a file"), ("missing", "does not exist")):
        with pytest.raises(CheckpointError, match=words) as caught:
            Run.open(tmp_path / name)
        assert caught.value.exit_code == 4
        assert name in str(caught.value)


@pytest.mark.parametrize("text", ["format: 2\nseqloom: 9.9\nseed: 1\n", "format: 99\n", "seed: 1\n", ""])
def test_other_run_format_is_rejected(tmp_path, text):
    run = Run.create(tmp_path / "one", {}, {})
    (run.path / "recipe.yaml").write_text(text)
    with pytest.raises(CheckpointError, match="run format" if text else "is empty") as caught:
        Run.open(run.path)
    assert ("is damaged: its recipe.yaml is empty" in str(caught.value)) == (not text)
    assert "None" not in str(caught.value)
    if "9.9" in text:
        assert "format 2, written by seqloom 9.9" in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"format: [1", b"- 1\n", b"format: 1\nformat: 1\n", b"a: \x00"])
def test_damaged_recipe_is_reported(tmp_path, content):
    run = Run.create(tmp_path / "one", {}, {})
    (run.path / "recipe.yaml").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"recipe\.yaml") as caught:
        Run.open(run.path)
    assert caught.value.exit_code == 4


def damage(path, how):
    content = path.read_bytes()
    middle = len(content) // 2
    new = {
        "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "cut": content[:middle],
        "empty": b"",
        "binary": b"\xff" * 40,
    }
    if how == "deleted":
        path.unlink()
    else:
        path.write_bytes(new[how])


@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "binary", "deleted"])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_damaged_file_is_named(trained, name, how):
    damage(trained.path / name, how)
    with pytest.raises(CheckpointError) as caught:
        Run.open(trained.path).model()
    assert caught.value.exit_code == 4
    assert name in str(caught.value)
    assert str(trained.path) in str(caught.value)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"corpus": "toys"}', "\x00"])
def test_damaged_data_file_is_reported(trained, content):
    (trained.path / "data.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"data\.json"):
        resume(trained.path)
    with pytest.raises(CheckpointError, match=r"data\.json"):
        load(trained.path).evaluate()


@pytest.mark.parametrize("change", [{"version": 99}, {"format": "other"}, {"kind": "runes"}, {"sha256": "0" * 64}])
def test_foreign_or_newer_tokenizer_is_rejected(trained, change):
    path = trained.path / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        _ = Run.open(trained.path).tokenizer


def test_weights_of_another_model_are_rejected(trained):
    Run.open(trained.path).store().save_best({"x": torch.zeros(2)})
    with pytest.raises(CheckpointError, match=r"model\.safetensors does not match"):
        Run.open(trained.path).model()


@pytest.mark.parametrize(
    "section", [{"kind": "oracle"}, "text", {"kind": "recurrent-lm", "cell": "xlstm"}, {"kind": "ngram", "order": -1}]
)
def test_unknown_model_in_recipe_is_reported(trained, section):
    run = Run.open(trained.path)
    run.update_recipe({**run.recipe, "model": section})
    for attempt in (
        lambda: Run.open(run.path).model(),
        lambda: resume(run.path),
        lambda: load(run.path).evaluate(),
    ):
        with pytest.raises(CheckpointError, match=r"recipe\.yaml") as caught:
            attempt()
        assert caught.value.exit_code == 4


def test_run_without_evaluation_has_no_model(recipe, tmp_path):
    training = begin(recipe(), tmp_path / "one")
    next(training.events())
    with pytest.raises(CheckpointError, match="--resume"):
        load(tmp_path / "one").generate("a")


# --- log, metrics, lock -----------------------------------------------------------------------------------------------


def test_truncated_last_log_line_is_skipped(tmp_path):
    run = Run.create(tmp_path / "one", {}, {})
    assert list(run.log()) == []
    (run.path / "log.jsonl").write_text('{"event": "started", "step": 0}\n7\n{"event": "prog')
    assert list(run.log()) == [{"event": "started", "step": 0}]


def test_newest_metrics_of_each_split_are_kept(tmp_path):
    run = Run.create(tmp_path / "one", {}, {})
    assert run.metrics("dev") is None
    run.save_metrics("dev", {"loss": 1.5})
    run.save_metrics("test", {"loss": 2.5})
    run.save_metrics("dev", {"loss": 1.25})
    assert run.metrics("dev") == {"loss": 1.25}
    assert run.metrics("test") == {"loss": 2.5}
    (run.path / "metrics" / "dev.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"dev\.json"):
        run.metrics("dev")


def test_second_trainer_is_rejected(recipe, tmp_path):
    first = begin(recipe(), tmp_path / "one").events()
    next(first)
    before = (tmp_path / "one" / "log.jsonl").read_bytes()
    for attempt in (
        lambda: next(resume(tmp_path / "one").events()),
        lambda: resume(tmp_path / "one", ["train.steps=99"]),
    ):
        with pytest.raises(UsageError, match="being trained by another process") as caught:
            attempt()
        assert caught.value.exit_code == 2
    assert (tmp_path / "one" / "log.jsonl").read_bytes() == before
    assert Run.open(tmp_path / "one").recipe["train"]["steps"] == 12
    close(first)
    assert next(resume(tmp_path / "one").events()).step == 0


def hold_lock_and_die(path, ready):
    with Run.open(path).locked():
        ready.set()
        os.kill(os.getpid(), 9)


def test_lock_ends_with_killed_process(tmp_path):
    run = Run.create(tmp_path / "one", {}, {})
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=hold_lock_and_die, args=(run.path, ready))
    process.start()
    process.join(60)
    assert process.exitcode == -9
    assert ready.is_set()
    with run.locked():
        pass
