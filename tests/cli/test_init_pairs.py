"""Tests of `seqloom init` for sentence pairs."""

import gzip
import re
import shlex
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from seqloom.config import load_yaml
from seqloom.data.corpora import parallel
from seqloom.recipes import drafts
from seqloom.recipes.drafts import name_recipe

NOUNS = {"the cat": "die Katze", "a dog": "ein Hund", "the owl": "die Eule", "a fox": "ein Fuchs"}
VERBS = {"sat": "sass", "saw": "sah", "slept": "schlief"}
PLACES = {"here": "hier", "there": "dort", "today": "heute", "now": "jetzt"}
SHORT = ["train.epochs=null", "train.steps=2", "model.d_model=8"]


def pairs(count: int) -> list[tuple[str, str]]:
    """Return distinct sentence pairs: 48 sentences, and then sentences with numbers."""
    created = list(product(NOUNS.items(), VERBS.items(), PLACES.items()))
    created = [created[7 * n % len(created)] for n in range(count)]
    numbers = [f" {n}" if n >= len(NOUNS) * len(VERBS) * len(PLACES) else "" for n in range(count)]
    sides = [[" ".join(words[side] for words in pair) for pair in created] for side in (0, 1)]
    return [(one + number, other + number) for one, other, number in zip(*sides, numbers, strict=True)]


