"""The model card of a run, card.md: Markdown with YAML front matter, as the Hugging Face hub displays it.

A card is a function of the files of its run, so it can be written again after each evaluation.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from importlib import import_module
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from seqloom.config import dump_yaml
from seqloom.core import VERSION, Json
from seqloom.core.markdown import escape, fence, table
from seqloom.core.metrics import baseline_notes, format_metric
from seqloom.core.words import escape_controls, format_count
from seqloom.predict.evaluation import LABELS
from seqloom.predict.usage import http_note, http_usage, python_usage, shell_usage
from seqloom.recipes import recipe_of
from seqloom.recipes.reference import changed_settings
from seqloom.runs.calibration import load_calibration
from seqloom.runs.run import Run
from seqloom.tasks import task_info
from seqloom.train.config import FitConfig

TEMPLATE = files("seqloom.predict") / "templates" / "card.md"
LICENCES = {  # licences of training data, and their identifiers on the Hugging Face hub
    "Apache-2.0": "apache-2.0",
    "BSD-3-Clause": "bsd-3-clause",
    "CC BY 2.0": "cc-by-2.0",
    "CC BY 4.0": "cc-by-4.0",
    "CC BY-SA 4.0": "cc-by-sa-4.0",
    "MIT": "mit",
}
HUB_METRICS = {  # names of metrics on the Hugging Face hub
    "accuracy": "accuracy",
    "bits_per_character": "bits_per_character",
    "bleu": "bleu",
    "bleu_4": "bleu",
    "chrf": "chrf",
    "macro_f1": "f1",
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "perplexity": "perplexity",
    "rmse": "rmse",
    "span_f1": "f1",
    "spearman": "spearmanr",
    "token_accuracy": "accuracy",
}
RARE = 10  # labels with fewer training examples are listed as limits
WEAK_F1 = 0.5  # labels with a lower F1 are listed as limits
HIDDEN_SETTINGS = ("task", "seed", "data", "init.from")  # settings that another section of the card describes
NAMED = 20  # maximum number of labels in a sentence


def write_card(run: Run, *, locked: bool = False) -> None:
    """Write or update the card of a run."""
    run.save_card(format_card(run), locked=locked)


def format_card(run: Run) -> str:
    """Return the card of a run."""
    card = Card(run)
    info = card.info if card.predictor.has_trained_output else replace(card.info, command="embed {run}")
    name = escape_controls(card.name)
    values = {
        "front_matter": dump_yaml(card.front_matter()).strip(),
        "name": escape(name),
        "path": name,
        "introduction": join(card.introduction()),
        "shell": fence("bash", shell_usage(info, name, card.data["counts"])),
        "python": fence("python", python_usage(info, name)),
        "http": fence("bash", request) if (request := http_usage(info, name)) else "",
        "http_note": http_note(info),
        "labels_note": card.labels_note(),
        "labels": card.label_table(),
        "results": join(card.results()),
        "limits": "\n".join(f"- {limit}" for limit in card.limits()),
        "data": join(card.data_section()),
        "training": join(card.training()),
        "settings": card.settings(),
    }
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    text = environment.from_string(TEMPLATE.read_text("utf-8")).render(values)
    return re.sub(r"\n{3,}", "\n\n", text)


# --- the card ---------------------------------------------------------------------------------------------------------


class Card:
    """The sections of a run's card."""

    def __init__(self, run: Run) -> None:
        self.run, self.recipe, self.data = run, run.recipe, run.data
        self.name = run.path.name or run.path.resolve().name
        self.info = task_info(run.recipe["task"])
        self.events = list(run.log())

    @cached_property
    def checked(self) -> Any:
        """The validated recipe."""
        return recipe_of(self.run)

    def last_event(self, name: str) -> dict[str, Json]:
        return next((entry for entry in reversed(self.events) if entry["event"] == name), {})

    @cached_property
    def metrics(self) -> dict[str, dict[str, Json]]:
        """The stored evaluations by split."""
        found = {split: self.run.metrics(split) for split in ("dev", "test", "train")}
        return {split: metrics for split, metrics in found.items() if metrics is not None}

    @property
    def predictor(self) -> Any:
        return self.info.predictor_class()(self.run, "cpu")

    @property
    def label_counts(self) -> dict[str, int]:
        return dict(self.data.get("labels") or {})

    @property
    def licence(self) -> str | None:
        """The identifier of the data's licence on the Hugging Face hub, or None if it has no identifier."""
        licence = self.data["licence"].lower()
        return next((name for title, name in LICENCES.items() if licence.startswith((title.lower(), name))), None)

    # --- head ---------------------------------------------------------------------------------------------------------

    def front_matter(self) -> dict[str, Json]:
        """Return the metadata that the Hugging Face hub reads."""
        model, data = self.recipe["model"], self.data
        languages = [tag for side in ("source", "target") if (tag := data.get(side))]
        results = [self._hub_result(split) for split in ("dev", "test") if split in self.metrics]
        names = {metric["type"]: None for result in results for metric in result["metrics"]}
        content = {
            "license": self.licence,
            "language": list(dict.fromkeys(languages)),
            "library_name": "seqloom",
            "pipeline_tag": self.info.pipeline_tag,
            "tags": ["seqloom", self.recipe["task"], model["kind"]],
            "metrics": list(names),
            "model-index": [{"name": self.name, "results": results}] if names else [],
        }
        return {key: value for key, value in content.items() if value}

    def _hub_result(self, split: str) -> dict[str, Json]:
        metrics, name = self.metrics[split], self.data_name
        entries = [
            {"type": hub, "name": LABELS.get(key, key).strip(), "value": metrics[key]}
            for key, hub in HUB_METRICS.items()
            if isinstance(metrics.get(key), float)
        ]
        task = self.info.pipeline_tag or self.recipe["task"]
        return {"task": {"type": task}, "dataset": {"name": name, "type": name, "split": split}, "metrics": entries}

    def introduction(self) -> Iterator[str]:
        """Describe the model and its origin."""
        yield (import_module(self.info.task.__module__).__doc__ or "").partition("\n")[0]
        model = f"This is a model of the kind `{self.recipe['model']['kind']}` for the task `{self.recipe['task']}`"
        imported, average, init = self.data.get("imported"), self.run.average, self.data.get("init")
        if imported is not None:
            yield f"{model}, imported by seqloom {VERSION} from {self._import_origin(imported)}."
        elif average is not None:
            sources, steps = name_runs(average["runs"]), average.get("steps")
            origin = f"{format_count(len(steps), 'checkpoint')} of {sources}, " if steps else sources
            origin += f"steps {steps[0]:,} to {steps[-1]:,}" if steps else ""
            yield f"{model}. Its weights are the mean of {origin}."
        elif self.data["counts"]:
            yield f"{model}, trained by seqloom {VERSION} on {self.corpus}."
        else:
            yield f"{model}, created by seqloom {VERSION} from a file."
        if isinstance(init, Mapping):
            source = f"{name_runs([init['from']])}, a `{init['kind']}` model "
            source += "that was imported" if str(init["corpus"]).startswith("imported") else f"of {init['corpus']}"
            if init["weights"]:
                yield f"Its training started from the weights of {source} (sha256 {init['sha256'][:16]}…)."
            else:
                yield f"It has the tokenizer and the architecture of {source}, but random initial weights."

    def _import_origin(self, imported: Mapping[str, Json]) -> str:
        name, family = f"`{escape_controls(str(imported['directory']))}`", imported["family"]
        if "revision" in imported:
            return f"the Hugging Face hub: {name}, revision {imported['revision']} ({family})"
        return f"the Hugging Face directory {name} ({family})"

    @property
    def data_name(self) -> str:
        """The name of the training file without its folder, or of the corpus."""
        section = self.recipe.get("data") or {}
        train = next((section[key] for key in ("train", "train_source") if isinstance(section.get(key), str)), None)
        return str(self.data["corpus"]) if train is None else name_of(train)

    @property
    def corpus(self) -> str:
        """The name of the training data and its languages."""
        source, target = self.data.get("source"), self.data.get("target")
        return escape(self.data_name) + (f", {source} to {target}" if source and target else "")

    # --- labels and results -------------------------------------------------------------------------------------------

    def labels_note(self) -> str:
        total = sum(self.label_counts.values())
        return (
            f"The model predicts {format_count(len(self.label_counts), 'label')}, which occur {total:,} times in train."
        )

    def label_table(self) -> str:
        """Return the table of all labels, with their frequency in train and their F1 on each measured split."""
        counts, by_class = self.label_counts, self.by_class
        total = max(1, sum(counts.values()))
        splits = [split for split, classes in by_class.items() if classes.keys() <= counts.keys()]
        header = ["label", "train", "share", *(f"F1, {split}" for split in splits)]

        def rows() -> Iterator[list[str]]:
            for label, count in counts.items():
                scores = (by_class[split].get(label) for split in splits)
                shown = [f"{score['f1']:.4f}" if score and score["expected"] else "" for score in scores]
                yield [escape(label), f"{count:,}", f"{count / total:.1%}", *shown]

        return table(header, rows(), range(1, len(header))) if counts else ""

    @cached_property
    def by_class(self) -> dict[str, dict[str, Json]]:
        """The precision, recall and F1 of each class for each measured split."""
        return {split: dict(values["by_class"]) for split, values in self.metrics.items() if values.get("by_class")}

    def results(self) -> Iterator[str]:
        """Return the metrics of every measured split, with intervals and baselines."""
        finished = self.last_event("finished")
        if finished and self.run.average is None:
            metric = self.info.task.metric_of(self.checked)
            best = f" with the best {LABELS.get(metric, metric).strip()} on dev" if metric else ""
            yield f"The weights are those of step {finished['best_step']:,} of {finished['step']:,}{best}."
        if self.metrics:
            yield self.metric_table()
        if any(values.get("intervals") for values in self.metrics.values()):
            yield "Intervals are 95 % confidence intervals. They account for the choice of examples, not for the seed."
        yield from self._decoding()
        if self.run.average is not None:
            yield from self._sources()
        for split in self.unmeasured:
            command = f"seqloom evaluate {self.name} --split {split}"
            yield f"Not measured: {split}. `{command}` measures it and updates this card."
        if not self.metrics and not self.unmeasured:
            yield "The model has not been evaluated by seqloom."

    @property
    def unmeasured(self) -> list[str]:
        return [split for split in ("dev", "test") if split in self.data["counts"] and split not in self.metrics]

    def metric_table(self) -> str:
        """Return a table with a row for each metric and a column for each split. A baseline follows its metric."""
        names = dict.fromkeys(name for values in self.metrics.values() for name in values)
        ordered = [*(name for name in LABELS if name in names), *(name for name in names if name not in LABELS)]
        unit = "" if self.info.loss_per == "token" else f" per {self.info.loss_per}"

        def cell(values: Mapping[str, Json], name: str) -> str:
            value, interval = values.get(name), (values.get("intervals") or {}).get(name)
            if not isinstance(value, float):
                return ""
            low_high = "" if interval is None else " ({} to {})".format(*(format_metric(name, v) for v in interval))
            return format_metric(name, value) + low_high

        rows = [
            [escape(f"loss{unit}" if name == "loss" else title_of(name)), *cells]
            for name in ordered
            if any(cells := [cell(values, name) for values in self.metrics.values()])
        ]
        return table(["metric", *self.metrics], rows, range(1, 1 + len(self.metrics)))

    def _decoding(self) -> Iterator[str]:
        """Describe how translations were generated and scored."""
        for split, values in self.metrics.items():
            if "decoding" in values:
                signatures = ", ".join(f"{name}: `{text}`" for name, text in values.get("signatures", {}).items())
                yield f"Translations of {split}: {values['decoding']}. {signatures}"
            elif "bleu" in values:
                pairs = self.recipe["batch"]["dev_pairs"]
                of = "all pairs" if pairs is None else f"at most {pairs:,} pairs"
                yield (
                    f"BLEU, chrF and exact match of {split} are measured on greedy translations of {of}. "
                    "`seqloom evaluate` translates a complete split with the search options in `decode`."
                )

    def _sources(self) -> Iterator[str]:
        """Compare an average with its sources."""
        alone = self.run.average.get("alone", []) if self.run.average else []
        names = [name for name, value in self.metrics.get("dev", {}).items() if isinstance(value, float)]
        rows = [
            [escape(title_of(name)), *(format_metric(name, entry[name]) for entry in alone)]
            for name in names
            if all(isinstance(entry.get(name), float) for entry in alone)
        ]
        if alone:
            header = ["metric", *(escape(name_of(entry["name"])) for entry in alone)]
            yield "The averaged models on dev:"
            yield table(header, rows, range(1, len(header)))

    # --- limits -------------------------------------------------------------------------------------------------------

    def limits(self) -> Iterator[str]:
        """Yield the known limits of the model as sentences."""
        yield from self._input_limits()
        source, target = self.data.get("source"), self.data.get("target")
        if source and target:
            yield f"It translates {source} to {target} only. Text that differs from {self.corpus} was not evaluated."
        elif "imported" in self.data:
            yield "Its training data is unknown to seqloom; see the source of the model."
        else:
            yield f"It was trained on {self.corpus}. Other languages and other kinds of data were not evaluated."
        if self.unmeasured:
            yield f"It was not evaluated on {' and '.join(self.unmeasured)}."
        if self.last_event("finished") and self.run.average is None and isinstance(self.checked.train, FitConfig):
            yield f"It was trained with a single seed, {self.recipe['seed']}; other seeds give other results."
        started, finished = self.last_event("started"), self.last_event("finished")
        if started and finished.get("step", -1) < self.events[-1]["step"]:
            yield f"Its training has not finished; it was evaluated at step {self.events[-1]['step']:,} or before."
        for split, values in self.metrics.items():
            yield from (f"On {split}, {note}." for note in baseline_notes(values))
        yield from self._label_limits()
        yield from (f"{escape(note[:1].upper() + note[1:])}." for note in self.data.get("notes") or [])

    def _input_limits(self) -> Iterator[str]:
        """Describe the longest input and unknown tokens."""
        predictor = self.predictor
        length = predictor.longest_source or predictor.max_length
        note = next((note for note in predictor.notes if "{max_length}" in note), "")
        if length is not None and note:
            yield note.format(lines="Texts", max_length=f"{length:,}") + "."
        elif length is not None:
            yield f"It reads at most {length:,} tokens of a text or of the context."
        if self.run.of_text:
            tokenizer = self.run.tokenizer
            of = f"the vocabulary of {len(tokenizer):,} tokens (`{tokenizer.kind}`)"
            if tokenizer.unknown is None:
                yield f"No text has unknown tokens: {of} represents every character."
            else:
                rates = [f"{v['unknown_rate']:.2%} on {s}" for s, v in self.metrics.items() if "unknown_rate" in v]
                yield f"Text that is not in {of} becomes an unknown token" + (
                    f": {', '.join(rates)}." if rates else "."
                )

    def _label_limits(self) -> Iterator[str]:
        """Describe labels with few examples or a low F1, and the calibration of probabilities."""
        if not self.label_counts:
            return
        rare = [label for label, count in self.label_counts.items() if count < RARE]
        if rare:
            yield f"Labels with fewer than {RARE} training examples: {list_names(rare)}."
        for split, classes in self.by_class.items():
            weak = [label for label, values in classes.items() if values["expected"] and values["f1"] < WEAK_F1]
            unmeasured = [label for label, values in classes.items() if not values["expected"]]
            if weak:
                yield f"Classes with an F1 below {WEAK_F1:g} on {split}: {list_names(weak)}."
            if unmeasured:
                yield f"Classes that {split} does not contain and therefore does not measure: {list_names(unmeasured)}."
        if any("calibration_error" in values for values in self.metrics.values()):
            calibration, _ = load_calibration(self.run)
            if calibration is None:
                yield "Its probabilities are not calibrated; `seqloom calibrate` calibrates them on dev."
            else:
                by = (
                    f", and each label has a threshold, chosen by {calibration.criterion}"
                    if calibration.thresholds
                    else ""
                )
                yield f"Its probabilities are calibrated on dev: the temperature is {calibration.temperature:.4g}{by}."

    # --- data and training --------------------------------------------------------------------------------------------

    def data_section(self) -> Iterator[str]:
        """Return the source, the licence, the sizes and the checksums of the data."""
        data = self.data
        languages = f" Languages: {data['source']} to {data['target']}." if data.get("source") else ""
        version = f", version {escape(str(data['version']))}" if data["version"] else ""
        yield f"{escape(self.data_name)}{version}.{languages} Licence: {escape(data['licence'])}."
        if self.licence is not None and "imported" not in data:
            yield "The metadata of this card names the licence of the data. Decide whether it applies to the weights."
        if not data["counts"]:
            return
        units = [unit for unit in next(iter(data["counts"].values())) if unit != "bytes"]
        rows = (
            [split, *(f"{counts[unit]:,}" for unit in units), f"`{data['sha256'][split][:16]}…`"]
            for split, counts in data["counts"].items()
        )
        header = ["split", *(unit.replace("_", " ") for unit in units), "sha256"]
        yield table(header, rows, range(1, 1 + len(units)))
        ends = " Each document's end counts as one word and one character." if "documents" in units else ""
        yield f"[data.json](data.json) has the complete checksums.{ends}"

    def training(self) -> Iterator[str]:
        """Describe the training run, or the imported files."""
        imported, finished = self.data.get("imported"), self.last_event("finished")
        parameters = finished.get("parameters") or self.last_event("imported").get("parameters")
        sizes = f"The model has {parameters:,} parameters." if parameters else ""
        if imported is not None:
            yield sizes
            notes = {"Initialized randomly, because they were missing": "initialized", "Not imported": "unused"}
            for title, key in notes.items():
                if names := imported.get(key):
                    yield f"{title}: {', '.join(map(escape, names))}."
            yield table(["file", "sha256"], ([escape(file), digest] for file, digest in imported["sha256"].items()))
            return
        started = self.last_event("started")
        seed = f"Seed {self.recipe['seed']}. " if "seed" in self.recipe else ""
        yield f"{sizes} {seed}".strip()
        if finished and started:
            per_second, unit = finished["tokens_per_second"], self.info.task.speed_unit
            speed = f", {per_second:,.0f} {unit} per second" if per_second else ""
            sessions = training_sessions(self.events)
            parts = f" in {len(sessions)} sessions" if len(sessions) > 1 else ""
            yield (
                f"Training ended at step {finished['step']:,} ({finished['reason']}) after "
                f"{format_time(sum(sessions, timedelta()))}{parts}{speed}."
            )
        if started.get("machine"):
            yield f"Hardware and software: {escape(started['machine'])}."

    def settings(self) -> str:
        """Return the table of the settings that differ from their defaults."""
        if "imported" in self.data:
            return ""
        rows = changed_settings(self.checked, HIDDEN_SETTINGS)
        return table(["setting", "value", "default"], [[f"`{key}`", escape(a), escape(b)] for key, a, b in rows])


