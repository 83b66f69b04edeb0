"""What a run's log says over its steps, in which units, and in what the recipes of several runs differ.

    run_curves(Run.open("runs/lm-char-lstm"))["dev perplexity"].points      [(100, 14.2), (200, 11.9), …]
    loss_scale(Run.open("runs/lm-char-lstm"))      Scale("nats per character", "nats per character")
    loss_scale(Run.open("runs/gpt-pydocs"))        Scale("nats per token (vocabulary 2,000)", "nats per token 5f0c…")

A nat per character and a nat per token are different units, and so are nats per token of two
vocabularies: the more a token spells, the more nats it costs. Curves share an axis only where
`Scale.key` is equal.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from seqloom.runs.run import Run
from seqloom.tasks import task_info

Points = list[tuple[int, float]]
MOST = 600  # points of a curve: more than a screen has places for


class Scale(NamedTuple):
    """The unit of an axis."""

    unit: str  # the title of the axis
    key: str  # equal for curves that may share an axis

    @classmethod
    def of_tokens(cls, run: Run, unit: str) -> "Scale":
        """A unit that counts tokens, with the name of this run's tokens if it reads texts."""
        if not run.of_text:
            return cls(unit, unit)
        tokenizer = run.tokenizer
        if tokenizer.kind == "characters":  # a character is the same in every vocabulary
            return cls(unit.replace("token", "character"), f"{unit} characters")
        return cls(f"{unit} (vocabulary {len(tokenizer):,})", f"{unit} {tokenizer.fingerprint()}")


def loss_scale(run: Run) -> Scale:
    """The unit of the loss, in training and on dev."""
    logged = [
        str(entry.get("unit", "nats"))
        for entry in run.log()
        if entry["event"] == "progress" and entry["values"].get("loss") is not None
    ]
    unit, per = logged[-1] if logged else "nats", task_info(run.recipe.get("task")).loss_per
    unit = f"nats per {per}" if unit == "nats" and run.of_text else unit
    return Scale.of_tokens(run, unit) if per == "token" else Scale(unit, unit)


@dataclass(frozen=True)
class Curve:
    """One figure of a log over its steps."""

    group: str  # what is measured: loss, perplexity, learning_rate …
    split: str  # train or dev
    unit: str  # in words, for an axis
    scale: str  # curves share an axis where both group and scale are equal
    points: Points
    remark: str = ""  # why it cannot be compared with another split's


def run_curves(run: Run) -> dict[str, Curve]:
    """Every figure of the log by name, thinned to what can be drawn. What was trained twice counts as trained last."""
    points: dict[str, dict[int, float]] = {}
    counted = "tokens"
    for entry in run.log():
        counted, values = str(entry.get("counted", counted)), dict[str, object]()
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
        "perplexity": Scale.of_tokens(run, "perplexity per token" if run.of_text else "perplexity"),
        "speed": Scale.of_tokens(run, "tokens/s") if counted == "tokens" else Scale(f"{counted}/s", f"{counted}/s"),
        "bits_per_character": Scale("bits per character", ""),
    }
    curves = {}
    for name, own in points.items():
        split, _, group = name.partition(" ")
        unit, scale = scales.get(group, Scale("", ""))
        remark = training_remark(run) if name in ("train loss", "train perplexity") else ""
        curves[name] = Curve(group, split, unit, scale, thin_points(sorted(own.items())), remark)
    return curves


def thin_points(points: Points, most: int = MOST) -> Points:
    """At most so many points, evenly chosen, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    places = {round(i * (len(points) - 1) / (most - 1)) for i in range(most)}
    return [points[place] for place in sorted(places)]


def differences(recipes: Mapping[str, Mapping[str, object]]) -> list[dict[str, object]]:
    """The keys in which recipes are not all alike, each with what every one of them says; None where one is silent."""
    flat = {name: dict(_flatten(recipe)) for name, recipe in recipes.items()}
    differing: list[dict[str, object]] = []
    for key in dict.fromkeys(key for values in flat.values() for key in values):
        values = {name: own.get(key) for name, own in flat.items()}
        if len({repr(value) for value in values.values()}) > 1:
            differing.append({"key": key, "values": values})
    return differing


def _flatten(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flatten(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


# Figures on dev that are drawn beside the loss: of a translator, a tagger of spans or of words, a classifier, a masked
# language model.
DEV_METRIC_TITLES = {
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
PAIRED_METRICS = {
    "masked_accuracy": ("next_accuracy", "hidden tokens", "next sentences"),
    "replaced_f1": ("masked_accuracy", "replaced tokens", "the generator's gaps"),
}


def curves(run: Run, scale: float = 1.0) -> dict[str, Points]:
    """(step, loss · scale) as logged in training, and as evaluated on dev; of a model of text, in nats per token.

    Of what is measured otherwise also (step, figure) on dev: the first of `DEV_METRIC_TITLES` that there is,
    and what goes along.
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
            beside = select_dev_metric(metrics)
            for name in [] if beside is None else [beside, *PAIRED_METRICS.get(beside, ())[:1]]:
                if metrics.get(name) is not None:
                    points.setdefault(name, []).append((step, metrics[name]))
    return points


def select_dev_metric(metrics: Mapping[str, float]) -> str | None:
    """The metric on dev that is drawn beside the loss."""
    return next((name for name in DEV_METRIC_TITLES if name in metrics), None)


def training_remark(run: Run) -> str:
    """Why the loss in training cannot be compared with that of dev, or of other runs, where it is another sum."""
    remarks = [entry.get("remark") for entry in run.log() if entry["event"] == "progress"]
    return f"{remarks[-1]}: not comparable" if remarks and remarks[-1] else ""


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
