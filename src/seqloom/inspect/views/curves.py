"""Training curves of a run, their units, and the differences between the recipes of several runs.

    run_curves(Run.open("runs/lm-char-lstm"))["dev perplexity"].points      [(100, 14.2), (200, 11.9), …]
    loss_scale(Run.open("runs/lm-char-lstm")).unit      "nats per character"
    loss_scale(Run.open("runs/gpt-pydocs")).unit        "nats per token (vocabulary 2,000)"

Nats per character and nats per token are different units. Nats per token with two different vocabularies are also
different units, because longer tokens have a higher loss. Curves share an axis only if the keys of their scales are
equal (`Scale.key`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from seqloom.runs.run import Run
from seqloom.tasks import task_info

Points = list[tuple[int, float]]
MAX_POINTS = 600  # maximum points of a curve, about the width of a plot in pixels


class Scale(NamedTuple):
    """The unit of an axis."""

    unit: str  # axis title
    key: str  # key that is equal for curves that can share an axis

    @classmethod
    def of_tokens(cls, run: Run, unit: str) -> "Scale":
        """Build a unit that counts tokens. `{token}` is replaced by the name of a token of this run."""
        by_token = unit.replace("{token}", "token")
        if not run.of_text:
            return cls(by_token, by_token)
        tokenizer = run.tokenizer
        if tokenizer.kind == "characters":  # the unit is the same for every vocabulary
            return cls(unit.replace("{token}", "character"), f"{unit} characters")
        return cls(f"{by_token} (vocabulary {len(tokenizer):,})", f"{unit} {tokenizer.fingerprint()}")


def loss_scale(run: Run) -> Scale:
    """Return the unit of the loss, in training and on dev."""
    logged = [
        str(entry.get("unit", "nats"))
        for entry in run.log()
        if entry["event"] == "progress" and entry["values"].get("loss") is not None
    ]
    unit, per = logged[-1] if logged else "nats", task_info(run.recipe.get("task")).loss_per
    if unit == "nats" and run.of_text:
        unit = "nats per {token}" if per == "token" else f"nats per {per}"
    return Scale.of_tokens(run, unit) if per == "token" else Scale(unit, unit)


@dataclass(frozen=True)
class Curve:
    """A logged metric by step."""

    group: str  # the measured quantity: loss, perplexity, learning_rate …
    split: str  # train or dev
    unit: str  # axis title
    scale: str  # curves share an axis if their groups and scales are equal
    points: Points
    remark: str = ""  # the reason why the curve is not comparable with other splits


def run_curves(run: Run) -> dict[str, Curve]:
    """Return all logged metrics by name, thinned for plotting. If a step was repeated, its last value is used."""
    points: dict[str, dict[int, float]] = {}
    speed_unit = "tokens"
    for entry in run.log():
        speed_unit, values = str(entry.get("speed_unit", speed_unit)), dict[str, object]()
        if entry["event"] == "progress":
            values = {f"train {name}": value for name, value in entry["values"].items()}
            loss = entry["values"].get("loss")
            is_nats = entry.get("unit", "nats") == "nats"
            if is_nats and isinstance(loss, float) and loss < 20:
                values["train perplexity"] = math.exp(loss)
            if speed := entry.get("tokens_per_second"):
                values["train speed"] = speed
        elif entry["event"] == "evaluated":
            values = {f"{entry['split']} {name}": value for name, value in entry["metrics"].items()}
        for name, value in values.items():
            if isinstance(value, int | float) and math.isfinite(value):
                points.setdefault(name, {})[entry["step"]] = float(value)
    if not points:
        return {}
    scales = {
        "loss": loss_scale(run),
        "perplexity": Scale.of_tokens(run, "perplexity per {token}" if run.of_text else "perplexity"),
        "speed": Scale.of_tokens(run, "{token}s/s") if speed_unit == "tokens" else Scale(*[f"{speed_unit}/s"] * 2),
        "bits_per_character": Scale("bits per character", ""),
    }
    curves = {}
    for name, by_step in points.items():
        split, _, group = name.partition(" ")
        unit, scale = scales.get(group, Scale("", ""))
        remark = training_remark(run) if name in ("train loss", "train perplexity") else ""
        curves[name] = Curve(group, split, unit, scale, thin_points(sorted(by_step.items())), remark)
    return curves


def thin_points(points: Points, max_points: int = MAX_POINTS) -> Points:
    """Select at most `max_points` evenly spaced points, including the first and the last."""
    if len(points) <= max_points:
        return list(points)
    indices = {round(i * (len(points) - 1) / (max_points - 1)) for i in range(max_points)}
    return [points[index] for index in sorted(indices)]


def differences(recipes: Mapping[str, Mapping[str, object]]) -> list[dict[str, object]]:
    """Return the keys whose values differ between recipes, with the value of each recipe, or None for a missing key."""
    flat = {name: dict(_flatten(recipe)) for name, recipe in recipes.items()}
    differing: list[dict[str, object]] = []
    for key in dict.fromkeys(key for values in flat.values() for key in values):
        values = {name: recipe.get(key) for name, recipe in flat.items()}
        if len({repr(value) for value in values.values()}) > 1:
            differing.append({"key": key, "values": values})
    return differing


def _flatten(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flatten(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


# Titles of the dev metrics that can be drawn next to the loss, in order of preference.
DEV_METRIC_TITLES = {
    "bleu": "BLEU of greedy translations on dev",
    "span_f1": "span F1 on dev",
    "token_accuracy": "tag accuracy on dev",
    "accuracy": "accuracy on dev",
    "pearson": "Pearson correlation on dev",
    "answer_f1": "F1 of answers on dev",
    "replaced_f1": "F1 of replaced tokens, and accuracy at masked tokens, on dev",
    "masked_accuracy": "accuracy at masked tokens on dev",
    "hidden_accuracy": "accuracy at masked tokens on dev",
    "crps": "CRPS on dev",
}


# A second metric in the same panel, which is drawn with a dashed line, and the legend labels of both metrics.
PAIRED_METRICS = {
    "masked_accuracy": ("next_accuracy", "masked tokens", "next sentences"),
    "replaced_f1": ("masked_accuracy", "replaced tokens", "masked tokens (generator)"),
}


def curves(run: Run, scale: float = 1.0) -> dict[str, Points]:
    """Return (step, loss · scale) in training and on dev; the loss of text models is in nats per token.

    If other dev metrics were logged, also return (step, metric) for the first of `DEV_METRIC_TITLES` and its
    paired metric.
    """
    points: dict[str, Points] = {"train": [], "dev": []}
    for entry in run.log():
        step = entry["step"]
        if entry["event"] == "progress" and entry["values"].get("loss") is not None:
            points["train"].append((step, entry["values"]["loss"] * scale))
        elif entry["event"] == "evaluated" and entry["split"] == "dev":
            metrics = entry["metrics"]
            if (loss := metrics.get("loss")) is not None:
                points["dev"].append((step, loss * scale))
            selected = select_dev_metric(metrics)
            for name in [] if selected is None else [selected, *PAIRED_METRICS.get(selected, ())[:1]]:
                if metrics.get(name) is not None:
                    points.setdefault(name, []).append((step, metrics[name]))
    return points


def select_dev_metric(metrics: Mapping[str, float]) -> str | None:
    """Return the dev metric that is drawn next to the loss."""
    return next((name for name in DEV_METRIC_TITLES if name in metrics), None)


def training_remark(run: Run) -> str:
    """Return why the training loss is not comparable with dev or other runs, or "" if it is comparable."""
    remarks = [entry.get("remark") for entry in run.log() if entry["event"] == "progress"]
    return f"{remarks[-1]}: not comparable" if remarks and remarks[-1] else ""


class LossPanel(NamedTuple):
    """Runs whose losses share an axis."""

    title: str  # axis title
    runs: list[tuple[Run, float]]  # each run with the factor that converts its loss to the unit


def loss_panels(runs: Sequence[Run]) -> list[LossPanel]:
    """Return one panel per unit of loss.

    Language models with different tokens share a panel in bits per character if all of them have this metric. The curve
    is converted by the ratio of this metric to the loss on dev.
    """
    scales = [loss_scale(run) for run in runs]
    measured = [run.metrics("dev") or {} for run in runs]
    if len({scale.key for scale in scales}) > 1 and all("bits_per_character" in metrics for metrics in measured):
        factors = [metrics["bits_per_character"] / metrics["loss"] for metrics in measured]
        return [LossPanel("bits per character", list(zip(runs, factors, strict=True)))]
    panels: dict[str, LossPanel] = {}
    for run, scale in zip(runs, scales, strict=True):
        panels.setdefault(scale.key, LossPanel(f"loss, {scale.unit}", [])).runs.append((run, 1.0))
    return list(panels.values())
