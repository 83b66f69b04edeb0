"""The cost of training: parameters, updates, and the time and memory of a few real steps in a new process.

A rehearsal reads the same data, performs the same updates, and evaluates and saves the model in the same way as
training, so its peak memory equals that of training. A rehearsal runs in a new process, so that the memory of the
current process is not counted.
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
from typing import Literal

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
from seqloom.tasks.base import Task, TaskRecipe
from seqloom.train.checkpoints import CheckpointStore
from seqloom.train.config import FitConfig
from seqloom.train.estimate import estimate
from seqloom.train.events import BatchSplit, Event, Finished, Progress, Saved, Started
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState, WithNotes, device_for
from seqloom.train.stop import Stop
from seqloom.train.wrappers import wrap

MIN_UPDATES = 3  # the first update is a warm-up
MAX_UPDATES = {"cpu": 12, "cuda": 60}  # on a GPU, the first updates compile the step and capture CUDA graphs
MAX_UPDATE_SECONDS = {"cpu": 6.0, "cuda": 40.0}  # no further update is started after this time
CPU_OUT_OF_MEMORY = "can't allocate memory: "  # text in the out-of-memory message of PyTorch
MAX_EVALUATION_SECONDS = 20.0  # limit for an evaluation, or for estimating a model from counts

PARTS = {
    "embed": "embedding",
    "source_embed": "source embedding",
    "target_embed": "target embedding",
    "stack": "layers",
    "attend": "attention",
    "lexicon": "embedding",
    "chain": "CRF",
}
MAX_SIZE = 1 << 20  # the limit of the search for a size
PROBE_LENGTH = 64  # length of the sequence for which an implementation is selected


@dataclass(frozen=True)
class ModelFacts:
    """Facts about the model that training would build."""

    kind: str
    parts: dict[str, int]  # parameters by part; tied parameters are counted once
    parameters: int
    notes: list[str]  # notes on the kernels used and on the model


@dataclass(frozen=True)
class Budget:
    """The length of training."""

    steps_per_epoch: int
    steps: int
    epochs: float
    tokens_per_step: int | None  # predictions per update; None if unknown
    evaluations: int
    patience: int | None = None  # number of evaluations without improvement after which training stops


@dataclass
class Rehearsal:
    """The measurements of a rehearsal. Sizes are in bytes."""

    updates: int = 0
    seconds_per_update: float | None = None
    evaluation_seconds: float | None = None
    complete: bool = True  # False if the evaluation or estimation was interrupted; its time is then a lower bound
    memory: int | None = None  # peak of the process, including tensors on a CPU
    gpu_allocated: int | None = None  # peak of the tensors on a CUDA device
    gpu_reserved: int | None = None  # peak of the memory that PyTorch reserved on the device
    skipped: int = 0  # number of updates that were not finite
    microbatches: int = 1  # number per batch, more than 1 if a whole batch does not fit in memory
    sizes: dict[str, int] = field(default_factory=dict)  # sizes of a model estimated from counts, by name
    failure: str | None = None  # the error message if the rehearsal failed
    out_of_memory_for: Literal["model", "batch"] | None = None  # the part that did not fit in memory

    @property
    def peak(self) -> int | None:
        """The peak memory on the device."""
        return self.memory if self.gpu_reserved is None else self.gpu_reserved


# --- without training -------------------------------------------------------------------------------------------------


def empty_model(task: Task) -> nn.Module:
    """Build the model on the meta device, which allocates no memory, or on the CPU if that fails."""
    try:
        with torch.device("meta"):
            return task.model()
    except (NotImplementedError, RuntimeError):  # some modules read their weights in `__init__`
        return task.model()


def parameters_of(task: Task) -> int:
    return sum(parameter.numel() for parameter in empty_model(task).parameters())


def nearest_size(count: Callable[[int], int], target: int) -> tuple[int, int]:
    """Return the integer n ≥ 1 whose count(n) is nearest to the target, and count(n). `count` must increase with n."""
    above = 1
    while count(above) < target and above < MAX_SIZE:
        above *= 2
    below = max(1, above // 2)
    while above - below > 1:
        middle = (above + below) // 2
        below, above = (middle, above) if count(middle) < target else (below, middle)
    return min(((n, count(n)) for n in (below, above)), key=lambda size: abs(size[1] - target))


def model_facts(task: Task, device: torch.device) -> ModelFacts:
    model = empty_model(task)
    parts: dict[str, int] = {}
    for name, parameter in model.named_parameters():  # tied parameters occur once
        part = PARTS.get(name.partition(".")[0], name.partition(".")[0])
        parts[part] = parts.get(part, 0) + parameter.numel()
    notes = model.notes() if isinstance(model, WithNotes) else ()  # the notes that training prints
    all_notes = [*kernel_notes(model, device), *dict.fromkeys(notes)]
    return ModelFacts(task.recipe.model.kind, parts, sum(parts.values()), all_notes)


def kernel_notes(model: nn.Module, device: torch.device) -> list[str]:
    """Report whether recurrent layers use sequence kernels, or which cells are computed step by step."""
    layers = [module for module in model.modules() if isinstance(module, Recurrent)]
    if not layers:
        return []
    accel.install()
    names, looped = {cell: name for name, cell in CELLS.items()}, set()
    for layer in layers:
        x = torch.empty(1, PROBE_LENGTH, layer.cell.inputs, device=device)
        if run_cell.select(layer.cell, x, layer.cell.initial_state(1)) is run_cell.definition:
            looped.add(names.get(type(layer.cell), type(layer.cell).__name__))
    if not looped:
        return ["all recurrent layers use sequence kernels"]
    slower = "2×" if device.type == "cpu" else "10×"
    return [f"no sequence kernel for {', '.join(sorted(looped))}: computed step by step, about {slower} slower"]


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
        patience=train.patience,
    )


def free_memory(device: torch.device) -> int | None:
    """Return the free memory of the device or of the machine in bytes, or None if unknown."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()


