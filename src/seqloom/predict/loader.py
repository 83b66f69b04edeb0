"""From a run directory to what its model can do."""

from pathlib import Path
from typing import Any

from seqloom.core.errors import UsageError
from seqloom.predict.base import Predictor
from seqloom.runs.run import Run
from seqloom.tasks import names, task_info


def load(path: str | Path, device: str = "auto", use: type[Predictor] = Predictor) -> Any:
    """A trained model from its run directory: of the class that can do what its task is about.

    With `use`, a model that can be used so, or a word on what it is instead.
    """
    run = Run.open(path)
    model = use_of(str(run.recipe.get("task")))(run, device)
    if isinstance(model, use):
        return model
    if use.reads_text:
        run.tokenizer  # noqa: B018 (a run that is not about text says so here)
    raise UsageError(f"{path} is {model.what}: {model.uses()}. What was asked for needs {use.what}.")


def use_of(task: str) -> type[Predictor]:
    """The class that can do what a task is about."""
    found: type[Predictor] = task_info(task).predictor_class() if task in names() else Predictor
    return found
