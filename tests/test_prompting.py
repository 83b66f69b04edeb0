"""Language models that are asked by example, from Python: what is compared with what."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fine_tuning import pretrained_run
from tests.prompted import wide_gpt
from tests.understanding import trained

import seqloom
from seqloom.core.errors import DataError, UsageError
from seqloom.data.prompts import Prompt, Shot, Template
from seqloom.predict.language_model import fit_shots
from seqloom.recipes import build_recipe

SHOTS = [("a warm film", "good"), ("a dull plot", "bad"), ("a funny cast", "good")]
TEXTS = ["a clumsy story", "", "a gripping film"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asked")
    wide_gpt(folder / "gpt")
    pretrained_run(folder / "lstm", "recurrent-lm")
    return folder


@pytest.fixture(params=["gpt", "lstm"])
def model(made: Path, request: pytest.FixtureRequest) -> Any:
    return seqloom.load(made / request.param, "cpu")


def by_hand(model: Any, prompt: str, choice: str) -> tuple[float, int]:
    """Σ log p of the tokens that a choice adds to a prompt, and how many; by `score`, which reads each text alone."""
    (whole,) = model.score(prompt + choice)
    ids, before = model.tokenizer.encode(prompt + choice), model.tokenizer.encode(prompt)
    start = next((n for n, (a, b) in enumerate(zip(ids, before, strict=False)) if a != b), len(before))
    return sum(whole.log_probs[start:-1]), len(ids) - start


def test_the_likeliest_per_token_comes_first(model: Any) -> None:
    found = list(model.choose(TEXTS, ["good", "bad indeed"], shots=[(text, "good") for text, _ in SHOTS]))
    assert [one.text for one in found] == TEXTS and found[1].candidates == []
    for one in (found[0], found[2]):
        prompt = "a warm film = good\na dull plot = good\na funny cast = good\n" + one.text + " = "
        means = {}
        for label in ("good", "bad indeed"):
            total, tokens = by_hand(model, prompt, label)
            (said,) = (said for said in one.candidates if said.label == label)
            assert said.log_prob == pytest.approx(total, abs=1e-4) and said.tokens == tokens
            means[label] = total / tokens
        assert one.label == max(means, key=means.__getitem__)
        assert sum(said.probability for said in one.candidates) == pytest.approx(1)
        best, other = one.candidates
        assert math.log(best.probability / other.probability) == pytest.approx(best.score - other.score, abs=1e-6)


def test_the_sum_counts_length_and_calibration_takes_off_what_is_always_said(model: Any) -> None:
    (mean,) = model.choose("a film", ["good", "bad indeed"])
    (summed,) = model.choose("a film", ["good", "bad indeed"], by="sum")
    assert {said.label: said.log_prob for said in summed.candidates} == pytest.approx(
        {said.label: said.score for said in summed.candidates}
    )
    (calibrated,) = model.choose("a film", ["good", "bad indeed"], calibrate=True)
    plain = {said.label: said.score for said in mean.candidates}
    for said in calibrated.candidates:
        total, tokens = by_hand(model, " = ", said.label)
        assert said.score == pytest.approx(plain[said.label] - total / tokens, abs=1e-4)


def test_shots_and_the_template_change_the_answer(model: Any) -> None:
    """The control: it is the whole prompt that is read."""
    asked: dict[str, dict[str, Any]] = {
        "plain": {},
        "shots": {"shots": SHOTS},
        "template": {"template": "{text}? {label}"},
        "separator": {"shots": SHOTS, "separator": " / "},
    }
    scores = {}
    for name, options in asked.items():
        (one,) = model.choose("a film", ["good", "bad"], **options)
        scores[name] = {said.label: said.score for said in one.candidates}["good"]
    assert len(set(scores.values())) == 4


def test_neither_batch_nor_window_changes_an_answer(model: Any) -> None:
    found = [
        [[(said.label, round(said.score, 5)) for said in one.candidates] for one in answers]
        for answers in (
            model.choose(TEXTS * 3, shots=SHOTS),
            model.choose(iter(TEXTS * 3), shots=SHOTS, batch_size=1, window=1),
            model.choose(TEXTS * 3, shots=SHOTS, batch_size=5, window=4),
        )
    ]
    assert found[0] == found[1] == found[2]


def test_shots_for_which_there_is_no_room_are_left_out_from_the_first(made: Path) -> None:
    gpt = seqloom.load(made / "gpt", "cpu")  # it sees 96 tokens
    many = [(f"a film {number}", "good" if number % 2 else "bad") for number in range(40)]
    (one,) = gpt.choose("a story", shots=many)
    assert 0 < one.left_out < 40 and not one.cut
    (same,) = gpt.choose("a story", ["good", "bad"], shots=many[one.left_out :])
    assert same.left_out == 0
    assert {s.label: s.log_prob for s in one.candidates} == pytest.approx(
        {s.label: s.log_prob for s in same.candidates}
    )
    prompt = Prompt(tuple(Shot(*shot) for shot in many))
    lengths = [len(gpt.tokenizer.encode(prompt.text("a story", skip) + "good")) for skip in range(40)]
    assert lengths[one.left_out] <= 96 < lengths[one.left_out - 1]  # one more would not fit; END takes the last's place
    (cut,) = gpt.choose("dull " * 200, shots=many)
    assert cut.cut and cut.left_out == 40 and cut.label in ("good", "bad")


def test_what_fits_to_the_token(made: Path) -> None:
    tokenizer, prompt = seqloom.load(made / "gpt", "cpu").tokenizer, Prompt(tuple(Shot(*shot) for shot in SHOTS))
    lengths = [len(tokenizer.encode(prompt.text("a film", skip) + "good")) for skip in range(4)]
    choices = ("bad", "good")  # the longest counts
    for skip, length in enumerate(lengths):
        assert fit_shots(tokenizer, prompt, "a film", choices, length) == (skip, False)
        assert fit_shots(tokenizer, prompt, "a film", choices, length - 1) == (
            (skip + 1, False) if skip < 3 else (3, True)
        )
    assert fit_shots(tokenizer, prompt, "a film", choices, None) == (0, False)


def test_a_recurrent_model_reads_any_length(made: Path) -> None:
    many = [(f"a film {number}", "good" if number % 2 else "bad") for number in range(60)]
    (one,) = seqloom.load(made / "lstm", "cpu").choose("a story", shots=many)
    assert one.left_out == 0 and not one.cut


def test_what_is_written_ends_where_a_shot_would(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def generate(prompt: str = "", **options: Any) -> Any:
        asked.append((prompt, options))
        return iter([" go", "od "])

    monkeypatch.setattr(model, "generate", generate)
    found = list(model.complete(TEXTS, shots=SHOTS, max_tokens=7))
    assert [one.written for one in found] == ["good", "", "good"]
    prompt, options = asked[0]
    assert prompt.endswith("a funny cast = good\na clumsy story =")  # the space belongs to what follows
    assert options["stop"] == ["\n"] and options["max_tokens"] == 7 and options["temperature"] == 0
    list(model.complete("x", template="{text}: {label}; ok", separator="\n\n"))
    assert asked[-1][1]["stop"] == ["; ok"]


def test_it_really_writes(model: Any) -> None:
    (one,) = model.complete("a film", shots=SHOTS, max_tokens=4)
    prompt = Prompt(tuple(Shot(*shot) for shot in SHOTS), Template("{text} = ")).text("a film").rstrip(" ")
    text = "".join(model.generate(prompt, temperature=0.0, max_tokens=4, stop=["\n"]))
    assert one.written == text.strip()


def test_what_cannot_be_chosen(made: Path, tmp_path: Path) -> None:
    words = {
        "task": "language-model",
        "data": {"corpus": "facts", "train": 100, "dev": 8, "test": 8},
        "tokenizer": {"kind": "words", "lowercase": True},
        "batch": {"size": 4, "length": 24},
        "model": {"kind": "recurrent-lm", "hidden": 8},
        "train": {"steps": 1, "device": "cpu"},
    }
    model = seqloom.load(trained(build_recipe(words, "the recipe"), tmp_path / "words"), "cpu")
    with pytest.raises(DataError, match=r"does not have the choice 'mauve'"):
        list(model.choose("a", ["red", "mauve"]))
    with pytest.raises(DataError, match=r"the choices 'red' and 'Red' are the same tokens"):
        list(model.choose("a", ["red", "Red"]))
    with pytest.raises(UsageError, match="mean or sum"):
        model.choose("a", ["red", "blue"], by="median")
    (one,) = model.choose("zebra", ["red", "blue"], template="{text}: {label}")
    assert one.unknown == ("zebra:",)  # as the template writes it


def test_a_mixture_can_be_asked_too(made: Path) -> None:
    parts = [seqloom.load(made / name, "cpu") for name in ("gpt", "lstm")]
    (alone,) = parts[0].choose("a film", ["good", "bad"])
    mixed = seqloom.interpolate(parts, [0.5, 0.5])
    (both,) = mixed.choose("a film", ["good", "bad"])
    assert torch.isfinite(torch.tensor([said.score for said in both.candidates])).all()
    assert both.candidates[0].score != alone.candidates[0].score
