import shlex
from pathlib import Path
from typing import Any

import pytest

from seqloom.config import load_yaml

TEXT = "the cat sat on the mat .\nthe dog sat on the log .\n" * 20


@pytest.mark.parametrize("tokens", ["characters", "words", "byte-pair"])
def test_recipe_written_by_init_trains_without_changes(seqloom: Any, workdir: Path, tokens: str) -> None:
    (workdir / "corpus.txt").write_text(TEXT)
    shown = seqloom("init", "--no-estimate", "corpus.txt", "--tokens", tokens)
    assert shown.code == 0 and shown.err == ""
    assert shown.out.splitlines()[-1] == "Wrote corpus.yaml. Check it, then run: seqloom train corpus.yaml"
    recipe = load_yaml(workdir / "corpus.yaml")
    assert recipe["data"]["train"] == "corpus.txt"
    assert recipe["tokenizer"]["kind"] == tokens
    recipe_lines = (workdir / "corpus.yaml").read_text().splitlines()
    assert sum("#" in line for line in recipe_lines) > len(recipe_lines) / 2  # most lines have comments
    trained = seqloom("train", "corpus.yaml", *["train.steps=3"] * (tokens != "characters"))
    assert trained.code == 0, trained.err
    if tokens == "characters":  # without overrides
        first, last = (
            float(line.split("loss ")[1].split()[0]) for line in _dev(trained.out)[:: len(_dev(trained.out)) - 1]
        )
        assert last < first - 0.3


def _dev(out: str) -> list[str]:
    return [line for line in out.splitlines() if "dev: loss" in line]


def test_smallest_text_can_be_used_for_training(seqloom: Any, workdir: Path) -> None:
    (workdir / "three.txt").write_text("ab cd\nef gh\nij kl\n")
    assert seqloom("init", "--no-estimate", "three.txt").code == 0
    trained = seqloom("train", "three.yaml", "train.steps=1")
    assert trained.code == 0, trained.err


@pytest.mark.parametrize("lines", ["hello", "hello\nhowdy\n"])
def test_text_of_one_or_two_lines_is_learned_by_heart(seqloom: Any, workdir: Path, lines: str) -> None:
    (workdir / "hello.txt").write_text(lines)
    written = seqloom("init", "hello.txt")
    assert written.code == 0, written.err
    assert "dev and test repeat the training text, so their metrics measure memorization.\n" in written.out
    assert "warning" not in written.out  # above all, no warning that dev also occurs in train
    assert load_yaml(workdir / "hello.yaml")["data"]["reuse_train"] is True
    assert seqloom("train", "hello.yaml").code == 0
    generated = seqloom("generate", "runs/hello", "--temperature", 0, "--prompt", "he", "--tokens", 20)
    assert generated.out.strip() == lines.strip()
    for split in ("dev", "test"):
        assert seqloom("evaluate", "runs/hello", "--split", split, "--json").json["perplexity"] < 1.1


def test_longer_text_is_divided(seqloom: Any, workdir: Path) -> None:
    (workdir / "three.txt").write_text("hello\nhowdy\nhey\n")
    assert seqloom("init", "--no-estimate", "three.txt").code == 0
    assert "reuse_train" not in (workdir / "three.yaml").read_text()


