"""Runs without text on the command line: supported and rejected commands."""

from pathlib import Path
from typing import Any

import pytest
from tests.checksums import update_checksums

from seqloom.cli.app import main

SMALL = ["batch.size=8", "model.hidden=6", "train.steps=4", "train.log_every=2", "data.dev=50", "data.test=50"]


@pytest.fixture(scope="session")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs `adding`, `lstm` (the same data), `longer` (other data) and `recall`. They must not be changed."""
    folder = tmp_path_factory.mktemp("vectors")
    commands = {
        "adding": ["toys-adding", "data.length=8"],
        "lstm": ["toys-adding", "data.length=8", "model.cell=lstm"],
        "longer": ["toys-adding", "data.length=9"],
        "recall": ["toys-recall", "data.lag=3"],
    }
    for name, words in commands.items():
        assert main(["train", *words, *SMALL, "--out", str(folder / name)]) == 0, name
    return folder


def test_training_prints_loss_without_perplexity(seqloom: Any, tmp_path: Path) -> None:
    shown = seqloom("train", "toys-adding", *SMALL, "--out", tmp_path / "run")
    assert shown.code == 0 and shown.err == ""
    assert "perplexity" not in shown.out and "generate" not in shown.out
    assert "step 4/4  loss " in shown.out and "dev: loss " in shown.out and "blind_loss 0.1" in shown.out
    assert shown.out.endswith(f"Try: seqloom evaluate {tmp_path / 'run'} --split test\n")


def test_training_counts_vectors_instead_of_tokens(seqloom: Any, tmp_path: Path) -> None:
    shown = seqloom("train", "toys-recall", "data.lag=3", *SMALL, "--out", tmp_path / "run")
    assert "perplexity" not in shown.out and "tokens" not in shown.out
    assert " vectors/s  " in shown.out


def test_evaluate_prints_metrics(seqloom: Any, vectors: Path) -> None:
    shown = seqloom("evaluate", vectors / "adding", "--split", "test")
    first, *rest = shown.out.splitlines()
    assert first == f"{vectors / 'adding'} on adding, test: 50 sequences, 400 vectors"
    labels = [line.strip().rpartition("  ")[0].strip() for line in rest]
    assert labels == ["loss", "success rate", "blind baseline loss", "success rate"]
    result = seqloom("evaluate", vectors / "adding", "--split", "test", "--json").json
    assert result["sequences"] == 50 and 0.08 < result["blind_loss"] < 0.26
    assert result["loss"] == pytest.approx(float(rest[0].split()[-1]), abs=1e-4)
    assert seqloom("evaluate", vectors / "recall", "--json").json["blind_success"] == 0.125


def test_train_split_is_rejected(seqloom: Any, vectors: Path) -> None:
    seqloom("evaluate", vectors / "recall", "--split", "train").fails_with(
        3, "no train split", "Use dev or test", lines=1
    )


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "RUN"],
        ["generate", "RUN", "--prompt", "a"],
        ["score", "RUN", "a text"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("name", ["adding", "recall"])
def test_text_commands_are_rejected(seqloom: Any, vectors: Path, name: str, words: list[str]) -> None:
    run = vectors / name
    shown = seqloom(*(run if word == "RUN" else word for word in words))
    shown.fails_with(
        2, f"{run} is not a text model: its task, {name}, reads no text", f"seqloom evaluate {run}", lines=1
    )


@pytest.mark.parametrize("name", ["adding", "recall"])
def test_generated_data_has_no_file(seqloom: Any, vectors: Path, name: str) -> None:
    message = f"cannot be evaluated on a file: the data of the task {name} is generated"
    seqloom("evaluate", vectors / name, __file__).fails_with(2, message, lines=1)


def test_interpolation_with_a_language_model_is_rejected(seqloom: Any, vectors: Path, runs: Path) -> None:
    shown = seqloom("evaluate", vectors / "adding", runs / "chars", "--interpolate")
    shown.fails_with(2, "is not a text model", lines=1)


def test_runs_of_one_task_are_ranked(seqloom: Any, vectors: Path) -> None:
    adding, lstm = vectors / "adding", vectors / "lstm"
    by_loss = seqloom("compare", adding, lstm, "--json").json
    assert by_loss["ranked_by"] == "loss" and list(by_loss["recipes"]) == ["model.cell"]
    losses = [row["metrics"]["loss"] for row in by_loss["runs"]]
    assert losses == sorted(losses)
    by_success = seqloom("compare", adding, lstm, "--by", "success", "--json").json
    shares = [row["metrics"]["success"] for row in by_success["runs"]]
    assert shares == sorted(shares, reverse=True), "higher is better"
    shown = seqloom("compare", adding, lstm).out
    assert "success" in shown and "ppl" not in shown and "bits/char" not in shown


def test_runs_of_different_data_are_not_ranked(seqloom: Any, vectors: Path, runs: Path) -> None:
    other = seqloom("compare", vectors / "adding", vectors / "longer", "--json").json
    assert other["ranked_by"] is None and "different dev data" in other["not_ranked"]
    text = seqloom("compare", vectors / "adding", runs / "chars", runs / "grams")
    assert text.code == 0 and text.err == "" and "different dev data" in text.out
    shown = seqloom("compare", vectors / "adding", vectors / "lstm", "--by", "bits_per_character")
    shown.fails_with(2, "Not ranked by bits_per_character: the task adding has no such metric", lines=1)


def test_curves_of_different_tasks_are_drawn_in_one_plot(
    seqloom: Any, vectors: Path, runs: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    plot = tmp_path / "curves.png"
    assert seqloom("compare", vectors / "adding", runs / "chars", "--plot", plot).code == 0
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_card_counts_sequences(vectors: Path) -> None:
    card = (vectors / "adding/card.md").read_text()
    assert "| split | sequences | vectors | sha256 |\n| --- | ---: | ---: | --- |\n| dev | 50 | 400 | " in card
    assert "document" not in card


def test_missing_or_wrong_sizes_are_rejected(seqloom: Any, vectors: Path, tmp_path: Path) -> None:
    import shutil

    run = Path(shutil.copytree(vectors / "adding", tmp_path / "run"))
    (run / "sizes.json").write_text('{"inputs": 9, "outputs": 1}')
    update_checksums(run)
    seqloom("evaluate", run).fails_with(4, "does not match", lines=1)
    (run / "sizes.json").unlink()
    seqloom("evaluate", run).fails_with(4, "incomplete", "sizes.json", lines=1)
    seqloom("compare", run).fails_with(4, "sizes.json", lines=1)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.length=1", "data.length: must be at least 2"),
        ("data.lenght=9", "did you mean data.length?"),
        ("model.cell=lsmt", "did you mean lstm?"),
        ("model.outputs=3", "model.outputs: no such key"),
        ("batch.size=0", "batch.size: must be at least 1"),
        ("tokenizer.kind=characters", "tokenizer: no such key"),
        ("model.kind=recurrent-lm", "model.kind"),
    ],
)
def test_invalid_recipes_are_rejected(seqloom: Any, workdir: Path, override: str, message: str) -> None:
    seqloom("train", "toys-adding", override).fails_with(2, message)
    assert not any(workdir.iterdir())
