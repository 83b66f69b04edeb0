"""Small models for every view of the studio, trained in a minute or two from the shipped recipes.

    make(Path("runs/studio-demo"), print)

Each is trained aside, in `.unfinished`, and moves to its place once it is done. So what stands in
the folder is whole, is used again, and a demo that was broken off goes on with the models that are
still missing.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from seqloom.core.errors import ResourceError, UsageError
from seqloom.core.files import hold_lock, make_directory

Report = Callable[[str], None]
FOLDER = Path("runs/studio-demo")
ASIDE = ".unfinished"
AT_ONCE = 2  # models; each takes one core
PATIENCE = 0.1  # seconds between two looks at those that learn
GRACE = 10.0  # seconds for one that is told to stop


@dataclass(frozen=True)
class Demo:
    """A model of the demo: a shipped recipe, made small."""

    name: str
    what: str  # in words
    recipe: str
    overrides: tuple[str, ...] = ()


LETTERS = ("model.hidden=128", "model.embedding=32", "model.dropout=0", "train.epochs=3")
PHRASES = ("data.kinds=[full date, countries]", "data.train=4000", "tokenizer.size=800", "batch.dev_pairs=100")
SHORT = ("batch.length=64", "model.positions.max_length=64")  # texts that are seen at once
# The longest first: the last to be done should not be one that has just begun.
MODELS = (
    Demo(
        "translate-transformer",
        "a Transformer that translates dates and lists of countries",
        "translate-cldr-transformer",
        (*PHRASES, "model.d_model=64", "model.d_ff=128", "train.epochs=8"),
    ),
    Demo(
        "translate-gru",
        "a GRU with attention for the same",
        "translate-cldr",
        (*PHRASES, "model.hidden=128", "train.epochs=4", "train.evaluate_every=100"),
    ),
    Demo(
        "gpt",
        "a GPT that writes in pieces of words",
        "gpt-pydocs",
        (*SHORT, "tokenizer.size=800", "model.d_model=64", "model.layers=2", "train.epochs=5"),
    ),
    Demo(
        "bert",
        "a BERT that fills gaps",
        "bert-pydocs",
        ("tokenizer.size=600", "model.d_model=64", "train.epochs=5"),
    ),
    Demo(
        "tagger",
        "a BiLSTM-CRF that finds persons and places",
        "tag-people",
        ("data.train=12000", "model.embedding=32", "model.encoder.hidden=48", "model.characters.filters=24"),
    ),
    Demo("lm-lstm", "an LSTM that writes letter by letter", "lm-char-lstm", LETTERS),
    Demo(
        "lm-elman",
        "a simple recurrent network that does the same",
        "lm-char-lstm",
        (*LETTERS, "model.cell=elman", "train.lr=3e-3"),  # more would drive its units to ±1
    ),
    Demo(
        "classifier",
        "a classifier that tells 34 languages apart",
        "languages",
        ("data.train=6000", "model.encoder.filters=48", "train.epochs=6"),
    ),
    Demo("words", "vectors of words", "word2vec-pydocs", ("train.epochs=20",)),
    Demo("hmm-tagger", "a hidden Markov model that tags", "hmm-tag-people", ("data.train=6000",)),
)


def make(folder: Path = FOLDER, report: Report = print, models: Sequence[Demo] = MODELS) -> Path:
    """Train what is missing of the models, and say which; the folder is then ready to be shown."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file. Name a folder for the models of the demo.")
    with _alone(folder):
        missing = [model for model in models if not is_there(folder, model)]
        if missing:
            with _ended_as_by_ctrl_c():
                _train(folder, missing, report, len(models))
    return folder


def is_there(folder: Path, model: Demo) -> bool:
    """Only what was trained to its end is ever moved there."""
    return (folder / model.name / "recipe.yaml").is_file()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else makes this demo meanwhile; what was left unfinished is cleared away before and after."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        make_directory(folder / ASIDE)
    except OSError as error:
        raise ResourceError(f"The demo cannot be written to {folder}: {error.strerror}.") from error
    busy = f"The demo in {folder} is being made already. Wait for it, or name another folder."
    with hold_lock(folder / ".lock", busy):
        shutil.rmtree(folder / ASIDE)
        (folder / ASIDE).mkdir()
        try:
            yield
        finally:
            shutil.rmtree(folder / ASIDE, ignore_errors=True)


@contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """SIGTERM, too, stops the trainings before it ends this program, or they would go on alone."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Training:
    """A model on its way, in a process and a session of its own: Ctrl-C is for us, who then tell it to stop."""

    def __init__(self, aside: Path, model: Demo) -> None:
        self.model, self.aside, self.began = model, aside / model.name, time.perf_counter()
        self.log = aside / f"{model.name}.log"
        command = [sys.executable, "-m", "seqloom", "train", model.recipe, *model.overrides]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--out", str(self.aside), "--json"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def finish(self, folder: Path) -> None:
        """Move what was trained to its place."""
        if self.process.returncode != 0:
            lines = self.log.read_text("utf-8", errors="replace").strip().splitlines()
            reason = lines[-1] if lines else "no reason given"
            raise ResourceError(f"The demo's {self.model.name} could not be trained: {reason}")
        os.rename(self.aside, folder / self.model.name)

    def stop(self) -> None:
        """It saves what it has, which is then thrown away."""
        self.process.terminate()
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _train(folder: Path, missing: Sequence[Demo], report: Report, total: int) -> None:
    at_once = max(1, min(AT_ONCE, os.cpu_count() or 1))
    models = "a small model" if len(missing) == 1 else f"{len(missing)} small models"
    report(f"Training {models} for the studio in {folder}; a minute or two on two cores.")
    waiting, running, done = list(missing), list[_Training](), total - len(missing)
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_Training(folder / ASIDE, waiting.pop(0)))
                report(f"        {running[-1].model.name}: {running[-1].model.what} …")
            for training in [one for one in running if one.process.poll() is not None]:
                running.remove(training)
                training.finish(folder)
                done += 1
                seconds = time.perf_counter() - training.began
                report(f"{done:3}/{total}  {training.model.name} is ready ({seconds:.0f} s)")
            time.sleep(PATIENCE)
    finally:
        for training in running:
            training.stop()
