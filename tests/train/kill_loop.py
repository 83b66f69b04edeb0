"""Kill and resume a training run repeatedly until it has finished. test_kill.py runs this script.

    python kill_loop.py FOLDER KILLS SEED

A training run is a forked child process, so that torch is imported only once. It receives SIGKILL after a random delay,
and another child resumes it. A finished run is set aside, and a new run begins, until KILLS processes have been killed.
The script prints one JSON object with the phase and the step of each kill, and the folders of the finished runs.
"""

import json
import mmap
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from seqloom.config import build
from seqloom.runs import record
from seqloom.tasks.language_model import Recipe
from seqloom.train import loop
from seqloom.train.checkpoints import CheckpointStore
from seqloom.train.state import TrainState
from seqloom.training import begin, resume

PHASES = ("starting", "training", "evaluating", "saving")
shared = mmap.mmap(-1, 16)  # shared with the parent: phase of the child, and number of its steps


def recipe() -> Any:
    return build(
        Recipe,
        {
            "seed": 5,
            "data": {"corpus": "toys", "train": 150, "dev": 80, "test": 5},
            "tokenizer": {"kind": "characters"},
            "batch": {"size": 4, "length": 12},
            "model": {"kind": "recurrent-lm", "cell": "gru", "layers": 1, "hidden": 16, "dropout": 0.2},
            "train": {
                "steps": 34,
                "lr": 0.05,
                "optimizer": "adamw",
                "schedule": "plateau",
                "evaluate_every": 5,
                "save_every": 3,
                "log_every": 2,
                "device": "cpu",
            },
        },
    )


def mark_phase(phase: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        before, shared[0] = shared[0], PHASES.index(phase)
        try:
            return method(*arguments)
        finally:
            shared[0] = before
            shared[1] += phase == "training"

    return call


def train(path: Path) -> None:
    training = resume(path) if path.exists() else begin(recipe(), path)
    for _ in training.events():
        pass


def child(path: Path) -> int:
    """Fork a process that trains and return its id."""
    shared[0] = shared[1] = 0
    identity = os.fork()
    if identity:
        return identity
    code = 1
    try:
        train(path)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def finish(path: Path) -> float:
    """Run a training run without interruption, and return its duration in seconds."""
    began = time.perf_counter()
    _, status = os.waitpid(child(path), 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the undisturbed training failed"
    return time.perf_counter() - began


def main(folder: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings(
        "ignore", "This process .* is multi-threaded", DeprecationWarning
    )  # a fork is safe only without threads
    record.open_tensorboard = lambda run, step: None
    loop.make_step = mark_phase("training", loop.make_step)
    TrainState.evaluate = mark_phase("evaluating", TrainState.evaluate)  # type: ignore[method-assign]
    CheckpointStore.save = mark_phase("saving", CheckpointStore.save)  # type: ignore[method-assign]
    CheckpointStore.save_best = mark_phase("saving", CheckpointStore.save_best)  # type: ignore[method-assign]
    train(folder / "first")  # imports the lazy modules of torch once for all children
    duration = finish(folder / "whole")
    generator = random.Random(seed)
    hits: list[dict[str, Any]] = []
    finished: list[str] = []
    while len(hits) < kills:
        path = folder / f"run-{len(finished)}"
        exists = path.exists()
        identity = child(path)
        # The duration is limited, because a run takes half a minute on a slow disk
        time.sleep(generator.uniform(0, 0.5 * min(duration, 0.8)))
        os.kill(identity, signal.SIGKILL)  # a child that has ended keeps its process id until it is waited for
        _, status = os.waitpid(identity, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            hits.append({"phase": PHASES[shared[0]], "steps": shared[1], "resumed": exists})
        else:
            assert os.waitstatus_to_exitcode(status) == 0, f"resuming {path} failed"
            finished.append(path.name)
    path = folder / f"run-{len(finished)}"
    finish(path)  # the last run must also have the same result
    print(json.dumps({"hits": hits, "finished": [*finished, path.name], "seconds_undisturbed": duration}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
