"""The unit in which a run's figures are measured, and which runs can share an axis.

    loss_scale(Run.open("runs/lm-char-lstm"))      Scale("nats per character", "nats per character")
    loss_scale(Run.open("runs/gpt-pydocs"))        Scale("nats per token (vocabulary 2,000)", "nats per token 5f0c…")

A nat per character and a nat per token are different units, and so are nats per token of two vocabularies: the more a
token spells, the more nats it costs. Curves share an axis only where `Scale.key` is equal.

What a run's log says over its steps, and in what the recipes of several runs differ: as plain values.

run_curves(Run.open("runs/lm-char-lstm"))["dev perplexity"].points      [(100, 14.2), (200, 11.9), …]
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from seqloom.runs.run import Run
from seqloom.tasks import task_info

Points = list[tuple[int, float]]
UNNAMED = ("nats", "of samples")  # units of the log that do not say what they are per


class Scale(NamedTuple):
    unit: str  # the title of an axis
    key: str  # equal for curves that may share an axis


class TokenUnit(NamedTuple):
    name: str  # "character" or "token"
    note: str  # which tokens: " (vocabulary 800)"
    key: str


def loss_scale(run: Run) -> Scale:
    """The unit of the loss, in training and on dev."""
    unit = _logged_unit(run)
    task = str(run.recipe.get("task"))
    if unit in UNNAMED:
        if task == "word-vectors":
            unit = f"objective of {run.recipe['model']['objective']}"
        else:
            unit = f"nats per {task_info(task).loss_per}" if run.of_text else "nats"
    return _per_token(run, unit) if "token" in unit and run.of_text else Scale(unit, unit)


def perplexity_scale(run: Run) -> Scale:
    return _per_token(run, "perplexity per token") if run.of_text else Scale("perplexity", "perplexity")


def speed_scale(run: Run, counted: str) -> Scale:
    unit = f"{counted}/s"
    return _per_token(run, unit) if counted == "tokens" and run.of_text else Scale(unit, unit)


def _logged_unit(run: Run) -> str:
    """The unit of the last loss in the log, without remarks on how training changes it."""
    units = [
        str(entry.get("unit", "nats"))
        for entry in run.log()
        if entry["event"] == "progress" and entry["values"].get("loss") is not None
    ]
    return units[-1].partition(", ")[0] if units else "nats"


def _per_token(run: Run, unit: str) -> Scale:
    """A unit that counts tokens, with the name of this run's tokens."""
    token = _token_unit(run)
    return Scale(unit.replace("token", token.name) + token.note, f"{unit} {token.key}")


def _token_unit(run: Run) -> TokenUnit:
    tokenizer = run.tokenizer
    if tokenizer.kind == "characters":  # a character is the same in every vocabulary
        return TokenUnit("character", "", "characters")
    return TokenUnit("token", f" (vocabulary {len(tokenizer):,})", tokenizer.fingerprint())


# ---------------------------------------------------------------------------------------------------------------------

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


# Figures on dev that are drawn beside the loss: of a translator, a tagger of spans or of words, a classifier, a masked
# language model.
BESIDE = {
    "bleu": "BLEU on dev, of greedy translations",
    "span_f1": "span F1 on dev",
    "token_accuracy": "share of the words of dev that is right",
    "accuracy": "share of dev that is right",
    "pearson": "Pearson correlation on dev",
    "answer_f1": "F1 of answers on dev",
    "replaced_f1": "F1 of replaced tokens on dev, and share of gaps filled right",
    "masked_accuracy": "share of dev that is told right",
    "hidden_accuracy": "share of the hidden tokens of dev that is told right",
    "crps": "CRPS on dev",
}


# What is drawn in the same panel, dashed, and what the two are then called.
ALONG = {
    "masked_accuracy": ("next_accuracy", "hidden tokens", "next sentences"),
    "replaced_f1": ("masked_accuracy", "replaced tokens", "the generator's gaps"),
}


def curves(run: Run, scale: float = 1.0) -> dict[str, Points]:
    """(step, loss · scale) as logged in training, and as evaluated on dev; of a model of text, in nats per token.

    Of what is measured otherwise also (step, figure) on dev: the first of `BESIDE` that there is, and what goes along.
    """
    found: dict[str, Points] = {"train": [], "dev": []}
    for entry in run.log():
        step = entry["step"]
        if entry["event"] == "progress" and entry["values"].get("loss") is not None:
            found["train"].append((step, entry["values"]["loss"] * scale))
        elif entry["event"] == "evaluated" and entry["split"] == "dev":
            if (loss := entry["metrics"].get("loss")) is not None:
                found["dev"].append((step, loss * scale))
            for name in _beside(entry["metrics"]):
                if entry["metrics"].get(name) is not None:
                    found.setdefault(name, []).append((step, entry["metrics"][name]))
    return found


def figure_beside(metrics: Mapping[str, Any]) -> str | None:
    return next((name for name in BESIDE if name in metrics), None)


def _beside(metrics: Mapping[str, Any]) -> list[str]:
    name = figure_beside(metrics)
    return [] if name is None else [name, *ALONG.get(name, ())[:1]]


def training_remark(run: Run) -> str:
    """Why the loss in training cannot be compared with that of dev, or of other runs, where it is another sum."""
    units = [entry.get("unit", "nats") for entry in run.log() if entry["event"] == "progress"]
    remark = units[-1].partition(", ")[2] if units else ""
    return f", {remark}: not comparable" if remark else ""


class LossPanel(NamedTuple):
    """Runs whose losses share an axis."""

    title: str  # of the axis
    runs: list[tuple[Run, float]]  # each with the factor that brings its loss into the unit


def loss_panels(runs: Sequence[Run]) -> list[LossPanel]:
    """One panel for each unit of loss. Language models over different tokens share one in bits per character, if all
    have them: how many bits per character a nat per token is was measured on dev."""
    scales = [loss_scale(run) for run in runs]
    measured = [run.metrics("dev") or {} for run in runs]
    if len({scale.key for scale in scales}) > 1 and all("bits_per_character" in metrics for metrics in measured):
        factors = [metrics["bits_per_character"] / metrics["loss"] for metrics in measured]
        return [LossPanel("bits per character", list(zip(runs, factors, strict=True)))]
    panels: dict[str, LossPanel] = {}
    for run, scale in zip(runs, scales, strict=True):
        panels.setdefault(scale.key, LossPanel(f"loss, {scale.unit}", [])).runs.append((run, 1.0))
    return list(panels.values())
