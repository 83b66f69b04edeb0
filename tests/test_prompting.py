"""Few-shot prompting of language models from Python: scores, shots and completions."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fine_tuning import pretrained_run
from tests.prompt_recipes import wide_gpt
from tests.understanding import trained

import seqloom
from seqloom.core.errors import DataError, UsageError
from seqloom.data.prompts import Prompt, Shot, Template
from seqloom.predict.language_model import fit_shots
from seqloom.recipes import build_recipe

SHOTS = [("a warm film", "good"), ("a dull plot", "bad"), ("a funny cast", "good")]
TEXTS = ["a clumsy story", "", "a gripping film"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asked")
    wide_gpt(folder / "gpt")
    pretrained_run(folder / "lstm", "recurrent-lm")
    return folder


@pytest.fixture(params=["gpt", "lstm"])
def model(folder: Path, request: pytest.FixtureRequest) -> Any:
    return seqloom.load(folder / request.param, "cpu")


def compute_log_prob(model: Any, prompt: str, choice: str) -> tuple[float, int]:
    """Return Σ log p of the tokens that a choice adds to a prompt, computed by `score`, and the number of tokens."""
    (scored,) = model.score(prompt + choice)
    ids, before = model.tokenizer.encode(prompt + choice), model.tokenizer.encode(prompt)
    start = next((n for n, (a, b) in enumerate(zip(ids, before, strict=False)) if a != b), len(before))
    return sum(scored.log_probs[start:-1]), len(ids) - start


def test_choices_are_ranked_by_mean_log_prob(model: Any) -> None:
    results = list(model.choose(TEXTS, ["good", "bad indeed"], shots=[(text, "good") for text, _ in SHOTS]))
    assert [result.text for result in results] == TEXTS and results[1].candidates == []
    for result in (results[0], results[2]):
        prompt = "a warm film = good\na dull plot = good\na funny cast = good\n" + result.text + " = "
        means = {}
        for label in ("good", "bad indeed"):
            total, tokens = compute_log_prob(model, prompt, label)
            (candidate,) = (candidate for candidate in result.candidates if candidate.label == label)
            assert candidate.log_prob == pytest.approx(total, abs=1e-4) and candidate.tokens == tokens
            means[label] = total / tokens
        assert result.label == max(means, key=means.__getitem__)
        assert sum(candidate.probability for candidate in result.candidates) == pytest.approx(1)
        best, other = result.candidates
        assert math.log(best.probability / other.probability) == pytest.approx(best.score - other.score, abs=1e-6)


def test_scores_can_be_sums_or_calibrated_means(model: Any) -> None:
    (mean,) = model.choose("a film", ["good", "bad indeed"])
    (summed,) = model.choose("a film", ["good", "bad indeed"], by="sum")
    assert {candidate.label: candidate.log_prob for candidate in summed.candidates} == pytest.approx(
        {candidate.label: candidate.score for candidate in summed.candidates}
    )
    (calibrated,) = model.choose("a film", ["good", "bad indeed"], calibrate=True)
    plain = {candidate.label: candidate.score for candidate in mean.candidates}
    for candidate in calibrated.candidates:
        total, tokens = compute_log_prob(model, " = ", candidate.label)
        assert candidate.score == pytest.approx(plain[candidate.label] - total / tokens, abs=1e-4)


def test_shots_and_template_affect_prediction(model: Any) -> None:
    """Control: the model reads the complete prompt."""
    asked: dict[str, dict[str, Any]] = {
        "plain": {},
        "shots": {"shots": SHOTS},
        "template": {"template": "{text}? {label}"},
        "separator": {"shots": SHOTS, "separator": " / "},
    }
    scores = {}
    for name, options in asked.items():
        (result,) = model.choose("a film", ["good", "bad"], **options)
        scores[name] = {candidate.label: candidate.score for candidate in result.candidates}["good"]
    assert len(set(scores.values())) == 4


def test_predictions_are_independent_of_batch_and_window(model: Any) -> None:
    results = [
        [[(candidate.label, round(candidate.score, 5)) for candidate in result.candidates] for result in answers]
        for answers in (
            model.choose(TEXTS * 3, shots=SHOTS),
            model.choose(iter(TEXTS * 3), shots=SHOTS, batch_size=1, window=1),
            model.choose(TEXTS * 3, shots=SHOTS, batch_size=5, window=4),
        )
    ]
    assert results[0] == results[1] == results[2]


def test_first_shots_are_omitted_if_prompt_is_too_long(folder: Path) -> None:
    gpt = seqloom.load(folder / "gpt", "cpu")  # the context has 96 tokens
    many = [(f"a film {number}", "good" if number % 2 else "bad") for number in range(40)]
    (result,) = gpt.choose("a story", shots=many)
    assert 0 < result.dropped_shots < 40 and not result.cut
    (same,) = gpt.choose("a story", ["good", "bad"], shots=many[result.dropped_shots :])
    assert same.dropped_shots == 0
    assert {s.label: s.log_prob for s in result.candidates} == pytest.approx(
        {s.label: s.log_prob for s in same.candidates}
    )
    prompt = Prompt(tuple(Shot(*shot) for shot in many))
    lengths = [len(gpt.tokenizer.encode(prompt.text("a story", skip) + "good")) for skip in range(40)]
    # One more shot would not fit. END is the last token.
    assert lengths[result.dropped_shots] <= 96 < lengths[result.dropped_shots - 1]
    (cut,) = gpt.choose("dull " * 200, shots=many)
    assert cut.cut and cut.dropped_shots == 40 and cut.label in ("good", "bad")


def test_prompt_of_maximum_length_fits(folder: Path) -> None:
    tokenizer, prompt = seqloom.load(folder / "gpt", "cpu").tokenizer, Prompt(tuple(Shot(*shot) for shot in SHOTS))
    lengths = [len(tokenizer.encode(prompt.text("a film", skip) + "good")) for skip in range(4)]
    choices = ("bad", "good")  # the length of the longest label counts
    for skip, length in enumerate(lengths):
        assert fit_shots(tokenizer, prompt, "a film", choices, length) == (skip, False)
        assert fit_shots(tokenizer, prompt, "a film", choices, length - 1) == (
            (skip + 1, False) if skip < 3 else (3, True)
        )
    assert fit_shots(tokenizer, prompt, "a film", choices, None) == (0, False)


def test_recurrent_model_reads_any_length(folder: Path) -> None:
    many = [(f"a film {number}", "good" if number % 2 else "bad") for number in range(60)]
    (result,) = seqloom.load(folder / "lstm", "cpu").choose("a story", shots=many)
    assert result.dropped_shots == 0 and not result.cut


def test_completion_ends_at_end_of_shot(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def generate(prompt: str = "", **options: Any) -> Any:
        asked.append((prompt, options))
        return " good "

    monkeypatch.setattr(model, "generate", generate)
    results = list(model.complete(TEXTS, shots=SHOTS, max_tokens=7))
    assert [result.completion for result in results] == ["good", "", "good"]
    prompt, options = asked[0]
    assert prompt.endswith("a funny cast = good\na clumsy story =")  # the space belongs to the completion
    assert options["stop"] == ["\n"] and options["max_tokens"] == 7 and options["temperature"] == 0
    list(model.complete("x", template="{text}: {label}; ok", separator="\n\n"))
    assert asked[-1][1]["stop"] == ["; ok"]


def test_model_generates_completion(model: Any) -> None:
    (result,) = model.complete("a film", shots=SHOTS, max_tokens=4)
    prompt = Prompt(tuple(Shot(*shot) for shot in SHOTS), Template("{text} = ")).text("a film").rstrip(" ")
    text = model.generate(prompt, temperature=0.0, max_tokens=4, stop=["\n"])
    assert result.completion == text.strip()


def test_invalid_choices_are_rejected(folder: Path, tmp_path: Path) -> None:
    words = {
        "task": "language-model",
        "data": {"corpus": "facts", "train": 100, "dev": 8, "test": 8},
        "tokenizer": {"kind": "words", "lowercase": True},
        "batch": {"size": 4, "length": 24},
        "model": {"kind": "recurrent-lm", "hidden": 8},
        "train": {"steps": 1, "device": "cpu"},
    }
    model = seqloom.load(trained(build_recipe(words, "the recipe"), tmp_path / "words"), "cpu")
    with pytest.raises(DataError, match=r"The choice 'mauve' is not in the vocabulary"):
        list(model.choose("a", ["red", "mauve"]))
    with pytest.raises(DataError, match=r"The choices 'red' and 'Red' have the same tokens"):
        list(model.choose("a", ["red", "Red"]))
    with pytest.raises(UsageError, match="mean or sum"):
        model.choose("a", ["red", "blue"], by="median")
    (result,) = model.choose("zebra", ["red", "blue"], template="{text}: {label}")
    assert result.unknown == ("zebra:",)  # as the word appears in the template


def test_mixture_supports_prompts(folder: Path) -> None:
    parts = [seqloom.load(folder / name, "cpu") for name in ("gpt", "lstm")]
    (alone,) = parts[0].choose("a film", ["good", "bad"])
    mixed = seqloom.interpolate(parts, [0.5, 0.5])
    (both,) = mixed.choose("a film", ["good", "bad"])
    assert torch.isfinite(torch.tensor([candidate.score for candidate in both.candidates])).all()
    assert both.candidates[0].score != alone.candidates[0].score