# --- a rehearsal ------------------------------------------------------------------------------------------------------


def rehearse(recipe: TaskRecipe) -> Rehearsal:
    """Rehearse a recipe in a new process. Errors are stored in the result and not raised."""
    folder = data_folder()
    request = json.dumps({"recipe": to_mapping(recipe), "data_dir": str(folder) if folder else None})
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    process = subprocess.run(
        [sys.executable, "-P", "-m", __name__],
        input=request,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    if process.returncode == 0:
        return Rehearsal(**json.loads(process.stdout.splitlines()[-1]))
    if process.returncode == -signal.SIGKILL:
        return Rehearsal(failure="out of memory: the system killed the trial run", out_of_memory_for="batch")
    lines = process.stderr.strip().splitlines() or ["no message"]
    return Rehearsal(failure=lines[-1])


# --- in the new process -----------------------------------------------------------------------------------------------


def run_rehearsal(recipe: TaskRecipe, folder: Path) -> Rehearsal:
    """Perform a few updates of training with a run in `folder`."""
    rehearsal = Rehearsal()
    task = task_info(recipe.task).task.prepare(recipe)
    run = Run.create(folder / "rehearsal", to_mapping(recipe), task.documents())
    accel.install()
    gradient = isinstance(recipe.train, FitConfig)
    method = _fit if gradient else _estimate
    for _ in record(method(task, run.store(recipe.train.keep_checkpoints), rehearsal), run):
        pass
    rehearsal.memory = peak_memory()
    device = device_for(recipe.train) if gradient else torch.device("cpu")
    if device.type == "cuda":
        rehearsal.gpu_allocated = torch.cuda.max_memory_allocated(device)
        rehearsal.gpu_reserved = torch.cuda.max_memory_reserved(device)
    return rehearsal


def _fit(task: Task, store: CheckpointStore, rehearsal: Rehearsal) -> Iterator[Event]:
    """Perform a few updates, an evaluation and a checkpoint. The objects in memory are the same as in training."""
    recipe = task.recipe
    state = TrainState(task, recipe.train, recipe.seed)
    if state.layer_groups is not None:  # unfreezes all layers, as at the peak of gradual unfreezing
        state.layer_groups = replace(state.layer_groups, every=None)
    step = wrap(state)
    yield Started(0, state.total, 0, str(state.device), False)
    seconds: list[float] = []
    on_gpu = state.device.type == "cuda"
    kind = "cuda" if on_gpu else "cpu"
    limit = min(MAX_UPDATES[kind], max(MIN_UPDATES, state.total))
    while len(seconds) < limit and (len(seconds) < MIN_UPDATES or sum(seconds) < MAX_UPDATE_SECONDS[kind]):
        began = time.perf_counter()
        result = make_step(state, step)
        state.settle()
        seconds.append(time.perf_counter() - began)
        rehearsal.skipped += result.cause is not None
        rehearsal.updates += 1
    # On a GPU, the slower half contains the updates that compile the step or capture a graph.
    rehearsal.seconds_per_update = statistics.median(sorted(seconds)[: len(seconds) // 2] if on_gpu else seconds[1:])
    if (largest := task.largest_step(recipe.seed)) is not None:  # the step with the peak memory
        state.tally.step = largest // recipe.train.accumulate_steps
        make_step(state, step)
        state.tally.step = rehearsal.updates
    rehearsal.microbatches = max([1, *(event.microbatches for event in state.events if isinstance(event, BatchSplit))])
    yield Progress(rehearsal.updates, state.total, state.report(result))
    if (length := task.mean_target_length()) is not None:  # a model without training would generate up to the limit
        task.max_generated = math.ceil(length)
    with _time_limit() as stop:
        try:
            with stop.interruptible():
                for _ in range(2 if on_gpu else 1):  # on a GPU, the first evaluation compiles
                    began = time.perf_counter()
                    state.evaluate()
        except Interrupted:
            rehearsal.complete = False
    rehearsal.evaluation_seconds = time.perf_counter() - began
    store.save_best(state.task.inference_model(state.model).state_dict())
    yield Saved(rehearsal.updates, store.save(rehearsal.updates, state.state_dict()))


def _estimate(task: Task, store: CheckpointStore, rehearsal: Rehearsal) -> Iterator[Event]:
    """Estimate the model from counts. The estimation is complete, because it is fast."""
    began = time.perf_counter()
    rehearsal.complete = False
    with _time_limit() as stop:
        for event in estimate(task, task.recipe.train, store, seed=task.recipe.seed, stop=stop):
            if isinstance(event, Progress) and "ngrams" in event.values:
                rehearsal.sizes[f"{event.values['order']:.0f}-grams"] = int(event.values["ngrams"])
            rehearsal.complete = isinstance(event, Finished)
            if isinstance(event, Finished) and not rehearsal.sizes:
                rehearsal.sizes["numbers"] = event.parameters
            yield event
    rehearsal.seconds_per_update = time.perf_counter() - began


@contextmanager
def _time_limit() -> Iterator[Stop]:
    """Request a stop after `MAX_EVALUATION_SECONDS`."""
    stop = Stop()
    previous = signal.signal(signal.SIGALRM, lambda number, frame: stop.request())
    signal.setitimer(signal.ITIMER_REAL, MAX_EVALUATION_SECONDS)
    try:
        yield stop
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else []:
        if line.startswith("VmHWM:"):  # excludes the parent process, unlike ru_maxrss
            return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _prefer_oom_kill() -> None:
    """Ask the system to kill this process first if memory runs out."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def main() -> int:
    _prefer_oom_kill()
    request = json.load(sys.stdin)
    recipe = build(task_info(request["recipe"]["task"]).recipe, request["recipe"])
    with use_data_folder(request["data_dir"]), tempfile.TemporaryDirectory() as folder:
        try:
            rehearsal = run_rehearsal(recipe, Path(folder))
        except SeqloomError as error:
            rehearsal = Rehearsal(failure=str(error))
        except (MemoryError, RuntimeError) as error:
            first = (str(error) or "no message").splitlines()[0]
            if not (isinstance(error, MemoryError | torch.OutOfMemoryError) or CPU_OUT_OF_MEMORY in first):
                raise
            rehearsal = Rehearsal(
                failure=f"out of memory: {first.split(CPU_OUT_OF_MEMORY)[-1]}", out_of_memory_for="batch"
            )
    print(json.dumps(asdict(rehearsal)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
