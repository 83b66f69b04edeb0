"""Reading a recipe and opening a run import what they need, and no other models."""

import subprocess
import sys
from pathlib import Path

from seqloom.recipes import read_recipe
from seqloom.training import begin

MOST = 40  # modules of seqloom that are executed to read a recipe
MODEL = {f"seqloom.models.{name}" for name in ("backbones", "language_model", "recurrent_lm")}  # two are bases
READ = """
import sys
from seqloom.recipes import read_recipe
read_recipe("lm-char-lstm")
"""
OPEN = """
import sys
from seqloom.runs.run import Run
Run.open(sys.argv[1]).model("cpu")
"""


def imported_modules(code: str, *arguments: str) -> set[str]:
    """The modules of seqloom that a new process has imported after some code."""
    shown = 'print(*(name for name in sys.modules if name.split(".")[0] == "seqloom"))'
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{shown}", *arguments], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_reading_a_recipe_imports_little() -> None:
    found = imported_modules(READ)
    assert "seqloom.models.recurrent_lm" in found and "seqloom.data.corpora.pydocs" in found
    assert len(found) <= MOST, sorted(found)
    assert {name for name in found if name.startswith("seqloom.models.")} == MODEL
    assert {name for name in found if name.startswith("seqloom.data.corpora.")} == {"seqloom.data.corpora.pydocs"}


def test_opening_a_run_imports_its_model_alone(tmp_path: Path) -> None:
    _, recipe = read_recipe("lm-char-lstm", ["model.hidden=8"])
    training = begin(recipe, tmp_path / "run")
    training.run.store().save_best(training.task.model().state_dict())
    found = imported_modules(OPEN, str(training.run.path))
    assert {name for name in found if name.startswith("seqloom.models.")} == MODEL
    foreign = ("transformer", "attention", "hmm", "classical", "seqloom.text.bytepair", "seqloom.tasks")
    assert not [module for module in found if any(part in module for part in foreign)]
