"""A GPT on the command line: training, use as a language model, and inspection."""

import struct
from pathlib import Path
from typing import Any

import pytest

from seqloom.cli.app import main
from seqloom.predict.loader import load

TEXT = "the owl slept here ."
SIZES = ["batch.size=4", "batch.length=16", "model.d_model=16", "model.layers=2", "model.positions.max_length=16"]
STEPS = ["train.steps=24", "train.evaluate_every=8", "train.log_every=2", "train.schedule=constant", "train.warmup=0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, text_overrides: list[str]) -> Path:
    """`pairs` uses byte pairs and joined documents.

    `letters` uses characters, separate documents and rotary positions.
    """
    folder = tmp_path_factory.mktemp("gpts")
    rotary = ["model.kind=gpt", "model.d_model=16", "model.layers=2", "model.positions.kind=rotary", "model.context=24"]
    commands = {
        "pairs": ["gpt-pydocs", *text_overrides, *SIZES, *STEPS, "tokenizer.size=300"],
        "letters": [
            "lm-char-lstm",
            *text_overrides,
            *rotary,
            *SIZES[:2],
            *STEPS,
            "batch.cross_document_attention=false",
        ],
    }
    for name, words in commands.items():
        assert main(["train", *words, "--out", str(folder / name)]) == 0, name
    return folder


@pytest.fixture(params=["pairs", "letters"])
def run(request: Any, folder: Path) -> Path:
    return folder / request.param


# --- use as a language model ----------------------------------------------------------------------------------------


def test_text_longer_than_context_is_generated(seqloom: Any, run: Path) -> None:
    result = seqloom("generate", run, "--prompt", "the owl", "--tokens", 60, "--min-tokens", 50, "--seed", 3)
    assert result.code == 0 and result.out.startswith("the owl") and len(result.out) > 50
    assert (
        result.out
        == seqloom("generate", run, "--prompt", "the owl", "--tokens", 60, "--min-tokens", 50, "--seed", 3).out
    )


def test_generate_with_beam_prints_n_best_and_matches_the_python_api(seqloom: Any, run: Path) -> None:
    result = seqloom("generate", run, "--prompt", "the owl", "--beam", 3, "--n-best", 3, "--tokens", 30)
    assert result.code == 0 and result.out.count("--- ") == 3
    assert f"the owl{load(run, 'cpu').search('the owl', beam=3, n_best=3, max_tokens=30)[0].text}\n" in result.out


def test_text_longer_than_context_is_scored(seqloom: Any, run: Path) -> None:
    long = " ".join([TEXT] * 4)  # longer than the model's context
    short, other = seqloom("score", run, TEXT, long, "--json").objects
    assert len(short["tokens"]) == len(load(run, "cpu").tokenizer.encode(TEXT)) + 1
    assert other["log_prob"] < short["log_prob"] < 0
    assert seqloom("score", run, TEXT, "--json").json["log_prob"] == pytest.approx(short["log_prob"], rel=1e-4)


def test_gpt_runs_are_evaluated_and_compared(seqloom: Any, folder: Path, runs: Path, tmp_path: Path) -> None:
    for name in ("pairs", "letters"):
        result = seqloom("evaluate", folder / name, "--split", "test", "--json").json
        assert 1 < result["perplexity"] < 300
    plot = tmp_path / "curves.png"
    compared = seqloom("compare", folder / "pairs", folder / "letters", runs / "chars", "--plot", plot)
    assert compared.code == 0 and "letters" in compared.out and plot.stat().st_size > 1000


def test_separate_documents_are_independent_of_order(seqloom: Any, folder: Path, tmp_path: Path) -> None:
    """The order of documents affects only a model that attends across documents."""
    lines = (tmp_path / "lines.txt"), (tmp_path / "turned.txt")
    texts = ["the cat sat here .", "the dog saw in the hay .", "the owl slept on a mat ."]
    for path, order in zip(lines, (texts, texts[::-1]), strict=True):
        path.write_text("\n".join(order) + "\n", "utf-8")
    for name, same in (("letters", True), ("pairs", False)):
        one, other = (seqloom("evaluate", folder / name, path, "--json").json for path in lines)
        assert (one["loss"] == pytest.approx(other["loss"], rel=1e-6)) == same, name


def test_gpt_is_interpolated_with_another_gpt(
    seqloom: Any, folder: Path, text_overrides: list[str], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    assert (
        seqloom(
            "train", "gpt-pydocs", *text_overrides, *SIZES, *STEPS, "tokenizer.size=300", "seed=2", "--out", other
        ).code
        == 0
    )
    result = seqloom("evaluate", folder / "pairs", "--interpolate", other, "--split", "test", "--json")
    assert result.code == 0, result.err


# --- inspection -----------------------------------------------------------------------------------------------------


def test_json_heads_attend_only_to_previous_tokens(seqloom: Any, run: Path) -> None:
    result = seqloom("inspect", "attention", run, TEXT, "--json").json
    view = load(run, "cpu").heads(TEXT)
    assert (result["text"], result["part"], result["layers"], result["heads"]) == (TEXT, "decoder", 2, 4)
    assert "source" not in result and "translation" not in result
    assert result["log_prob"] == pytest.approx(load(run, "cpu").score(TEXT)[0].log_prob, rel=1e-4)
    assert result["row_words"] == result["column_words"] == ["</s>", "the", "owl", "slept", "here", "."]
    assert len(result["maps"]) == 8
    for one in result["maps"]:
        for row, weights in enumerate(one["weights"]):
            assert sum(weights) == pytest.approx(1, abs=1e-5) and not any(weights[row + 1 :])
    assert view.decoder.layers == 2


def test_text_output_shows_a_table_or_a_single_head(seqloom: Any, run: Path) -> None:
    table = seqloom("inspect", "attention", run, TEXT)
    assert table.code == 0 and table.out.startswith(f"{TEXT}\nlog p = -") and "entropy" in table.out
    one = seqloom("inspect", "attention", run, TEXT, "--layer", 2, "--head", 3, "--no-end", "--no-color")
    assert one.code == 0 and "layer 2 of 2, head 3 of 4" in one.out and "translation" not in one.out


@pytest.mark.parametrize("view", ["grid", "heat", "links"])
def test_every_view_of_heads_is_plotted(seqloom: Any, run: Path, tmp_path: Path, view: str) -> None:
    plot = tmp_path / "heads.png"
    result = seqloom("inspect", "attention", run, TEXT, "--view", view, "--layer", 1, "--out", plot)
    assert result.code == 0, result.err
    width, height = struct.unpack(">II", plot.read_bytes()[16:24])
    assert width > 300 and height > 300


def test_positions_of_runs_are_learned_or_rotary(seqloom: Any, folder: Path) -> None:
    learned = seqloom("inspect", "positions", folder / "pairs", "--json").json
    assert (learned["kind"], learned["length"], learned["width"]) == ("learned", 16, 16)
    assert seqloom("inspect", "positions", folder / "letters", "--json").json["kind"] == "rotary"
    seqloom("inspect", "positions", folder / "pairs", "--side", "target").fails_with(2, "one table", "--side")


# --- invalid input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([TEXT, "--target", "x"], "--beam and --target require a translator"),
        ([TEXT, "--beam", "2"], "--beam and --target require a translator"),
        ([TEXT, "--part", "cross"], "has no attention weights. Choose decoder"),
        ([TEXT, "--layer", "3"], "The layer must be from 1 to 2"),
        (["  "], "The text is empty"),
        ([TEXT * 5], "reads at most"),
    ],
)
def test_invalid_arguments_are_rejected(seqloom: Any, run: Path, words: list[str], message: str) -> None:
    seqloom("inspect", "attention", run, *words).fails_with(2, message)


