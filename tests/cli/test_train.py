import json
import math
import re
import signal
import statistics
from pathlib import Path
from typing import Any

import pytest

from seqloom.config import load_yaml
from seqloom.predict.loader import load
from seqloom.train import events as e

TOYS = ["toys-copy", "data.train=100", "data.dev=10", "data.test=10", "data.max_length=4", "model.hidden=8"]
TOYS += ["batch.size=4", "batch.length=16", "train.steps=6", "train.log_every=2", "train.evaluate_every=3"]
TOYS += ["train.schedule=constant"]


def evaluations(run: Path) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [entry for entry in entries if entry["event"] == "evaluated"]


def test_recipe_with_overrides_is_trained_into_runs(seqloom: Any, workdir: Path) -> None:
    shown = seqloom("train", *TOYS, "model.cell=elman", "train.lr=2e-3")
    assert shown.code == 0
    assert shown.err == ""
    recipe = load_yaml(workdir / "runs/toys-copy/recipe.yaml")
    assert recipe["model"]["cell"] == "elman"
    assert recipe["train"]["lr"] == 0.002
    assert recipe["train"]["steps"] == 6
    for name in ("data.json", "tokenizer.json", "model.safetensors", "log.jsonl", "metrics/dev.json", "card.md"):
        assert (workdir / "runs/toys-copy" / name).is_file(), name
    assert shown.out.endswith(
        "The run is in runs/toys-copy. Try: seqloom generate runs/toys-copy · seqloom evaluate runs/toys-copy "
        "--split test\n"
    )


def test_run_is_named_after_yaml_file(seqloom: Any, workdir: Path) -> None:
    (workdir / "mine.yaml").write_text(
        "task: language-model\n"
        "data: {corpus: toys, train: 60, dev: 5, test: 5, max_length: 4}\n"
        "tokenizer: {kind: characters}\n"
        "batch: {size: 2, length: 8}\n"
        "model: {hidden: 4, cell: gru-cho}\n"
        "train: {steps: 2}\n"
    )
    shown = seqloom("train", "mine.yaml", "train.warmup=2", "train.lr=0.01")
    assert shown.code == 0 and "the learning rate never reaches 0.01" in shown.err
    assert "warning" not in seqloom("train", "mine.yaml", "train.warmup=1", "--out", "runs/again").err
    assert load("runs/mine").run.recipe["model"]["cell"] == "gru-cho"


def test_recipe_of_a_run_reproduces_the_run(seqloom: Any, runs: Path, tmp_path: Path, weights: Any) -> None:
    assert seqloom("train", runs / "toys" / "recipe.yaml", "--out", tmp_path / "again").code == 0
    assert weights(runs / "toys") == weights(tmp_path / "again")


def test_seed_determines_the_weights(seqloom: Any, runs: Path, tmp_path: Path, weights: Any) -> None:
    assert seqloom("train", runs / "toys" / "recipe.yaml", "seed=2", "--out", tmp_path / "other").code == 0
    assert weights(runs / "toys") != weights(tmp_path / "other")


def test_piped_output_is_plain_lines(seqloom: Any, tmp_path: Path) -> None:
    lines = seqloom("train", *TOYS, "--out", tmp_path / "run").out.splitlines()
    number = r"[\d.,]+"
    assert re.fullmatch(rf"{number} parameters on cpu", lines[0])
    steps = [line for line in lines if line.startswith("step") and "/6" in line]
    assert [line.split()[1] for line in steps] == ["6/6"]  # the other steps were finished within ten seconds
    pattern = rf"step \d/6  loss {number}  perplexity {number}  {number} tokens/s  \d+:\d\d left"
    assert all(re.fullmatch(pattern, line) for line in steps)
    assert [line.split()[1] for line in lines if "  dev: loss" in line] == ["3", "6"]
    assert re.fullmatch(
        r"finished at step 6 after \d+:\d\d \(\d+:\d\d in training steps\): all steps are done", lines[-2]
    )
    assert "\x1b" not in "".join(lines)


