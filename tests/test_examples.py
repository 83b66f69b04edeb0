"""Every script in examples/ runs and prints the expected results."""

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from seqloom.data.corpora import pydocs

EXAMPLES = Path(__file__).parents[1] / "examples"
MAX_LINES = 50

Run = Callable[[str], str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs an example in an empty directory and returns its output. The test split is small."""
    monkeypatch.setattr(pydocs, "HELD_OUT", 0.02)

    def run(name: str) -> str:
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        assert not list(tmp_path.iterdir()), "an example must leave no files, so that it can be run again"
        return capsys.readouterr().out

    return run


def number(pattern: str, text: str) -> float:
    match = re.search(pattern, text)
    assert match is not None, f"{pattern} is not in:\n{text}"
    return float(match[1])


def scores(text: str) -> list[float]:
    return [float(value) for value in re.findall(r"^ +(-\d+\.\d+)  ", text, re.MULTILINE)]


def test_train_and_generate_example_learns_and_continues_the_prompt(run: Run) -> None:
    out = run("train_and_generate.py")
    assert "\nThe class" in out
    assert number(r"test: perplexity (\S+),", out) < 25  # an untrained model has a perplexity above 100


def test_own_text_example_memorizes_its_lines(run: Run) -> None:
    out = run("own_text.py")
    assert number(r"held-out lines: (\S+)", out) < 1.5
    for line in ("7 green bottles", "12 brown birds", "3 blue bells"):
        assert f"\n{line} sitting on the wall\n" in out


def test_score_sentences_example_prefers_the_original_word_order(run: Run) -> None:
    out = run("score_sentences.py")
    lstm, lstm_shuffled, ngram, ngram_shuffled, *unknown = scores(out)
    assert lstm > lstm_shuffled
    assert ngram > ngram_shuffled + 10
    assert len(unknown) == 4
    assert "Not in the vocabulary: plays, Kohli, cricket, India, Virat." in out


def test_events_example_draws_a_decreasing_loss(run: Run) -> None:
    out = run("events.py")
    bars = [len(bar) for bar in re.findall("█+", out)]
    assert len(bars) == 12 and bars[-1] < bars[0]
    assert "parameters on " in out and " bits per character" in out and "all steps are done" in out


def test_cell_by_hand_example_matches_the_fused_kernel(run: Run) -> None:
    out = run("cell_by_hand.py")
    assert out.count("\n  f = [") == 4
    assert "gate f: near 1 keeps the old content of the cell" in out
    assert number(r"fused kernel: (\S+)", out) < 1e-6


def test_ngram_by_hand_example_has_probabilities_that_sum_to_one(run: Run) -> None:
    out = run("ngram_by_hand.py")
    assert number(r"all \d+ together: (\S+)", out) == 1
    first = out.partition("after 'sat on the':\n")[2].split()
    assert {first[0], first[2]} == {"mat", "log"} and float(first[1]) > 3 * float(first[5])
    assert "\\data\\\nngram 1=12\n" in out


def test_gradient_flow_example_is_within_its_bounds(run: Run) -> None:
    out = run("gradient_flow.py")
    flows = [(float(a), float(b)) for a, b in re.findall(r": gradient (\S+), bound ([\d.e+-]+)", out)]
    linear, tanh, shift = flows[:3], flows[3:6], flows[6]
    assert all(measured == bound for measured, bound in linear)
    assert linear[0][0] < 0.01 and linear[1][0] == 1 and linear[2][0] > 100
    assert all(measured < bound for measured, bound in tanh)
    assert shift[0] == 0 and shift[1] > 100
    assert "‖g‖ = 800 becomes 1" in out


def test_one_to_one_example_computes_parity(run: Run) -> None:
    out = run("topology_one_to_one.py")
    assert "0001 odd" in out and "0011 even" in out
    assert number(r"correct: (\d+) of 16", out) == 16


def test_one_to_many_example_spells_most_numbers_correctly(run: Run) -> None:
    out = run("topology_one_to_many.py")
    assert number(r"correct: (\d) of 8", out) >= 6
    for line in out.splitlines()[:8]:
        assert re.fullmatch(r"\d\d [a-z]+(-[a-z]+)?", line)


def test_many_to_one_example_classifies_new_waves(run: Run) -> None:
    out = run("topology_many_to_one.py")
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", out)]
    assert losses[0] > 1 > 0.5 > losses[-1]
    assert number(r"correct: (\S+) of new waves", out) > 0.95


def test_aligned_example_is_correct_beyond_the_training_length(run: Run) -> None:
    out = run("topology_many_to_many_aligned.py")
    assert number(r"8 digits, correct: (\S+)", out) > 0.99
    assert number(r"64 digits, correct: (\S+)", out) > 0.95  # eight times as long as the training sequences


def test_encoder_decoder_example_reverses_new_words(run: Run) -> None:
    out = run("topology_encoder_decoder.py")
    assert number(r"correct: (\S+) of new words", out) > 0.9
    pairs = re.findall(r"^([a-h]{5}) → ([a-h]{5})$", out, re.MULTILINE)
    assert len(pairs) == 4 and sum(word == match[::-1] for word, match in pairs) >= 3


def test_every_example_is_tested_and_short() -> None:
    examples = sorted(EXAMPLES.glob("*.py"))
    tests = Path(__file__).read_text("utf-8")
    assert [path.name for path in examples if f'run("{path.name}"' not in tests] == []
    for path in examples:
        text = path.read_text("utf-8")
        assert len(text.splitlines()) <= MAX_LINES, path.name
        assert f"Run it: python examples/{path.name}" in text
