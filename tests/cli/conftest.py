"""Fixtures: the command line in this process, and small runs that its tests share."""

import io
import itertools
import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from seqloom.cli.app import main
from seqloom.core.files import tensors_from_file
from seqloom.runs import record
from seqloom.train import display
from seqloom.train import events as e

NOUNS = {"cat": "Katze", "dog": "Hund", "owl": "Eule"}
VERBS = {"sat": "sass", "saw": "sah", "slept": "schlief", "ran": "lief"}
SMALL = ["batch.size=4", "batch.length=16", "model.hidden=12", "train.log_every=2", "train.schedule=constant"]


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The output, parsed as one JSON object."""
        assert self.code == 0, self.err
        return strict_json(self.out)

    @property
    def objects(self) -> list[Any]:
        """The lines of the output, parsed as JSON objects."""
        assert self.code == 0, self.err
        return [strict_json(line) for line in self.out.splitlines()]

    def fails_with(self, code: int, *words: str, lines: int = 2) -> None:
        """Check the exit code and an error message of one or two lines that contains these texts."""
        assert self.code == code, self.err
        assert self.out == ""
        assert self.err.startswith("seqloom: ")
        assert self.err.count("\n") <= lines
        assert "This is a bug" not in self.err
        for word in words:
            assert word in self.err


def strict_json(text: str) -> Any:
    def never(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_constant=never)


@pytest.fixture
def seqloom(capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run a command: `seqloom("evaluate", run)`."""

    def call(*words: object) -> Result:
        capfd.readouterr()
        code = main([str(word) for word in words])
        shown = capfd.readouterr()
        return Result(code, shown.out, shown.err)

    return call


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Set the standard input of the next command."""
    return lambda content: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def sentences(count: int, seed: int) -> str:
    """Generate sentences. About one sentence in twenty contains a unique word."""
    draw = random.Random(seed)
    nouns, verbs, places = (
        ("cat", "dog", "owl", "naïve fox"),
        ("sat", "saw", "slept"),
        ("on a mat", "in the hay", "here"),
    )
    lines = []
    for number in range(count):
        rare = f" word{seed}x{number}" if draw.random() < 0.05 else ""
        lines.append(f"the {draw.choice(nouns)}{rare} {draw.choice(verbs)} {draw.choice(places)} .")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.txt, dev.txt and test.txt."""
    folder = tmp_path_factory.mktemp("texts")
    for seed, (name, count) in enumerate({"train": 120, "dev": 15, "test": 20}.items(), start=1):
        (folder / f"{name}.txt").write_text(sentences(count, seed), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def text_overrides(texts: Path) -> list[str]:
    """Return overrides to train on these texts, in which each line is a document."""
    files = [f"data.{name}={texts / name}.txt" for name in ("train", "dev", "test")]
    return ["data.corpus=text", *files, "data.documents=line"]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, text_overrides: list[str]) -> Path:
    """Finished runs, which must not be changed (see `copy`).

    `chars`, `gru` (characters), `pairs` (byte pairs), `words` and `grams` (words) share a text. `toys` has other data.
    """
    folder = tmp_path_factory.mktemp("runs")
    recurrent = [*SMALL, "train.steps=24", "train.warmup=4", "train.evaluate_every=8"]
    commands = {
        "chars": ["lm-char-lstm", *text_overrides, *recurrent],
        "gru": ["lm-char-lstm", *text_overrides, *recurrent, "model.cell=gru", "seed=5"],
        "pairs": ["lm-bpe-gru", *text_overrides, *recurrent, "tokenizer.size=300", "model.tied=false"],
        "words": ["lm-word-lstm", *text_overrides, *recurrent, "tokenizer.min_count=2", "model.tied=false"],
        "grams": ["ngram-kn5", *text_overrides, "model.order=3", "tokenizer.split=whitespace", "tokenizer.min_count=2"],
        "toys": ["toys-copy", "data.train=200", "data.dev=20", "data.test=20", "data.max_length=4", *recurrent],
    }
    for name, words in commands.items():
        assert main(["train", *words, "--out", str(folder / name)]) == 0, name
    return folder


@pytest.fixture
def copy(runs: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copy a run, so that a test can damage it or continue its training."""

    def make(name: str) -> Path:
        return Path(shutil.copytree(runs / name, tmp_path / name))

    return make


@pytest.fixture
def weights() -> Callable[[Path], dict[str, list[float]]]:
    """Return the best weights of a run as lists of numbers."""
    return lambda run: {name: t.tolist() for name, t in tensors_from_file(run / "model.safetensors").items()}


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def on_event(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, Callable[[], None]], None]:
    """Call a function at the first training event of this type."""

    def install(kind: type, action: Callable[[], None]) -> None:
        plain, waiting = display.describe, [action]

        def describe(event: e.Event) -> str | None:
            if isinstance(event, kind) and waiting:
                waiting.pop()()
            return plain(event)

        monkeypatch.setattr(display, "describe", describe)

    return install


LINES = [
    (f"the {noun} {verb} {number} .", f"{number} {NOUNS[noun]} {VERBS[verb]} .")
    for number, noun, verb in itertools.product(range(8), NOUNS, VERBS)
]


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with parallel files: train.en and train.de, and so on."""
    folder = tmp_path_factory.mktemp("pairs")
    shuffled = [LINES[37 * index % len(LINES)] for index in range(len(LINES))]
    for split, part in {"train": slice(0, 72), "dev": slice(72, 84), "test": slice(84, None)}.items():
        for side, language in enumerate(("en", "de")):
            (folder / f"{split}.{language}").write_text("".join(f"{pair[side]}\n" for pair in shuffled[part]), "utf-8")
    return folder


@pytest.fixture(scope="session")
def translators(tmp_path_factory: pytest.TempPathFactory, pairs: Path) -> Path:
    """Finished runs of translators on the same data.

    `one`, `two` (another random seed), `transformer` and `blind` (without attention) share a vocabulary of words.
    `bytes` has another vocabulary. `back` has the opposite direction.
    """
    folder = tmp_path_factory.mktemp("translators")
    there, back = (
        [f"data.{split}=[{pairs / split}.{a},{pairs / split}.{b}]" for split in ("train", "dev", "test")]
        for a, b in (("en", "de"), ("de", "en"))
    )
    small = ["batch.tokens=200", "batch.dev_pairs=4", "decode.beam=3", "train.warmup=0", "train.schedule=constant"]
    small += [
        "train.steps=10",
        "train.evaluate_every=2",
        "train.lr=0.02",
        "train.keep_checkpoints=4",
        "train.log_every=5",
    ]
    words, recurrent = "tokenizer.kind=words", "model.hidden=12"
    transformer = ["model.kind=transformer", "model.d_model=12", "model.heads=2", "model.d_ff=16"]
    commands = {
        "one": [*there, words, recurrent],
        "two": [*there, words, recurrent, "seed=2"],
        "transformer": [*there, words, *transformer, "model.encoder_layers=1", "model.decoder_layers=1"],
        "blind": [*there, words, recurrent, "model.attention=null"],
        "bytes": [*there, "tokenizer.size=270", recurrent],
        "back": [*back, words, recurrent],
    }
    with pytest.MonkeyPatch.context() as quick:
        quick.setattr(os, "fsync", lambda handle: None)
        quick.setattr(record, "open_tensorboard", lambda run, step: None)
        for name, given in commands.items():
            assert main(["train", "translate-files", *given, *small, "--out", str(folder / name)]) == 0, name
    return folder
