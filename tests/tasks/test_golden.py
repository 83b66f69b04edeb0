"""The first twenty losses of each cell on the toy corpus, as they were last reviewed.

Any change of initialization, data order, random seeds, optimizer or cell changes them. If the change is intended,
record the losses again:

    python tests/tasks/test_golden.py
"""

import json
from pathlib import Path

import pytest
import torch
from tests.standard import STANDARD_CELLS

from seqloom.config import build
from seqloom.nn.cells import CELLS
from seqloom.tasks.language_model import Recipe, Task
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState

GOLDEN = Path(__file__).parent.parent / "golden" / "toys_losses.json"
STEPS = 20


def losses(cell: str) -> list[float]:
    recipe = build(
        Recipe,
        {
            "seed": 1,
            "data": {"corpus": "toys", "task": "reverse", "train": 200, "dev": 5, "test": 5},
            "tokenizer": {"kind": "characters"},
            "batch": {"size": 8, "length": 16},
            "model": {"kind": "recurrent-lm", "cell": cell, "layers": 2, "hidden": 24, "embedding": 12, "dropout": 0.1},
            "train": {"steps": STEPS, "lr": 0.01, "schedule": "cosine", "warmup": 4, "device": "cpu"},
        },
    )
    trainer = TrainState(Task.prepare(recipe), recipe.train, recipe.seed)
    return [make_step(trainer).loss for _ in range(STEPS)]


@pytest.mark.parametrize("cell", STANDARD_CELLS)
def test_first_twenty_losses_match_the_recorded_losses(cell: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    assert cell in golden, "a new cell: write the golden losses anew (see above)"
    assert losses(cell) == pytest.approx(golden[cell], abs=1e-4)


def test_losses_decrease_and_differ_between_cells() -> None:
    golden = json.loads(GOLDEN.read_text())
    assert set(golden) == set(STANDARD_CELLS)
    assert all(
        len(golden_losses) == STEPS and golden_losses[-1] < golden_losses[0] - 0.04 for golden_losses in golden.values()
    )
    assert len({tuple(golden_losses) for golden_losses in golden.values()}) == len(golden)


if __name__ == "__main__":
    torch.set_num_threads(1)
    GOLDEN.parent.mkdir(exist_ok=True)
    found = {cell: [round(loss, 6) for loss in losses(cell)] for cell in CELLS}
    GOLDEN.write_text(
        "{\n" + ",\n".join(f' "{cell}": {json.dumps(values)}' for cell, values in found.items()) + "\n}\n"
    )
