"""Combinations of trained models: interpolated language models, ensembles of translators, and averaged weights."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from torch import Tensor

from seqloom.core import Json
from seqloom.core.errors import UsageError
from seqloom.core.files import check_writable
from seqloom.core.inputs import check_texts
from seqloom.data.glossary import open_glossary
from seqloom.decoding import mixture
from seqloom.decoding.mixture import mix, normalize_weights
from seqloom.evaluate.perplexity import best_weights
from seqloom.evaluate.translation import TranslationReport
from seqloom.predict.base import AnyPredictor
from seqloom.predict.card import write_card
from seqloom.predict.evaluation import EvaluationOptions, MetricsEvaluation, format_value
from seqloom.predict.language_model import LanguageModelPredictor
from seqloom.predict.loader import load
from seqloom.predict.results import Metrics
from seqloom.predict.translate import GivenGlossary, TranslatorPredictor
from seqloom.predict.translation_evaluation import TranslationEvaluation
from seqloom.runs import average as averages
from seqloom.runs.average import AveragedWeights, DevMetrics
from seqloom.runs.layout import reject_existing
from seqloom.runs.record import vocabularies
from seqloom.runs.run import Run
from seqloom.train.config import FitConfig

ENSEMBLE_METRICS = {"bleu": "BLEU", "chrf": "chrF", "exact_match": "exact", "loss": "loss"}
OTHER_TEXT = "set the weights and evaluate another text: --weights 0.5,0.5 FILE"
OTHER_SENTENCES = "evaluate other sentences: --source FILE --reference FILE"


class MixtureEvaluation(MetricsEvaluation):
    """The metrics of a mixture and of each of its models."""

    model: "InterpolatedLM"

    def measure(self, split: str, documents: Sequence[str] | None) -> dict[str, float]:
        metrics, *self.alone = self.model.measure(split, documents)
        return metrics

    def to_json(self) -> dict[str, object]:
        content, model = super().to_json(), self.model
        del content["run"]
        weights = {"weights": model.weights, "weights_from": model.weights_from}
        return {"runs": [part.name for part in model.parts], **content, **weights, "alone": self.alone}

    def lines(self, console: Console) -> Iterator[RenderableType]:
        yield from super().lines(console)
        source = "given" if self.model.weights_from == "given" else "optimized on dev"
        yield f"  weights ({source}) and perplexity per token of each model:"
        for part, weight, metrics in zip(self.model.parts, self.model.weights, self.alone, strict=True):
            yield f"    {weight:.4f}  {metrics['perplexity']:12.4f}  {part.name}"


class InterpolatedLM(LanguageModelPredictor):
    """A mixture of language models, p = Σ_i λ_i p_i, returned by `seqloom.interpolate`."""

    evaluation_class = MixtureEvaluation

    def __init__(self, parts: Sequence[LanguageModelPredictor], weights: Sequence[float] | None = None):
        self.parts = list(parts)
        self._log_probs: dict[str, list[Tensor]] = {}  # log-probabilities by split, one tensor for each model
        check_same_vocabulary(self.parts)
        super().__init__(self.parts[0].run)
        self.weights_from = "dev" if weights is None else "given"
        if weights is None:
            weights = best_weights(self._split_log_probs("dev"))
        self.weights = normalize_weights(weights, len(self.parts))

    @property
    def name(self) -> str:
        return " + ".join(part.name for part in self.parts)

    @property
    def max_length(self) -> int | None:
        """The smallest maximum length among the models."""
        return min((part.max_length for part in self.parts if part.max_length is not None), default=None)

    @cached_property
    def model(self) -> mixture.Mixture:
        return mixture.Mixture([part.model for part in self.parts], self.weights)

    def evaluate(self, split: str = "dev") -> dict[str, float]:
        """Compute all metrics on a split of the training data of the models."""
        return Metrics(self.measure(split)[0])

    def evaluate_documents(self, documents: Sequence[str]) -> dict[str, float]:
        return Metrics(self.measure(documents=check_texts(documents, "documents"))[0])

    def measure(self, split: str = "dev", documents: Sequence[str] | None = None) -> list[dict[str, float]]:
        """Compute all metrics of the mixture and of each model, on a split or on other documents."""
        if documents is None:
            tasks, log_probs = [self.parts[0].task()], self._split_log_probs(split)
        else:
            tasks, split = [part.task(documents) for part in self.parts], "other"
            log_probs = [task.log_probs(part.model, split) for task, part in zip(tasks, self.parts, strict=True)]
        return [tasks[0].metrics(values, split) for values in (mix(log_probs, self.weights), *log_probs)]

    def _split_log_probs(self, split: str) -> list[Tensor]:
        """Return log p of each model on a split, computed once with the settings of the model's recipe."""
        if split not in self._log_probs:
            check_same_data(self.parts, OTHER_TEXT)
            self._log_probs[split] = [part.task().log_probs(part.model, split) for part in self.parts]
        return self._log_probs[split]

    def __repr__(self) -> str:
        weighted = " + ".join(f"{w:.3f} {part.name}" for w, part in zip(self.weights, self.parts, strict=True))
        return f"<{weighted}>"


