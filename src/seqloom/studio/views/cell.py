"""The views "Inside the cell" and "Gradient flow": gates, states, single steps and gradient norms over a text."""

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
from seqloom.studio.endpoints import MAX_TOKENS, TextRequest, View, encoder_kind, pack_arrays, pack_float16
from seqloom.studio.run_folder import OpenRun

MAX_UNITS = 256  # maximum rows of a heat map
RECURRENT_KINDS = ("recurrent", "recurrent-lm", "bilm", "recurrent-seq2seq")
view = View("cell", "Inside the cell", lambda model: encoder_kind(model) in RECURRENT_KINDS)


class LayerRequest(TextRequest):
    """One layer of one part of a model."""

    part: str | None = Field(None, max_length=40)
    layer: int | None = Field(None, ge=1, le=1000)  # None means the top layer


class CellRequest(LayerRequest):
    """One quantity of several units."""

    quantity: str | None = Field(None, max_length=20)  # None means the hidden state
    by: By = "variance"
    token_class: str | None = Field(None, max_length=100)  # used by `by="correlation"`
    containing: str = Field("", max_length=20)  # defines a class of the tokens that contain this text
    count: Annotated[int, Field(ge=1, le=MAX_UNITS)] = 24
    # If given, only these units are returned, in this order
    units: Annotated[list[int], Field(max_length=MAX_UNITS)] | None = None


class UnitRequest(LayerRequest):
    """One unit over the text."""

    unit: int = Field(ge=0, le=100_000)


class StepRequest(UnitRequest):
    """One step of one unit."""

    position: int = Field(ge=0, le=10_000)  # position of the input token


@view.post()
def cell(body: CellRequest, run: OpenRun) -> Response:
    """Return one quantity over the text, for the highest-ranked or the requested units."""
    traces, part, layer = _compute_layer(body, run)
    name = body.quantity or "h"
    if name not in layer.values:
        raise UsageError(f"This layer has no quantity {name!r}: {did_you_mean(name, list(layer.values))}.")
    values, classes = layer.values[name], token_classes(part.tokens, body.containing)
    if body.by == "correlation" and body.units is None:
        if body.token_class not in classes:
            hint = did_you_mean(body.token_class or "", list(classes)) if classes else "there are none"
            raise UsageError(f"Unknown token class {body.token_class!r}: {hint}.")
        ranked = rank(values, "correlation", classes[body.token_class])
    else:
        ranked = rank(values, "variance" if body.by == "correlation" else body.by)
    units = ranked.units[: body.count] if body.units is None else body.units
    for unit in units:
        layer.unit(unit)  # raises an error if the unit does not exist
    meta = {
        "parts": [
            {"name": other.part, "title": other.title, "layers": len(other.layers)} for other in traces.parts.values()
        ],
        "part": part.part,
        "title": part.title,
        "tokens": part.tokens,
        "order": part.order,
        "targets": part.targets,
        "answer": traces.read.answer,
        "notes": traces.read.notes,
        "layer": part.layers.index(layer) + 1,
        "layers": len(part.layers),
        "hidden": layer.hidden,
        "cell": part.cell,
        "quantity": name,
        "quantities": [{"name": key, "words": layer.describe(key), "gate": key in layer.gates} for key in layer.values],
        "gates": _describe_gates(layer),
        "classes": list(classes),
        "units": units,
        "scores": ranked.scores[units],
        "maximum": np.abs(values).max(),
    }
    return pack_arrays(meta, map=pack_float16(values[:, units].T))


@view.post("/unit")
def one_unit(body: UnitRequest, run: OpenRun) -> object:
    """Return all quantities of one unit over the text."""
    _, part, layer = _compute_layer(body, run)
    values = layer.unit(body.unit)
    return {"unit": body.unit, "tokens": part.tokens, "values": values, "gates": _describe_gates(layer, body.unit)}


@view.post("/step")
def one_step(body: StepRequest, run: OpenRun) -> object:
    """Return one step of one unit as computed by the equations of the cell."""
    _, part, layer = _compute_layer(body, run)
    steps, number = part.steps[part.layers.index(layer)], part.step_of(body.position)
    before = {name: values[number] for name, values in steps.before.items()}
    return {
        **vars(arithmetic(steps.cell, steps.x[number], before, body.unit)),
        "position": body.position,
        "step": number,
        "steps": len(part.order),
        "order": part.order,
        "cell": part.cell,
    }


def _compute_layer(body: LayerRequest, run: OpenRun) -> tuple[CellTraces, CellPart, LayerTrace]:
    """Return the cached traces of a text, and the requested part and layer."""
    text, target = body.text, body.forced_target
    traces = run.get_or_compute(
        ("cells", text, target),
        lambda: cell_traces(run.trained, text, target, allow_unknown=True, max_tokens=MAX_TOKENS),
    )
    part = traces[body.part]
    return traces, part, part.layer(body.layer)


def _describe_gates(layer: LayerTrace, unit: int | None = None) -> list[dict[str, object]]:
    units = slice(None) if unit is None else unit
    return [
        {
            "name": name,
            "effect": effect,
            "mean": float(layer.values[name][:, units].mean()),
            **layer.saturation(name, unit)._asdict(),
        }
        for name, effect in layer.gates.items()
    ]


# --- gradients --------------------------------------------------------------------------------------------------------

MAX_CURVE_POINTS = 1500
MAX_NORMS = 5000  # for a longer training run, quantiles are returned
gradients_view = View("gradients", "Gradient flow", view.suits_model, task_view=view.name)


class GradientRequest(TextRequest):
    """The loss whose gradient is computed."""

    of: Literal["last", "total"] = "last"
    at: int | None = Field(None, ge=0, le=10_000)  # position of the prediction; None means the last prediction


@gradients_view.post()
def gradients(body: GradientRequest, run: OpenRun) -> object:
    """Return gradient norms over time, singular values and training norms of one run.

    The page requests several runs and draws them in one chart.
    """
    text, target = body.text, body.forced_target
    gradients = run.get_or_compute(
        ("gradients", text, target, body.of, body.at),
        lambda: gradient_parts(
            run.trained, text, target, of=body.of, at=body.at, allow_unknown=True, max_tokens=MAX_TOKENS
        ),
    )
    matrices = run.get_or_compute("matrices", lambda: part_matrices(run.trained))
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
        **describe_gradient_norms(training_norms(run.trained.run)),
    }


def describe_gradient_norms(norms: list[tuple[int, float]]) -> dict[str, object]:
    """Return the thinned curve of gradient norms.

    All norms in sorted order are added, to count those above a threshold.
    """
    ordered = np.sort([norm for _, norm in norms])
    if len(ordered) > MAX_NORMS:
        ordered = np.quantile(ordered, np.linspace(0, 1, MAX_NORMS))
    return {"training": thin_points(norms, MAX_CURVE_POINTS), "logged": len(norms), "sorted_norms": ordered}
