"""Cells under observation: what each is given, step by step, and what it makes of it, in whatever model they stand.

    with watched(model) as cells:
        model(batch)
    cells["decoder.layers.0.cell"][3].after["h"]      (B, H): the hidden state after the fourth step

While a model is watched every operation is computed by its definition, so a layer is a loop over its cell. Nothing is
detached: with gradients on, a state that was seen is the very tensor the next step goes on from.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from seqloom.core.cancellation import check_cancelled
from seqloom.core.operations import definitions_only
from seqloom.nn.cells import Cell, State
from seqloom.nn.connections import Residual


class Step(NamedTuple):
    """One step of a cell."""

    x: Tensor  # (B, D)
    before: State  # each (B, H)
    after: State


Steps = dict[str, list[Step]]  # by the name of the cell in its model, in the order they were taken


@contextmanager
def watched(model: nn.Module) -> Iterator[Steps]:
    """The steps of all cells of a model, while it is used."""
    steps: Steps = {}
    with definitions_only(), ExitStack() as hooks:
        for name, module in model.named_modules():
            if isinstance(module, Cell):
                steps[name] = []
                hooks.enter_context(_removed(module.register_forward_hook(_note_to(steps[name]))))
        yield steps


def _note_to(steps: list[Step]) -> Any:
    def note(_: nn.Module, given: tuple[Any, ...], after: State) -> None:
        check_cancelled()
        x, before = given
        steps.append(Step(x, before, after))

    return note


@contextmanager
def ways_around(model: nn.Module) -> Iterator[dict[str, dict[str, Tensor]]]:
    """What goes around the layer of each cell, by the cell's name, each (T, H) of the first row; see `connections`."""
    found: dict[str, dict[str, Tensor]] = {}
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if isinstance(module, Residual):
                stack, _, number = name.rpartition("around.")
                hooks.enter_context(
                    _removed(module.register_forward_hook(_keep(found, f"{stack}layers.{number}.cell")))
                )
        yield found


def _keep(found: dict[str, dict[str, Tensor]], name: str) -> Any:
    def keep(_: nn.Module, __: tuple[Any, ...], ways: dict[str, Tensor]) -> None:
        found[name] = {way: value[0] for way, value in ways.items()}

    return keep


@contextmanager
def _removed(hook: Any) -> Iterator[None]:
    try:
        yield
    finally:
        hook.remove()


def cells_of(model: Any) -> dict[str, Cell]:
    """The cells of a model that read its text, by their names: not those that spell its words."""
    if not isinstance(model, nn.Module):
        return {}
    named = model.named_modules()
    return {name: part for name, part in named if isinstance(part, Cell) and "spelling" not in name.split(".")}
