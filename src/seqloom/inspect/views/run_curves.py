"""What a run's log says over its steps, and in what the recipes of several runs differ: as plain values.

run_curves(Run.open("runs/lm-char-lstm"))["dev perplexity"].points      [(100, 14.2), (200, 11.9), …]
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seqloom.inspect.plots.curves import Points, training_remark
from seqloom.inspect.views.loss_units import Scale, loss_scale, perplexity_scale, speed_scale
from seqloom.runs.run import Run

MOST = 600  # points of a curve: more than a screen has places for


@dataclass(frozen=True)
class Curve:
    group: str  # what is measured: loss, perplexity, learning_rate …
    split: str  # train or dev
    unit: str  # in words, for an axis
    scale: str  # curves share an axis where both group and scale are equal
    points: Points
    remark: str = ""  # why it cannot be compared with another split's


def run_curves(run: Run) -> dict[str, Curve]:
    """Every figure of the log by name, thinned to what can be drawn. What was trained twice counts as trained last."""
    found: dict[str, dict[int, float]] = {}
    counted = "tokens"
    for entry in run.log():
        counted = str(entry.get("counted", counted))
        for name, value in _figures(entry):
            if isinstance(value, int | float) and math.isfinite(value):
                found.setdefault(name, {})[entry["step"]] = float(value)
    if not found:
        return {}
    scales = {
        "loss": loss_scale(run),
        "perplexity": perplexity_scale(run),
        "speed": speed_scale(run, counted),
        "bits_per_character": Scale("bits per character", ""),
    }
    return {name: _curve(run, name, scales, points) for name, points in found.items()}


def _figures(entry: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Name and value of all that an entry of the log measured."""
    if entry["event"] == "progress":
        values = [(f"train {name}", value) for name, value in entry["values"].items()]
        loss = entry["values"].get("loss")
        nats = str(entry.get("unit", "nats")).partition(",")[0] == "nats"
        if nats and isinstance(loss, float) and loss < 20:
            values.append(("train perplexity", math.exp(loss)))
        speed = entry.get("tokens_per_second")
        return [*values, ("train speed", speed)] if speed else values
    if entry["event"] == "evaluated":
        return [(f"{entry['split']} {name}", value) for name, value in entry["metrics"].items()]
    return []


def _curve(run: Run, name: str, scales: Mapping[str, Scale], points: Mapping[int, float]) -> Curve:
    split, _, group = name.partition(" ")
    unit, scale = scales.get(group, Scale("", ""))
    remark = training_remark(run).lstrip(", ") if name in ("train loss", "train perplexity") else ""
    return Curve(group, split, unit, scale, thinned(sorted(points.items())), remark)


def thinned(points: Points, most: int = MOST) -> Points:
    """At most so many points, evenly chosen, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    places = {round(i * (len(points) - 1) / (most - 1)) for i in range(most)}
    return [points[place] for place in sorted(places)]


def differences(recipes: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The keys in which recipes are not all alike, each with what every one of them says; None where one is silent."""
    flat = {name: dict(_flat(recipe)) for name, recipe in recipes.items()}
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    found = []
    for key in keys:
        values = {name: one.get(key) for name, one in flat.items()}
        if len({repr(value) for value in values.values()}) > 1:
            found.append({"key": key, "values": values})
    return found


def _flat(value: Any, path: str = "") -> Any:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, value
