"""`seqloom doctor` as a user meets it, and what training says of a short text."""

from pathlib import Path
from typing import Any

import pytest

from seqloom.inspect import doctor
from seqloom.inspect.rehearsal import Rehearsal

MIB = 1 << 20
SMALL = ["batch.size=4", "batch.length=16", "model.hidden=12", "model.embedding=8", "train.steps=30", "train.warmup=0"]


@pytest.fixture
def canned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rehearsal takes seconds; all tests but one do without."""
    monkeypatch.setattr(doctor, "rehearse", lambda recipe: Rehearsal(12, 0.5, 2.0, memory=300 * MIB))
    monkeypatch.setattr(doctor, "free_memory", lambda device: 4096 * MIB)


def test_the_whole_examination(seqloom: Any, own: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = seqloom("doctor", "lm-char-lstm", *own, *SMALL, "model.cell=gru-cho")
    assert shown.code == 0, shown.err
    assert shown.out.startswith("lm-char-lstm: language-model on ")
    for words in (
        "tokenizer: characters, ",
        "parameters: embedding ",
        "every layer reads whole sequences at once",
        "training: 30 steps of 64 tokens",
        "ms a step",
        "memory: ",
    ):
        assert words in shown.out
    assert not (tmp_path / "runs").exists()


def test_as_json(seqloom: Any, own: list[str], canned: None) -> None:
    found = seqloom("doctor", "lm-char-lstm", *own, *SMALL, "--json").json
    assert found["recipe"] == "lm-char-lstm"
    assert [split["name"] for split in found["splits"]] == ["train", "dev", "test"]
    assert found["seconds"] == 30 * 0.5 + 2.0
    assert found["rehearsal"]["memory"] == 300 * MIB
    assert sum(found["model"]["parts"].values()) == found["model"]["parameters"]


def test_for_a_reader(seqloom: Any, own: list[str], canned: None) -> None:
    shown = seqloom("doctor", "lm-char-lstm", *own, *SMALL).out
    assert "time: 0:17 (500.0 ms a step, 2.0 s an evaluation, measured over 12 steps)" in shown
    assert "memory: 300 MiB at the peak; 4.0 GiB free" in shown
    assert "warning: " in shown and "stand in train too" in shown  # the little language repeats itself
    assert "documents" in shown and "95 %" in shown


def test_a_gpu_and_what_was_broken_off(seqloom: Any, own: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = Rehearsal(12, 0.5, 20.0, False, 900 * MIB, 2000 * MIB, 3000 * MIB)
    monkeypatch.setattr(doctor, "rehearse", lambda recipe: found)
    shown = seqloom("doctor", "lm-char-lstm", *own, *SMALL).out
    assert "time: at least 0:35" in shown
    assert "memory: peak 2.9 GiB on the GPU, 2.0 GiB of it allocated" in shown and "900 MiB on the host" in shown


def test_what_is_counted_and_what_has_no_text(seqloom: Any, own: list[str], canned: None) -> None:
    counted = seqloom("doctor", "ngram-kn5", *own, "model.order=2").out
    assert "model: estimated without gradients" in counted
    assert "data: no text to look at" in seqloom("doctor", "toys-adding").out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["lm-char-lstn"], 2),
        (["lm-char-lstm", "model.cel=gru"], 2),
        (["lm-char-lstm", "data.corpus=text", "data.train=gone.txt"], 3),
        (["lm-char-lstm", "train.device=cuda:77"], 5),
    ],
)
def test_what_cannot_be_trained_is_refused_in_the_same_words(
    seqloom: Any, here: Path, words: list[str], code: int
) -> None:
    trained, examined = seqloom("train", *words), seqloom("doctor", *words)
    assert trained.code == examined.code == code
    assert trained.err == examined.err


def test_doctor_needs_a_recipe(seqloom: Any) -> None:
    seqloom("doctor").refuses(2, "Name a recipe")
    seqloom("doctor", "a", "b").refuses(2, "Name one recipe")


# --- a text shorter than one chunk ----------------------------------------------------------------------------------


@pytest.fixture
def short(here: Path) -> list[str]:
    Path("short.txt").write_text("a line\n" * 12, encoding="utf-8")  # 83 tokens
    data = ["data.corpus=text", "data.train=short.txt", "data.dev_fraction=0.2", "data.test_fraction=0"]
    return ["lm-char-lstm", *data, "model.hidden=8", "train.epochs=2", "train.warmup=0"]


def test_a_text_shorter_than_a_chunk_per_row_is_trained_on_with_a_warning(
    seqloom: Any, short: list[str], canned: None
) -> None:
    words = "The training text is shorter than one chunk per sequence: "
    for command in (["train"], ["doctor"]):
        shown = seqloom(*command, *short, "batch.size=4", "batch.length=64")
        assert shown.code == 0
        assert f"warning: {words}" in shown.out + shown.err
        assert "lower batch.size to 1 or less" in shown.out + shown.err
    lower = seqloom("train", *short, "batch.size=4", "batch.length=200", "--out", "two")
    assert "Use more text, or lower batch.length." in lower.err
    assert words not in seqloom("train", *short, "batch.size=1", "batch.length=16", "--out", "three").err


def test_a_text_of_less_than_two_tokens_a_row_is_refused(seqloom: Any, short: list[str]) -> None:
    for command in ("train", "doctor"):
        seqloom(command, *short, "batch.size=60").refuses(3, "60 rows need at least 120 tokens", "lower batch.size")
    assert not Path("runs").exists()
