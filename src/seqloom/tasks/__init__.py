"""Tasks, which connect data, model, loss and metrics. Each task is a file with the task's name.

The file contains a `Recipe` (the configuration), `INFO` (a `TaskInfo` for other packages) and a `Task` class with

    Task.prepare(recipe)           read the data and train the tokenizer, if any
    Task.reopen(recipe, run)       prepare the task of an existing run, and reject data that has changed
    task.documents()               the JSON documents of a run, as file name → content
    task.files()                   other files of a run, as name → bytes

and the protocol of `seqloom.core.protocols`: `Task` for training by gradient descent, otherwise `Estimable`.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from seqloom.core import Json
from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean, format_value

if TYPE_CHECKING:
    from seqloom.tasks.base import TaskInfo


@cache
def names() -> list[str]:
    """List the names of all tasks."""
    files = (module.name for module in pkgutil.iter_modules(__path__))
    # Names with "base" contain shared code
    return sorted(name.replace("_", "-") for name in files if not name.endswith("base"))


def task_info(name: Any) -> "TaskInfo":
    """Import a task and return its `TaskInfo`."""
    known = names()
    if name is None:
        raise UsageError(f"A recipe needs the key `task`, one of: {', '.join(known)}.")
    if name not in known:
        raise UsageError(f"No task is called {format_value(name)}: {did_you_mean(str(name), known)}.")
    info: TaskInfo = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").INFO
    return info


def has_view(recipe: Mapping[str, Json], view: str) -> bool:
    """Return whether a view supports the models of a recipe's task."""
    name = recipe.get("task")
    return name in names() and view in task_info(name).views
