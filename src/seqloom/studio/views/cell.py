"""Inside the cell: gates and states of any recurrent cell over a text, unit by unit, and one step with its numbers."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Response
from pydantic import Field

from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean
from seqloom.inspect.equations import arithmetic
from seqloom.inspect.views.cells import By, CellPart, CellTraces, LayerTrace, Ranked, cell_traces, rank, token_classes
from seqloom.studio.arrays import half, packed
from seqloom.studio.asking import TOKENS, StudioShelf, TextQuestion
from seqloom.studio.endpoints import queued
from seqloom.studio.shelf import Shelf
from seqloom.tasks import has_view

router = APIRouter(prefix="/api/cell")
UNITS = 256  # rows of a picture
WITH_CELLS = ("recurrent", "recurrent-lm", "bilm", "recurrent-seq2seq")


def suits(recipe: Mapping[str, Any]) -> bool:
    """Whatever reads one text with recurrent cells."""
    model = recipe.get("model") or {}
    reader = model.get("body") or model.get("encoder") or model
    return has_view(recipe, "cell") and reader.get("kind") in WITH_CELLS


class Where(TextQuestion):
    """A layer of a part of a model on a text."""

    part: str | None = Field(None, max_length=40)
    layer: int | None = Field(None, ge=1, le=1000)  # None is the top one


class CellQuestion(Where):
    quantity: str | None = Field(None, max_length=20)  # None is the hidden state
    by: By = "variance"
    token_class: str | None = Field(None, max_length=100)  # of correlation
    containing: str = Field("", max_length=20)  # makes a class of tokens that have this in them
    count: Annotated[int, Field(ge=1, le=UNITS)] = 24
    units: Annotated[list[int], Field(max_length=UNITS)] | None = None  # these and no others, in this order


class AskUnit(Where):
    unit: int = Field(ge=0, le=100_000)


class AskStep(AskUnit):
    place: int = Field(ge=0, le=10_000)  # of the token that is read


@router.post("")
@queued
def cell(ask: CellQuestion, shelf: StudioShelf) -> Response:
    """One quantity over the text, of the units that come first in an order or that are named."""
    traces, part, layer = looked(shelf, ask)
    name = ask.quantity or "h"
    if name not in layer.values:
        raise UsageError(f"There is no {name!r} in this layer: {did_you_mean(name, list(layer.values))}.")
    ranked, classes = ordered(part, layer, name, ask)
    units = chosen(layer, ranked, ask)
    meta = {
        **sentence(traces, part),
        "layer": part.trace.layers.index(layer) + 1,
        "layers": len(part.layers),
        "hidden": layer.hidden,
        "cell": part.trace.cell,
        "quantity": name,
        "quantities": [{"name": own, "words": layer.describe(own), "gate": own in layer.gates} for own in layer.values],
        "gates": [gate(layer, own) for own in layer.gates],
        "classes": classes,
        "units": units,
        "scores": ranked.scores[units],
    }
    values = layer.values[name]
    return packed({**meta, "reach": np.abs(values).max()}, map=half(values[:, units].T))


@router.post("/unit")
@queued
def unit(ask: AskUnit, shelf: StudioShelf) -> dict[str, Any]:
    """One unit over the text: every number the cell computes of it."""
    _, part, layer = looked(shelf, ask)
    found = layer.unit(ask.unit)
    gates = [gate(layer, name, ask.unit) for name in layer.gates]
    return {"unit": ask.unit, "tokens": part.tokens, "values": found, "gates": gates}


@router.post("/step")
@queued
def step(ask: AskStep, shelf: StudioShelf) -> dict[str, Any]:
    """One step of one unit along the cell's equations."""
    _, part, _ = looked(shelf, ask)
    layer, number = part.layer(ask.layer), part.step_of(ask.place)
    before = {name: values[number] for name, values in layer.before.items()}
    return {
        **vars(arithmetic(layer.cell, layer.x[number], before, ask.unit)),
        "place": ask.place,
        "step": number,
        "steps": len(part.order),
        "order": part.order,
        "cell": part.trace.cell,
    }


def looked(shelf: Shelf, ask: Where) -> tuple[CellTraces, CellPart, LayerTrace]:
    """Computed once for a text, then kept for a while."""
    text, target = ask.text, ask.forced_target
    with shelf.using(ask.run) as trained:
        found = shelf.remember(
            ask.run,
            ("cells", text, target),
            lambda: cell_traces(trained, text, target, allow_unknown=True, longest=TOKENS),
        )
    part = found[ask.part]
    return found, part, part.trace.layer(ask.layer)


def sentence(traces: CellTraces, part: CellPart) -> dict[str, Any]:
    return {
        "parts": [{"name": one.name, "title": one.title, "layers": len(one.layers)} for one in traces.parts.values()],
        "part": part.name,
        "title": part.title,
        "tokens": part.tokens,
        "order": part.order,
        "says": part.says,
        "answer": traces.read.answer,
        "notes": traces.read.notes,
    }


def gate(layer: LayerTrace, name: str, unit: int | None = None) -> dict[str, Any]:
    values = layer.values[name] if unit is None else layer.values[name][:, unit]
    return {
        "name": name,
        "does": layer.gates[name],
        "mean": float(values.mean()),
        **layer.saturation(name, unit)._asdict(),
    }


def ordered(part: CellPart, layer: LayerTrace, name: str, ask: CellQuestion) -> tuple[Ranked, list[str]]:
    """The units in the order asked for, and the classes of tokens that could be asked for."""
    classes = token_classes(part.tokens, ask.containing)
    if ask.by != "correlation" or ask.units is not None:
        return rank(layer.values[name], "variance" if ask.by == "correlation" else ask.by), list(classes)
    if ask.token_class not in classes:
        found = did_you_mean(ask.token_class or "", list(classes)) if classes else "there is none"
        raise UsageError(f"No such class tells these tokens apart: {found}.")
    return rank(layer.values[name], "correlation", classes[ask.token_class]), list(classes)


def chosen(layer: LayerTrace, ranked: Ranked, ask: CellQuestion) -> list[int]:
    if ask.units is None:
        return ranked.units[: ask.count]
    for number in ask.units:
        layer.unit(number)  # refuses what is not there
    return ask.units
