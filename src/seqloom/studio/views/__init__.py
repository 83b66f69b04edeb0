"""One file per view of the studio: which runs it suits, and what it answers.

A view has a `router` with its questions under /api/<name>, and `suits(recipe)`, which says from a run's recipe alone
whether there is anything to see. Its page is `web/views/<name>.js`.
"""

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

# In the order of the page's menu.
VIEWS = (
    "runs",
    "write",
    "alignment",
    "heads",
    "beam",
    "cell",
    "gradients",
    "vectors",
    "walk",
    "understand",
)


def modules() -> dict[str, ModuleType]:
    return {name: import_module(f"seqloom.studio.views.{name}") for name in VIEWS}


def suiting(recipe: Mapping[str, Any]) -> list[str]:
    """The views that have something to show of a run with this recipe."""
    return [name for name, module in modules().items() if name != "runs" and module.suits(recipe)]
