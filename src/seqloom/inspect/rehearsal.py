"""What a training takes: parameters, updates, and the time and memory of a few real steps in a process of its own.

Nothing is modelled: a rehearsal reads the same data, makes the same updates, evaluates and saves as
the training will, so its peak is the training's peak. The process is fresh, so that what this one
holds is not counted.
"""

import json
import math
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from seqloom import accel
from seqloom.config import build, to_mapping
from seqloom.core.errors import Interrupted, SeqloomError
from seqloom.core.limits import available_memory
from seqloom.data.files import data_folder, use_data_folder
from seqloom.nn.cells import CELLS
from seqloom.nn.recurrent import Recurrent, run_cell
from seqloom.runs.record import record
from seqloom.runs.run import Run
from seqloom.tasks import task_info
from seqloom.tasks.base import Task
from seqloom.train.checkpoints import CheckpointStore
from seqloom.train.config import FitConfig
from seqloom.train.estimate import estimate
from seqloom.train.events import BatchSplit, Event, Finished, Progress, Saved, Started
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState, WithNotes, device_for
from seqloom.train.stop import Stop
from seqloom.train.wrappers import wrap

UPDATES = 12  # at most …
FEWEST = 3  # … and at least, the first of which only warms up
SECONDS = 6.0  # no new update is begun after so many seconds of updates
NO_ROOM = "can't allocate memory: "  # how torch says so on a CPU
PATIENCE = 20.0  # an evaluation, or a counting, is broken off after so many seconds

PARTS = {
    "embed": "embedding",
    "source_embed": "source embedding",
    "target_embed": "target embedding",
    "stack": "layers",
    "attend": "attention",
    "lexicon": "embedding",
    "chain": "CRF",
}
LARGEST_SIZE = 1 << 20  # no size is looked for beyond this
STEPS = 64  # of a sequence that layers are asked about


@dataclass(frozen=True)
class ModelFacts:
    """The model as it would be built."""

    kind: str
    parts: dict[str, int]  # parameters by part; what is tied is counted once
    parameters: int
    notes: list[str]  # what the kernels cover, what the parts do beyond their equations


@dataclass(frozen=True)
class Budget:
    """How long training would go on."""

    steps_per_epoch: int
    steps: int
    epochs: float
    tokens_per_step: int | None  # predictions an update is made from; None where a batch does not say
    evaluations: int


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
    microbatches: int = 1  # that a batch had to be taken in, for want of memory
    sizes: dict[str, int] = field(default_factory=dict)  # what a counting counted, by name
    failure: str | None = None  # why there is nothing more to say
    out_of_memory_for: Literal["model", "batch"] | None = None  # where memory was the reason

    @property
    def peak(self) -> int | None:
        """What must fit into the memory of the device."""
        return self.memory if self.gpu_reserved is None else self.gpu_reserved


# --- what is known without training -----------------------------------------------------------------------------------


def empty_model(task: Task) -> nn.Module:
    """The model as it would be built, without memory for its weights where it can be built so."""
    try:
        with torch.device("meta"):
            return task.model()
    except (NotImplementedError, RuntimeError):  # something looks at its own weights while it is built
        return task.model()


def parameters_of(task: Task) -> int:
    return sum(parameter.numel() for parameter in empty_model(task).parameters())


def nearest_size(count: Callable[[int], int], target: int) -> tuple[int, int]:
    """The whole number n ≥ 1 whose count(n), which grows with n, is nearest to the target; and that count."""
    above = 1
    while count(above) < target and above < LARGEST_SIZE:
        above *= 2
    below = max(1, above // 2)
    while above - below > 1:
        middle = (above + below) // 2
        below, above = (middle, above) if count(middle) < target else (below, middle)
    return min(((n, count(n)) for n in (below, above)), key=lambda found: abs(found[1] - target))


def model_facts(task: Task, device: torch.device) -> ModelFacts:
    model = empty_model(task)
    parts: dict[str, int] = {}
    for name, parameter in model.named_parameters():  # what is tied comes once
        part = PARTS.get(name.partition(".")[0], name.partition(".")[0])
        parts[part] = parts.get(part, 0) + parameter.numel()
    notes = model.notes() if isinstance(model, WithNotes) else ()  # as training shows them
    all_notes = [*kernel_notes(model, device), *dict.fromkeys(notes)]
    return ModelFacts(task.recipe.model.kind, parts, sum(parts.values()), all_notes)


def kernel_notes(model: nn.Module, device: torch.device) -> list[str]:
    """Whether recurrent layers read whole sequences at once, or which of them must be looped over step by step."""
    layers = [module for module in model.modules() if isinstance(module, Recurrent)]
    if not layers:
        return []
    accel.install()
    names, looped = {cell: name for name, cell in CELLS.items()}, set()
    for layer in layers:
        x = torch.empty(1, STEPS, layer.cell.inputs, device=device)
        if run_cell.select(layer.cell, x, layer.cell.initial_state(1)) is run_cell.definition:
            looped.add(names.get(type(layer.cell), type(layer.cell).__name__))
    if not looped:
        return ["every layer reads whole sequences at once"]
    slower = "2×" if device.type == "cpu" else "10×"
    return [f"{', '.join(sorted(looped))} is looped over step by step here: about {slower} slower"]


def budget_of(task: Task) -> Budget:
    recipe, per_epoch = task.recipe, task.steps_per_epoch()
    train, tokens = recipe.train, task.tokens_per_step()
    steps = train.total_steps(per_epoch)
    updates = max(1, per_epoch // train.accumulate_steps)
    if tokens is None:
        batch = task.batch(recipe.seed, 0)
        targets = batch.get("targets") if isinstance(batch, dict) else None
        tokens = None if targets is None else targets.numel()
    return Budget(
        steps_per_epoch=updates,
        steps=steps,
        epochs=steps * train.accumulate_steps / per_epoch,
        tokens_per_step=None if tokens is None else round(tokens * train.accumulate_steps),
        evaluations=math.ceil(steps / (train.evaluate_every or updates)),
    )


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free on the device, or on the machine; None where there is no telling."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()


# --- a rehearsal ------------------------------------------------------------------------------------------------------


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
        return Rehearsal(failure="out of memory: the system ended the rehearsal", out_of_memory_for="batch")
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
    for _ in record(method(task, run.store(recipe.train.keep_checkpoints), found), run):
        pass
    found.memory = peak_memory()
    device = device_for(recipe.train) if gradient else torch.device("cpu")
    if device.type == "cuda":
        found.gpu_allocated = torch.cuda.max_memory_allocated(device)
        found.gpu_reserved = torch.cuda.max_memory_reserved(device)
    return found


def _fit(task: Task, store: CheckpointStore, found: Rehearsal) -> Iterator[Event]:
    """A few updates, an evaluation, a checkpoint: everything a training holds in memory, as long as it holds it."""
    recipe = task.recipe
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
        state.tally.step = largest // recipe.train.accumulate_steps
        make_step(state, step)
        state.tally.step = found.updates
    found.microbatches = max([1, *(event.microbatches for event in state.events if isinstance(event, BatchSplit))])
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


def _estimate(task: Task, store: CheckpointStore, found: Rehearsal) -> Iterator[Event]:
    """A counting is over so soon that the rehearsal is the thing itself."""
    began = time.perf_counter()
    found.complete = False
    with _broken_off() as stop:
        for event in estimate(task, task.recipe.train, store, seed=task.recipe.seed, stop=stop):
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
            found = Rehearsal(failure=f"out of memory: {first.split(NO_ROOM)[-1]}", out_of_memory_for="batch")
    print(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
