"""Gradient flow: how far back through time a loss is felt, the matrices it passes, and what clipping does to it."""

from typing import Any, Literal

import numpy as np
from fastapi import APIRouter
from pydantic import Field

from seqloom.inspect.values import to_plain
from seqloom.inspect.views.curves import thinned
from seqloom.inspect.views.gradients import PartGradients, gradient_parts, part_matrices, training_norms
from seqloom.studio.asking import TOKENS, StudioShelf, TextQuestion
from seqloom.studio.endpoints import queued
from seqloom.studio.views.cell import suits

__all__ = ["router", "suits"]

router = APIRouter(prefix="/api/gradients")
LOGGED = 1500  # steps of a training that are drawn
SIZES = 5000  # of their norms that are counted: all, or of a longer training so many quantiles


class GradientQuestion(TextQuestion):
    of: Literal["last", "total"] = "last"
    at: int | None = Field(None, ge=0, le=10_000)  # whose loss it is, where it is not the last one's


@router.post("")
@queued
def gradients(ask: GradientQuestion, shelf: StudioShelf) -> dict[str, Any]:
    """Of one run; the page asks for several and draws them on one picture."""
    text, target = ask.text, ask.forced_target
    with shelf.using(ask.run) as trained:
        found = shelf.remember(
            ask.run,
            ("gradients", text, target, ask.of, ask.at),
            lambda: gradient_parts(trained, text, target, of=ask.of, at=ask.at, allow_unknown=True, longest=TOKENS),
        )
        matrices = shelf.remember(ask.run, ("matrices",), lambda: part_matrices(trained))
        run = trained.run
    return {
        **to_plain(found),
        "parts": [_described(part) for part in found.parts.values()],
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
        "clip": run.recipe["train"].get("clip"),
        **describe_training(training_norms(run)),
    }


def describe_training(norms: list[tuple[int, float]]) -> dict[str, Any]:
    """A line to draw, and all norms by size: how many are above θ is counted among these, not on the line."""
    sizes = np.sort([norm for _, norm in norms])
    if len(sizes) > SIZES:
        sizes = np.quantile(sizes, np.linspace(0, 1, SIZES))
    return {"training": thinned(norms, LOGGED), "logged": len(norms), "sizes": sizes}


def _described(part: PartGradients) -> dict[str, Any]:
    flows = [
        {
            "layer": flow.layer + 1,
            "gammaW": flow.gamma_w,
            "gammaG": flow.gamma_g,
            "measured": flow.measured,
            "bound": flow.bound,
        }
        for flow in part.flows
    ]
    return {**to_plain(part), "flows": flows}
