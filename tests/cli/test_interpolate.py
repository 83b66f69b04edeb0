"""Tests of `seqloom evaluate A B --interpolate` and `seqloom.interpolate`."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import seqloom as package
from seqloom.cli.app import main
from seqloom.core.errors import UsageError
from seqloom.evaluate.perplexity import stream_log_probs
from seqloom.predict.loader import load


@pytest.fixture(scope="module")
def trigram(tmp_path_factory: pytest.TempPathFactory, text_overrides: list[str]) -> Path:
    """A trigram model with the tokens of the run `words`."""
    path = tmp_path_factory.mktemp("mixed") / "trigram"
    words = ["ngram-kn5", *text_overrides, "model.order=3", "tokenizer.split=punctuation", "tokenizer.min_count=2"]
    assert main(["train", *words, "--out", str(path)]) == 0
    return path


def token_log_probs(path: Path, split: str) -> torch.Tensor:
    trained = load(path, device="cpu")
    stream = trained.task().stream(split)
    return stream_log_probs(trained.model, stream, end=0).double()


def test_mixture_is_the_weighted_sum_per_token(seqloom: Any, runs: Path, trigram: Path) -> None:
    result = seqloom(
        "evaluate", runs / "words", trigram, "--interpolate", "--weights", "0.3,0.7", "--split=test", "--json"
    ).json
    a, b = token_log_probs(runs / "words", "test"), token_log_probs(trigram, "test")
    loss = -(0.3 * a.exp() + 0.7 * b.exp()).log().mean().item()
    assert result["loss"] == pytest.approx(loss, rel=1e-9)
    assert result["perplexity"] == pytest.approx(math.exp(loss), rel=1e-9)
    assert result["runs"] == [str(runs / "words"), str(trigram)]
    assert (result["weights"], result["weights_from"], result["data"]) == ([0.3, 0.7], "given", "text, test")
    assert result["alone"][0]["loss"] == pytest.approx(-a.mean().item(), rel=1e-6)
    assert result["alone"][1]["loss"] == pytest.approx(-b.mean().item(), rel=1e-9)


def test_default_weights_are_optimized_on_dev(seqloom: Any, runs: Path, trigram: Path) -> None:
    words = ["evaluate", runs / "words", trigram, "--interpolate", "--json"]
    dev, test = seqloom(*words).json, seqloom(*words, "--split=test").json
    assert dev["weights"] == test["weights"] and dev["weights_from"] == "dev"
    assert dev["loss"] <= min(part["loss"] for part in dev["alone"]) + 1e-6
    for share in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0):
        other = seqloom(*words, "--weights", f"{share},{1 - share}").json
        assert other["loss"] >= dev["loss"] - 1e-6
    assert test["loss"] != dev["loss"]


def test_text_output_shows_the_given_weights(seqloom: Any, runs: Path, trigram: Path) -> None:
    shown = seqloom("evaluate", runs / "words", trigram, "--interpolate", "--weights=0.25,0.75")
    assert shown.code == 0, shown.err
    first, *_, heading, a, b = shown.out.splitlines()
    assert first.startswith(f"{runs / 'words'} + {trigram} on text, dev: ")
    assert "weights (given)" in heading
    assert a.split()[0] == "0.2500" and a.endswith(str(runs / "words"))
    assert b.split()[0] == "0.7500" and b.endswith(str(trigram))


def test_text_of_a_split_has_the_same_metrics_as_the_split(
    seqloom: Any, runs: Path, trigram: Path, texts: Path
) -> None:
    words = ["evaluate", runs / "words", trigram, "--interpolate", "--json"]
    split, other = seqloom(*words, "--split=test").json, seqloom(*words, texts / "test.txt").json
    assert other.pop("data") == str(texts / "test.txt")
    split.pop("data")
    assert other == split


def test_repeated_model_divides_its_weight(seqloom: Any, runs: Path, trigram: Path) -> None:
    three = seqloom("evaluate", runs / "words", trigram, trigram, "--interpolate", "--json").json
    two = seqloom("evaluate", runs / "words", trigram, "--interpolate", "--json").json
    assert three["loss"] == pytest.approx(two["loss"], abs=1e-5)
    assert sum(three["weights"]) == pytest.approx(1)


def test_interpolate_scores_generates_and_evaluates(runs: Path, trigram: Path) -> None:
    mixture = package.interpolate([runs / "words", load(trigram)], weights=[0.5, 0.5])
    text = "the cat sat here ."
    (scored,) = mixture.score([text])
    a, b = (load(path).score([text])[0].log_probs for path in (runs / "words", trigram))
    by_hand = [math.log((math.exp(x) + math.exp(y)) / 2) for x, y in zip(a, b, strict=True)]
    assert scored.log_probs == pytest.approx(by_hand, abs=1e-5)
    assert isinstance(mixture.generate("the", max_tokens=5, seed=1), str)
    assert mixture.evaluate("test")["loss"] == pytest.approx(mixture.measure("test")[0]["loss"])
    assert mixture.evaluate_documents([text])["loss"] == pytest.approx(-scored.log_prob / len(scored.log_probs))
    assert repr(mixture) == f"<0.500 {runs / 'words'} + 0.500 {trigram}>"
    with pytest.raises(UsageError, match="At least two models are needed"):
        package.interpolate([trigram])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["words", "grams", "--interpolate"], "cannot be combined because their tokenizers differ"),
        (["words", "chars", "--interpolate"], "characters of text"),
        (["words", "words"], "one at a time"),
        (["words", "--interpolate"], "two or more runs"),
        (["words", "--weights=1"], "add --interpolate"),
        (["words", "words", "--interpolate", "--weights=a,b"], "'a,b'"),
        (["words", "words", "--interpolate", "--weights=0.5"], "one weight for each of the 2 models"),
        (["words", "words", "--interpolate", "--weights=0.5,0.6"], "with sum 1.1"),
        (["words", "words", "--interpolate", "--weights=-1,2"], "at least 0"),
        (["words", "words", "--interpolate", "--split=tset"], "did you mean test?"),
    ],
)
def test_incompatible_arguments_are_rejected(seqloom: Any, runs: Path, words: list[str], message: str) -> None:
    named = [word if word.startswith("--") else runs / word for word in words]
    seqloom("evaluate", *named).fails_with(2, message, lines=1)


def test_different_data_requires_weights(
    seqloom: Any, tmp_path: Path, runs: Path, texts: Path, text_overrides: list[str]
) -> None:
    """The dev splits differ. The train splits, and therefore the vocabularies, are equal."""
    other = tmp_path / "dev.txt"
    other.write_text("the owl saw the cat .\n" * 9)
    words = [
        "ngram-kn5",
        *text_overrides,
        f"data.dev={other}",
        "model.order=2",
        "tokenizer.min_count=2",
        "--out",
        tmp_path / "run",
    ]
    assert seqloom("train", *words).code == 0
    both = ["evaluate", runs / "words", tmp_path / "run", "--interpolate"]
    seqloom(*both).fails_with(2, "not trained on the same data: dev differ", lines=1)
    seqloom(*both, "--weights=0.5,0.5").fails_with(2, "not trained on the same data", lines=1)
    assert seqloom(*both, "--weights=0.5,0.5", texts / "test.txt").code == 0