def test_json_output_contains_the_events(seqloom: Any, tmp_path: Path) -> None:
    shown = seqloom("train", *TOYS, "--out", tmp_path / "run", "--json")
    assert shown.err == ""
    logged = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert [{key: value for key, value in entry.items() if key != "time"} for entry in logged] == shown.objects
    kinds = [event["event"] for event in shown.objects]
    assert kinds[0] == "started" and kinds[-1] == "finished"
    assert kinds.count("evaluated") == 2


def test_ngram_run_has_the_same_files_as_a_neural_run(
    seqloom: Any, runs: Path, tmp_path: Path, text_overrides: list[str]
) -> None:
    words = ["ngram-kn5", *text_overrides, "model.order=2", "tokenizer.split=whitespace"]
    shown = seqloom("train", *words, "--out", tmp_path / "grams", "--json")
    assert shown.objects[-1]["event"] == "finished"
    assert shown.objects[-1]["parameters"] > 0
    names = {path.name for path in (tmp_path / "grams").iterdir()}
    assert names == {path.name for path in (runs / "chars").iterdir()}


def test_new_tokenizer_kind_drops_keys_of_the_old_kind(seqloom: Any, text_overrides: list[str], tmp_path: Path) -> None:
    words = ["ngram-kn5", *text_overrides, "model.order=2", "tokenizer.kind=characters"]
    assert seqloom("train", *words, "--out", tmp_path / "run").code == 0
    assert load_yaml(tmp_path / "run/recipe.yaml")["tokenizer"] == {"kind": "characters"}


def test_override_of_the_old_tokenizer_kind_is_rejected(
    seqloom: Any, text_overrides: list[str], tmp_path: Path
) -> None:
    words = ["ngram-kn5", *text_overrides, "model.order=2", "tokenizer.kind=byte-pair"]
    assert seqloom("train", *words, "tokenizer.size=280", "--out", tmp_path / "run").code == 0
    assert load_yaml(tmp_path / "run/recipe.yaml")["tokenizer"] == {"kind": "byte-pair", "size": 280, "dropout": 0.0}
    seqloom("train", *words, "tokenizer.min_count=3", "--out", tmp_path / "no").fails_with(2, "tokenizer.min_count")


# --- several seeds --------------------------------------------------------------------------------------------------


def test_each_seed_trains_a_run_and_the_deviation_is_reported(seqloom: Any, tmp_path: Path) -> None:
    shown = seqloom("train", *TOYS, "--seeds", "1,2,3", "--out", tmp_path / "run", "--json")
    summary = shown.objects[-1]
    assert summary["event"] == "seeds"
    assert summary["seeds"] == [1, 2, 3]
    values = [load(tmp_path / f"run-seed{seed}").run.metrics("dev") for seed in (1, 2, 3)]
    losses = [value["loss"] for value in values if value]
    assert summary["metrics"]["loss"]["values"] == losses
    assert len(set(losses)) == 3
    assert summary["metrics"]["loss"]["mean"] == pytest.approx(statistics.fmean(losses), rel=1e-12)
    assert summary["metrics"]["loss"]["stdev"] == pytest.approx(statistics.stdev(losses), rel=1e-9)
    assert [load_yaml(tmp_path / f"run-seed{seed}/recipe.yaml")["seed"] for seed in (1, 2, 3)] == [1, 2, 3]


def test_text_output_shows_mean_and_deviation_over_seeds(seqloom: Any, tmp_path: Path) -> None:
    lines = seqloom("train", *TOYS, "--seeds", "4,5", "--out", tmp_path / "run").out.splitlines()
    place = lines.index("2 seeds (4, 5), best evaluation on dev (mean ± standard deviation):")
    losses = [load(tmp_path / f"run-seed{seed}").evaluate("dev")["loss"] for seed in (4, 5)]
    assert lines[place + 1].split() == [
        "loss", f"{statistics.fmean(losses):.4f}", "±", f"{statistics.stdev(losses):.4f}"
    ]  # fmt: skip


