"""Several trained models as one: interpolated language models and ensembles of translators."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.core.files import check_writable
from seqloom.decoding import mixture
from seqloom.decoding.mixture import mix, normalize_weights
from seqloom.evaluate.perplexity import best_weights
from seqloom.evaluate.translation import TranslationReport
from seqloom.predict.base import AnyPredictor
from seqloom.predict.evaluation import EvaluationOptions, MetricsEvaluation, format_value
from seqloom.predict.language_model import LanguageModelPredictor
from seqloom.predict.loader import load
from seqloom.predict.translate import TranslationEvaluation, TranslatorPredictor
from seqloom.runs import average as averages
from seqloom.runs.average import AveragedWeights, DevMetrics
from seqloom.runs.layout import refuse_existing
from seqloom.runs.record import vocabularies
from seqloom.runs.run import Run
from seqloom.train.config import FitConfig

ENSEMBLE_METRICS = {"bleu": "BLEU", "chrf": "chrF", "exact_match": "exact", "loss": "loss"}
OTHER_TEXT = "give the weights and evaluate another text: --weights 0.5,0.5 --text FILE"
OTHER_SENTENCES = "evaluate other sentences: --source FILE --reference FILE"


class MixtureEvaluation(MetricsEvaluation):
    """The metrics of a mixture, and of each of its parts alone."""

    model: "InterpolatedLM"

    def measure(self, split: str, documents: Sequence[str] | None) -> dict[str, float]:
        metrics, *self.alone = self.model.measure(split, documents)
        return metrics

    def to_json(self) -> dict[str, object]:
        found, model = super().to_json(), self.model
        del found["run"]
        weights = {"weights": model.weights, "weights_from": model.weights_from}
        return {"runs": [part.name for part in model.parts], **found, **weights, "alone": self.alone}

    def lines(self, console: Console) -> Iterator[RenderableType]:
        yield from super().lines(console)
        chosen = "as given" if self.model.weights_from == "given" else "chosen on dev"
        yield f"  weights, {chosen}, and perplexity per token of each alone:"
        for part, weight, metrics in zip(self.model.parts, self.model.weights, self.alone, strict=True):
            yield f"    {weight:.4f}  {metrics['perplexity']:12.4f}  {part.name}"


class InterpolatedLM(LanguageModelPredictor):
    """Several trained language models as one: p = Σ_i λ_i p_i. Get one from `seqloom.interpolate`."""

    evaluation_class = MixtureEvaluation

    def __init__(self, parts: Sequence[LanguageModelPredictor], weights: Sequence[float] | None = None):
        self.parts = list(parts)
        self._log_probs: dict[str, list[Tensor]] = {}  # of each part, by split
        refuse_other_vocabularies(self.parts)
        super().__init__(self.parts[0].run)
        self.weights_from = "dev" if weights is None else "given"
        if weights is None:
            weights = best_weights(self._split_log_probs("dev"))
        self.weights = normalize_weights(weights, len(self.parts))

    @property
    def name(self) -> str:
        return " + ".join(part.name for part in self.parts)

    @property
    def longest(self) -> int | None:
        """As many as all of them see."""
        return min((part.longest for part in self.parts if part.longest is not None), default=None)

    @cached_property
    def model(self) -> mixture.Mixture:
        return mixture.Mixture([part.model for part in self.parts], self.weights)

    def evaluate(self, split: str = "dev") -> dict[str, float]:
        """Return every metric of a split of the data the models were trained on."""
        return self.measure(split)[0]

    def evaluate_documents(self, documents: Sequence[str]) -> dict[str, float]:
        return self.measure(documents=documents)[0]

    def measure(self, split: str = "dev", documents: Sequence[str] | None = None) -> list[dict[str, float]]:
        """Return every metric of a split, or of other documents: of the mixture first, then of each part alone."""
        if documents is None:
            task, log_probs = self.parts[0].task(), self._split_log_probs(split)
        else:
            tasks, split = [part.task(documents) for part in self.parts], "other"
            task = tasks[0]
            log_probs = [own.log_probs(part.model, split) for own, part in zip(tasks, self.parts, strict=True)]
        return [task.metrics(one, split) for one in (mix(log_probs, self.weights), *log_probs)]

    def _split_log_probs(self, split: str) -> list[Tensor]:
        """Return log p by each part, which reads as its own recipe says, and only once."""
        if split not in self._log_probs:
            refuse_other_data(self.parts, OTHER_TEXT)
            self._log_probs[split] = [part.task().log_probs(part.model, split) for part in self.parts]
        return self._log_probs[split]

    def __repr__(self) -> str:
        weighted = " + ".join(f"{w:.3f} {part.name}" for w, part in zip(self.weights, self.parts, strict=True))
        return f"<{weighted}>"


class EnsembleEvaluation(TranslationEvaluation):
    """The translations of an ensemble, and the metrics of each of its parts alone."""

    def __init__(self, model: "TranslatorEnsemble", options: EvaluationOptions) -> None:
        super().__init__(model, options)
        self.alone = [(part.name, self.report_on(part)) for part in model.parts]

    def to_json(self) -> dict[str, object]:
        found = super().to_json()
        del found["run"]
        rows = [{"run": name, **report.metrics, "decoding": report.decoding} for name, report in self.alone]
        return {"runs": [name for name, _ in self.alone], **found, "alone": rows}

    def lines(self, console: Console) -> Iterator[RenderableType]:
        yield from super().lines(console)
        heads = "".join(f"  {head:>9}" for head in ENSEMBLE_METRICS.values())
        yield f"  Each alone, and together:{heads}"
        for name, report in [*self.alone, ("together", self.report)]:
            values = "".join(f"  {format_value(metric, report.metrics[metric]):>9}" for metric in ENSEMBLE_METRICS)
            other = f"   {report.decoding}" if report.decoding != self.report.decoding else ""
            yield f"    {name:23}{values}{other}"


class TranslatorEnsemble(TranslatorPredictor):
    """Several trained translators as one, p = 1/M Σ_i p_i at every token. Get one from `seqloom.ensemble`.

    It searches as the first of them does.
    """

    evaluation_class = EnsembleEvaluation

    def __init__(self, parts: Sequence[TranslatorPredictor]):
        self.parts = list(parts)
        refuse_other_vocabularies(self.parts)
        refuse_other_languages(self.parts)
        super().__init__(self.parts[0].run)

    @property
    def name(self) -> str:
        return " + ".join(part.name for part in self.parts)

    @cached_property
    def model(self) -> mixture.Ensemble:
        return mixture.Ensemble([part.model for part in self.parts]).eval()

    @property
    def longest_source(self) -> int | None:
        """As long as all of them can read."""
        return min((n for part in self.parts if (n := part.longest_source) is not None), default=None)

    @property
    def longest_key(self) -> str:
        """Of the one that can read least."""
        return min(self.parts, key=lambda part: part.longest_source or math.inf).longest_key

    def report(self, split: str = "dev", **options: Any) -> TranslationReport:
        """Report every metric of a split of the data they were trained on. Nothing of it is kept in their runs."""
        refuse_other_data(self.parts, OTHER_SENTENCES)
        report: TranslationReport = self.own_task.report(self.model, split, self.decode_options(**options))
        return report

    def __repr__(self) -> str:
        return f"<{self.name}>"


def interpolate(
    models: Sequence[LanguageModelPredictor | str | Path], weights: Sequence[float] | None = None, device: str = "auto"
) -> InterpolatedLM:
    """Make two or more trained language models one, p = Σ_i λ_i p_i; without weights, those best on dev are found.

    They must have the same tokenizer, and to be weighed or evaluated on a split also the same data.
    """
    parts = [
        model if isinstance(model, LanguageModelPredictor) else load(model, device, LanguageModelPredictor)
        for model in models
    ]
    return InterpolatedLM(parts, weights)


def ensemble(models: Sequence[TranslatorPredictor | str | Path], device: str = "auto") -> TranslatorEnsemble:
    """Make two or more trained translators one: the mean of their probabilities. They must share the tokenizer."""
    parts = [
        model if isinstance(model, TranslatorPredictor) else load(model, device, TranslatorPredictor)
        for model in models
    ]
    return TranslatorEnsemble(parts)


def refuse_other_vocabularies(parts: Sequence[AnyPredictor]) -> None:
    """Only models over one vocabulary can be mixed: token 17 must mean the same to all of them."""
    if len(parts) < 2:
        raise UsageError(f"It takes two or more models to mix; got {len(parts)}.")
    first, *others = parts
    for other in others:
        if other.tokenizer.fingerprint() != first.tokenizer.fingerprint():
            raise UsageError(
                f"{first.name} and {other.name} cannot be mixed, as their tokens differ "
                f"({vocabularies(first.run, other.run)}). Train them on the same data with the same tokenizer section."
            )


def refuse_other_languages(parts: Sequence[TranslatorPredictor]) -> None:
    """Refuse translators between different languages: one tokenizer may serve both directions."""
    first, *others = parts
    for other in others:
        ways = [[part.run.data.get(side) or "?" for side in ("source", "target")] for part in (first, other)]
        if ways[0] != ways[1]:
            a, b = (" to ".join(way) for way in ways)
            raise UsageError(f"{first.name} and {other.name} cannot be mixed: one translates {a}, the other {b}.")


def refuse_other_data(parts: Sequence[AnyPredictor], instead: str) -> None:
    """Refuse to measure models on a split unless it is the same text, which none of them has learned from."""
    first, *others = parts
    for other in others:
        a, b = first.run.data["sha256"], other.run.data["sha256"]
        differing = sorted(split for split in a.keys() | b.keys() if a.get(split) != b.get(split))
        if differing:
            raise UsageError(
                f"{first.name} and {other.name} were not trained on the same data: {', '.join(differing)} differ "
                f"({first.run.data['corpus']}; {other.run.data['corpus']}). Train them on the same, or {instead}."
            )


LAST = 10  # checkpoints, where nothing is said


@dataclass(frozen=True)
class Averaged:
    """A mean that was made: its run, what it is the mean of, and how good it is on dev beside its parts."""

    run: Run
    made: AveragedWeights
    metrics: Mapping[str, float]
    alone: list[DevMetrics]  # the best checkpoint of the run, or each of several runs
    monitor: str  # the metric by which the best checkpoint was chosen

    def notes(self) -> list[str]:
        """What a person should know."""
        found = [f"{name} was passed over: {cause}" for name, cause in self.made.damaged]
        seeds = {run.recipe.get("seed") for run in self.made.runs}
        if len(seeds) > 1:
            said = (
                "these runs began from different weights (their seeds differ), and the mean of such weights is seldom"
            )
            instead = "; models that should work together are an ensemble: seqloom translate RUN RUN"
            found.append(f"{said} any good{instead if self.run.recipe.get('task') == 'translate' else ''}")
        return found


def average(
    runs: str | Path | Sequence[str | Path],
    last: int | None = None,
    out: str | Path | None = None,
    device: str = "auto",
) -> Any:
    """The mean of the weights of the newest `last` (10) checkpoints of a run, as a trained model with a run of its own.

    The run is written to `out`, or beside its source as NAME-averaged. Of several runs the best
    weights are averaged; they must be of one model, and `out` must be named.
    """
    given = [runs] if isinstance(runs, str | Path) else list(runs)
    if not given:
        raise UsageError("There is nothing to average: name a run, or several.")
    made = make_average([Path(run) for run in given], last, None if out is None else Path(out), device)
    return load(made.run.path, device)


def make_average(paths: Sequence[Path], last: int | None, out: Path | None, device: str = "auto") -> Averaged:
    """Average, measure on dev, and write the run: in this order, so that a run that is there is complete.

    Each of the runs is measured as its own recipe says, and the metrics are kept in it, as
    `evaluate` does.
    """
    parts: list[AnyPredictor] = [load(path, device) for path in paths]
    runs = [part.run for part in parts]
    if last is not None and (last < 1 or len(runs) > 1):
        raise UsageError(
            f"last must be at least 1, got {last}."
            if last < 1
            else "How many checkpoints to average is asked of one run; of several, the best weights are averaged."
        )
    place = _place(runs, out)
    for part in parts:
        if not isinstance(part.recipe.train, FitConfig):
            raise UsageError(
                f"{part.name} was not trained by gradient, but estimated by counting: it has no checkpoints to average."
                " Several such models are one with `seqloom evaluate RUN RUN --interpolate`."
            )
    made = averages.mean_of_runs(runs) if len(runs) > 1 else averages.mean_of_checkpoints(runs[0], last or LAST)
    alone = [DevMetrics(_name(part.run, runs), _numbers(part.report("dev").to_dict())) for part in parts]
    task, model = parts[0].own_task, runs[0].model_of(made.weights, device, f"The mean of {made.what}")
    kept = task.report(model, "dev").to_dict()
    in_training = task.validate(model) if task.validates_part else _numbers(kept)
    made_run = averages.create(place, made, kept, alone, in_training)
    return Averaged(made_run, made, _numbers(kept), alone, task.monitor.metric)


def _place(runs: Sequence[Run], out: Path | None) -> Path:
    """Where the run goes; refused before any work if it cannot."""
    if out is None:
        if len(runs) > 1:
            raise UsageError("Say where the mean of several runs should go: --out runs/NAME.")
        source = runs[0].path if runs[0].path.name not in ("", "..") else runs[0].path.resolve()
        out = source.with_name(f"{source.name}-averaged")
    if not out.name:
        raise UsageError(f"--out must name a directory to make; got {str(out)!r}.")
    refuse_existing(out)
    check_writable(next(folder for folder in out.absolute().parents if folder.exists()) / out.name)
    return out


def _name(run: Run, runs: Sequence[Run]) -> str:
    if len(runs) > 1:
        return str(run.path)
    steps = [entry["step"] for entry in run.log() if entry["event"] == "evaluated" and entry.get("best")]
    return f"best checkpoint, step {steps[-1]:,}" if steps else "best checkpoint"


def _numbers(kept: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in kept.items() if isinstance(value, float)}
