"""The demo's models: trained once, whole or not there, used again; and every recipe of the list is a real one."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import seqloom
from seqloom.api import read_recipe
from seqloom.core.errors import ResourceError, UsageError
from seqloom.studio import demo
from seqloom.studio.demo import ASIDE, MODELS, Demo, make
from seqloom.studio.views import VIEWS, suiting

QUICK = Demo("words", "vectors", "word2vec-pydocs", ("train.epochs=1", "model.width=8"))
OTHER = Demo("tags", "a tagger that counts", "hmm-tag-people", ("data.train=300",))


def test_the_demo_brings_every_view_alive() -> None:
    found = {view for model in MODELS for view in suiting(vars_of(model))}
    assert found == set(VIEWS) - {"runs"}
    assert len({model.name for model in MODELS}) == len(MODELS)


def vars_of(model: Demo) -> dict[str, object]:
    """Its whole recipe, which must be one that can be trained."""
    from seqloom.core.config import to_mapping

    _, recipe = read_recipe(model.recipe, model.overrides)
    found: dict[str, object] = to_mapping(recipe)
    return found


def test_models_are_trained_once_and_used_again(tmp_path: Path) -> None:
    said: list[str] = []
    folder = make(tmp_path / "demo", said.append, [QUICK, OTHER])
    assert [line.split(":")[0].split()[-1] for line in said[1:]] in (["words", "tags"], ["tags", "words"])
    assert seqloom.load(folder / "words").run.recipe["model"]["width"] == 8
    assert not (folder / ASIDE).exists()
    written = (folder / "words" / "recipe.yaml").stat().st_mtime_ns
    again: list[str] = []
    assert make(folder, again.append, [QUICK, OTHER]) == folder
    assert again == []
    assert (folder / "words" / "recipe.yaml").stat().st_mtime_ns == written


def test_what_was_broken_off_is_begun_again(tmp_path: Path) -> None:
    """A demo that was killed leaves nothing that looks like a model; the next one clears it away and goes on."""
    half = tmp_path / ASIDE / "words"
    half.mkdir(parents=True)
    (half / "recipe.yaml").write_text("task: nothing")
    make(tmp_path, lambda line: None, [QUICK])
    assert seqloom.load(tmp_path / "words").run.recipe["task"] == "word-vectors"
    assert not (tmp_path / ASIDE).exists()


def test_ctrl_c_ends_the_trainings_and_leaves_whole_models_only(tmp_path: Path) -> None:
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
            making.send_signal(signal.SIGINT)
            assert making.wait(30) != 0
        finally:
            making.kill()
    assert not (tmp_path / "lm").exists()
    assert not (tmp_path / ASIDE).exists()


def test_two_do_not_make_one_demo(tmp_path: Path) -> None:
    with demo._alone(tmp_path), pytest.raises(UsageError, match="being made already"):
        make(tmp_path, print, [QUICK])


def test_a_model_that_cannot_be_trained_says_why(tmp_path: Path) -> None:
    wrong = Demo("wrong", "nothing", "word2vec-pydocs", ("train.epochs=-1",))
    with pytest.raises(ResourceError, match=r"wrong could not be trained: .*epochs"):
        make(tmp_path, lambda line: None, [wrong])
    with pytest.raises(UsageError, match="is a file"):
        (tmp_path / "file").write_text("")
        make(tmp_path / "file", print, [QUICK])
