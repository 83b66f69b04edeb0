"""The `TaskInfo` of every task, and the class that it names."""

import pytest

from seqloom.cli.app import COMMANDS
from seqloom.core.errors import UsageError
from seqloom.data.corpora import corpora_of_form
from seqloom.predict.base import Predictor
from seqloom.studio.views import VIEWS
from seqloom.tasks import names, task_info
from seqloom.tasks.base import Task


@pytest.mark.parametrize("name", names())
def test_task_info_matches_its_module(name):
    info = task_info(name)
    assert info.name == name == info.recipe.__dataclass_fields__["task"].default
    assert info.recipe.__module__ == info.task.__module__ == f"seqloom.tasks.{name.replace('-', '_')}"
    assert issubclass(info.task, Task)
    assert callable(info.task.prepare)
    assert callable(info.task.reopen)


@pytest.mark.parametrize("name", names())
def test_task_info_names_existing_members(name):
    info = task_info(name)
    assert issubclass(info.predictor_class(), Predictor)
    assert all(corpora_of_form(form) for form in info.forms)
    assert not info.command or (info.command.split()[0] in COMMANDS and "{run}" in info.command)
    assert set(info.views) <= set(VIEWS)


def test_error_for_an_unknown_task_suggests_the_nearest_name():
    with pytest.raises(UsageError, match="did you mean translate"):
        task_info("tranlsate")
    with pytest.raises(UsageError, match="needs the key `task`"):
        task_info(None)