@pytest.mark.parametrize("kind", ["folder", "gz"])
def test_folder_or_compressed_file_is_accepted(seqloom: Any, workdir: Path, kind: str) -> None:
    import gzip

    if kind == "folder":
        (workdir / "books").mkdir()
        (workdir / "books/one.txt").write_text(TEXT)
        (workdir / "books/two.txt").write_text(TEXT)
    else:
        (workdir / "books.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert seqloom("init", "--no-estimate", "books" if kind == "folder" else "books.txt.gz").code == 0
    assert seqloom("train", "books.yaml", "train.steps=1", "model.hidden=4").code == 0


ODD = [
    "a b",
    "it's",
    'say "x"',
    "part: one",
    "tag #1",
    "naïve 小说",
    "x=y",
    "null",
    "1",
    "{b}",
    "[l]",
    "*s",
    "&a",
    "%p",
]
ODD += [
    "back\\slash",
    "two\nlines",
    "tab\tbed",
    "next\u0085line",
    "sep\u2028",
    "bell\a",
    "long " + "word " * 30,
    "- dash",
]


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_unusual_file_names_are_quoted(seqloom: Any, workdir: Path, name: str) -> None:
    (workdir / f"{name}.txt").write_text(TEXT)
    shown = seqloom("init", "--no-estimate", f"./{name}.txt")
    assert shown.code == 0, shown.err
    assert load_yaml(workdir / f"{name}.yaml")["data"]["train"] == f"{name}.txt"
    assert shown.out.endswith(f"seqloom train {shlex.quote(name + '.yaml')}\n")


@pytest.mark.parametrize("name", ["a b", "it's: 小说 #1", "x=y", "two\nlines"], ids=ascii)
def test_files_with_unusual_names_can_be_used_for_training(seqloom: Any, workdir: Path, name: str) -> None:
    (workdir / f"{name}.txt").write_text(TEXT)
    assert seqloom("init", "--no-estimate", f"{name}.txt").code == 0
    trained = seqloom("train", f"{name}.yaml", "train.steps=1", "model.hidden=4")
    assert trained.code == 0, trained.err
    assert (workdir / "runs" / name / "model.safetensors").is_file()


def test_file_name_may_begin_with_a_tilde(seqloom: Any, workdir: Path) -> None:
    (workdir / "~draft.txt").write_text(TEXT)
    shown = seqloom("init", "--no-estimate", "~draft.txt")
    assert shown.code == 0, shown.err


def test_larger_texts_select_larger_models(seqloom: Any, workdir: Path) -> None:
    sizes = []
    for repeats in (20, 5_000):
        (workdir / "t.txt").write_text(TEXT * (repeats // 20))
        assert seqloom("init", "--no-estimate", "t.txt", "--out", f"{repeats}.yaml").code == 0
        sizes.append(load_yaml(workdir / f"{repeats}.yaml")["model"]["hidden"])
    assert sizes[0] < sizes[1]


def test_existing_files_are_not_overwritten(seqloom: Any, workdir: Path) -> None:
    (workdir / "t.txt").write_text(TEXT)
    (workdir / "t.yaml").write_text("mine")
    seqloom("init", "--no-estimate", "t.txt").fails_with(2, "t.yaml exists", "--out", lines=1)
    assert (workdir / "t.yaml").read_text() == "mine"
    assert seqloom("init", "--no-estimate", "t.txt", "--out", "other.yaml").code == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nowhere.txt"], 3, "nowhere.txt does not exist"),
        (["empty.txt"], 3, "empty.txt must contain text"),
        (["binary.txt"], 3, "binary.txt must be text, but line 1 contains a NUL byte"),
        (["good.txt", "--out", "x.txt"], 2, "must end in .yaml; got x.txt"),
        (["good.txt", "--out", "no/x.yaml"], 2, "the folder no does not exist"),
        (["good.txt", "--tokens", "letters"], 2, "--tokens"),
        (["folder"], 3, "The folder folder must contain .txt or .txt.gz files"),
        (["bad\udce9.txt"], 2, "must be UTF-8"),
    ],
)
def test_invalid_input_is_rejected(seqloom: Any, workdir: Path, words: list[str], code: int, message: str) -> None:
    (workdir / "good.txt").write_text(TEXT)
    (workdir / "empty.txt").write_text("")
    (workdir / "binary.txt").write_bytes(bytes(range(256)) * 4)
    (workdir / "folder").mkdir()
    seqloom("init", "--no-estimate", *words).fails_with(code, message)
    assert not list(workdir.glob("*.yaml"))
