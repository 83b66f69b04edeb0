"""Experiment trackers: TensorBoard, MLflow and Weights & Biases. Each tracker receives the events of a training run.

If TensorBoard is installed, its files are written into every run. The other trackers are selected by name. The run
stores their names and identifiers in trackers.json, so that a resumed run continues the same curves. By default,
nothing is sent over the network: MLflow writes the database mlflow.db to the parent folder of the run, and Weights &
Biases writes files to wandb/ in the same folder. Environment variables of MLflow and Weights & Biases can select a
server.
"""

import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from seqloom.core import Json
from seqloom.core.errors import CheckpointError, ResourceError, UsageError
from seqloom.core.files import create_file, disk_errors, make_directory, parse_json, to_json, write_atomic
from seqloom.core.words import did_you_mean, format_value
from seqloom.runs.layout import TRACKERS_FILE, is_missing, read_run_file
from seqloom.runs.run import Run
from seqloom.train.events import Evaluated, Event, Finished, Progress, Stopped

PROJECT = "seqloom"  # default name of the experiment or project
MAX_PARAMS = 100  # maximum parameters in a request to MLflow
MAX_PARAM_LENGTH = 500  # maximum characters of a value that all versions of MLflow accept
LOG = logging.getLogger(__name__)


class Tracker(Protocol):
    """A consumer of training events."""

    identifier: str  # identifier of the run in this tracker

    def add(self, event: Event) -> None: ...

    def close(self) -> None: ...


def scalars(event: Event) -> dict[str, float]:
    """Return the numbers of an event by their names in a tracker: train/loss, dev/accuracy, best/accuracy."""
    match event:
        case Progress():
            values = {f"train/{name}": value for name, value in event.values.items()}
            return {**values, "train/tokens_per_second": event.tokens_per_second}
        case Evaluated():
            return {f"{event.split}/{name}": value for name, value in event.metrics.items()}
        case Finished():
            return {f"best/{name}": value for name, value in event.best.items()}
    return {}


# --- TensorBoard ------------------------------------------------------------------------------------------------------


class EventWriter:
    """A writer of TensorBoard event files with the curves of a training run.

    With `purge_step`, TensorBoard hides this step and later steps of earlier files. `SummaryWriter` of torch opens its
    file by name at each flush in a thread: it follows links, and fails if the folder is removed. This writer creates
    one file with an unpredictable name and keeps it open.
    """

    def __init__(self, folder: Path, purge_step: int | None = None):
        """Create the file. Raise ImportError if TensorBoard is not installed."""
        from tensorboard.compat.proto.event_pb2 import Event as EventRecord
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._record: Any = EventRecord
        self._summary: Any = Summary
        make_directory(folder)
        # Files are read in the order of their names
        self.path = folder / f"events.out.tfevents.{time.time():.6f}.{secrets.token_hex(8)}"
        with disk_errors(self.path):
            self._file = create_file(self.path)
        self._records: Any = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        if purge_step is not None:
            self._write(step=purge_step, session_log=SessionLog(status=SessionLog.START))
        self.flush()

    def add(self, event: Event) -> None:
        """Write the numbers of an event."""
        for tag, value in scalars(event).items():
            self._write(
                step=event.step, summary=self._summary(value=[self._summary.Value(tag=tag, simple_value=value)])
            )
        self.flush()

    def flush(self) -> None:
        with disk_errors(self.path):
            self._file.flush()

    def close(self) -> None:
        with disk_errors(self.path):
            self._file.close()

    def _write(self, **content: object) -> None:
        with disk_errors(self.path):
            self._records.write(self._record(wall_time=time.time(), **content).SerializeToString())


# --- MLflow -----------------------------------------------------------------------------------------------------------


