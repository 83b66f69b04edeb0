"""The training of the run in WORK by seqloom, with a gate before each step. See `cpu.py`."""

import json
import sys
from pathlib import Path

import torch
from gate import Done, Gate

from seqloom import accel
from seqloom.core import VERSION
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState
from seqloom.train.wrappers import wrap
from seqloom.training import resume


def main(work: Path) -> None:
    plan = json.loads((work / "plan.json").read_text())
    gate = Gate(plan["steps"])
    torch.set_num_threads(plan["threads"])
    training = resume(work / "run")
    accel.install()
    state = TrainState(training.task, training.recipe.train, training.recipe.seed)
    step, size = wrap(state), state.parameter_count()
    gate.say(package="seqloom", version=VERSION, parameters=size, torch=torch.__version__)
    while True:
        gate.arrive()
        gate.count(make_step(state, step).tokens)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Done:
        sys.exit()
