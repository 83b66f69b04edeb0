"""A few real steps of a training in a process of its own: how long they take and how much memory they need.

Nothing is modelled: the rehearsal reads the same data, makes the same updates, evaluates and saves as the training
will, so its peak is the training's peak. The process is fresh, so that what this one holds is not counted.
"""

import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from seqloom import accel
from seqloom.config import build, to_mapping
from seqloom.core.errors import Interrupted, SeqloomError
from seqloom.data.files import data_folder, use_data_folder
from seqloom.runs.record import record
from seqloom.runs.run import Run
from seqloom.tasks import task_info
from seqloom.train.checkpoints import CheckpointStore
from seqloom.train.config import FitConfig
from seqloom.train.estimate import estimate
from seqloom.train.events import BatchSplit, Event, Finished, Progress, Saved, Started
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState, device_for
from seqloom.train.stop import Stop
from seqloom.train.wrappers import wrap

UPDATES = 12  # at most …
FEWEST = 3  # … and at least, the first of which only warms up
SECONDS = 6.0  # no new update is begun after so many seconds of updates
NO_ROOM = "can't allocate memory: "  # how torch says so on a CPU
PATIENCE = 20.0  # an evaluation, or a counting, is broken off after so many seconds


@dataclass
class Rehearsal:
    """What was measured. Sizes are in bytes."""

    updates: int = 0
    seconds_per_update: float | None = None
    evaluation_seconds: float | None = None
    complete: bool = True  # False: the evaluation, or the counting, was broken off and takes longer than it says
    memory: int | None = None  # peak of the process: code, data, and on a CPU everything else
    gpu_allocated: int | None = None  # peak of the tensors on a CUDA device …
    gpu_reserved: int | None = None  # … and of what PyTorch took from the device to hold them
    skipped: int = 0  # updates that were not finite
    parts: int = 1  # that a batch had to be taken in, for want of memory
    sizes: dict[str, int] = field(default_factory=dict)  # what a counting counted, by name
    failure: str | None = None  # why there is nothing more to say

    @property
    def peak(self) -> int | None:
        """What must fit into the memory of the device."""
        return self.memory if self.gpu_reserved is None else self.gpu_reserved


def rehearse(recipe: Any) -> Rehearsal:
    """Rehearse a recipe in a fresh process. Whatever goes wrong there is reported, not raised."""
    folder = data_folder()
    order = json.dumps({"recipe": to_mapping(recipe), "data_dir": str(folder) if folder else None})
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-P", "-m", __name__],
        input=order,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    if done.returncode == 0:
        return Rehearsal(**json.loads(done.stdout.splitlines()[-1]))
    if done.returncode == -signal.SIGKILL:
        return Rehearsal(failure="out of memory: the system ended the rehearsal")
    lines = done.stderr.strip().splitlines() or ["no message"]
    return Rehearsal(failure=lines[-1])


# --- in the other process -------------------------------------------------------------------------------------------


def perform(recipe: Any, folder: Path) -> Rehearsal:
    """Train a little, into `folder`."""
    found = Rehearsal()
    task = task_info(recipe.task).task.prepare(recipe)
    run = Run.create(folder / "rehearsal", to_mapping(recipe), task.documents())
    accel.install()
    gradient = isinstance(recipe.train, FitConfig)
    method = _fit if gradient else _estimate
    for _ in record(method(task, recipe, run.store(recipe.train.keep), found), run):
        pass
    found.memory = peak_memory()
    device = device_for(recipe.train) if gradient else torch.device("cpu")
    if device.type == "cuda":
        found.gpu_allocated = torch.cuda.max_memory_allocated(device)
        found.gpu_reserved = torch.cuda.max_memory_reserved(device)
    return found


def _fit(task: Any, recipe: Any, store: CheckpointStore, found: Rehearsal) -> Iterator[Event]:
    """A few updates, an evaluation, a checkpoint: everything a training holds in memory, as long as it holds it."""
    state = TrainState(task, recipe.train, recipe.seed)
    if state.layer_groups is not None:  # if layers are unfrozen, the peak is that of the last updates
        state.layer_groups = replace(state.layer_groups, every=None)
    step = wrap(state)
    yield Started(0, state.total, 0, str(state.device), False)
    seconds: list[float] = []
    most = min(UPDATES, max(FEWEST, state.total))
    while len(seconds) < most and (len(seconds) < FEWEST or sum(seconds) < SECONDS):
        began = time.perf_counter()
        result = make_step(state, step)
        state.settle()
        seconds.append(time.perf_counter() - began)
        found.skipped += result.cause is not None
        found.updates += 1
    found.seconds_per_update = statistics.median(seconds[1:])
    if (largest := task.largest_step(recipe.seed)) is not None:  # the peak is that of the largest batch
        state.tally.step = largest // recipe.train.accumulate
        make_step(state, step)
        state.tally.step = found.updates
    found.parts = max([1, *(event.microbatches for event in state.events if isinstance(event, BatchSplit))])
    yield Progress(found.updates, state.total, state.report(result))
    began = time.perf_counter()
    with _broken_off() as stop:
        try:
            with stop.interruptible():
                state.evaluate()
        except Interrupted:
            found.complete = False
    found.evaluation_seconds = time.perf_counter() - began
    store.save_best(state.model.state_dict())
    yield Saved(found.updates, store.save(found.updates, state.state_dict()))


def _estimate(task: Any, recipe: Any, store: CheckpointStore, found: Rehearsal) -> Iterator[Event]:
    """A counting is over so soon that the rehearsal is the thing itself."""
    began = time.perf_counter()
    found.complete = False
    with _broken_off() as stop:
        for event in estimate(task, recipe.train, store, seed=recipe.seed, stop=stop):
            if isinstance(event, Progress) and "ngrams" in event.values:
                found.sizes[f"{event.values['order']:.0f}-grams"] = int(event.values["ngrams"])
            found.complete = isinstance(event, Finished)
            if isinstance(event, Finished) and not found.sizes:
                found.sizes["numbers"] = event.parameters
            yield event
    found.seconds_per_update = time.perf_counter() - began


@contextmanager
def _broken_off() -> Iterator[Stop]:
    """A request to stop comes after `PATIENCE` seconds."""
    stop = Stop()
    previous = signal.signal(signal.SIGALRM, lambda number, frame: stop.request())
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield stop
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def peak_memory() -> int:
    """The most memory this process ever held, in bytes."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else []:
        if line.startswith("VmHWM:"):  # unlike ru_maxrss, this forgets the process that started this one
            return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _volunteer() -> None:
    """Where memory runs out, this process is the one to go, and not the user's others."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def main() -> int:
    _volunteer()
    order = json.load(sys.stdin)
    recipe = build(task_info(order["recipe"]["task"]).recipe, order["recipe"])
    with use_data_folder(order["data_dir"]), tempfile.TemporaryDirectory() as folder:
        try:
            found = perform(recipe, Path(folder))
        except SeqloomError as error:
            found = Rehearsal(failure=str(error))
        except (MemoryError, RuntimeError) as error:
            first = (str(error) or "no message").splitlines()[0]
            if not (isinstance(error, MemoryError | torch.OutOfMemoryError) or NO_ROOM in first):
                raise
            found = Rehearsal(failure=f"out of memory: {first.split(NO_ROOM)[-1]}")
    print(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
