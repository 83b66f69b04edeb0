"""Tests of `seqloom average` and `seqloom.average`."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checksums import update_checksums

import seqloom as package
from seqloom.cli.app import main
from seqloom.core.errors import UsageError
from seqloom.core.files import tensors_from_file
from seqloom.predict.loader import load
from seqloom.predict.translate import TranslatorPredictor
from seqloom.recipes import recipe_of
from seqloom.runs.run import Run

FIGURES = ("loss", "perplexity", "bleu", "chrf", "exact_match")


@pytest.fixture
def copies(translators: Path, tmp_path: Path) -> Path:
    """Copies of the translators, which are averaged."""
    return Path(shutil.copytree(translators, tmp_path / "runs"))


@pytest.fixture(scope="module")
def averaged(translators: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The average of the four checkpoints of `one`."""
    path = tmp_path_factory.mktemp("averaged") / "mean"
    assert main(["average", str(translators / "one"), "--last", "4", "--out", str(path)]) == 0
    return path


def damage(run: Path, step: int) -> None:
    path = run / f"checkpoints/step-{step}/model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


# --- results --------------------------------------------------------------------------------------------------------


def test_newest_checkpoints_are_averaged_and_evaluated(seqloom: Any, copies: Path) -> None:
    result = seqloom("average", copies / "one", "--last", "3", "--json").json
    parts = list(Run.open(copies / "one").store().newest_weights(3))
    for name, weights in tensors_from_file(copies / "one-averaged/model.safetensors").items():
        expected = torch.stack([part[name].double() for _, part in parts]).mean(0).float()
        assert torch.equal(weights, expected), name
    assert (result["run"], result["from"], result["steps"]) == (
        str(copies / "one-averaged"),
        [str(copies / "one")],
        [6, 8, 10],
    )
    for run, metrics in (("one-averaged", result["metrics"]), ("one", result["alone"][0]["metrics"])):
        measured = seqloom("evaluate", copies / run, "--json").json
        assert {name: metrics[name] for name in FIGURES} == {name: measured[name] for name in FIGURES}
    assert result["metrics"]["loss"] != result["alone"][0]["metrics"]["loss"]


def test_text_output_compares_average_and_best_checkpoint(seqloom: Any, copies: Path) -> None:
    shown = seqloom("average", copies / "one", "--last", "4")
    assert shown.code == 0 and shown.err == ""
    first, heads, *rows, last = shown.out.splitlines()
    mean, best = (json.loads((copies / run / "metrics/dev.json").read_text()) for run in ("one-averaged", "one"))
    assert first == (
        f"averaged 4 checkpoints of {copies / 'one'}, steps 4, 6, 8, 10: "
        f"dev BLEU {mean['bleu']:.2f}, best checkpoint {best['bleu']:.2f}"
    )
    assert re.fullmatch(r" +averaged  best checkpoint, step (4|6|8|10)", heads)
    assert [row.split()[0] for row in rows] == ["loss", "ppl/token", "BLEU", "chrF", "exact"]
    assert rows[0].split()[1:] == [f"{mean['loss']:.4f}", f"{best['loss']:.4f}"]
    averaged = copies / "one-averaged"
    assert last == f"The run is in {averaged}. Try: seqloom evaluate {averaged} --split test"


@pytest.mark.parametrize("name", ["transformer", "blind"])
def test_other_translators_are_averaged(seqloom: Any, copies: Path, name: str) -> None:
    assert seqloom("average", copies / name, "--last", "2", "--json").json["steps"] == [8, 10]
    assert seqloom("translate", copies / f"{name}-averaged", "the cat sat 3 .").code == 0