def test_standard_deviation_of_one_seed_or_infinite_values_is_null(
    seqloom: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = seqloom("train", *TOYS, "--seeds", "4", "--out", tmp_path / "one", "--json")
    assert shown.objects[-1]["metrics"]["loss"]["stdev"] is None
    monkeypatch.setattr("seqloom.cli.train.follow", lambda *_, **__: {"word_perplexity": math.inf})
    shown = seqloom("train", *TOYS, "--seeds", "4,5", "--out", tmp_path / "two", "--json")
    assert shown.objects[-1]["metrics"]["word_perplexity"] == {"mean": None, "stdev": None, "values": [None, None]}


@pytest.mark.parametrize("text", ["", "x", "1,,2", "1,2,", "1 2", "1.5", "1,1"])
def test_invalid_seeds_are_rejected(seqloom: Any, workdir: Path, text: str) -> None:
    seqloom("train", *TOYS, "--seeds", text).fails_with(2, "--seeds", repr(text), lines=1)
    assert not any(workdir.iterdir())


def test_existing_run_of_a_seed_is_rejected_before_any_work(seqloom: Any, workdir: Path) -> None:
    (workdir / "runs/toys-copy-seed3").mkdir(parents=True)
    seqloom("train", *TOYS, "--seeds", "1,2,3").fails_with(2, "runs/toys-copy-seed3 exists", "--resume", "--out")
    assert [path.name for path in (workdir / "runs").iterdir()] == ["toys-copy-seed3"]


# --- stop and resume ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_exits_with_75_and_resumed_run_gives_the_same_results(
    seqloom: Any, runs: Path, tmp_path: Path, on_event: Any, weights: Any, number: signal.Signals
) -> None:
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    on_event(e.Progress, lambda: signal.raise_signal(number))
    run = tmp_path / "my run"
    stopped = seqloom("train", runs / "toys" / "recipe.yaml", "--out", run)
    assert stopped.code == 75
    assert stopped.out.splitlines()[-1] == "stopped at step 2; all progress is saved"
    assert stopped.err == f"seqloom: To resume: seqloom train --resume '{run}'\n"
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers

    resumed = seqloom("train", "--resume", run)
    assert resumed.code == 0
    assert resumed.out.startswith("resumed at step 2: ")
    assert weights(run) == weights(runs / "toys")
    assert [entry["metrics"] for entry in evaluations(run)] == [
        entry["metrics"] for entry in evaluations(runs / "toys")
    ]


def test_signal_reports_seeds_that_were_not_started(seqloom: Any, tmp_path: Path, on_event: Any) -> None:
    on_event(e.Finished, lambda: signal.raise_signal(signal.SIGINT))
    stopped = seqloom("train", *TOYS, "--seeds", "1,2,3", "--out", tmp_path / "run")
    assert stopped.code == 75
    assert stopped.err.endswith("\nNot started: --seeds 2,3\n")
    assert [path.name for path in tmp_path.iterdir()] == ["run-seed1"]


@pytest.mark.parametrize("seeds", [[], ["--seeds", "1,2"]])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_before_the_first_step_sets_exit_code(
    seqloom: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: list[str], number: int, code: int
) -> None:
    monkeypatch.setattr("seqloom.training.begin", lambda *_: signal.raise_signal(number))
    stopped = seqloom("train", *TOYS, "--out", tmp_path / "run", *seeds)
    assert stopped.code == code and not any(tmp_path.iterdir())
    assert stopped.err == "seqloom: Stopped while preparing the data, before the first step. Run the command again.\n"


