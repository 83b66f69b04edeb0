import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seqloom.predict.loader import load
from seqloom.train.events import Evaluated

TINY = ["data.train=400", "data.dev=20", "data.test=20", "model.hidden=16", "model.embedding=16", "tokenizer.size=400"]
TINY += ["train.epochs=null", "train.steps=4", "train.evaluate_every=2", "train.warmup=0", "train.log_every=2"]


def test_translator_is_trained_evaluated_and_inspected(seqloom: Any, workdir: Path) -> None:
    shown = seqloom("quickstart", *TINY)
    assert shown.code == 0, shown.err
    translator = load("runs/quickstart-en-fr")
    pairs = translator.task().corpus.split("dev")
    watched = re.findall(r"^   (.*)$", shown.out.partition("2. Training")[2].partition("parameters")[0], re.MULTILINE)
    assert len(watched) == 3 and set(watched) <= {pair.source for pair in pairs}
    rounds = re.findall(
        r"^step (\d+): BLEU [\d.]+, [\d.]+% exactly right\n((?:   [✓·] .*\n)+)", shown.out, re.MULTILINE
    )
    assert [step for step, _ in rounds] == ["2", "4"]
    assert all(lines.count("\n") == len(watched) for _, lines in rounds)
    figures = translator.run.metrics("test")
    assert f"BLEU {figures['bleu']:.2f}   chrF {figures['chrf']:.2f}" in shown.out
    assert f"training phrase): BLEU {figures['baseline_bleu']:.2f}" in shown.out
    assert f"{figures['alignment_accuracy']:.1%} of the target words attend to the correct source word" in shown.out
    if "The plot was not written" not in shown.out:
        assert (workdir / "runs/quickstart-en-fr/attention.png").read_bytes().startswith(b"\x89PNG")


