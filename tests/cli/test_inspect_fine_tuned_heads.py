"""Tests of `seqloom inspect attention` with classifiers and taggers on a pretrained backbone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fine_tuning import KINDS, classify_recipe, pretrained_run, tag_recipe
from tests.matching import recipe as matching_recipe
from tests.understanding import trained

from seqloom.nn.attention import MultiHeadAttention
from seqloom.predict.loader import load

SHORT = ["train.steps=2", "train.evaluate_every=2"]
FILM, LINE = "a gripping film", "Ann sings in Delhi ."
AROUND = {"bert": ("[CLS]", "[SEP]"), "gpt": ("</s>", "[CLS]")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heads")
    for kind in KINDS:
        source = pretrained_run(folder / kind, kind)
        trained(classify_recipe(folder, source, *SHORT), folder / f"classifier-{kind}")
        trained(tag_recipe(folder, source, *SHORT), folder / f"tagger-{kind}")
    return folder


@pytest.mark.parametrize("kind", AROUND)
def test_heads_of_a_classifier_include_special_tokens(seqloom: Any, runs: Path, kind: str) -> None:
    result = seqloom("inspect", "attention", runs / f"classifier-{kind}", FILM, "--json").json
    before, after = AROUND[kind]
    assert result["row_words"] == result["column_words"] == [before, *FILM.split(), after]
    assert (result["part"], result["layers"], result["heads"]) == ("encoder", 2, 2)
    answer = seqloom("classify", runs / f"classifier-{kind}", FILM, "--json").objects[0]
    assert result["label"] == answer["label"]
    assert np.exp(result["log_prob"]) == pytest.approx(answer["probability"], abs=1e-6)
    words = np.array([one["word_weights"] for one in result["maps"]])
    np.testing.assert_allclose(words.sum(axis=-1), 1, atol=1e-5)
    assert (np.abs(np.triu(words, 1)).max() > 0) == (kind == "bert")  # a GPT attends only to previous tokens


@pytest.mark.parametrize("kind", AROUND)
@pytest.mark.parametrize("task", ["classifier", "tagger"])
def test_heads_match_those_of_the_prediction(runs: Path, kind: str, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader: Any = load(runs / f"{task}-{kind}", "cpu")
    part = reader.heads(LINE).encoder
    before, after = AROUND[kind]
    tokens = map(reader.tokenizer.token, reader.tokenizer.encode(LINE))
    assert part.tokens.rows == part.tokens.columns == [before, *tokens, after]
    attend, seen = MultiHeadAttention.attend, list[Any]()

    def watched(self: Any, q: Any, keys_values: Any, mask: Any = None, causal: bool = False, *_: Any) -> Any:
        created, looked = attend(self, q, keys_values, mask, causal, weights=True)
        seen.append(looked)
        return created, None

    monkeypatch.setattr(MultiHeadAttention, "attend", watched)
    list(reader.classify(LINE) if task == "classifier" else reader.tag(LINE))
    for own, created in zip(part.tokens.weights, seen[:2], strict=True):
        np.testing.assert_allclose(own, created[0].detach().numpy(), atol=1e-6)
    assert not np.allclose(part.tokens.weights[0], part.tokens.weights[1])


def test_heads_of_a_tagger_are_shown_by_words(seqloom: Any, runs: Path) -> None:
    result = seqloom("inspect", "attention", runs / "tagger-bert", LINE, "--layer", 1, "--head", 2, "--json").json
    assert result["row_words"] == ["[CLS]", *LINE.split(), "[SEP]"]
    assert result["tags"] == seqloom("tag", runs / "tagger-bert", LINE).out.rstrip("\n")
    np.testing.assert_allclose(np.sum(result["maps"][0]["word_weights"], axis=-1), 1, atol=1e-5)
    without = seqloom("inspect", "attention", runs / "tagger-bert", LINE, "--view", "heat", "--no-end").out
    assert "[CLS]" not in without and "[SEP]" not in without


@pytest.mark.parametrize("task", ["classifier", "tagger"])
def test_long_text_is_truncated_with_a_note(seqloom: Any, runs: Path, task: str) -> None:
    shown = seqloom("inspect", "attention", runs / f"{task}-gpt", f"{LINE} " * 9, "--view", "heat")
    assert shown.code == 0 and "tokens are shown, the maximum that the model reads" in shown.err


@pytest.mark.parametrize("task", ["classifier", "tagger"])
def test_recurrent_backbone_has_no_heads(seqloom: Any, runs: Path, task: str) -> None:
    run = runs / f"{task}-recurrent-lm"
    seqloom("inspect", "attention", run, LINE).fails_with(2, "has no attention heads: its encoder is not a Transformer")


@pytest.mark.parametrize("task", ["pair", "choice", "answer"])
def test_models_of_several_texts_are_rejected(seqloom: Any, tmp_path: Path, task: str) -> None:
    trained(matching_recipe(tmp_path, task, *SHORT), tmp_path / task)
    seqloom("inspect", "attention", tmp_path / task, LINE).fails_with(
        2, "this view needs a model that reads a single text"
    )


# --- links between two words ------------------------------------------------------------------------------------------


def test_head_with_the_strongest_link_is_found(seqloom: Any, runs: Path) -> None:
    """The order of the heads equals a search over all weights."""
    run = runs / "classifier-bert"
    result = seqloom("inspect", "attention", run, FILM, "--from", "film", "--to", "a", "--json").json
    maps = seqloom("inspect", "attention", run, FILM, "--json").json["maps"]
    row, column = result["row_words"].index("film"), result["column_words"].index("a")
    weights = {(each["layer"], each["head"]): each["word_weights"][row][column] for each in maps}
    expected = sorted(weights.items(), key=lambda item: -item[1])
    assert [((link["layer"], link["head"]), link["weight"]) for link in result["links"]] == expected
    (best, weight), (shown,) = expected[0], result["maps"]
    assert (shown["layer"], shown["head"]) == best
    assert result["links"][0]["rank"] == 1 + sum(other > weight for other in shown["word_weights"][row])
    second = seqloom("inspect", "attention", run, FILM, "--from", "FILM", "--to", "a", "--layer", 2, "--json").json
    assert [link["layer"] for link in second["links"]] == [2, 2]


def test_special_tokens_of_bert_can_be_left_out(seqloom: Any, runs: Path) -> None:
    words = ["inspect", "attention", runs / "classifier-bert", FILM, "--from", "film", "--to", "a"]
    shown = seqloom(*words, "--no-color").out
    assert shown.startswith("heads with the strongest link from 'film' to 'a', of 4\n")
    assert "[CLS]" in shown and "[SEP]" in shown
    without = seqloom(*words, "--no-color", "--no-end").out
    assert "[CLS]" not in without and "[SEP]" not in without and "gripping" in without
    part = load(runs / "classifier-bert", "cpu").heads(FILM).encoder
    assert part.maps(end=False).rows == part.maps(end=False).columns == FILM.split()
    np.testing.assert_array_equal(part.maps(end=False).weights, part.maps().weights[..., 1:-1, 1:-1])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from", "film"], "--from and --to must be given together"),
        (["--from", "film", "--to", "a", "--head", "1"], "leave out --tokens and --head"),
        (
            ["--from", "flm", "--to", "a"],
            "--from 'flm' is not among the queries of encoder self-attention: did you mean",
        ),
        (["--from", "film", "--to", "xyz"], "--to 'xyz' is not among the keys of encoder self-attention: choose from"),
    ],
)
def test_invalid_links_are_reported(seqloom: Any, runs: Path, words: list[str], message: str) -> None:
    seqloom("inspect", "attention", runs / "classifier-bert", FILM, *words).fails_with(2, message)