def test_signal_before_resuming_exits_with_75(seqloom: Any, copy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqloom.training.resume", lambda *_: signal.raise_signal(signal.SIGTERM))
    assert seqloom("train", "--resume", copy("toys")).code == 75


def test_resuming_a_finished_run_has_no_effect(seqloom: Any, copy: Any, runs: Path) -> None:
    run = copy("chars")
    shown = seqloom("train", "--resume", run)
    assert shown.code == 0
    assert "finished at step 24" in shown.out
    for name in ("model.safetensors", "metrics/dev.json", "recipe.yaml"):
        assert (run / name).read_bytes() == (runs / "chars" / name).read_bytes()


def test_resuming_with_more_steps_continues_training(seqloom: Any, copy: Any) -> None:
    run = copy("toys")
    shown = seqloom("train", "--resume", run, "train.steps=32")
    assert shown.code == 0
    assert "resumed at step 24" in shown.out
    assert "finished at step 32" in shown.out
    assert load_yaml(run / "recipe.yaml")["train"]["steps"] == 32


def test_resuming_with_changed_recipe_reports_differences(seqloom: Any, copy: Any, tmp_path: Path) -> None:
    run = copy("chars")
    before = (run / "recipe.yaml").read_bytes()
    seqloom("train", "--resume", run, "train.lr=0.5", "model.hidden=99").fails_with(
        2, "model.hidden is 12 in the run and 99 now", "train.lr is 0.012 in the run and 0.5 now", "--out", lines=1
    )
    changed = tmp_path / "changed.yaml"
    changed.write_bytes(before.replace(b"cell: lstm", b"cell: gru"))
    seqloom("train", "--resume", run, changed).fails_with(2, "model.cell is 'lstm' in the run and 'gru' now", lines=1)
    assert (run / "recipe.yaml").read_bytes() == before
    same = tmp_path / "same.yaml"
    same.write_bytes(before)
    assert seqloom("train", "--resume", run, same).code == 0


def test_resuming_on_changed_data_is_rejected(
    seqloom: Any, tmp_path: Path, texts: Path, text_overrides: list[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes((texts / "train.txt").read_bytes())
    words = ["ngram-kn5", *text_overrides, f"data.train={text}", "model.order=2"]
    assert seqloom("train", *words, "--out", tmp_path / "run").code == 0
    text.write_text("one more line .\n" + text.read_text())
    seqloom("train", "--resume", tmp_path / "run").fails_with(3, "has changed since it was trained: train", lines=1)


# --- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Name a recipe"),
        (["train.lr=1"], "Name a recipe"),
        (["one", "two"], "Name one recipe; got one, two."),
        (["lm-char-lsmt"], "did you mean lm-char-lstm?"),
        (["zzzzzzzz"], "`seqloom list recipes` lists them"),
        (["nowhere.yaml"], "There is no recipe file nowhere.yaml"),
        (["lm-char-lstm", "=3"], "must begin with a key"),
        (["--resume", "run", "--out", "other"], "leave out --seeds and --out"),
        (["--resume", "run", "--seeds", "1"], "leave out --seeds and --out"),
        (["lm-char-lstm", "--out", "."], "--out must be the name of a new directory"),
        (["lm-char-lstm", "--out", "/"], "--out must be the name of a new directory"),
        (["lm-char-lstm", "--out", ""], "--out must be the name of a new directory"),
    ],
)
def test_invalid_arguments_are_rejected(seqloom: Any, workdir: Path, words: list[str], message: str) -> None:
    seqloom("train", *words).fails_with(2, message, lines=1)
    assert not any(workdir.iterdir())


def test_recipe_file_name_may_contain_equals_sign(seqloom: Any, workdir: Path, runs: Path) -> None:
    (workdir / "lr=1.yaml").write_bytes((runs / "toys/recipe.yaml").read_bytes())
    assert seqloom("train", "lr=1.yaml", "train.steps=1", "--out", "run").code == 0


@pytest.mark.parametrize(
    ("override", "code", "words"),
    [
        ("model.layers=1000000", 2, "model: layers must be at most 10,000; got 1,000,000"),
        ("model.hidden=1000000", 5, "does not fit into memory"),
        ("model.hidden=100000000000", 5, "model.hidden=100000000000"),
        ("tokenizer={kind: byte-pair, size: 1000000000000}", 2, "tokenizer.size: must be at most 2000000"),
        ("model.embedding=1000000000000", 5, "model.embedding=1000000000000"),
    ],
)
def test_model_of_excessive_size_is_rejected(
    seqloom: Any, tmp_path: Path, override: str, code: int, words: str
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a line of text\n" * 400)
    data = ["data.corpus=text", f"data.train={text}"]
    shown = seqloom("train", "lm-char-lstm", *data, override, "--out", tmp_path / "run")
    assert shown.code == code
    assert words in shown.err and "This is a bug" not in shown.err
    assert not (tmp_path / "run").exists()