class MLflow:
    """A run of an MLflow experiment, with the recipe as parameters.

    MLFLOW_TRACKING_URI selects a server, and MLFLOW_EXPERIMENT_NAME an experiment other than `seqloom`.
    """

    def __init__(self, run: Run, identifier: str):
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # otherwise, MLflow reports the tables that it creates
        folder = run.path.absolute().parent
        self._metric: Any = Metric
        self._client: Any = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / 'mlflow.db'}")
        self._status = "FAILED"
        self._last_steps: dict[str, int] = {}
        try:
            self.identifier = str(self._client.get_run(identifier).info.run_id) if identifier else ""
        except MlflowException:  # the identifier belongs to another database
            self.identifier = ""
        if self.identifier:
            self._client.update_run(self.identifier, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        self.identifier = str(self._client.create_run(number, run_name=run.path.name).info.run_id)
        params = [Param(key, text[:MAX_PARAM_LENGTH]) for key, text in flatten(run.recipe)]
        for start in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(self.identifier, params=params[start : start + MAX_PARAMS])

    def add(self, event: Event) -> None:
        """Log the numbers of an event. Steps that a killed process has already logged are skipped."""
        now, metrics = int(time.time() * 1000), []
        for name, value in scalars(event).items():
            if name not in self._last_steps:
                history = self._client.get_metric_history(self.identifier, name)
                self._last_steps[name] = max((metric.step for metric in history), default=-1)
            if event.step > self._last_steps[name]:
                metrics.append(self._metric(name, value, now, event.step))
        if metrics:
            self._client.log_batch(self.identifier, metrics=metrics)
        if isinstance(event, Finished | Stopped):
            self._status = "FINISHED" if isinstance(event, Finished) else "KILLED"

    def close(self) -> None:
        """Set the status: finished, killed (stopped, but resumable) or failed."""
        self._client.set_terminated(self.identifier, self._status)


def flatten(section: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of a recipe with their values as text: ("train.lr", "0.002")."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else format_value(value, MAX_PARAM_LENGTH)


# --- Weights & Biases -------------------------------------------------------------------------------------------------


class WeightsAndBiases:
    """A run of Weights & Biases, with the recipe as config.

    The run is offline unless WANDB_MODE=online is set. WANDB_PROJECT selects a project other than `seqloom`.
    """

    def __init__(self, run: Run, identifier: str):
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self.identifier = identifier or secrets.token_hex(4)
        self._exit_code = 1
        self._run: Any = wandb.init(
            id=self.identifier,
            resume="allow",
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.path.name,
            dir=str(run.path.absolute().parent),
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=run.recipe,
            settings=wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True),
        )

    def add(self, event: Event) -> None:
        """Log the numbers of an event."""
        if values := scalars(event):
            self._run.log(values, step=event.step)
        if isinstance(event, Finished | Stopped):
            self._exit_code = 0

    def close(self) -> None:
        self._run.finish(exit_code=self._exit_code)


# --- choice -----------------------------------------------------------------------------------------------------------

TRACKERS: dict[str, tuple[str, Callable[[Run, str], Tracker] | None]] = {  # title and class by module name
    "tensorboard": ("TensorBoard", None),  # every run has TensorBoard files; see `seqloom.runs.record`
    "mlflow": ("MLflow", MLflow),
    "wandb": ("Weights & Biases", WeightsAndBiases),
}


def check_trackers(names: Sequence[str]) -> None:
    """Raise an error before any other work if a tracker is unknown or not installed."""
    for name in names:
        if name not in TRACKERS:
            raise UsageError(f"There is no tracker {name!r}: {did_you_mean(name, TRACKERS)}.")
        spec = find_spec(name)
        # The origin of a folder with this name is None, such as that of the files of wandb
        if spec is None or spec.origin is None:
            raise ResourceError(f"The tracker {name} needs {TRACKERS[name][0]}: pip install 'seqloom[{name}]'.")


@contextmanager
def open_trackers(run: Run, names: Sequence[str]) -> Iterator[Callable[[Event], None]]:
    """Yield a function that sends events to the trackers of the run and to the named trackers.

    If a tracker cannot be opened, an error is raised. If a tracker fails later, it is closed with a warning, and
    training continues.
    """
    stored = read_identifiers(run)
    check_trackers([*stored, *names])
    trackers: dict[str, Tracker] = {}
    for name in dict.fromkeys([*stored, *names]):
        title, make = TRACKERS[name]
        if make is None:
            continue
        try:
            trackers[name] = make(run, stored.get(name, ""))
        except Exception as error:
            raise ResourceError(
                f"{title} cannot be used: {first_line(error)}. Train without --track {name}."
            ) from error
    if identifiers := {name: tracker.identifier for name, tracker in trackers.items()}:
        write_atomic(run.path / TRACKERS_FILE, to_json(identifiers))

    def attempt(name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            trackers.pop(name, None)
            LOG.warning("warning: %s failed, so training continues without it: %s", name, first_line(error))

    def send(event: Event) -> None:
        for name, tracker in list(trackers.items()):
            attempt(name, partial(tracker.add, event))

    try:
        yield send
    finally:
        for name, tracker in list(trackers.items()):
            attempt(name, tracker.close)


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def read_identifiers(run: Run) -> dict[str, str]:
    """Return the identifiers of a run by the names of its trackers."""
    if is_missing(run.path / TRACKERS_FILE):
        return {}
    try:
        identifiers = dict(parse_json(read_run_file(run.path, TRACKERS_FILE)))
        if all(name in TRACKERS and re.fullmatch(r"\w{1,64}", text) for name, text in identifiers.items()):
            return identifiers
    except (ValueError, TypeError):
        pass
    raise CheckpointError(f"{run.path / TRACKERS_FILE} is damaged. Remove it, so that the trackers start a new run.")
