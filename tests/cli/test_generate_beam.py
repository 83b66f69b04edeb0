"""Tests of `seqloom generate --beam`."""

from pathlib import Path
from typing import Any

import pytest

from seqloom.core.errors import UsageError
from seqloom.predict.loader import load


@pytest.mark.parametrize("run", ["gru", "grams", "chars", "words"])
def test_output_matches_python_api(seqloom: Any, runs: Path, run: str) -> None:
    words = ["--prompt=the", "--beam=4", "--n-best=3", "--tokens=12", "--length-penalty=0.6", "--stopping=exact"]
    shown = seqloom("generate", runs / run, *words)
    result = load(runs / run).search("the", beam=4, n_best=3, max_tokens=12, length_penalty=0.6, stopping="exact")
    assert len(result) == 3 and len({one.text for one in result}) == 3
    assert result == sorted(result, key=lambda one: (not one.finished, -one.score))
    heads = [f"--- {n} of 3, score {one.score:.4f}, log p {one.log_prob:.3f}" for n, one in enumerate(result, start=1)]
    texts = [f"the{one.text}" for one in result]
    assert (shown.out, shown.err) == ("".join(f"{h}\n{t}\n" for h, t in zip(heads, texts, strict=True)), "")


@pytest.mark.parametrize("run", ["gru", "grams", "pairs"])
@pytest.mark.parametrize("minimum", [0, 10])
def test_beam_of_one_is_greedy(seqloom: Any, runs: Path, run: str, minimum: int) -> None:
    words = ["generate", runs / run, "--prompt=the", "--tokens=20", f"--min-tokens={minimum}"]
    assert seqloom(*words, "--beam=1").out == seqloom(*words, "--temperature=0").out


def test_log_probs_match_score(runs: Path) -> None:
    model = load(runs / "chars")
    for one in model.search("the", beam=3, n_best=3, max_tokens=10, length_penalty=0.0):
        scored = model.score("the" + one.text)[0]
        own = sum(scored.log_probs if one.finished else scored.log_probs[:-1])
        assert one.log_prob == pytest.approx(own, abs=1e-4) == pytest.approx(one.score, abs=1e-4)


@pytest.mark.parametrize(
    "option",
    ["--temperature=0.5", "--top-k=3", "--top-p=0.9", "--repetition-penalty=2", "--stop=x", "--samples=2", "--seed=1"],
)
def test_sampling_options_are_rejected_with_beam(seqloom: Any, runs: Path, option: str) -> None:
    seqloom("generate", runs / "chars", "--beam=3", option).fails_with(2, option.partition("=")[0], "--beam")


@pytest.mark.parametrize("option", ["--n-best=2", "--length-penalty=0.5", "--stopping=exact"])
def test_search_options_require_beam(seqloom: Any, runs: Path, option: str) -> None:
    seqloom("generate", runs / "chars", option).fails_with(2, option.partition("=")[0], "add --beam")


def test_inconsistent_options_are_rejected(seqloom: Any, runs: Path) -> None:
    seqloom("generate", runs / "chars", "--beam=2", "--n-best=3").fails_with(2, "--n-best must be at most --beam")
    seqloom("generate", runs / "chars", "--beam=2", "--tokens=3", "--min-tokens=4").fails_with(2, "--max-tokens")
    seqloom("generate", runs / "chars", "--beam=2", "--prompt=§").fails_with(
        3, "not in the vocabulary", "--allow-unknown"
    )
    with pytest.raises(UsageError, match="stopping must be usual or exact"):
        load(runs / "chars").search(stopping="never")
