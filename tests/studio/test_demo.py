"""The demo's models: trained once, whole or not there, used again; and every recipe of the list is a real one."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import seqloom
from seqloom.core.errors import ResourceError, UsageError
from seqloom.recipes import read_recipe
from seqloom.studio import demo
from seqloom.studio.demo import ASIDE, MODELS, Demo, make
from seqloom.studio.views import VIEWS

QUICK = Demo("words", "vectors", "word2vec-pydocs", ("train.epochs=1", "model.vector_size=8"))
OTHER = Demo("tags", "a tagger that counts", "hmm-tag-people", ("data.train=300",))


def test_the_demo_brings_every_view_alive() -> None:
    found = {name for model in MODELS for name, view in VIEWS.items() if view.suits(vars_of(model))}
    assert found == set(VIEWS) - {"runs"}
    assert len({model.name for model in MODELS}) == len(MODELS)


def vars_of(model: Demo) -> dict[str, object]:
    """Its whole recipe, which must be one that can be trained."""
    from seqloom.config import to_mapping

    _, recipe = read_recipe(model.recipe, model.overrides)
    found: dict[str, object] = to_mapping(recipe)
    return found


@pytest.mark.slow
def test_models_are_trained_once_and_used_again(tmp_path: Path) -> None:
    """What a demo that was killed left behind is no model: it is cleared away."""
    folder, said = tmp_path / "demo", list[str]()
    half = folder / ASIDE / "words"
    half.mkdir(parents=True)
    (half / "recipe.yaml").write_text("task: nothing")
    assert make(folder, said.append, [QUICK, OTHER]) == folder
    ready = [line.split()[1] for line in said if "is ready" in line]
    assert sorted(ready) == ["tags", "words"]
    assert seqloom.load(folder / "words").run.recipe["model"]["width"] == 8
    assert not (folder / ASIDE).exists()
    written = (folder / "words" / "recipe.yaml").stat().st_mtime_ns
    again: list[str] = []
    make(folder, again.append, [QUICK, OTHER])
    assert again == []
    assert (folder / "words" / "recipe.yaml").stat().st_mtime_ns == written


@pytest.mark.slow
def test_the_whole_demo(tmp_path: Path) -> None:
    folder = make(tmp_path / "demo", print)
    for model in MODELS:
        assert seqloom.load(folder / model.name).model is not None
    (line,) = seqloom.load(folder / "translate-gru").translate(["Sunday, November 15, 2026"])
    assert line.text == "dimanche 15 novembre 2026"


@pytest.mark.parametrize("how", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_ending_it_ends_the_trainings_and_leaves_whole_models_only(tmp_path: Path, how: signal.Signals) -> None:
    program = (
        "from pathlib import Path\nfrom seqloom.studio.demo import Demo, make\n"
        f"make(Path({str(tmp_path)!r}), lambda line: print(line, flush=True), "
        "[Demo('lm', 'long', 'lm-char-lstm', ('train.epochs=500',))])"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as making:
        try:
            assert making.stdout is not None
            assert b"Training" in making.stdout.readline()
            log = tmp_path / ASIDE / "lm.log"
            waited = time.monotonic() + 60
            while time.monotonic() < waited and not (log.is_file() and log.stat().st_size):
                time.sleep(0.1)
            making.send_signal(how)
            assert making.wait(30) != 0
        finally:
            making.kill()
    assert not (tmp_path / "lm").exists()
    assert not (tmp_path / ASIDE).exists()  # it is cleared away after the trainings have ended


def test_two_do_not_make_one_demo(tmp_path: Path) -> None:
    with demo._alone(tmp_path), pytest.raises(UsageError, match="being made already"):
        make(tmp_path, print, [QUICK])


def test_a_model_that_cannot_be_trained_says_why(tmp_path: Path) -> None:
    wrong = Demo("wrong", "nothing", "no-such-recipe")
    with pytest.raises(ResourceError, match=r"wrong could not be trained: .*no-such-recipe"):
        make(tmp_path, lambda line: None, [wrong])
    with pytest.raises(UsageError, match="is a file"):
        (tmp_path / "file").write_text("")
        make(tmp_path / "file", print, [QUICK])
