"""Demo models: they have valid recipes, are trained once, and are either complete or absent."""

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
from seqloom.studio.demo import MODELS, STAGING, Demo, train_demo
from seqloom.studio.views import VIEWS

QUICK = Demo("words", "vectors", "word2vec-pydocs", ("train.epochs=1", "model.vector_size=8"))
OTHER = Demo("tags", "a tagger that counts", "hmm-tag-people", ("data.train=300",))


def test_demo_has_a_model_for_every_view() -> None:
    views = {name for model in MODELS for name, view in VIEWS.items() if view.suits(recipe_of(model))}
    assert views == set(VIEWS) - {"runs"}
    assert len({model.name for model in MODELS}) == len(MODELS)


def recipe_of(model: Demo) -> dict[str, object]:
    """Return the validated recipe of a demo model."""
    from seqloom.config import to_mapping

    _, recipe = read_recipe(model.recipe, model.overrides)
    mapping: dict[str, object] = to_mapping(recipe)
    return mapping


@pytest.mark.slow
def test_demo_models_are_reused(tmp_path: Path) -> None:
    """Unfinished models of a killed demo are deleted."""
    folder, messages = tmp_path / "demo", list[str]()
    half = folder / STAGING / "words"
    half.mkdir(parents=True)
    (half / "recipe.yaml").write_text("task: nothing")
    assert train_demo(folder, messages.append, [QUICK, OTHER]) == folder
    ready = [line.split()[1] for line in messages if "is ready" in line]
    assert sorted(ready) == ["tags", "words"]
    assert seqloom.load(folder / "words").run.recipe["model"]["vector_size"] == 8
    assert not (folder / STAGING).exists()
    written = (folder / "words" / "recipe.yaml").stat().st_mtime_ns
    again: list[str] = []
    train_demo(folder, again.append, [QUICK, OTHER])
    assert again == []
    assert (folder / "words" / "recipe.yaml").stat().st_mtime_ns == written


@pytest.mark.slow
def test_full_demo_trains_models_that_load_and_translate(tmp_path: Path) -> None:
    folder = train_demo(tmp_path / "demo", print)
    for model in MODELS:
        assert seqloom.load(folder / model.name).model is not None
    (line,) = seqloom.load(folder / "translate-gru").translate(["Sunday, November 15, 2026"])
    assert line.text == "dimanche 15 novembre 2026"


@pytest.mark.parametrize("how", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_signal_stops_training_and_removes_unfinished_models(tmp_path: Path, how: signal.Signals) -> None:
    program = (
        "from pathlib import Path\nfrom seqloom.studio.demo import Demo, train_demo\n"
        f"train_demo(Path({str(tmp_path)!r}), lambda line: print(line, flush=True), "
        "[Demo('lm', 'long', 'lm-char-lstm', ('train.epochs=500',))])"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as making:
        try:
            assert making.stdout is not None
            assert b"Training" in making.stdout.readline()
            log = tmp_path / STAGING / "lm.log"
            waited = time.monotonic() + 60
            while time.monotonic() < waited and not (log.is_file() and log.stat().st_size):
                time.sleep(0.1)
            making.send_signal(how)
            assert making.wait(30) != 0
        finally:
            making.kill()
    assert not (tmp_path / "lm").exists()
    assert not (tmp_path / STAGING).exists()  # deleted after training has finished


def test_demo_folder_is_locked(tmp_path: Path) -> None:
    with demo._lock(tmp_path), pytest.raises(UsageError, match="Another process is training the demo"):
        train_demo(tmp_path, print, [QUICK])


def test_failed_training_is_reported(tmp_path: Path) -> None:
    wrong = Demo("wrong", "nothing", "no-such-recipe")
    with pytest.raises(ResourceError, match=r"Training the demo model wrong failed: .*no-such-recipe"):
        train_demo(tmp_path, lambda line: None, [wrong])
    with pytest.raises(UsageError, match="is a file"):
        (tmp_path / "file").write_text("")
        train_demo(tmp_path / "file", print, [QUICK])
