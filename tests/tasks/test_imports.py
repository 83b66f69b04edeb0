"""Reading a recipe and opening a run import only the models that they need."""

import subprocess
import sys
from pathlib import Path

from seqloom.recipes import read_recipe
from seqloom.training import begin

MAX_MODULES = 40  # maximum modules of seqloom that are executed when a recipe is read, without cells and scores
MAX_TRANSLATOR_MODULES = 74
ADDED_FILES = ("seqloom.nn.cells.", "seqloom.nn.scores.")  # a new file in these packages is imported to read its name
# Two are base modules
MODEL_MODULES = {f"seqloom.models.{name}" for name in ("backbones", "language_model", "recurrent_lm")}
READ_RECIPE = """
import sys
from seqloom.recipes import read_recipe
read_recipe(sys.argv[1])
"""
OPEN_RUN = """
import sys
from seqloom.runs.run import Run
Run.open(sys.argv[1]).model("cpu")
"""


def imported_modules(code: str, *arguments: str) -> set[str]:
    """Return the modules of seqloom that a new process imports to run `code`."""
    print_modules = 'print(*(name for name in sys.modules if name.split(".")[0] == "seqloom"))'
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{print_modules}", *arguments], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def count_modules(modules: set[str]) -> int:
    """Count modules without those of cells and scores."""
    return sum(not module.startswith(ADDED_FILES) for module in modules)


def test_reading_recipe_imports_few_modules() -> None:
    modules = imported_modules(READ_RECIPE, "lm-char-lstm")
    assert "seqloom.models.recurrent_lm" in modules and "seqloom.data.corpora.pydocs" in modules
    assert count_modules(modules) <= MAX_MODULES, sorted(modules)
    assert {name for name in modules if name.startswith("seqloom.models.")} == MODEL_MODULES
    assert {name for name in modules if name.startswith("seqloom.data.corpora.")} == {"seqloom.data.corpora.pydocs"}


def test_reading_recipe_of_translator_imports_few_modules() -> None:
    modules = imported_modules(READ_RECIPE, "translate-cldr-transformer")
    assert "seqloom.models.transformer" in modules and "seqloom.models.recurrent_lm" not in modules
    assert count_modules(modules) <= MAX_TRANSLATOR_MODULES, sorted(modules)


def test_opening_run_imports_only_its_model(tmp_path: Path) -> None:
    _, recipe = read_recipe("lm-char-lstm", ["model.hidden=8"])
    training = begin(recipe, tmp_path / "run")
    training.run.store().save_best(training.task.model().state_dict())
    modules = imported_modules(OPEN_RUN, str(training.run.path))
    assert {name for name in modules if name.startswith("seqloom.models.")} == MODEL_MODULES
    foreign = ("transformer", "attention", "hmm", "classical", "seqloom.text.bytepair", "seqloom.tasks")
    assert not [module for module in modules if any(part in module for part in foreign)]