def test_language_model_is_averaged(seqloom: Any, copy: Any) -> None:
    run = copy("chars")
    shown = seqloom("average", run, "--last", "2")
    assert shown.code == 0, shown.err
    assert shown.out.startswith(f"averaged 2 checkpoints of {run}, steps 16, 24: dev loss ")
    assert re.search(r"^  bits/char +\d+\.\d{4} +\d+\.\d{4}$", shown.out, re.MULTILINE)
    mean = Path(f"{run}-averaged")
    measured = seqloom("evaluate", mean, "--json").json
    assert measured["loss"] == pytest.approx((Run.open(mean).metrics("dev") or {})["loss"], rel=1e-9)
    assert seqloom("generate", mean, "--prompt", "the", "--tokens", "5").out.startswith("the")
    assert seqloom("score", mean, "the cat sat here .").code == 0
    assert seqloom("compare", run, mean, "--json").json["ranked_by"] == "loss"


def test_vector_model_is_averaged(seqloom: Any, tmp_path: Path) -> None:
    sizes = ["data.length=5", "data.dev=20", "data.test=20", "batch.size=4", "model.hidden=4"]
    steps = ["train.steps=6", "train.evaluate_every=2", "train.keep_checkpoints=3"]
    assert seqloom("train", "toys-adding", *sizes, *steps, "--out", tmp_path / "run").code == 0
    shown = seqloom("average", tmp_path / "run", "--last", "3")
    assert shown.code == 0 and ", steps 2, 4, 6: dev loss " in shown.out
    assert seqloom("evaluate", tmp_path / "run-averaged").code == 0


def test_several_runs_are_averaged(seqloom: Any, copies: Path, weights: Any) -> None:
    shown = seqloom("average", copies / "one", copies / "two", "--out", copies / "both")
    assert shown.code == 0
    assert shown.out.startswith(f"averaged {copies / 'one'} and {copies / 'two'}: dev BLEU ")
    assert (
        "note: the runs have different seeds; averages of independently initialized weights are rarely good"
        in shown.err
        and shown.err.count("\n") == 1
    )
    a, b = (tensors_from_file(copies / name / "model.safetensors") for name in ("one", "two"))
    for name, result in tensors_from_file(copies / "both/model.safetensors").items():
        assert torch.equal(result, ((a[name].double() + b[name].double()) / 2).float())
    shutil.copytree(copies / "one", copies / "copy")
    itself = seqloom("average", copies / "one", copies / "copy", "--out", copies / "same")
    assert itself.code == 0 and itself.err == ""
    assert weights(copies / "same") == weights(copies / "one")
    means = seqloom("average", copies / "same", copies / "one", "--out", copies / "again", "--json").json
    assert means["steps"] is None and len(means["alone"]) == 2


# --- use of an average ----------------------------------------------------------------------------------------------


def test_averaged_run_works_with_the_other_commands(
    seqloom: Any, averaged: Path, translators: Path, tmp_path: Path
) -> None:
    assert seqloom("translate", averaged, "the cat sat 3 .", "--alignment").code == 0
    assert seqloom("evaluate", averaged, "--split", "test", "--json").json["pairs"] == 12
    assert seqloom("inspect", "attention", averaged, "the cat sat 3 .").code == 0
    assert seqloom("translate", averaged, translators / "one", "the cat sat 3 .").code == 0
    assert "dev: loss" in repr(load(averaged))


def test_compare_marks_averaged_runs(seqloom: Any, copies: Path) -> None:
    assert seqloom("average", copies / "one", "--last", "3").code == 0
    shown = seqloom("compare", copies / "one", copies / "one-averaged")
    assert f"{copies / 'one-averaged'} (mean of 3 checkpoints)" in shown.out and "unfinished" not in shown.out
    result = seqloom("compare", copies / "one", copies / "one-averaged", "--json").json
    assert result["ranked_by"] == "bleu"  # both runs were evaluated on all of dev
    assert {row["mean_of"] for row in result["runs"]} == {None, "3 checkpoints"}
    assert len({row["parameters"] for row in result["runs"]}) == 1