class EnsembleEvaluation(TranslationEvaluation):
    """The translations of an ensemble, and the metrics of each of its models."""

    def __init__(self, model: "TranslatorEnsemble", options: EvaluationOptions) -> None:
        super().__init__(model, options)
        glossary = None if options.glossary is None else open_glossary(options.glossary, model.languages)
        self.alone = [(part.name, self.report_on(part, glossary)) for part in model.parts]

    def to_json(self) -> dict[str, object]:
        content = super().to_json()
        del content["run"]
        rows = [{"run": name, **report.metrics, "decoding": report.decoding} for name, report in self.alone]
        return {"runs": [name for name, _ in self.alone], **content, "alone": rows}

    def lines(self, console: Console) -> Iterator[RenderableType]:
        yield from super().lines(console)
        heads = "".join(f"  {head:>9}" for head in ENSEMBLE_METRICS.values())
        yield f"  models and ensemble:     {heads}"
        for name, report in [*self.alone, ("ensemble", self.report)]:
            values = "".join(f"  {format_value(metric, report.metrics[metric]):>9}" for metric in ENSEMBLE_METRICS)
            other = f"   {report.decoding}" if report.decoding != self.report.decoding else ""
            yield f"    {name:23}{values}{other}"


class TranslatorEnsemble(TranslatorPredictor):
    """An ensemble of translators, p = 1/M Σ_i p_i at every token, returned by `seqloom.ensemble`.

    The search options of the first translator are used.
    """

    evaluation_class = EnsembleEvaluation

    def __init__(self, parts: Sequence[TranslatorPredictor]):
        self.parts = list(parts)
        check_same_vocabulary(self.parts)
        check_same_languages(self.parts)
        super().__init__(self.parts[0].run)

    @property
    def name(self) -> str:
        return " + ".join(part.name for part in self.parts)

    @cached_property
    def model(self) -> mixture.Ensemble:
        return mixture.Ensemble([part.model for part in self.parts]).eval()

    @property
    def longest_source(self) -> int | None:
        """The smallest maximum source length among the translators."""
        return min((n for part in self.parts if (n := part.longest_source) is not None), default=None)

    @property
    def longest_key(self) -> str:
        """The recipe key that sets the smallest maximum source length among the translators."""
        return min(self.parts, key=lambda part: part.longest_source or math.inf).longest_key

    def report(self, split: str = "dev", glossary: GivenGlossary | None = None, **options: Any) -> TranslationReport:
        """Compute all metrics on a split of the training data of the translators. The metrics are not stored."""
        check_same_data(self.parts, OTHER_SENTENCES)
        decode, terms = self.decode_options(**options), self.term_search(glossary)
        report: TranslationReport = self.training_task.report(self.model, split, decode, terms)
        return report

    def __repr__(self) -> str:
        return f"<{self.name}>"


def interpolate(
    models: Sequence[LanguageModelPredictor | str | Path], weights: Sequence[float] | None = None, device: str = "auto"
) -> InterpolatedLM:
    """Interpolate language models, p = Σ_i λ_i p_i. By default, the weights are optimized on dev.

    The models must have the same tokenizer. For optimizing weights or evaluating a split, they must also have the same
    data.
    """
    parts = [
        model if isinstance(model, LanguageModelPredictor) else load(model, device, LanguageModelPredictor)
        for model in models
    ]
    return InterpolatedLM(parts, weights)


def ensemble(models: Sequence[TranslatorPredictor | str | Path], device: str = "auto") -> TranslatorEnsemble:
    """Combine translators by averaging their probabilities. The translators must have the same tokenizer."""
    parts = [
        model if isinstance(model, TranslatorPredictor) else load(model, device, TranslatorPredictor)
        for model in models
    ]
    return TranslatorEnsemble(parts)


def check_same_vocabulary(parts: Sequence[AnyPredictor]) -> None:
    """Check that there are at least two models and that their vocabularies are equal."""
    if len(parts) < 2:
        raise UsageError(f"At least two models are needed; got {len(parts)}.")
    first, *others = parts
    for other in others:
        if other.tokenizer.fingerprint() != first.tokenizer.fingerprint():
            raise UsageError(
                f"{first.name} and {other.name} cannot be combined because their tokenizers differ "
                f"({vocabularies(first.run, other.run)}). Train them on the same data with the same tokenizer section."
            )


def check_same_languages(parts: Sequence[TranslatorPredictor]) -> None:
    """Check that all translators have the same languages, because both directions can share a tokenizer."""
    first, *others = parts
    for other in others:
        pairs = [[part.run.data.get(side) or "?" for side in ("source", "target")] for part in (first, other)]
        if pairs[0] != pairs[1]:
            a, b = (" to ".join(pair) for pair in pairs)
            raise UsageError(f"{first.name} and {other.name} cannot be combined: they translate {a} and {b}.")


