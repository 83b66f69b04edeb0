"""seqloom's own training of the run in WORK, a gate before each update: see `cpu.py`."""

import json
import sys
from pathlib import Path

import torch
from gate import Done, Gate

from seqloom.core.version import VERSION
from seqloom.train.trainer import Trainer
from seqloom.training import resume


def main(work: Path) -> None:
    plan = json.loads((work / "plan.json").read_text())
    gate = Gate(plan["steps"])
    torch.set_num_threads(plan["threads"])
    training = resume(work / "run")
    trainer = Trainer(training.task, training.recipe.train, training.recipe.seed)
    size = sum(parameter.numel() for parameter in trainer.model.parameters())
    gate.say(package="seqloom", version=VERSION, parameters=size, torch=torch.__version__)
    while True:
        gate.arrive()
        gate.count(trainer.update().tokens)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Done:
        sys.exit()
