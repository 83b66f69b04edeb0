"""Small models for every view of the studio, trained from the shipped recipes in one or two minutes.

    train_demo(Path("runs/studio-demo"), print)

Each model is trained in `.unfinished` and is moved to the demo folder when it is complete. Finished models are reused,
and an interrupted demo continues with the missing models.
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
STAGING = ".unfinished"
MAX_PROCESSES = 2  # maximum number of parallel training processes, which use one core each
POLL_SECONDS = 0.1
STOP_SECONDS = 10.0  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True)
class Demo:
    """A demo model: a shipped recipe with overrides that make it small."""

    name: str
    description: str
    recipe: str
    overrides: tuple[str, ...] = ()


CHARACTER_LM = ("model.hidden=128", "model.embedding=32", "model.dropout=0", "train.epochs=3")
CLDR_PHRASES = ("data.kinds=[full date, countries]", "data.train=4000", "tokenizer.size=800", "batch.dev_pairs=100")
SHORT_CONTEXT = ("batch.length=64", "model.positions.max_length=64")
DRAW_DIGITS = (
    "data={corpus: glyph-digits, side: 16, height: 0.75}",
    *("model.steps=6", "model.hidden=96", "model.attention.read=5", "batch.size=32"),
    *("train.epochs=null", "train.steps=1500", "train.warmup=20", "train.lr=2e-3"),
)
# The longest runs come first, so that both processes are busy until the end.
MODELS = (
    Demo(
        "translate-transformer",
        "a Transformer that translates dates and lists of countries",
        "translate-cldr-transformer",
        (*CLDR_PHRASES, "model.d_model=64", "model.d_ff=128", "train.epochs=8"),
    ),
    Demo(
        "translate-gru",
        "a GRU encoder–decoder with attention for the same task",
        "translate-cldr",
        (*CLDR_PHRASES, "model.hidden=128", "train.epochs=4", "train.evaluate_every=100"),
    ),
    Demo(
        "gpt",
        "a GPT language model over subwords",
        "gpt-pydocs",
        (*SHORT_CONTEXT, "tokenizer.size=800", "model.d_model=64", "model.layers=2", "train.epochs=5"),
    ),
    Demo(
        "bert",
        "a BERT masked language model",
        "bert-pydocs",
        ("tokenizer.size=600", "model.d_model=64", "train.epochs=5"),
    ),
    Demo(
        "tagger",
        "a BiLSTM-CRF that tags persons and locations",
        "tag-people",
        ("data.train=12000", "model.embedding=32", "model.encoder.hidden=48", "model.characters.filters=24"),
    ),
    Demo("lm-lstm", "an LSTM character language model", "lm-char-lstm", CHARACTER_LM),
    Demo(
        "lm-elman",
        "an Elman network for the same task",
        "lm-char-lstm",
        (*CHARACTER_LM, "model.cell=elman", "train.lr=3e-3"),  # the higher learning rate saturates the tanh units
    ),
    Demo(
        "classifier",
        "a classifier for 34 languages",
        "languages",
        ("data.train=6000", "model.encoder.filters=48", "train.epochs=6"),
    ),
    Demo("words", "word2vec word vectors", "word2vec-pydocs", ("train.epochs=20",)),
    Demo("hmm-tagger", "a hidden Markov model tagger", "hmm-tag-people", ("data.train=6000",)),
    Demo("draw", "DRAW, which draws digits step by step", "draw-mnist", DRAW_DIGITS),
)


def train_demo(folder: Path = FOLDER, report: Report = print, models: Sequence[Demo] = MODELS) -> Path:
    """Train the missing models, report progress, and return the folder."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file. Name a directory for the demo models.")
    with _lock(folder):
        missing = [model for model in models if not is_trained(folder, model)]
        if missing:
            with _sigterm_as_interrupt():
                _train(folder, missing, report, len(models))
    return folder


def is_trained(folder: Path, model: Demo) -> bool:
    """Whether the folder contains this model. Only complete models are moved to the folder."""
    return (folder / model.name / "recipe.yaml").is_file()


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the lock of the demo folder, and delete unfinished models before and after."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        make_directory(folder / STAGING)
    except OSError as error:
        raise ResourceError(f"The demo cannot be written to {folder}: {error.strerror}.") from error
    busy = f"Another process is training the demo in {folder}. Wait for it, or name another folder."
    with hold_lock(folder / ".lock", busy):
        shutil.rmtree(folder / STAGING)
        (folder / STAGING).mkdir()
        try:
            yield
        finally:
            shutil.rmtree(folder / STAGING, ignore_errors=True)


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Convert SIGTERM to KeyboardInterrupt. This exception also stops the training processes."""

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
    """The training process of one model.

    The process has its own session, so that only the parent process receives Ctrl-C.
    """

    def __init__(self, staging: Path, model: Demo) -> None:
        self.model, self.run, self.started = model, staging / model.name, time.perf_counter()
        self.log = staging / f"{model.name}.log"
        command = [sys.executable, "-m", "seqloom", "train", model.recipe, *model.overrides]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--out", str(self.run), "--json"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def finish(self, folder: Path) -> None:
        """Move the trained run into the demo folder."""
        if self.process.returncode != 0:
            lines = self.log.read_text("utf-8", errors="replace").strip().splitlines()
            reason = lines[-1] if lines else "no reason given"
            raise ResourceError(f"Training the demo model {self.model.name} failed: {reason}")
        os.rename(self.run, folder / self.model.name)

    def stop(self) -> None:
        """Terminate the process. If the process does not exit in time, kill it."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _train(folder: Path, missing: Sequence[Demo], report: Report, total: int) -> None:
    processes = max(1, min(MAX_PROCESSES, os.cpu_count() or 1))
    models = "a small model" if len(missing) == 1 else f"{len(missing)} small models"
    report(f"Training {models} for the studio in {folder}. This takes a minute or two on two cores.")
    waiting, running, done = list(missing), list[_Training](), total - len(missing)
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                running.append(_Training(folder / STAGING, waiting.pop(0)))
                report(f"        {running[-1].model.name}: {running[-1].model.description} …")
            for training in [training for training in running if training.process.poll() is not None]:
                running.remove(training)
                training.finish(folder)
                done += 1
                seconds = time.perf_counter() - training.started
                report(f"{done:3}/{total}  {training.model.name} is ready ({seconds:.0f} s)")
            time.sleep(POLL_SECONDS)
    finally:
        for training in running:
            training.stop()
