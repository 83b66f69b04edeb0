"""Tests of `seqloom inspect attention` with classifiers and taggers that have a Transformer encoder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.understanding import classify_recipe, tag_recipe, trained

from seqloom.predict.classify import ClassifierPredictor
from seqloom.predict.loader import load
from seqloom.predict.tag import TaggerPredictor

TRANSFORMER = [
    "model.encoder.kind=transformer",
    "model.encoder.d_model=8",
    "model.encoder.heads=2",
    "train.steps=4",
]
BYTES = ["tokenizer.kind=byte-pair", "tokenizer.size=280"]
FILM, LINE = "a gripping, funny film", "Ann sings in New Delhi."


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readers")
    trained(classify_recipe(folder, *TRANSFORMER, "model.characters={kind: cnn, filters: 4}"), folder / "classifier")
    trained(tag_recipe(folder, *TRANSFORMER, *BYTES, "train.evaluate_every=4"), folder / "tagger")
    trained(classify_recipe(folder, "train.steps=1"), folder / "recurrent")
    trained(classify_recipe(folder, "train.steps=1", "model.encoder.kind=bag"), folder / "bag")
    return folder


def test_json_heads_have_the_label_and_normalized_weights(seqloom: Any, runs: Path) -> None:
    result = seqloom("inspect", "attention", runs / "classifier", f" {FILM}", "--json").json
    words = ["a", "gripping", ",", "funny", "film", "</s>"]
    assert result["part"] == "encoder" and (result["layers"], result["heads"]) == (2, 2)
    assert result["row_words"] == result["column_words"] == words
    assert [(one["layer"], one["head"]) for one in result["maps"]] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    weights = np.array([one["weights"] for one in result["maps"]])
    assert weights.shape == (4, 6, 6)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
    answer = seqloom("classify", runs / "classifier", FILM, "--json").objects[0]
    assert (result["source"], result["label"]) == (FILM, answer["label"])
    assert np.exp(result["log_prob"]) == pytest.approx(answer["probability"], abs=1e-6)
    assert "translation" not in result


def test_head_weights_match_those_of_the_model(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = load(runs / "classifier", "cpu", ClassifierPredictor)
    part = classifier.heads(FILM).encoder
    attention = classifier.model.encoder.blocks[1].mixer.attention
    attend, weights = attention.attend, []

    def record(*inputs: Any, **options: Any) -> Any:
        output, computed = attend(*inputs, **options)
        weights.append(computed)
        return output, computed

    monkeypatch.setattr(attention, "attend", record)
    classifier.heads(FILM)
    np.testing.assert_allclose(part.tokens.weights[1], weights[-1][0].numpy())
    assert not np.allclose(part.tokens.weights[0], part.tokens.weights[1])


def test_heads_of_a_tagger_are_merged_into_words(seqloom: Any, runs: Path) -> None:
    view = load(runs / "tagger", "cpu", TaggerPredictor).heads(LINE)
    part = view.encoder
    assert part.words.rows == ["Ann", "sings", "in", "New", "Delhi", ".", "</s>"]
    assert len(part.tokens.rows) > 7
    np.testing.assert_allclose(part.words.weights.sum(axis=-1), 1, atol=1e-5)
    result = seqloom("inspect", "attention", runs / "tagger", LINE, "--layer", 1, "--head", 2, "--json").json
    assert result["tags"] == view.text == seqloom("tag", runs / "tagger", LINE).out.rstrip("\n")
    np.testing.assert_allclose(result["maps"][0]["word_weights"], part.words.weights[0, 1], atol=1e-6)
    assert view.log_prob is not None and view.log_prob < 0


def test_heads_are_shown_in_every_view_and_plotted(seqloom: Any, runs: Path, tmp_path: Path) -> None:
    command = ["inspect", "attention", runs / "classifier", FILM]
    table = seqloom(*command, "--out", tmp_path / "heads.png")
    assert table.code == 0 and (tmp_path / "heads.png").stat().st_size > 5_000
    assert table.out.startswith(f"{FILM}\n") and "encoder self-attention, heads" in table.out
    links = seqloom(*command, "--view", "links", "--layer", 2)
    assert "encoder self-attention, layer 2 of 2, mean over its 2 heads" in links.out and " → " in links.out
    assert "</s>" not in seqloom(*command, "--view", "heat", "--no-end").out


def test_truncated_text_is_noted(seqloom: Any, runs: Path) -> None:
    shown = seqloom("inspect", "attention", runs / "tagger", f"{LINE} " * 9, "--view", "heat")
    assert "tokens are shown, the maximum that the model reads" in shown.err
    # The model reads the characters of "zebra"
    assert seqloom("inspect", "attention", runs / "classifier", "a zebra").err == ""


@pytest.mark.parametrize(
    ("run", "words", "message"),
    [
        ("recurrent", [FILM], "has no attention heads: its encoder is not a Transformer"),
        ("bag", [FILM], "has no attention heads"),
        ("classifier", [" "], "The text is empty"),
        ("classifier", [FILM, "--target", "x"], "--beam and --target require a translator"),
        ("tagger", [LINE, "--beam", "2"], "is a tagger"),
        ("classifier", [FILM, "--part", "cross"], "The cross of"),
        ("classifier", [FILM, "--layer", "3"], "The layer must be from 1 to 2"),
    ],
)
def test_invalid_arguments_are_rejected(seqloom: Any, runs: Path, run: str, words: list[str], message: str) -> None:
    seqloom("inspect", "attention", runs / run, *words).fails_with(2, message)