def test_curve_of_an_averaged_run_is_plotted(seqloom: Any, copies: Path, averaged: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert seqloom("compare", copies / "one", averaged, "--plot", tmp_path / "curves.png").code == 0
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_averaged_run_cannot_be_resumed(seqloom: Any, averaged: Path, translators: Path) -> None:
    one = translators / "one"
    shown = seqloom("train", "--resume", averaged)
    shown.fails_with(2, lines=1)
    assert shown.err == (
        f"seqloom: {averaged} cannot be resumed: it is the average of {one}, and an average has no optimizer state. "
        f"Resume a source (--resume {one}) and average again.\n"
    )


def test_average_returns_a_predictor_of_the_new_run(copies: Path) -> None:
    mean = package.average(copies / "one", last=2)
    assert isinstance(mean, TranslatorPredictor)
    assert mean.run.path == copies / "one-averaged"
    assert mean.run.average is not None and mean.run.average["steps"] == [8, 10]
    (result,) = mean.translate("the cat sat 3 .")
    assert result.text == load(copies / "one-averaged").translate("the cat sat 3 .")[0].text
    both = package.average([copies / "one", copies / "two"], out=copies / "both")
    assert both.run.average["runs"] == [str(copies / "one"), str(copies / "two")]


# --- invalid input --------------------------------------------------------------------------------------------------


def test_too_few_checkpoints_are_rejected(seqloom: Any, copies: Path) -> None:
    one = copies / "one"
    for words in ([], ["--last", "10"]):
        shown = seqloom("average", one, *words)
        shown.fails_with(2, lines=1)
        assert shown.err == (
            f"seqloom: {one} has 4 checkpoints, but 10 are needed. Average these with --last 4, or train "
            "with train.keep_checkpoints=10 and train.save_every=1 to have enough checkpoints.\n"
        )
    seqloom("average", one, "--last", "5").fails_with(
        2, "or train with train.keep_checkpoints=5 to have enough", lines=1
    )
    recipe = one / "recipe.yaml"
    recipe.write_text(
        recipe.read_text().replace("keep_checkpoints: 4", "keep_checkpoints: 12")
    )  # simulates a larger number of kept checkpoints
    update_checksums(one)
    shown = seqloom("average", one)
    shown.fails_with(2, "--last 4, or train with train.save_every=1 to have enough checkpoints.", lines=1)
    seqloom("average", one, "--last", "5").fails_with(2, "--last 4, or train again.", lines=1)
    for step in (4, 6, 8):
        shutil.rmtree(one / f"checkpoints/step-{step}")
    seqloom("average", one).fails_with(2, "has 1 checkpoint, but 10 are needed.", lines=1)
    shutil.rmtree(one / "checkpoints")
    seqloom("average", one).fails_with(2, f"{one} has no checkpoints to average", lines=1)
    assert not (copies / "one-averaged").exists()


def test_damaged_checkpoints_are_skipped_with_a_note(seqloom: Any, copies: Path) -> None:
    damage(copies / "one", 8)
    shown = seqloom("average", copies / "one", "--last", "3")
    assert shown.code == 0 and ", steps 4, 6, 10: " in shown.out
    cause = "model.safetensors is damaged: it does not match its checksum"
    assert shown.err == f"note: step-8 was skipped: {cause}\n"
    shown = seqloom("average", copies / "one", "--last", "4", "--out", copies / "more")
    shown.fails_with(4, lines=1)
    assert shown.err.startswith(
        f"seqloom: {copies / 'one'} has 3 checkpoints that can be read (step-8: {cause}), but 4 are needed. "
    )
    for step in (4, 6, 10):
        damage(copies / "one", step)
    seqloom("average", copies / "one", "--last", "1", "--out", copies / "more").fails_with(
        4, "has 0 checkpoints that can", lines=1
    )


def test_incompatible_runs_are_rejected(seqloom: Any, copies: Path, runs: Path) -> None:
    def check_error(a: Path, b: Path, reason: str) -> None:
        shown = seqloom("average", a, b, "--out", copies / "x")
        shown.fails_with(2, lines=1)
        assert shown.err == f"seqloom: {a} and {b} cannot be averaged: {reason}.\n"

    one = copies / "one"
    check_error(
        one, copies / "transformer", "their models differ (model.kind is 'recurrent-seq2seq' and 'transformer')"
    )
    check_error(one, copies / "bytes", "their tokens differ (26 words of parallel and 270 byte-pair of parallel)")
    check_error(one, runs / "chars", "their tasks differ (translate and language-model)")
    check_error(one, copies / "back", "they were not trained on the same data (dev, test, train differ)")
    shown = seqloom("average", one, copies / "blind", "--out", copies / "x")
    shown.fails_with(
        2, "their models differ (model.attention is {order: 'luong', score: 'additive'", "and null", lines=1
    )
    recipe = copies / "two/recipe.yaml"
    recipe.write_text(recipe.read_text().replace("hidden: 12", "hidden: 13"))
    update_checksums(copies / "two")
    check_error(one, copies / "two", "their models differ (model.hidden is 12 and 13)")
    assert not (copies / "x").exists()


def test_weights_of_other_shapes_are_rejected(seqloom: Any, copies: Path) -> None:
    shutil.copy(copies / "transformer/model.safetensors", copies / "two/model.safetensors")
    seqloom("average", copies / "one", copies / "two", "--out", copies / "x").fails_with(
        4, "belongs to another run", lines=1
    )
    update_checksums(copies / "two")
    shown = seqloom("average", copies / "one", copies / "two", "--out", copies / "x")
    shown.fails_with(4, "Weights to average must have the same names and shapes", lines=1)


def test_invalid_arguments_are_rejected(seqloom: Any, copies: Path, runs: Path, averaged: Path, workdir: Path) -> None:
    one, two = copies / "one", copies / "two"
    seqloom("average", one, two).fails_with(2, "--out is required for several runs: --out runs/NAME.", lines=1)
    seqloom("average", one, two, "--last", "3", "--out", "x").fails_with(2, "--last selects checkpoints of one run")
    for again in (one, copies / "two/../one"):
        seqloom("average", one, two, again, "--out", "x").fails_with(2, f"{one} is given twice", lines=1)
    seqloom("average", runs / "grams").fails_with(
        2, "was estimated by counting and has no checkpoints to average", lines=1
    )
    seqloom("average", averaged).fails_with(2, f"{averaged} is an average and has no checkpoints.", lines=1)
    seqloom("average", copies / "none").fails_with(4, "is not a run: it does not exist", lines=1)
    seqloom("average", one, "--out", two).fails_with(2, f"{two} exists.", lines=1)
    seqloom("average", one, "--out", averaged).fails_with(2, "exists. Choose another path: --out", lines=1)
    seqloom("average", one, "--out", "/proc/x").fails_with(5, "Could not write /proc/x", lines=1)
    seqloom("average", one, "--last", "0").fails_with(2, "--last")
    assert not any(workdir.iterdir())


def test_run_without_evaluation_is_rejected(seqloom: Any, copies: Path) -> None:
    (copies / "one/model.safetensors").unlink()
    seqloom("average", copies / "one", "--last", "2").fails_with(4, "has no model.safetensors yet", lines=1)
    seqloom("average", copies / "one", copies / "two", "--out", copies / "x").fails_with(
        4, "has no model.safetensors yet", lines=1
    )


def test_empty_list_of_runs_is_rejected() -> None:
    with pytest.raises(UsageError, match="nothing to average"):
        package.average([])


@pytest.mark.parametrize("word", [".", "..", "../one"])
def test_averaged_run_is_written_next_to_a_run_with_a_relative_path(
    copies: Path, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copies / "one" / "checkpoints" if word == ".." else copies / "one")
    created = package.average(word, last=2)
    assert created.run.path.resolve() == (copies / "one-averaged").resolve()


def test_each_run_is_evaluated_with_its_recipe(seqloom: Any, copies: Path) -> None:
    recipe = copies / "two/recipe.yaml"
    wide = recipe_of(Run.open(copies / "two")).decode.beam
    recipe.write_text(recipe.read_text().replace(f"beam: {wide}", f"beam: {wide + 2}"))
    update_checksums(copies / "two")
    assert seqloom("average", copies / "one", copies / "two", "--out", copies / "both").code == 0
    message = {name: (Run.open(copies / name).metrics("dev") or {})["decoding"] for name in ("one", "two", "both")}
    assert f"{wide + 2} hypotheses" in message["two"]
    assert message["both"] == message["one"] != message["two"]
