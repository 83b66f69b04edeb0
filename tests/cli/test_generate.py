import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seqloom.predict.language_model import LanguageModelPredictor
from seqloom.predict.loader import load


def text(shown: Any) -> str:
    assert shown.code == 0, shown.err
    assert shown.err == ""
    return str(shown.out)


def test_output_matches_python_api(seqloom: Any, runs: Path) -> None:
    options: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "seed": 7}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    shown = text(seqloom("generate", runs / "chars", "--prompt", "the cat", *words))
    assert shown == "the cat" + "".join(load(runs / "chars").generate("the cat", max_tokens=300, **options)) + "\n"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.3},
        {"top_k": 2},
        {"top_p": 0.5},
        {"min_tokens": 30},
        {"repetition_penalty": 3.0},
        {"seed": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("run", ["gru", "grams"])
def test_all_options_are_passed_to_generation(seqloom: Any, runs: Path, run: str, options: dict[str, Any]) -> None:
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    shown = text(seqloom("generate", runs / run, "--tokens=40", *words))
    assert shown == load(runs / run).generate(max_tokens=40, **options) + "\n"
    if options and options != {"top_p": 0.5}:
        assert shown != load(runs / run).generate(max_tokens=40) + "\n" or run == "grams"


@pytest.mark.parametrize("run", ["chars", "pairs", "words", "grams"])
def test_seed_determines_the_text(seqloom: Any, runs: Path, run: str) -> None:
    words = ["generate", runs / run, "--tokens=30", "--min-tokens=30"]
    first, again, other = (text(seqloom(*words, "--seed", seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_samples_are_numbered_with_their_seeds(seqloom: Any, runs: Path) -> None:
    words = ["generate", runs / "chars", "--tokens=20", "--min-tokens=20", "--prompt=the"]
    one, two = (text(seqloom(*words, f"--seed={seed}")) for seed in (5, 6))
    both = text(seqloom(*words, "--seed=5", "--samples=2"))
    assert both == f"--- 1 of 2, seed 5\n{one}--- 2 of 2, seed 6\n{two}"


def test_max_tokens_limits_the_length_of_the_text(seqloom: Any, runs: Path) -> None:
    assert len(text(seqloom("generate", runs / "chars", "--tokens=9", "--min-tokens=9"))) == 9 + 1


def test_text_ends_before_the_first_stop_string(seqloom: Any, runs: Path) -> None:
    words = ["generate", runs / "gru", "--tokens=60", "--min-tokens=60", "--seed=3"]
    complete = text(seqloom(*words)).rstrip("\n")
    stops = [complete[30:33], complete[20:22]]
    cut = min(complete.index(stop) for stop in stops)
    assert text(seqloom(*words, "--stop", stops[0], "--stop", stops[1])) == complete[:cut] + "\n"
    assert text(seqloom(*words, "--stop", "never said")).rstrip("\n") == complete


class Recorder:
    """A stream that records its content whenever it is flushed."""

    def __init__(self) -> None:
        self.text, self.seen = "", [""]

    def write(self, piece: str) -> int:
        self.text += piece
        return len(piece)

    def flush(self) -> None:
        self.seen.append(self.text)


def test_every_piece_is_printed_immediately(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from seqloom.cli.app import main

    screen = Recorder()
    created: list[str] = []
    plain = LanguageModelPredictor.generate

    def watched(self: LanguageModelPredictor, *arguments: Any, **options: Any) -> Iterator[str]:
        for piece in plain(self, *arguments, **options):
            assert screen.seen[-1] == "".join(["the"] * bool(created) + created)
            created.append(piece)
            yield piece

    monkeypatch.setattr(LanguageModelPredictor, "generate", watched)
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(["generate", str(runs / "chars"), "--prompt=the", "--tokens=12", "--min-tokens=12"]) == 0
    assert len(created) == 12
    assert screen.seen[-1] == "the" + "".join(created) + "\n"


def test_ctrl_c_exits_with_130_and_ends_the_line(seqloom: Any, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(self: LanguageModelPredictor, prompt: str, **options: Any) -> Iterator[str]:
        yield " sat"
        signal.raise_signal(signal.SIGINT)
        yield "never seen"

    monkeypatch.setattr(LanguageModelPredictor, "generate", endless)
    shown = seqloom("generate", runs / "chars", "--prompt=the cat")
    assert shown.code == 130
    assert shown.out == "the cat sat\n"
    assert "Traceback" not in shown.err


def test_subprocess_prints_the_text_of_the_python_api(runs: Path) -> None:
    words = ["generate", str(runs / "pairs"), "--prompt=the naïve", "--tokens=8", "--seed=2"]
    done = subprocess.run([sys.executable, "-m", "seqloom", *words], capture_output=True, encoding="utf-8")
    expected = "".join(load(runs / "pairs").generate("the naïve", max_tokens=8, seed=2))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"the naïve{expected}\n", "")


# --- unknown tokens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "prompt", "named"),
    [("chars", "the Ω cat €", "'Ω', '€'"), ("words", "the xylophone sat", "'xylophone'"), ("grams", "zyx", "'zyx'")],
)
def test_unknown_tokens_in_prompt_are_rejected(seqloom: Any, runs: Path, run: str, prompt: str, named: str) -> None:
    words = ["generate", runs / run, "--prompt", prompt, "--tokens=5", "--seed=1"]
    seqloom(*words).fails_with(3, named, "--allow-unknown", str(runs / run), lines=1)
    seqloom(*words, "--samples=2").fails_with(3, named, lines=1)
    assert text(seqloom(*words, "--allow-unknown")).startswith(prompt)


def test_byte_pairs_encode_any_prompt(seqloom: Any, runs: Path) -> None:
    shown = text(seqloom("generate", runs / "pairs", "--prompt=Ω €", "--tokens=5"))
    assert shown.startswith("Ω €")


# --- invalid input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--temperature=-1"], "temperature must be 0 (greedy) or a positive number; got -1"),
        (["--temperature=nan"], "temperature"),
        (["--temperature=warm"], "--temperature"),
        (["--top-p=0"], "--top-p must be above 0"),
        (["--top-p=1.5"], "--top-p"),
        (["--top-k=0"], "--top-k"),
        (["--tokens=0"], "--tokens"),
        (["--tokens=-4"], "--tokens"),
        (["--min-tokens=-1"], "--min-tokens"),
        (["--repetition-penalty=0.5"], "--repetition-penalty must be 1 (none) or more; got 0.5"),
        (["--samples=0"], "--samples"),
        (["--stop="], "Stop strings"),
        (["--seed=x"], "--seed"),
        (["--device=tpu9"], "device must be auto, cpu, cuda, cuda:N or mps; got 'tpu9'"),
        (["--device=meta"], "device"),
    ],
)
def test_invalid_values_are_rejected(seqloom: Any, runs: Path, words: list[str], named: str) -> None:
    seqloom("generate", runs / "chars", *words).fails_with(2, named)