def title_of(metric: str) -> str:
    """Return the title of a metric. An arrow marks a metric that belongs to the metric above it."""
    title = LABELS.get(metric, metric.replace("_", " "))
    return f"↳ {title.strip()}" if title.startswith(" ") else title


def name_of(path: str) -> str:
    """Return the name of a run without its folder, because a published card must not show the folder."""
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2]


def name_runs(paths: Iterable[str]) -> str:
    return " and ".join(f"`{escape_controls(name_of(path))}`" for path in paths)


def training_sessions(events: Iterable[Mapping[str, Json]]) -> list[timedelta]:
    """Return the time from the first to the last event of each training session."""
    sessions: list[list[datetime]] = []
    for entry in events:
        if entry["event"] == "started":
            sessions.append([])
        if sessions:
            sessions[-1].append(datetime.fromisoformat(entry["time"]))
    # A session with one event had nothing left to train
    return [times[-1] - times[0] for times in sessions if len(times) > 1]


def format_time(time: timedelta) -> str:
    seconds = time.total_seconds()
    minutes, hours = seconds / 60, seconds / 3600
    return f"{seconds:.0f} s" if minutes < 10 else f"{minutes:.0f} min" if hours < 10 else f"{hours:.0f} h"


def join(paragraphs: Iterable[str]) -> str:
    return "\n\n".join(filter(None, paragraphs))


def list_names(names: Sequence[str]) -> str:
    shown = [escape(name) for name in names[:NAMED]]
    return ", ".join(shown) + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")