def test_suggested_commands_are_executable(seqloom: Any, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = seqloom("quickstart", "--target", "hu", "--out", "my run", *TINY)
    commands = re.findall(r"^   (?:echo .* \| )?seqloom (.*)", shown.out.partition("Done in")[2], re.MULTILINE)
    assert [command.split()[0] for command in commands] == [
        "translate",
        "translate",
        "inspect",
        "evaluate",
        "studio",
        "quickstart",
        "init",
    ]
    assert all("'my run'" in command for command in commands[:4])
    (line,) = load("my run").translate(["Sunday, November 15, 2026"])
    assert line.source == "Sunday, November 15, 2026"


def test_missing_matplotlib_is_reported(seqloom: Any, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    shown = seqloom("quickstart", *TINY, "train.steps=2")
    assert shown.code == 0 and "The plot was not written: Plots need matplotlib" in shown.out


def test_characters_without_font_give_an_svg(seqloom: Any, workdir: Path) -> None:
    pytest.importorskip("matplotlib")
    from seqloom.inspect.plots.figures import choose_fonts

    assert seqloom("quickstart", "--source", "hi", "--target", "en", *TINY, "train.steps=2").code == 0
    drawn = [path.name for path in (workdir / "runs/quickstart-hi-en").glob("attention.*")]
    assert drawn == ["attention.svg" if choose_fonts(["शनिवार"]).missing else "attention.png"]


def test_program_name_is_a_path_unless_it_is_on_the_search_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from seqloom.cli.quickstart import find_program

    monkeypatch.setattr(sys, "argv", [".venv/bin/seqloom", "quickstart"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program() == ".venv/bin/seqloom"
    (tmp_path / "seqloom").touch(mode=0o755)
    assert find_program() == "seqloom"
    monkeypatch.setattr(sys, "argv", ["-m", "quickstart"])
    assert find_program() == "seqloom"


def test_model_without_attention_cannot_be_inspected(seqloom: Any, workdir: Path) -> None:
    shown = seqloom("quickstart", *TINY, "train.steps=2", "model.attention=null", "batch.dev_pairs=0")
    assert shown.code == 0, shown.err
    assert re.search(r"^step 2: loss \d", shown.out, re.MULTILINE)
    assert "has no attention. " in shown.out and "Translate your own text" in shown.out


def test_number_is_added_to_the_name_of_an_existing_path(workdir: Path) -> None:
    from seqloom.cli.quickstart import find_path
    from seqloom.recipes import read_recipe

    recipe = read_recipe("translate-cldr", TINY)[1]
    assert find_path(Path("runs/quickstart-en-fr"), recipe) == Path("runs/quickstart-en-fr")
    (workdir / "runs/quickstart-en-fr").mkdir(parents=True)
    (workdir / "runs/quickstart-en-fr-2").mkdir()
    assert find_path(Path("runs/quickstart-en-fr"), recipe) == Path("runs/quickstart-en-fr-3")


def test_stopped_quickstart_is_resumed_and_evaluated(
    seqloom: Any, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a signal, the same command resumes the run. With --resume, a command in another folder also resumes it."""
    whole = seqloom("quickstart", *TINY, "--out", "whole")
    stop_at(monkeypatch, step=2)
    stopped = seqloom("quickstart", *TINY)
    assert stopped.code == 75 and "3. The test split" not in stopped.out
    assert "To resume: seqloom quickstart --resume runs/quickstart-en-fr" in stopped.err
    assert "training was interrupted: the model is no better than its baseline" in stopped.err
    monkeypatch.undo()
    monkeypatch.chdir(workdir)
    shutil.copytree("runs/quickstart-en-fr", "other/place")
    for run, words in (("runs/quickstart-en-fr", TINY), ("other/place", ["--resume", "other/place"])):
        shown = seqloom("quickstart", *words)
        assert shown.code == 0, shown.err
        assert f"Resuming {run}" in shown.out and "note: the model is no better than its baseline" in shown.out
        assert results(shown.out) == results(whole.out) and Path(run, "metrics/test.json").is_file()
        assert "attends" not in shown.out and "of the target words attend to the correct source word" in shown.out
        if "The plot was not written" not in shown.out:
            assert Path(run, "attention.png").is_file()
    assert not Path("runs/quickstart-en-fr-2").exists()


def test_killed_quickstart_is_resumed_by_the_same_command(seqloom: Any, workdir: Path) -> None:
    """A run that was killed during the evaluation has no results on test. Other settings start another run."""
    from seqloom.cli.quickstart import find_path, is_unfinished
    from seqloom.recipes import read_recipe

    path, words = Path("runs/quickstart-en-fr"), [*TINY, "train.steps=2"]
    recipe, other = (read_recipe("translate-cldr", [*words, *more])[1] for more in ([], ["seed=2"]))
    assert seqloom("quickstart", *words).code == 0
    assert find_path(path, recipe) == path.with_name("quickstart-en-fr-2")
    (path / "metrics/test.json").unlink()
    assert is_unfinished(path, recipe) and not is_unfinished(path, other)
    with load(path).run.locked():  # simulates another process that trains the run
        assert not is_unfinished(path, recipe)
    again = seqloom("quickstart", *words)
    assert again.code == 0 and f"Resuming {path}" in again.out and "3. The test split" in again.out
    assert [path.name for path in Path("runs").iterdir()] == ["quickstart-en-fr"]


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Send Ctrl-C to this process after the evaluation of a step."""
    from seqloom.training import Training

    events = Training.events

    def interrupted(self: Training, stop: Any = None) -> Iterator[Any]:
        for event in events(self, stop):
            yield event
            if isinstance(event, Evaluated) and event.step == step:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Training, "events", interrupted)


def results(output: str) -> str:
    return output.partition("3. The test split")[2].partition("4. Attention")[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.hiden=3"], "did you mean model.hidden?"),
        (["lm-char-lstm"], "key.path=value"),
        (["--target", "xx"], "CLDR has no language 'xx'"),
        (["--target", "en-US"], "different languages"),
        (["--out", "there"], "there exists"),
        (["--resume", "there", "--target", "hu"], "leave out --out, --source and --target"),
        (["--out", "."], "--out must be the name of a new directory"),
    ],
)
def test_invalid_arguments_are_rejected_before_any_work(
    seqloom: Any, workdir: Path, words: list[str], message: str
) -> None:
    (workdir / "there").mkdir()
    seqloom("quickstart", *words).fails_with(2, message)
    assert [path.name for path in workdir.iterdir()] == ["there"]
