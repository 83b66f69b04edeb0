"""Tests of `seqloom fill-mask`, and of other commands with masked language models."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.masked import masked_recipe
from tests.understanding import trained

from seqloom.core.errors import UsageError
from seqloom.inspect.plots.measurements import draw_curves
from seqloom.inspect.views.curves import curves
from seqloom.predict.gaps import mark_spaces
from seqloom.predict.loader import load
from seqloom.runs.run import Run

PNG = b"\x89PNG"
SENTENCE = "The cats [MASK] all day ."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with 24 positions: `words` and `bytes` with sentence pairs, `packed` with documents."""
    folder = tmp_path_factory.mktemp("berts")
    places = [
        "model.positions.kind=learned",
        "model.positions.max_length=24",
        "train.steps=4",
        "train.evaluate_every=2",
    ]
    for name, changes in {
        "words": [],
        "bytes": ["tokenizer.kind=byte-pair", "tokenizer.size=300"],
        "packed": ["objective=mlm"],
    }.items():
        trained(masked_recipe(folder, *places, *changes), folder / name)
    return folder


@pytest.mark.parametrize("name", ["words", "bytes", "packed"])
def test_candidates_are_sorted_by_probability(seqloom: Any, folder: Path, name: str) -> None:
    model = load(folder / name, "cpu")
    shown = seqloom("fill-mask", folder / name, SENTENCE, "They [MASK] [MASK] .", "--top", 3, "--json")
    one, two = shown.objects
    assert len(one["masks"]) == 1 and len(two["masks"]) == 2 and one["text"] == SENTENCE
    for guesses in (*one["masks"], *two["masks"]):
        values = [guess["probability"] for guess in guesses]
        assert len(values) == 3 and values == sorted(values, reverse=True)
        assert all(guess["token"] == model.tokenizer.token(guess["id"]) for guess in guesses)
    best = one["masks"][0][0]["token"]
    assert one["filled"] == model.tokenizer.decode(model.tokenizer.encode("The cats")) + (
        f"{best} all day ." if name == "bytes" else f" {best} all day ."
    )


def test_probabilities_match_a_forward_pass(folder: Path) -> None:
    model = load(folder / "words", "cpu")
    (result,) = model.fill_mask(SENTENCE, top=1000)
    ids, specials = model.tokenizer.encode("The cats purr all day ."), model.specials
    assert len(ids) == 6
    ids[2] = specials.mask
    row = torch.tensor([[specials.classify, *ids, specials.separate]])
    with torch.no_grad():
        p = model.model.masked_logits(model.model.read(row))[0, 3].softmax(dim=0)
    assert {guess.id: guess.probability for guess in result.masks[0]} == pytest.approx(
        dict(enumerate(p.tolist())), abs=1e-6
    )
    assert sum(guess.probability for guess in result.masks[0]) == pytest.approx(1, abs=1e-5)


def test_batched_results_match_single_results(folder: Path) -> None:
    model = load(folder / "words", "cpu")
    lines = [SENTENCE, "They eat [MASK] .", "[MASK]", f"We hear them [MASK] . {SENTENCE}"]
    for line, among in zip(lines, model.fill_mask(lines), strict=True):
        (alone,) = model.fill_mask(line)
        assert alone.filled == among.filled
        one, other = ([g.probability for g in own.masks[0]] for own in (alone, among))
        assert one == pytest.approx(other, abs=1e-5)


def test_text_output_has_a_line_per_text_and_a_field_per_mask(seqloom: Any, folder: Path, type_in: Any) -> None:
    type_in(f"{SENTENCE}\nThey [MASK] [MASK] .\n".encode())
    shown = seqloom("fill-mask", folder / "words", "--top", 2)
    one, two = (line.split("\t") for line in shown.out.splitlines())
    assert len(one) == 2 and len(two) == 3 and len(one[1].split()) == 4
    assert shown.err == ""


def test_unknown_words_and_long_texts_are_noted(seqloom: Any, folder: Path) -> None:
    long = " ".join(["cats"] * 30)
    shown = seqloom("fill-mask", folder / "words", f"zebras {SENTENCE}", f"{long} {SENTENCE} {long}")
    assert "note: the vocabulary lacks parts of 1 line; the first is line 1: 'zebras'" in shown.err
    assert "1 line longer than 24 tokens: only the text near the masks was read; the first is line 2" in shown.err
    assert shown.out.startswith("zebras The cats ")  # the text is unchanged
    (result,) = load(folder / "words", "cpu").fill_mask(f"{long} {SENTENCE} {long}")
    assert result.cut == 66 - 22 and result.filled.count("cats") >= 61  # the result contains the whole text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The cats <mask> all day", "must contain a gap, written [MASK], not <mask>; got 'The cats <mask> all day'"),
        ("The cats ___ all day", "written [MASK], not ___;"),
        ("nothing here", "must contain a gap, written [MASK]; got 'nothing here'"),
        (
            "[MASK] " + "cats " * 30 + "[MASK]",
            "must lie within 22 tokens, the maximum length of the model; got 32",
        ),
    ],
)
def test_text_without_valid_mask_is_rejected(seqloom: Any, folder: Path, text: str, words: str) -> None:
    seqloom("fill-mask", folder / "words", text).fails_with(3, words)


def test_top_must_be_positive(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"top must be at least 1; got 0"):
        list(load(folder / "words", "cpu").fill_mask(SENTENCE, top=0))


