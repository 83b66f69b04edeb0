"""What a series is made of, as a structural model sees it: level, slope and season, each with how sure it is.

The state of a linear dynamical system with a name has parts that mean something. Smoothing says what each was at every
step, given all that was observed: nothing is fitted but the noises.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqloom.classical.structures import PARTS
from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Components:
    """Of one variable (T,): what was observed, NaN where nothing was, and each part with its deviation."""

    series: str
    variable: str
    times: Any  # (T,) datetime64, or numbers
    observed: Array
    parts: dict[str, tuple[Array, Array]]  # mean and deviation of each, by its name
    logarithmic: bool
    noise: float  # deviation of the observations' noise


def components(trained: Any, split: str = "test", variable: str | None = None) -> Components:
    """The parts of the first series of a split, with all that came before it."""
    model, recipe = _structural(trained), trained.run.recipe
    task = trained.task()
    series = task.corpus.split(split)[0]
    if variable is not None and variable not in series.columns:
        raise UsageError(f"The series has no variable {variable!r}: {did_you_mean(variable, series.columns)}.")
    place = 0 if variable is None else series.columns.index(variable)
    values, mask = task.seen(split)[0]
    smoothed = model.smooth(values[None], mask[None])
    deviations = smoothed.factors.square().sum(dim=3).sqrt()  # (1, T, H)
    size, names = model.hidden // model.variables, PARTS[model.structure]
    states, spread = (part[0, :, place * size : (place + 1) * size].numpy() for part in (smoothed.means, deviations))
    parts = {name: (states[:, number], spread[:, number]) for number, name in enumerate(names)}
    level, deviation = parts[names[0]]
    parts[names[0]] = level + float(model.system.offset[place]), deviation  # a damped level is what lies above its mean
    observed = np.where(mask[:, place].numpy(), values[:, place].numpy(), np.nan)
    return Components(
        series.name,
        series.columns[place],
        series.times,
        observed,
        parts,
        (recipe.get("forecast") or {}).get("transform") == "log",
        float(model.system.observation[place].square().sum().sqrt()),
    )


def _structural(trained: Any) -> Any:
    """The model, if its state has parts with names."""
    recipe = trained.run.recipe
    if recipe.get("task") != "forecast" or recipe["model"].get("kind") != "kalman":
        raise UsageError(
            f"{trained.name} is no model with a level, a slope or a season. "
            "Train one that has them: seqloom train series-forecast model.kind=kalman."
        )
    if trained.model.structure not in PARTS:
        raise UsageError(
            f"The state of {trained.name} is free: its parts have no names. Train one with model.structure=trend, say."
        )
    return trained.model
