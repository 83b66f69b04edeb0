"""Every sentence of the lectures has a command in the guide, and every command runs on a small model."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.fine_tuning import pretrained_run, tag_recipe
from tests.understanding import trained

from seqloom.data.corpora import lecture

PAGE = Path(__file__).parents[2] / "docs/how-to/lecture-sentences.md"
COMMANDS = [
    line.partition("   #")[0].strip()
    for block in re.findall(r"```bash\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    for line in block.splitlines()
]


@pytest.fixture(scope="module")
def small_runs(tmp_path_factory: pytest.TempPathFactory, runs: Path) -> dict[str, Path]:
    """The runs of the guide, replaced by small models of the same kinds."""
    folder = tmp_path_factory.mktemp("lecture")
    bert = pretrained_run(folder / "bert", "bert", positions={"kind": "learned", "max_length": 64})
    tagger = trained(tag_recipe(folder, bert, "train.steps=2", "train.evaluate_every=2"), folder / "tagger")
    assert tagger is not None
    return {
        "runs/minilm": bert,
        "runs/tag-people": folder / "tagger",
        "runs/lm-char-lstm": runs / "chars",
        "runs/lm-bpe-gru": runs / "pairs",
    }


def test_every_sentence_has_a_command() -> None:
    corpus = lecture.load(lecture.Config())
    sentences = [sentence for split in ("train", "dev", "test") for sentence in corpus.split(split)]
    assert len(sentences) == len(set(sentences)) > 15
    text = "\n".join(COMMANDS) + "\n" + PAGE.read_text("utf-8").partition("inspect beam --example")[2]
    assert [sentence for sentence in sentences if sentence not in text] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs(seqloom: Any, small_runs: dict[str, Path], workdir: Path, command: str) -> None:
    if command.startswith("echo "):
        assert command.rpartition(" > ")[2] in ("low.txt", "hello.txt")
        return
    (workdir / "low.txt").write_text(" ".join(["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3))
    program, *words = [str(small_runs.get(word, word)) for word in shlex.split(command)]
    assert program == "seqloom"
    if words[1] == "gates":  # the vocabulary of the small model lacks some letters
        words.append("--allow-unknown")
    shown = seqloom(*words)
    assert shown.code == 0, shown.err
    assert shown.out.strip()
