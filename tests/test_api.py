"""The Python interface: training, resuming with and without changes, loading, prediction, and errors."""

import json
import os

import pytest
import torch

import seqloom
from seqloom import tasks
from seqloom.config import to_mapping
from seqloom.core.errors import CheckpointError, DataError, Interrupted, ResourceError, UsageError
from seqloom.recipes import read_recipe, recipe_names
from seqloom.runs import record
from seqloom.runs.run import Run
from seqloom.train.events import Finished, Started, Stopped
from seqloom.training import Training, begin, resume

RECIPE = """# a comment
task: language-model
seed: 3
data:
  corpus: text
  documents: line
  train: {folder}/train.txt
  dev: {folder}/dev.txt
  test_fraction: 0
tokenizer:
  kind: characters
batch:
  size: 2
  length: 8
model:
  kind: recurrent-lm
  cell: gru
  hidden: 8
train:
  steps: 8
  evaluate_every: 4
  device: cpu
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(record, "open_tensorboard", lambda run, step: None)


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "train.txt").write_text("the cat sat\non the mat\nthe dog sat\non the log\n" * 5)
    (tmp_path / "dev.txt").write_text("the cat sat\non the log\n")
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE.format(folder=tmp_path))
    return path


@pytest.fixture
def out(tmp_path):
    return tmp_path / "runs" / "small"


@pytest.fixture
def trained(recipe, out):
    return seqloom.train_recipe(recipe, out=out)


# --- reading recipes --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("stub_pretrained_runs")
@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_loads(name):
    actual_name, recipe = read_recipe(name)
    assert actual_name == name
    assert to_mapping(recipe)["task"] in tasks.names()


def test_overrides_change_a_recipe_read_from_a_path(recipe):
    name, config = read_recipe(recipe, ["model.cell=lstm", "train.lr=1e-3", "seed=9"])
    assert (name, config.model.cell, config.train.lr, config.seed) == ("small", "lstm", 1e-3, 9)


def test_recipe_of_run_is_readable(trained, out):
    name, config = read_recipe(out / "recipe.yaml", ["train.steps=5"])
    assert name == "small"
    assert config.train.steps == 5


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("lm-char-lsmt", "did you mean lm-char-lstm"),
        ("missing.yaml", "no recipe file"),
        ("zzzzz", "seqloom list recipes"),
    ],
)
def test_missing_recipe_is_reported(source, words):
    with pytest.raises(UsageError, match=words) as caught:
        read_recipe(source)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("modle.cell=gru", "did you mean model"),
        ("task=langauge-model", "did you mean language-model"),
        ("model.bidirectional=true", "bidirectional must be false"),
        ("train.lr=fast", r"train\.lr"),
    ],
)
def test_invalid_recipe_is_rejected(recipe, override, words):
    with pytest.raises(UsageError, match=words):
        read_recipe(recipe, [override])


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "error", "code"),
    [
        (["train.device=cuda:7"], ResourceError, 5),
        (["train.precision=bf16"], ResourceError, 5),
        (["batch.size=5000"], DataError, 3),
        (["data.train=/nowhere/at/all.txt"], DataError, 3),
        (["data.dev=null", "data.dev_fraction=0"], DataError, 3),
    ],
)
def test_untrainable_recipe_creates_no_directory(recipe, out, overrides, error, code):
    _, config = read_recipe(recipe, overrides)
    with pytest.raises(error) as caught:
        begin(config, out)
    assert caught.value.exit_code == code
    assert not out.exists()


def test_existing_run_is_rejected(trained, recipe, out):
    before = (out / "log.jsonl").read_bytes()
    with pytest.raises(UsageError, match=rf"--resume {out}.*--out {out}-2"):
        seqloom.train_recipe(recipe, out=out)
    assert (out / "log.jsonl").read_bytes() == before


def test_weights_depend_on_seed(recipe, tmp_path):
    config = [
        seqloom.train_recipe(recipe, f"seed={seed}", out=tmp_path / f"run{index}")
        for index, seed in enumerate((1, 1, 2))
    ]
    a, b, c = ([tensor for _, tensor in sorted(model.model.state_dict().items())] for model in config)
    assert all(map(torch.equal, a, b))
    assert not all(map(torch.equal, a, c))


def test_stopped_training_raises_interrupted(recipe, out, monkeypatch):
    monkeypatch.setattr(Training, "events", lambda training: iter([Stopped(3)]))
    with pytest.raises(Interrupted, match="step 3") as caught:
        seqloom.train_recipe(recipe, out=out)
    assert caught.value.exit_code == 75


# --- resuming ---------------------------------------------------------------------------------------------------------


def test_resuming_finished_run_keeps_weights(trained, out):
    before = {name: (out / name).read_bytes() for name in ("model.safetensors", "card.md", "metrics/dev.json")}
    events = list(resume(out).events())
    assert [type(event) for event in events] == [Started, Finished]
    assert {name: (out / name).read_bytes() for name in before} == before
    (finished,) = [entry for entry in Run.open(out).log() if entry["event"] == "finished"]
    assert finished["tokens_per_second"] > 0


def test_extended_run_gives_the_same_results_as_a_longer_run(trained, recipe, out, tmp_path):
    longer = seqloom.train_recipe(recipe, "train.steps=16", out=tmp_path / "longer")
    events = list(resume(out, ["train.steps=16"]).events())
    assert (events[0].step, events[-1].step) == (8, 16)
    assert Run.open(out).recipe["train"]["steps"] == 16
    for model, other in zip(*(run.model.state_dict().values() for run in (longer, seqloom.load(out))), strict=True):
        assert torch.equal(model, other)


@pytest.mark.parametrize(
    "override",
    ["train.patience=3", "train.keep_checkpoints=5", "train.log_every=1", "train.device=auto", "train.epochs=2"],
)
def test_resuming_accepts_allowed_changes(trained, out, override):
    resume(out, [override])
    key, _, value = override.removeprefix("train.").partition("=")
    assert str(Run.open(out).recipe["train"][key]) in (value, f"{value}.0")


@pytest.mark.parametrize(
    ("override", "then", "now"),
    [
        ("model.cell=lstm", "'gru'", "'lstm'"),
        ("train.lr=0.5", "0.002", "0.5"),
        ("seed=4", "3", "4"),
        ("batch.size=4", "2", "4"),
        ("train.accumulate_steps=2", "1", "2"),
        ("tokenizer.kind=bytes", "", ""),
        ("train.schedule=cosine", "'constant'", "'cosine'"),
    ],
)
def test_rejected_change_names_both_values(trained, out, override, then, now):
    with pytest.raises(UsageError) as caught:
        resume(out, [override, "train.steps=20"])
    key = override.partition("=")[0]
    assert key in str(caught.value)
    assert then in str(caught.value)
    assert now in str(caught.value)
    assert "train.steps" not in str(caught.value) or key == "tokenizer.kind"
    assert Run.open(out).recipe["train"]["steps"] == 8, "the run must not change"


def test_resuming_compares_changed_recipe_file(trained, recipe, out):
    recipe.write_text(recipe.read_text().replace("hidden: 8", "hidden: 16"))
    with pytest.raises(UsageError, match=r"model\.hidden is 8 in the run and 16 now"):
        resume(out, recipe=read_recipe(recipe)[1])


def test_finished_cosine_schedule_is_extended(recipe, out):
    seqloom.train_recipe(recipe, "train.schedule=cosine", out=out)
    events = list(resume(out, ["train.steps=16"]).events())
    assert events[-1].step == 16


def test_run_without_newer_setting_resumes(trained, out):
    """If the recipe of a run lacks a key, the key has its default value."""
    run = Run.open(out)
    older = {
        **run.recipe,
        "train": {key: value for key, value in run.recipe["train"].items() if key != "max_nonfinite_steps"},
    }
    run.update_recipe(older)
    assert resume(out).recipe.train.max_nonfinite_steps == 10


def test_changed_data_is_rejected_with_both_versions(trained, recipe, out):
    then = Run.open(out).data["version"]
    folder = recipe.parent
    (folder / "dev.txt").write_text("the cat sat\non the mat\n")
    for attempt in (lambda: resume(out), lambda: seqloom.load(out).evaluate("dev")):
        with pytest.raises(DataError, match="dev of text differ") as caught:
            attempt()
        assert caught.value.exit_code == 3
        assert then in str(caught.value)
        assert str(caught.value).count("sha256-") == 2
        assert "train," not in str(caught.value)


def test_resuming_without_run_is_rejected(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        resume(tmp_path / "nothing")


def test_progress_is_printed_on_request(recipe, tmp_path, capsys):
    seqloom.train_recipe(recipe, out=tmp_path / "silent")
    assert capsys.readouterr().out == ""  # the output is neither a notebook nor a terminal
    seqloom.train_recipe(recipe, out=tmp_path / "shown", progress=True)
    lines = capsys.readouterr().out.splitlines()
    assert "parameters on cpu" in lines[0] and lines[-1].startswith("finished at step 8")
    assert sum(line.startswith("step ") and "dev: loss" in line for line in lines) == 2


# --- prediction -------------------------------------------------------------------------------------------------------


def test_generation_is_reproducible_and_can_be_streamed(trained):
    a, b = (trained.generate("the ", seed=7, max_tokens=30) for _ in range(2))
    assert a == b != trained.generate("the ", seed=8, max_tokens=30)
    pieces = trained.generate("the ", seed=7, max_tokens=30, stream=True)
    assert next(pieces) == a[0]  # the model generates characters
    assert a == a[0] + "".join(pieces)


def test_prompt_outside_vocabulary_is_rejected(trained):
    with pytest.raises(DataError, match=r"not in the vocabulary of .*: 'ß', 'Z'\. .*--allow-unknown") as caught:
        trained.generate("the ßZ")
    assert caught.value.exit_code == 3
    assert trained.generate("the ßZ", allow_unknown=True, max_tokens=5) is not None


def test_scores_sum_to_log_probability_of_text(trained):
    """By the chain rule, the score of a token is its log-probability from `step` after the previous tokens."""
    (scored,) = trained.score(["the cat"])
    assert scored.tokens == [*"the cat", "</s>"]
    assert scored.log_prob == pytest.approx(sum(scored.log_probs))
    assert scored.perplexity == pytest.approx(2.718281828459045 ** (-scored.log_prob / 8))
    model, ids = trained.model, trained.tokenizer.encode("the cat")
    for position, target in enumerate([*ids, 0]):
        output = model.step(torch.tensor([[0, *ids[:position]]], device=trained.device), model.start(rows=1))
        assert scored.log_probs[position] == pytest.approx(output.log_probs[0, target].item(), abs=1e-5)


def test_score_reports_unknown_pieces(trained):
    assert trained.score(["the ß"])[0].unknown == ("ß",)


def test_other_text_is_evaluated_and_missing_split_is_reported(trained):
    assert trained.evaluate_documents(["the cat sat", "on the log"]) == pytest.approx(trained.evaluate("dev"))
    with pytest.raises(DataError, match="no test split"):
        trained.evaluate("test")


def test_trained_model_has_description_and_figure(trained, out):
    assert "recurrent-lm on text" in repr(trained)
    assert str(out) in repr(trained)
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    assert trained._repr_png_().startswith(b"\x89PNG")
    html = trained._repr_html_()
    assert html.startswith("<p>&lt;recurrent-lm on ") and '<img alt="&lt;recurrent-lm on' in html


def test_run_contains_no_pickle(trained, out):
    for path in out.rglob("*"):
        assert (
            path.is_dir() or path.suffix in (".json", ".jsonl", ".yaml", ".md", ".safetensors") or path.name == ".lock"
        )
    for line in (out / "log.jsonl").read_text().splitlines():
        json.loads(line)