def test_recurrent_model_has_no_heads(seqloom: Any, runs: Path) -> None:
    seqloom("inspect", "attention", runs / "chars", TEXT).fails_with(2, "is a language model", "has no attention heads")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["model.positions.max_length=8", "batch.length=16"],
            ["batch.length must be at most 8, the context of the model"],
        ),
        (["model.d_model=15", "model.heads=0"], ["model.heads: must be at least 1"]),
        (
            ["model.kind=recurrent-lm", "batch.cross_document_attention=false"],
            ["batch.cross_document_attention=false needs model.kind gpt"],
        ),
        (["model.positions.kind=relative"], ["model.positions.kind", "rotary"]),
    ],
)
def test_invalid_recipes_are_rejected(seqloom: Any, tmp_path: Path, words: list[str], message: list[str]) -> None:
    seqloom("train", "gpt-pydocs", *words, "--out", tmp_path / "none").fails_with(2, *message, lines=4)
    assert not (tmp_path / "none").exists()


def test_gates_and_gradients_require_a_recurrent_model(seqloom: Any, folder: Path) -> None:
    seqloom("inspect", "gates", folder / "pairs", TEXT).fails_with(2, "is of kind gpt")
    seqloom("inspect", "gradients", folder / "pairs").fails_with(2, "is of kind gpt")


def test_resumed_run_gives_the_same_results_as_an_uninterrupted_run(
    seqloom: Any, text_overrides: list[str], tmp_path: Path
) -> None:
    words = ["gpt-pydocs", *text_overrides, *SIZES, *STEPS, "tokenizer.size=300"]
    assert seqloom("train", *words, "train.steps=8", "--out", tmp_path / "run").code == 0
    assert seqloom("train", "--resume", tmp_path / "run", "train.steps=24").code == 0
    assert seqloom("train", *words, "--out", tmp_path / "once").code == 0
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "once"))
    assert one == other
