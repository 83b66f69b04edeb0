"""A feed-forward language model on the command line."""

from pathlib import Path
from typing import Any

import pytest

from seqloom.cli.app import main
from seqloom.predict.loader import load

TEXT = "the owl slept here ."
SIZES = ["batch.size=4", "batch.length=16", "model.embedding=6", "model.hidden=12"]
STEPS = ["train.steps=24", "train.evaluate_every=8", "train.log_every=2", "train.schedule=constant", "train.warmup=0"]
# The tokens of `grams` and `words`, but without splitting at punctuation
WORDS = ["tokenizer.split=whitespace", "tokenizer.min_count=2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, text_overrides: list[str]) -> Path:
    path = tmp_path_factory.mktemp("windows") / "ffnn"
    assert main(["train", "ffnn-pydocs", *text_overrides, *SIZES, *STEPS, *WORDS, "--out", str(path)]) == 0
    return path


def test_sampling_is_reproducible_and_beam_gives_n_best(seqloom: Any, run: Path) -> None:
    words = ("generate", run, "--prompt", "the owl", "--tokens", 30, "--min-tokens", 20, "--seed", 3)
    result = seqloom(*words)
    assert result.code == 0 and result.out.startswith("the owl") and len(result.out.split()) > 15
    assert result.out == seqloom(*words).out
    best = seqloom("generate", run, "--prompt", "the owl", "--beam", 3, "--n-best", 3, "--tokens", 10)
    assert best.code == 0 and best.out.count("--- ") == 3


def test_tokens_before_the_window_do_not_change_scores(seqloom: Any, run: Path) -> None:
    """The window has four words. Earlier words have no effect."""
    one, other = (
        seqloom("score", run, f"{first} dog sat on a mat .", "--json").json["tokens"] for first in ("the", "here")
    )
    assert [token["log_prob"] for token in one[5:]] == [token["log_prob"] for token in other[5:]]
    assert all(a["log_prob"] != b["log_prob"] for a, b in zip(one[:5], other[:5], strict=True))


def test_window_model_is_evaluated_compared_and_interpolated(
    seqloom: Any, run: Path, runs: Path, tmp_path: Path
) -> None:
    result = seqloom("evaluate", run, "--split", "test", "--json").json
    assert 1 < result["perplexity"] < 300
    plot = tmp_path / "curves.png"
    compared = seqloom("compare", run, runs / "grams", runs / "words", "--plot", plot)
    assert compared.code == 0 and "ffnn" in compared.out and plot.stat().st_size > 1000
    mixed = seqloom("evaluate", run, "--interpolate", runs / "grams", "--split", "test", "--json").json
    assert mixed["loss"] <= result["loss"] + 1e-6
    text = tmp_path / "other.txt"
    text.write_text(f"{TEXT}\n", "utf-8")
    assert seqloom("evaluate", run, text, "--json").json["loss"] > 0


def test_different_texts_have_different_embeddings(run: Path) -> None:
    trained = load(run, "cpu")
    one, two = trained.embed([TEXT, "the dog sat here ."])
    assert one.shape == (6,) and (one != two).any()


def test_resumed_run_gives_the_same_results_as_an_uninterrupted_run(
    seqloom: Any, text_overrides: list[str], tmp_path: Path
) -> None:
    words = ["ffnn-pydocs", *text_overrides, *SIZES, *STEPS, *WORDS]
    assert seqloom("train", *words, "train.steps=7", "--out", tmp_path / "run").code == 0
    assert seqloom("train", "--resume", tmp_path / "run", "train.steps=24").code == 0
    assert seqloom("train", *words, "--out", tmp_path / "once").code == 0
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "once"))
    assert one == other


def test_checkpoints_are_averaged(seqloom: Any, run: Path, tmp_path: Path) -> None:
    assert seqloom("average", run, "--last", 2, "--out", tmp_path / "mean").code == 0
    assert seqloom("score", tmp_path / "mean", TEXT).code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.window=0"], ["model.window: must be at least 1; got 0"]),
        (["model.window=0", "model.layers=-1", "model.dropout=1"], ["window: must", "layers: must", "dropout: must"]),
        (["model.window=four"], ["model.window"]),
        (["model.softmax.kind=adaptive", "model.softmax.cutoffs=[5]"], ["tied needs one output matrix"]),
    ],
)
def test_invalid_recipes_are_rejected(seqloom: Any, tmp_path: Path, words: list[str], message: list[str]) -> None:
    seqloom("train", "ffnn-pydocs", *words, "--out", tmp_path / "none").fails_with(2, *message, lines=4)
    assert not (tmp_path / "none").exists()


def test_gates_gradients_and_heads_are_rejected(seqloom: Any, run: Path) -> None:
    seqloom("inspect", "gates", run, TEXT).fails_with(2, "is of kind window-lm")
    seqloom("inspect", "gradients", run).fails_with(2, "is of kind window-lm")
    seqloom("inspect", "attention", run, TEXT).fails_with(2, "has no attention heads")


def test_window_model_is_not_a_backbone(seqloom: Any, run: Path, tmp_path: Path) -> None:
    seqloom("train", "tag-people-finetune", f"init.from={run}", "--out", tmp_path / "none").fails_with(
        2, "cannot be fine-tuned: its model is of kind window-lm"
    )


# --- importance of positions ----------------------------------------------------------------------------------------


def test_inspect_window_shows_the_importance_of_each_position(seqloom: Any, run: Path, tmp_path: Path) -> None:
    plot = tmp_path / "window.png"
    result = seqloom("inspect", "window", run, "--json", "--out", plot)
    (one,) = result.json["runs"]
    assert result.json["split"] == "dev" and len(one["shuffled"]) == len(one["importance"]) == 4
    assert one["loss"] == pytest.approx(load(run, "cpu").evaluate("dev")["loss"], rel=1e-5)
    assert plot.stat().st_size > 1000
    table = seqloom("inspect", "window", run, run, "--split", "test", "--tokens", 50)
    assert table.code == 0 and table.out.count("back, shuffled") == 8 and "50 tokens" in table.out


def test_models_without_window_are_rejected(seqloom: Any, run: Path, runs: Path, tmp_path: Path) -> None:
    seqloom("inspect", "window", runs / "grams").fails_with(2, "has a window", "kind ngram")
    seqloom("inspect", "window", run, runs / "chars").fails_with(2, "kind recurrent-lm")
    seqloom("inspect", "window", run, "--tokens", 1).fails_with(2, "--tokens must be at least 2")
    seqloom("inspect", "window", run, "--split", "tset").fails_with(3, "tset")
    seqloom("inspect", "window", run, "--out", tmp_path / "window.txt").fails_with(2, ".png or .svg")
