"""Tasks: what ties data, model, loss and metric together. One file per task; the file's name is the task's name.

A task module has a `Recipe` (its configuration, from the `task` key down) and a `Task` class with

    Task.prepare(recipe)           read the data, learn what must be learnt before training (a tokenizer, say)
    Task.reopen(recipe, run)       the same from a run that exists; refuses data that has changed since
    task.documents()               what to keep in the run besides recipe and weights: file name → JSON content
    task.files()                   where it has one: other files to keep there, name → bytes
    completed(mapping)             where it has one: what some keys of a recipe say of others, filled in

beside the protocol of `seqloom.core.protocols`: `Task` if it trains by gradient, `Estimable` if it does not.
"""

import importlib
import pkgutil
from types import ModuleType
from typing import Any

from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean, shown


def names() -> list[str]:
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def task_module(name: Any) -> ModuleType:
    known = names()
    if name is None:
        raise UsageError(f"A recipe needs the key `task`, one of: {', '.join(known)}.")
    if name not in known:
        raise UsageError(f"No task is called {shown(name)}: {did_you_mean(str(name), known)}.")
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