def check_same_data(parts: Sequence[AnyPredictor], instead: str) -> None:
    """Check that all models were trained on the same data, so that no model has seen the evaluated split."""
    first, *others = parts
    for other in others:
        a, b = first.run.data["sha256"], other.run.data["sha256"]
        differing = sorted(split for split in a.keys() | b.keys() if a.get(split) != b.get(split))
        if differing:
            raise UsageError(
                f"{first.name} and {other.name} were not trained on the same data: {', '.join(differing)} differ "
                f"({first.run.data['corpus']}; {other.run.data['corpus']}). Train them on the same data, or {instead}."
            )


DEFAULT_CHECKPOINTS = 10  # number of newest checkpoints to average


@dataclass(frozen=True)
class AveragedRun:
    """A run with averaged weights, their sources, and metrics on dev."""

    run: Run
    average: AveragedWeights
    metrics: Mapping[str, float]
    alone: list[DevMetrics]  # metrics of the best checkpoint of each run
    monitor: str  # the metric that selects the best checkpoint

    def notes(self) -> list[str]:
        """Return notes for the user."""
        notes = [f"{name} was skipped: {cause}" for name, cause in self.average.damaged]
        seeds = {run.recipe.get("seed") for run in self.average.runs}
        if len(seeds) > 1:
            note = "the runs have different seeds; averages of independently initialized weights are rarely good"
            advice = "; use an ensemble instead: seqloom translate RUN RUN"
            notes.append(note + (advice if self.run.recipe.get("task") == "translate" else ""))
        return notes


def average(
    runs: str | Path | Sequence[str | Path],
    last: int | None = None,
    out: str | Path | None = None,
    device: str = "auto",
) -> Any:
    """Average the weights of the newest `last` (default 10) checkpoints of a run, or the best weights of several runs.

    The result is a new run in `out`. For a single run, the default is NAME-averaged in the same folder. Several runs
    must have the same model.
    """
    paths = [Path(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
    if not paths:
        raise UsageError("There is nothing to average: name at least one run.")
    return load(average_runs(paths, last, None if out is None else Path(out), device).run.path, device)


def average_runs(paths: Sequence[Path], last: int | None, out: Path | None, device: str = "auto") -> AveragedRun:
    """Average weights and evaluate them on dev. The run is written last, so an existing run is always complete.

    Each of several runs is evaluated with its own recipe, and its metrics are stored in the run.
    """
    parts: list[AnyPredictor] = [load(path, device) for path in paths]
    runs = [part.run for part in parts]
    if last is not None and (last < 1 or len(runs) > 1):
        raise UsageError(
            f"last must be at least 1; got {last}."
            if last < 1
            else "last applies only to a single run; for several runs, their best weights are averaged."
        )
    target = _target(runs, out)
    for part in parts:
        if not isinstance(part.recipe.train, FitConfig):
            raise UsageError(
                f"{part.name} was estimated by counting and has no checkpoints to average. "
                "Interpolate such models: `seqloom evaluate RUN RUN --interpolate`."
            )
    if len(runs) > 1:
        mean = averages.mean_of_runs(runs)
    else:
        mean = averages.mean_of_checkpoints(runs[0], last or DEFAULT_CHECKPOINTS)
    alone = [DevMetrics(_name(part.run, runs), _numbers(part.report("dev").to_dict())) for part in parts]
    task, model = parts[0].training_task, runs[0].model_of(mean.weights, device, f"The mean of {mean.description}")
    metrics = task.report(model, "dev").to_dict()
    in_training = task.validate(model) if task.validates_part else _numbers(metrics)
    run = averages.create(target, mean, metrics, alone, in_training)
    averaged = load(run.path, device)
    averaged.training_task = task
    averaged.finish_training()
    write_card(run)
    return AveragedRun(run, mean, _numbers(metrics), alone, task.monitor.metric)


def _target(runs: Sequence[Run], out: Path | None) -> Path:
    """Check that the new run can be created, and return its path."""
    if out is None:
        if len(runs) > 1:
            raise UsageError("--out is required for several runs: --out runs/NAME.")
        source = runs[0].path if runs[0].path.name not in ("", "..") else runs[0].path.resolve()
        out = source.with_name(f"{source.name}-averaged")
    if not out.name:
        raise UsageError(f"--out must name a new directory; got {str(out)!r}.")
    reject_existing(out)
    check_writable(next(folder for folder in out.absolute().parents if folder.exists()) / out.name)
    return out


def _name(run: Run, runs: Sequence[Run]) -> str:
    if len(runs) > 1:
        return str(run.path)
    steps = [entry["step"] for entry in run.log() if entry["event"] == "evaluated" and entry.get("best")]
    return f"best checkpoint, step {steps[-1]:,}" if steps else "best checkpoint"


def _numbers(metrics: Mapping[str, Json]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if isinstance(value, float)}
