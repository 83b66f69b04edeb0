"""Tests of `seqloom inspect next` and `seqloom inspect beam`."""

import math
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from seqloom.inspect.views.lecture_tree import SCORES, lecture_tree
from seqloom.predict.language_model import LanguageModelPredictor
from seqloom.predict.loader import load

TEXT = "the cat sa"


def png_size(path: Path) -> tuple[int, int]:
    return struct.unpack(">II", path.read_bytes()[16:24])


# --- next -----------------------------------------------------------------------------------------------------------


def test_next_token_probabilities_match_score(seqloom: Any, runs: Path) -> None:
    """p(token | text) is the ratio of the probabilities of the text with and without the token."""
    result = seqloom("inspect", "next", runs / "chars", TEXT, "--top", 5, "--json").json
    model = load(runs / "chars", "cpu", LanguageModelPredictor)
    assert len(result["tokens"]) == 5
    for shown in result["tokens"]:
        if shown["token"] != "</s>":
            scored = model.score([TEXT + shown["token"]])[0]
            assert shown["log_prob"] == pytest.approx(scored.log_probs[len(TEXT)], abs=1e-5)
    values = [shown["probability"] for shown in result["tokens"]]
    assert values == sorted(values, reverse=True)


def test_each_step_matches_the_score_of_the_text(seqloom: Any, runs: Path) -> None:
    result = seqloom("inspect", "next", runs / "words", "the cat sat .", "--each", "--top", 2, "--json").json
    scored = load(runs / "words", "cpu", LanguageModelPredictor).score(["the cat sat ."])[0]
    following = [step["following"] for step in result["steps"]]
    assert [step["read"] for step in result["steps"]] == ["</s>", *scored.tokens[:-1]]
    assert [step["token"] for step in following[:-1]] == scored.tokens[:-1] and following[-1] is None
    log_probs = [math.log(step["probability"]) for step in following[:-1]]
    assert log_probs == pytest.approx(scored.log_probs[:-1], abs=1e-5)
    assert all(len(step["tokens"]) == 2 for step in result["steps"])
    last = seqloom("inspect", "next", runs / "words", "the cat sat .", "--top", 2, "--json").json
    assert [each["token"] for each in last["tokens"]] == [each["token"] for each in result["steps"][-1]["tokens"]]


def test_sampling_options_reshape_the_distribution(seqloom: Any, runs: Path) -> None:
    plain = seqloom("inspect", "next", runs / "chars", TEXT, "--json").json["tokens"]
    cold = seqloom("inspect", "next", runs / "chars", TEXT, "--temperature", 0.5, "--top-k", 2, "--json").json["tokens"]
    assert [each["probability"] for each in cold] == [each["probability"] for each in plain]
    first, second = (each["probability"] ** 2 for each in plain[:2])
    expected = [first / (first + second), second / (first + second), *[0.0] * 8]
    assert [each["sampling_probability"] for each in cold] == pytest.approx(expected, abs=1e-5)
    shown = seqloom("inspect", "next", runs / "chars", TEXT, "--temperature", 0.5)
    assert "for sampling" in shown.out.splitlines()[0]


def test_prefix_of_a_translation_conditions_the_next_token(seqloom: Any, translators: Path) -> None:
    run = translators / "one"
    first = seqloom("inspect", "next", run, "the cat sat", "--top", 1, "--json").json["tokens"][0]["token"]
    steps = seqloom("inspect", "next", run, "the cat sat", "--prefix", first, "--each", "--json").json["steps"]
    assert [step["read"] for step in steps] == ["</s>", first]
    assert steps[0]["following"]["rank"] == 1
    after = seqloom("inspect", "next", run, "the cat sat", "--prefix", first, "--json").json
    assert after["tokens"][0]["token"] == steps[1]["tokens"][0]["token"]


def test_terminal_shows_tokens_and_their_rank(seqloom: Any, runs: Path) -> None:
    shown = seqloom("inspect", "next", runs / "words", "the cat", "--top", 3).out.splitlines()
    assert shown[0].split() == ["token", "probability", "log", "p"]
    assert "the entropy is" in shown[-1] and "on these 3 of" in shown[-1]
    each = seqloom("inspect", "next", runs / "words", "the cat", "--each").out.splitlines()
    assert [line.split()[0] for line in each] == ["read", "</s>", "the", "cat"]
    assert [line.split()[1] for line in each[1:3]] == ["the", "cat"]


def test_plots_of_next_tokens_are_written(seqloom: Any, runs: Path, tmp_path: Path) -> None:
    options: dict[str, list[object]] = {"bars": [], "reshaped": ["--top-k", 3], "steps": ["--each"]}
    for name, words in options.items():
        out = tmp_path / f"{name}.png"
        assert seqloom("inspect", "next", runs / "chars", TEXT, *words, "--out", out).code == 0
        assert min(png_size(out)) > 100


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x", "--prefix", "y"], "append the prefix to the text instead"),
        (["x", "--each", "--top-k", "2"], "leave out the sampling options"),
        (["x", "--temperature", "-1"], "must be 0 (greedy) or a positive number"),
        (["x", "--out", "next.txt"], "must end in .png or .svg"),
    ],
)
def test_invalid_options_of_inspect_next_are_reported(seqloom: Any, runs: Path, words: list[str], message: str) -> None:
    seqloom("inspect", "next", runs / "chars", *words).fails_with(2, message)


