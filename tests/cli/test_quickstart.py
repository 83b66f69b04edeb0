import re
from pathlib import Path
from typing import Any

import pytest

from seqloom import api

TINY = ["model.hidden=8", "model.embedding=8", "train.steps=4", "train.evaluate_every=2", "batch.rows=4"]
TINY += ["batch.chunk=16", "batch.eval_rows=64", "train.warmup=0"]


def test_from_nothing_to_samples_a_perplexity_a_picture_and_what_to_try_next(seqloom: Any, here: Path) -> None:
    shown = seqloom("quickstart", *TINY)
    assert shown.code == 0, shown.err
    assert shown.err == ""
    lstm, grams = api.load("runs/quickstart"), api.load("runs/quickstart-5gram")
    assert re.search(r"^step     2  perplexity .* bits/char .*The class", shown.out, re.MULTILINE)
    for name, model in (("5-gram", grams), ("LSTM", lstm)):
        metrics = model.evaluate("test")
        assert re.search(rf"{name} +perplexity +{metrics['perplexity']:.2f} ", shown.out)
        assert f"{metrics['bits_per_character']:.3f}" in shown.out
    sample = "The class" + "".join(lstm.generate("The class", max_tokens=500, temperature=0.7, seed=7))
    assert "   " + sample.replace("\n", "\n   ") in shown.out
    if "No picture" not in shown.out:
        assert (here / "runs/quickstart/curve.png").read_bytes().startswith(b"\x89PNG")
    commands = re.findall(r"^   seqloom (\w+) (\S+)", shown.out.partition("What to try next:")[2], re.MULTILINE)
    assert [command for command, _ in commands] == ["generate", "compare", "inspect", "train", "init"]
    assert seqloom("compare", "runs/quickstart", "runs/quickstart-5gram", "--json").json["ranked_by"] == "loss"


def test_a_free_name_is_found(here: Path) -> None:
    from seqloom.cli.quickstart import _free

    assert _free(Path("runs/quickstart")) == Path("runs/quickstart")
    (here / "runs/quickstart").mkdir(parents=True)
    (here / "runs/quickstart-2-5gram").mkdir()
    assert _free(Path("runs/quickstart")) == Path("runs/quickstart-3")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.hiden=3"], "did you mean model.hidden?"),
        (["lm-char-lstm"], "key.path=value"),
        (["--out", "there"], "there-5gram exists. Choose another name for the runs: --out there-2."),
        (["--out", "."], "--out must name a directory"),
    ],
)
def test_mistakes_are_found_before_any_work(seqloom: Any, here: Path, words: list[str], message: str) -> None:
    (here / "there-5gram").mkdir()
    seqloom("quickstart", *words).refuses(2, message)
    assert [path.name for path in here.iterdir()] == ["there-5gram"]