def test_blank_lines_and_lines_before_an_error_are_printed(seqloom: Any, folder: Path, type_in: Any) -> None:
    type_in(f"{SENTENCE}\n\nno mask\n{SENTENCE}\n".encode())
    shown = seqloom("fill-mask", folder / "words")
    assert shown.code == 3 and "written [MASK]; got 'no mask'" in shown.err
    assert shown.out.count("\n") == 2 and shown.out.endswith("\n\n")


def test_other_models_are_rejected(seqloom: Any, runs: Path) -> None:
    """A vocabulary of another model does not contain [MASK], which would be encoded as text."""
    seqloom("fill-mask", runs / "chars", SENTENCE).fails_with(2, "is a language model", "needs a masked language model")


def test_masked_model_cannot_generate(seqloom: Any, folder: Path) -> None:
    seqloom("generate", folder / "words").fails_with(2, "is a masked language model: use `seqloom fill-mask`")


# --- inspection -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["words", "bytes"])
def test_heads_are_shown_for_a_text_with_mask(seqloom: Any, folder: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "heads.png"
    shown = seqloom(
        "inspect", "attention", folder / name, SENTENCE, "--out", out, "--layer", 1, "--head", 2, "--json"
    ).json
    assert out.read_bytes().startswith(PNG)
    assert shown["part"] == "encoder" and shown["text"] == SENTENCE and shown["log_prob"] is None
    view = load(folder / name, "cpu").heads(SENTENCE)
    words = view.encoder.words
    assert words.rows == words.columns == ["[CLS]", "The", "cats", "[MASK]", "all", "day", ".", "[SEP]"]
    assert words.weights.shape == (1, 2, 8, 8) and words.weights.sum(axis=3) == pytest.approx(1.0)
    plain = seqloom("inspect", "attention", folder / name, SENTENCE, "--layer", 1, "--head", 1, "--no-color")
    assert "[MASK]" in plain.out and plain.err == ""
    assert "on [SEP]" in seqloom("inspect", "attention", folder / name, SENTENCE).out
    seqloom("inspect", "attention", folder / name, SENTENCE, "--part", "cross").fails_with(2, "no attention weights")
    seqloom("inspect", "attention", folder / name, SENTENCE, "--target", "x").fails_with(
        2, "--beam and --target require a translator"
    )
    seqloom("inspect", "attention", folder / name, "cats " * 60).fails_with(2, "reads at most 24 tokens")


def test_curves_show_both_accuracies(seqloom: Any, folder: Path, tmp_path: Path) -> None:
    one, packed = Run.open(folder / "words"), Run.open(folder / "packed")
    result = curves(one)
    assert [step for step, _ in result["masked_accuracy"]] == [step for step, _ in result["next_accuracy"]] == [2, 4]
    loss, beside = draw_curves([one]).axes
    assert loss.get_ylabel() == "loss, nats per masked token and pair (vocabulary 25)"
    assert [line.get_label() for line in beside.lines] == ["words: masked tokens", "words: next sentences"]
    _, alone = draw_curves([packed]).axes
    assert [line.get_label() for line in alone.lines] == ["packed: masked tokens"]
    assert seqloom("compare", folder / "words", "--plot", tmp_path / "curves.png").code == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(PNG)


def test_only_equal_objectives_are_ranked(seqloom: Any, folder: Path) -> None:
    apart = seqloom("compare", folder / "words", folder / "packed", "--json").json
    assert apart["ranked_by"] is None and "predict different tokens" in apart["not_ranked"]
    same = seqloom("compare", folder / "words", folder / "words", "--json").json
    assert same["ranked_by"] == "loss"
    assert "next_accuracy" in same["runs"][0]["metrics"]


def test_evaluate_reports_accuracies(seqloom: Any, folder: Path, tmp_path: Path) -> None:
    result = seqloom("evaluate", folder / "words", "--split", "test", "--json").json
    assert {"masked_accuracy", "next_accuracy", "masked_perplexity"} <= result.keys()
    assert "masked token loss" in seqloom("evaluate", folder / "words").out
    other = tmp_path / "other.txt"
    other.write_text("The cats purr all day . They eat milk .\n", "utf-8")
    message = seqloom("evaluate", folder / "words", other, "--json").json
    assert "next_accuracy" not in message and 0 <= message["masked_accuracy"] <= 1


def test_training_prints_next_command(
    seqloom: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Run.open(folder / "words").recipe
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps({**recipe, "train": {**recipe["train"], "steps": 1}}), "utf-8")
    shown = seqloom("train", file, "--out", tmp_path / "again")
    assert shown.code == 0 and f"Try: seqloom fill-mask {tmp_path / 'again'} · " in shown.out


def test_checkpoints_are_averaged(seqloom: Any, folder: Path) -> None:
    assert seqloom("average", folder / "words", "--last", 2).code == 0
    assert seqloom("fill-mask", folder / "words-averaged", SENTENCE).code == 0


def test_line_break_and_space_are_shown_differently() -> None:
    assert [mark_spaces(token) for token in (" the", " ", "\n", " a b", "\t")] == ["the", "␣", "↵", "a␣b", "␣"]


def test_electra_metrics_have_distinct_names(seqloom: Any, tmp_path: Path) -> None:
    trained(
        masked_recipe(tmp_path, "objective=electra", "train.steps=1", "model.detection_weight=20"), tmp_path / "run"
    )
    shown = seqloom("evaluate", tmp_path / "run").out
    rows = [line[2:24].strip() for line in shown.splitlines()[1:-1]]
    assert len(set(rows)) == len(rows) and {"accuracy", "detection accuracy"} <= set(rows)
    assert shown.endswith("  loss = masked token loss + 20 · detection loss\n")