@pytest.fixture
def files(workdir: Path) -> Path:
    for side, language in enumerate(("en", "de")):
        (workdir / f"a.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs(40)))
    (workdir / "a.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs(40)))
    return workdir


def test_two_files_give_a_commented_recipe_with_languages(seqloom: Any, files: Path) -> None:
    shown = seqloom("init", "--no-estimate", "a.en", "a.de")
    assert shown.code == 0 and shown.err == ""
    assert shown.out == (
        "a.en and a.de: two files aligned by line. 36 pairs, 144 source words, 575 source characters, "
        "144 target words, 704 target characters to train on.\n"
        "Wrote a.yaml. Check it, then run: seqloom train a.yaml\n"
    )
    recipe = load_yaml(files / "a.yaml")
    assert recipe["task"] == "translate" and recipe["tokenizer"]["kind"] == "byte-pair"
    data = recipe["data"]
    assert (data["train"], data["source"], data["target"]) == (["a.en", "a.de"], "en", "de")
    lines = (files / "a.yaml").read_text().splitlines()
    assert sum("#" in line for line in lines) > len(lines) / 2  # most lines have comments


def test_recipe_written_by_init_trains_without_changes(seqloom: Any, files: Path) -> None:
    assert seqloom("init", "--no-estimate", "a.en", "a.de").code == 0
    trained = seqloom("train", "a.yaml", "train.epochs=30", "train.evaluate_every=30")
    assert trained.code == 0, trained.err
    card = (files / "runs/a/card.md").read_text()
    assert re.search(r"\| train \| 36 \| 144 \| [\d,]+ \| 144 \|", card)  # as printed by init
    metrics = [float(line.split("loss ")[1].split()[0]) for line in trained.out.splitlines() if "dev: loss" in line]
    assert metrics[-1] < metrics[0] - 0.3
    assert "Try: seqloom translate runs/a" in trained.out
    translated = seqloom("translate", "runs/a", "the cat sat now", "")
    assert translated.code == 0 and translated.out.count("\n") == 2


@pytest.mark.parametrize("tokens", ["characters", "words", "byte-pair"])
def test_tokens_option_selects_the_tokenizer(seqloom: Any, files: Path, tokens: str) -> None:
    shown = seqloom("init", "--no-estimate", "a.tsv", "--tokens", tokens)
    assert shown.code == 0, shown.err
    recipe = load_yaml(files / "a.yaml")
    assert recipe["data"]["train"] == "a.tsv" and recipe["tokenizer"]["kind"] == tokens
    assert recipe["data"]["source"] == ""
    trained = seqloom("train", "a.yaml", *SHORT)
    assert trained.code == 0, trained.err


def test_language_columns_are_detected_from_the_header(seqloom: Any, files: Path) -> None:
    text = "en\tpt-BR\tnote\n" + "".join(f"{source}\t{target}\tx\n" for source, target in pairs(40))
    (files / "b.tsv.gz").write_bytes(gzip.compress(text.encode()))
    assert seqloom("init", "--no-estimate", "b.tsv.gz").code == 0
    data = load_yaml(files / "b.yaml")["data"]
    assert (data["columns"], data["source"], data["target"]) == (["en", "pt-BR"], "en", "pt-BR")
    assert seqloom("train", "b.yaml", *SHORT).code == 0


def test_task_option_overrides_the_detected_task(seqloom: Any, files: Path) -> None:
    (files / "a.tsv").rename(files / "t.txt")
    assert seqloom("init", "--no-estimate", "t.txt", "--task", "translate").code == 0
    assert load_yaml(files / "t.yaml")["task"] == "translate"
    (files / "t.txt").rename(files / "l.tsv")
    assert seqloom("init", "--no-estimate", "l.tsv", "--task", "language-model", "--out", "l.yaml").code == 0
    assert load_yaml(files / "l.yaml")["task"] == "language-model"


def test_skipped_pairs_are_noted(seqloom: Any, files: Path) -> None:
    (files / "a.de").write_text("".join(f"{target}\n" if n != 6 else "\n" for n, (_, target) in enumerate(pairs(40))))
    shown = seqloom("init", "--no-estimate", "a.en", "a.de")
    assert "1 example has a blank side and was left out, at line 7 of a.en and a.de.\n" in shown.out


def test_larger_files_select_larger_models_and_smaller_held_out_fractions(seqloom: Any, files: Path) -> None:
    (files / "large.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs(50_000)))
    assert (
        seqloom("init", "--no-estimate", "large.tsv").code == 0 and seqloom("init", "--no-estimate", "a.tsv").code == 0
    )
    large, small = load_yaml(files / "large.yaml"), load_yaml(files / "a.yaml")
    assert large["model"]["d_model"] > small["model"]["d_model"]
    assert (large["data"]["dev_fraction"], small["data"]["dev_fraction"]) == (0.04, 0.05)


@pytest.mark.parametrize(
    ("fractions", "limited"),
    [
        ({"dev_fraction": 0.1, "test_fraction": 0.1}, (0.015, 0.015)),
        ({"dev_fraction": 0.01, "test_fraction": 0.1}, (0.01, 0.015)),  # only the test split is too large
        ({"dev_fraction": 0.015, "test_fraction": 0.0}, (0.015, 0.0)),
        ({"dev": "dev.tsv", "dev_fraction": 0.1, "test_fraction": 0.01}, (0.1, 0.01)),  # dev is a file
    ],
)
def test_held_out_examples_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fractions: dict[str, Any], limited: tuple[float, float]
) -> None:
    monkeypatch.setattr(drafts, "MAX_HELD_OUT", 20)
    monkeypatch.chdir(tmp_path)
    for name, first, last in (("train", 0, 1300), ("dev", 5000, 5900)):
        (tmp_path / f"{name}.tsv").write_text("".join(f"a{n}\tb{n}\n" for n in range(first, last)))
    data = parallel.Config(train="train.tsv", **fractions)
    config, corpus = drafts.load_with_limited_holdout(data, parallel.load)
    assert (config.dev_fraction, config.test_fraction) == limited
    assert corpus.fingerprint() == parallel.load(config).fingerprint()
    held_out = {"dev", "test"} - {*corpus.absent, *data.files()}
    assert all(0 < len(corpus.split(split)) <= 20 for split in held_out)


@pytest.mark.parametrize("name", ["a b", "it's: 小说 #1", "x, [y]", "{b}", "null", "two\nlines"], ids=ascii)
def test_unusual_file_names_are_quoted(seqloom: Any, files: Path, name: str) -> None:
    for language in ("en", "de"):
        (files / f"a.{language}").rename(files / f"{name}.{language}")
    shown = seqloom("init", "--no-estimate", f"./{name}.en", f"./{name}.de")
    assert shown.code == 0, shown.err
    assert load_yaml(files / f"{name}.yaml")["data"]["train"] == [f"{name}.en", f"{name}.de"]
    assert shown.out.endswith(f"seqloom train {shlex.quote(name + '.yaml')}\n")


@pytest.mark.parametrize(
    ("names", "created"),
    [
        (["train.en", "train.de"], "train"),
        (["x/train.en.gz", "y/train.de.gz"], "train"),
        (["one.txt", "two.txt"], "one-two"),
        (["pairs.tsv.gz"], "pairs"),
        (["en", "de"], "en-de"),
    ],
)
def test_recipe_name_is_derived_from_file_names(names: list[str], created: str) -> None:
    assert name_recipe("translate", [Path(name) for name in names]) == created


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["a.en", "short.de"], 3, "a.en has 40 and short.de has 2"),
        (["a.en", "nowhere.de"], 3, "nowhere.de does not exist. Check the name and the current folder"),
        (["a.en", "/no/where.de"], 3, "/no/where.de does not exist. Check the name.\n"),
        (["a.en", "a.en"], 2, "two different files"),
        (["a.en", "a.de", "a.tsv"], 2, "got 3 files"),
        (["a.en", "a.de", "--task", "language-model"], 2, "needs one file or folder"),
        (["bad.tsv"], 3, "Line 2 of bad.tsv"),
        (["few.tsv"], 3, "few.tsv is too short: "),
        (["a.en", "--task", "translate"], 3, "no tab"),
        (["a.en", "bad\udce9.de"], 2, "must be UTF-8"),
        (["a.en", "a.de", "--task", "translation"], 2, "--task"),
    ],
)
def test_invalid_input_is_rejected(seqloom: Any, files: Path, words: list[str], code: int, message: str) -> None:
    (files / "short.de").write_text("one\ntwo\n")
    (files / "bad.tsv").write_text("a\tb\nc\nd\te\nf\tg\n")
    (files / "few.tsv").write_text("a\tb\nc\td\n")
    seqloom("init", "--no-estimate", *words).fails_with(code, message)
    assert not list(files.glob("*.yaml"))