def test_unknown_words_are_noted(seqloom: Any, runs: Path) -> None:
    shown = seqloom("inspect", "next", runs / "words", "the xylophone")
    assert shown.code == 0 and shown.err == "note: the model reads 'xylophone' of the prompt as <unk>\n"


# --- beam -----------------------------------------------------------------------------------------------------------


def test_lecture_example_keeps_the_hypotheses_of_the_lectures() -> None:
    """The beam after each step, as the lectures draw it, and the final score of −4.3."""
    tree = lecture_tree()
    assert [candidate.text for candidate in tree.candidates] == ["he hit me with a pie", "he hit me with a tart"]
    assert tree.candidates[0].log_prob == pytest.approx(-4.3)
    texts = {node.id: " ".join(step.text for step in tree.path(node.id)) for node in tree.nodes}
    kept: dict[int, list[str]] = {}
    for node in tree.nodes:
        if node.status in ("kept", "open"):
            kept.setdefault(node.step, []).append(texts[node.id])
    assert [kept[step] for step in range(1, 7)] == [
        ["he", "I"],
        ["I was", "he hit"],
        ["he hit me", "he hit a"],
        ["he hit me with", "he hit a pie"],
        ["he hit me with a", "he hit me with one"],
        ["he hit me with a pie", "he hit me with a tart"],
    ]
    for node in tree.nodes[1:]:
        assert node.total == pytest.approx(SCORES[texts[node.id].removesuffix(" </s>")])
    assert set(SCORES) <= set(texts.values())  # every score of the lectures is compared


def test_second_step_of_the_lecture_example_prefers_a_hypothesis_that_is_pruned_later() -> None:
    greedy = lecture_tree(beam=1)
    assert [node.text for node in greedy.nodes if node.status == "kept"][:2] == ["he", "hit"]
    second = [node for node in lecture_tree().nodes if node.step == 2 and node.rank == 1]
    assert [node.text for node in second] == ["was"]


def test_example_is_printed_and_drawn(seqloom: Any, tmp_path: Path) -> None:
    out = tmp_path / "tree.svg"
    shown = seqloom("inspect", "beam", "--example", "--out", out)
    assert shown.code == 0 and shown.err == f"Wrote {out}.\n"
    lines = shown.out.splitlines()
    assert lines[:4] == ["</s>", "├─* he  -0.700", "│  ├─* hit  -1.700", "│  │  ├─* me  -2.500"]
    assert lines[-2] == "1  score -4.3000  log p -4.300  he hit me with a pie"
    assert ElementTree.parse(out).getroot().tag.endswith("svg")
    short = seqloom("inspect", "beam", "--example", "--no-pruned").out
    assert "- struck" not in short and "- pruned" not in short and "tart" in short


def test_tree_of_a_translator_ends_with_its_translation(seqloom: Any, translators: Path, tmp_path: Path) -> None:
    run, source = translators / "one", "the cat sat"
    result = seqloom("inspect", "beam", run, source, "--beam", 3, "--json").json
    translated = seqloom("translate", run, source, "--beam", 3, "--json").json
    assert result["candidates"][0]["text"] == translated["translation"]
    assert result["candidates"][0]["log_prob"] == pytest.approx(translated["log_prob"], abs=1e-4)
    best = [node for node in result["nodes"] if node["best"] == 1]
    assert [node["parent"] for node in best] == [None, *[node["id"] for node in best[:-1]]]
    out = tmp_path / "tree.png"
    assert seqloom("inspect", "beam", run, source, "--beam", 2, "--out", out).code == 0
    assert min(png_size(out)) > 100


def test_tree_of_a_language_model_matches_generate(seqloom: Any, runs: Path) -> None:
    shown = seqloom("inspect", "beam", runs / "chars", TEXT, "--beam", 2, "--max-tokens", 4, "--json").json
    generated = seqloom("generate", runs / "chars", "--prompt", TEXT, "--beam", 2, "--tokens", 4).out
    assert TEXT + shown["candidates"][0]["text"] == generated.removesuffix("\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Name a run and a text, or add --example"),
        (["--example", "RUN"], "--example needs no model"),
        (["--example", "--prefix", "he"], "--example needs no model"),
        (["RUN", "the", "--length-penalty", "99"], "--length-penalty must be at most 10; got 99"),
    ],
)
def test_invalid_options_of_beam_are_reported(seqloom: Any, runs: Path, words: list[str], message: str) -> None:
    words = [str(runs / "chars") if word == "RUN" else word for word in words]
    seqloom("inspect", "beam", *words).fails_with(2, message)
