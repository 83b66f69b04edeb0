"""Replace every section of a recipe of every task by a value that is not a section."""

from functools import cache

import pytest

from seqloom import tasks
from seqloom.config.constraints import field_types
from seqloom.core.errors import SeqloomError, UsageError
from seqloom.recipes import read_recipe, recipe_mapping, recipe_names


@cache
def recipe_of_each_task() -> dict[str, str]:
    return {str(recipe_mapping(name)[1]["task"]): name for name in recipe_names()}


@pytest.mark.parametrize("task", tasks.names())
def test_wrong_sections_are_rejected(task: str) -> None:
    """The error must be a `UsageError`. Any other exception would be a bug."""
    if (recipe := recipe_of_each_task().get(task)) is None:
        pytest.skip(f"no recipe is shipped for {task}")
    for section in field_types(tasks.task_info(task).recipe):
        for value in ("x", "[1]", "{kind: [1]}", "{kind: {a: 1}}"):
            with pytest.raises(SeqloomError) as refused:
                read_recipe(recipe, [f"{section}={value}"])
            assert isinstance(refused.value, UsageError) or "init" in recipe_mapping(recipe)[1]
