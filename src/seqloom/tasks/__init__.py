"""Tasks: what ties data, model, loss and metric together. One file per task; the file's name is the task's name.

A task's file has a `Recipe` (its configuration, from the `task` key down), a `Task` class with

    Task.prepare(recipe)           read the data, learn what must be learnt before training (a tokenizer, say)
    Task.reopen(recipe, run)       the same from a run that exists; refuses data that has changed since
    task.documents()               what to keep in the run besides recipe and weights: file name → JSON content
    task.files()                   where it has one: other files to keep there, name → bytes

beside the protocol of `seqloom.core.protocols` (`Task` if it trains by gradient, `Estimable` if it
does not), and `INFO`, a `TaskInfo` with what other packages need to know of it.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean, shown

if TYPE_CHECKING:
    from seqloom.tasks.base import TaskInfo


@cache
def names() -> list[str]:
    """List the names of all tasks."""
    files = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name.replace("_", "-") for name in files if not name.endswith("base"))  # others hold what they share


def task_info(name: Any) -> "TaskInfo":
    """Import a task and return its record."""
    known = names()
    if name is None:
        raise UsageError(f"A recipe needs the key `task`, one of: {', '.join(known)}.")
    if name not in known:
        raise UsageError(f"No task is called {shown(name)}: {did_you_mean(str(name), known)}.")
    info: TaskInfo = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").INFO
    return info


def has_view(recipe: Mapping[str, Any], view: str) -> bool:
    """Whether a view suits the models of a recipe's task."""
    name = recipe.get("task")
    return name in names() and view in task_info(name).views
