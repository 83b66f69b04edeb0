"""Inside the cell: gates and states over a text, unit by unit, one step with its numbers, and how gradients flow."""

from typing import Annotated, Literal

import numpy as np
from fastapi import Response
from pydantic import Field

from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean
from seqloom.inspect.equations import arithmetic
from seqloom.inspect.values import to_plain
from seqloom.inspect.views.cells import By, CellPart, CellTraces, LayerTrace, cell_traces, rank, token_classes
from seqloom.inspect.views.curves import thin_points
from seqloom.inspect.views.gradients import gradient_parts, part_matrices, training_norms
from seqloom.studio.endpoints import TOKENS, TextQuestion, View, half, pack_arrays, reader_kind
from seqloom.studio.shelf import OpenRun

UNITS = 256  # rows of a picture
WITH_CELLS = ("recurrent", "recurrent-lm", "bilm", "recurrent-seq2seq")
view = View("cell", lambda model: reader_kind(model) in WITH_CELLS)


class LayerQuestion(TextQuestion):
    """A layer of a part of a model on a text."""

    part: str | None = Field(None, max_length=40)
    layer: int | None = Field(None, ge=1, le=1000)  # None is the top one


class CellQuestion(LayerQuestion):
    """One quantity of some units."""

    quantity: str | None = Field(None, max_length=20)  # None is the hidden state
    by: By = "variance"
    token_class: str | None = Field(None, max_length=100)  # of correlation
    containing: str = Field("", max_length=20)  # makes a class of tokens that have this in them
    count: Annotated[int, Field(ge=1, le=UNITS)] = 24
    units: Annotated[list[int], Field(max_length=UNITS)] | None = None  # these and no others, in this order


class UnitQuestion(LayerQuestion):
    """One unit over the text."""

    unit: int = Field(ge=0, le=100_000)


class StepQuestion(UnitQuestion):
    """One step of one unit."""

    place: int = Field(ge=0, le=10_000)  # of the token that is read


@view.post()
def cell(ask: CellQuestion, run: OpenRun) -> Response:
    """One quantity over the text, of the units that come first in an order or that are named."""
    traces, part, layer = _read_layer(ask, run)
    name = ask.quantity or "h"
    if name not in layer.values:
        raise UsageError(f"There is no {name!r} in this layer: {did_you_mean(name, list(layer.values))}.")
    values, classes = layer.values[name], token_classes(part.tokens, ask.containing)
    if ask.by == "correlation" and ask.units is None:
        if ask.token_class not in classes:
            known = did_you_mean(ask.token_class or "", list(classes)) if classes else "there is none"
            raise UsageError(f"No such class tells these tokens apart: {known}.")
        ranked = rank(values, "correlation", classes[ask.token_class])
    else:
        ranked = rank(values, "variance" if ask.by == "correlation" else ask.by)
    units = ranked.units[: ask.count] if ask.units is None else ask.units
    for unit in units:
        layer.unit(unit)  # refuses what is not there
    meta = {
        "parts": [{"name": one.part, "title": one.title, "layers": len(one.layers)} for one in traces.parts.values()],
        "part": part.part,
        "title": part.title,
        "tokens": part.tokens,
        "order": part.order,
        "says": part.says,
        "answer": traces.read.answer,
        "notes": traces.read.notes,
        "layer": part.layers.index(layer) + 1,
        "layers": len(part.layers),
        "hidden": layer.hidden,
        "cell": part.cell,
        "quantity": name,
        "quantities": [{"name": own, "words": layer.describe(own), "gate": own in layer.gates} for own in layer.values],
        "gates": _describe_gates(layer),
        "classes": list(classes),
        "units": units,
        "scores": ranked.scores[units],
        "reach": np.abs(values).max(),
    }
    return pack_arrays(meta, map=half(values[:, units].T))


@view.post("/unit")
def one_unit(ask: UnitQuestion, run: OpenRun) -> object:
    """One unit over the text: every number the cell computes of it."""
    _, part, layer = _read_layer(ask, run)
    values = layer.unit(ask.unit)
    return {"unit": ask.unit, "tokens": part.tokens, "values": values, "gates": _describe_gates(layer, ask.unit)}


@view.post("/step")
def one_step(ask: StepQuestion, run: OpenRun) -> object:
    """One step of one unit along the cell's equations."""
    _, part, layer = _read_layer(ask, run)
    steps, number = part.steps[part.layers.index(layer)], part.step_of(ask.place)
    before = {name: values[number] for name, values in steps.before.items()}
    return {
        **vars(arithmetic(steps.cell, steps.x[number], before, ask.unit)),
        "place": ask.place,
        "step": number,
        "steps": len(part.order),
        "order": part.order,
        "cell": part.cell,
    }


def _read_layer(ask: LayerQuestion, run: OpenRun) -> tuple[CellTraces, CellPart, LayerTrace]:
    """Computed once for a text, then kept for a while."""
    text, target = ask.text, ask.forced_target
    traces = run.remember(
        ("cells", text, target),
        lambda: cell_traces(run.trained, text, target, allow_unknown=True, longest=TOKENS),
    )
    part = traces[ask.part]
    return traces, part, part.layer(ask.layer)


def _describe_gates(layer: LayerTrace, unit: int | None = None) -> list[dict[str, object]]:
    units = slice(None) if unit is None else unit
    return [
        {
            "name": name,
            "does": does,
            "mean": float(layer.values[name][:, units].mean()),
            **layer.saturation(name, unit)._asdict(),
        }
        for name, does in layer.gates.items()
    ]


# --- gradients --------------------------------------------------------------------------------------------------------

LOGGED = 1500  # steps of a training that are drawn
SIZES = 5000  # of their norms that are counted: all, or of a longer training so many quantiles
gradients_view = View("gradients", view.suits_model, task_view=view.name)


class GradientQuestion(TextQuestion):
    """Whose loss is traced back through time."""

    of: Literal["last", "total"] = "last"
    at: int | None = Field(None, ge=0, le=10_000)  # whose loss it is, where it is not the last one's


@gradients_view.post()
def gradients(ask: GradientQuestion, run: OpenRun) -> object:
    """How far back a loss is felt, the matrices it passes, and what clipping does to it; of one run: the page asks for
    several and draws them on one picture."""
    text, target = ask.text, ask.forced_target
    gradients = run.remember(
        ("gradients", text, target, ask.of, ask.at),
        lambda: gradient_parts(run.trained, text, target, of=ask.of, at=ask.at, allow_unknown=True, longest=TOKENS),
    )
    matrices = run.remember("matrices", lambda: part_matrices(run.trained))
    return {
        **to_plain(gradients),
        "parts": [
            {
                **to_plain(part),
                "flows": [
                    {
                        "layer": flow.layer + 1,
                        "gammaW": flow.gamma_w,
                        "gammaG": flow.gamma_g,
                        "measured": flow.measured,
                        "bound": flow.bound,
                    }
                    for flow in part.flows
                ],
            }
            for part in gradients.parts.values()
        ],
        "matrices": [
            {
                "part": name,
                "layer": matrix.layer + 1,
                "name": matrix.name,
                "values": matrix.singular_values,
                "radius": matrix.spectral_radius,
            }
            for name, of_part in matrices.items()
            for matrix in of_part
        ],
        "clip": run.trained.run.recipe["train"].get("clip_norm"),
        **describe_training(training_norms(run.trained.run)),
    }


def describe_training(norms: list[tuple[int, float]]) -> dict[str, object]:
    """A line to draw, and all norms by size: how many are above θ is counted among these, not on the line."""
    sizes = np.sort([norm for _, norm in norms])
    if len(sizes) > SIZES:
        sizes = np.quantile(sizes, np.linspace(0, 1, SIZES))
    return {"training": thin_points(norms, LOGGED), "logged": len(norms), "sizes": sizes}
