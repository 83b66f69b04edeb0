"""Several trained models as one: interpolated language models and ensembles of translators."""

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.decoding import mixture
from seqloom.decoding.mixture import checked_weights, mix
from seqloom.evaluate.interpolation import best_weights
from seqloom.evaluate.translation import Report
from seqloom.predict.base import Predictor
from seqloom.predict.language_model import LanguageModel
from seqloom.predict.loader import load
from seqloom.predict.translator import Translator
from seqloom.runs.record import vocabularies

OTHER_TEXT = "give the weights and evaluate another text: --weights 0.5,0.5 --text FILE"
OTHER_SENTENCES = "evaluate other sentences: --source FILE --reference FILE"


class InterpolatedLM(LanguageModel):
    """Several trained language models as one: p = Σ_i λ_i p_i. Get one from `seqloom.interpolate`."""

    def __init__(self, parts: Sequence[LanguageModel], weights: Sequence[float] | None = None):
        self.parts = list(parts)
        self._log_probs: dict[str, list[Tensor]] = {}  # of each part, by split
        refuse_other_vocabularies(self.parts)
        super().__init__(self.parts[0].run)
        if weights is None:
            weights = best_weights(self._split_log_probs("dev"))
        self.weights = checked_weights(weights, len(self.parts))

    @property
    def name(self) -> str:
        return " + ".join(part.name for part in self.parts)

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


class TranslatorEnsemble(Translator):
    """Several trained translators as one, p = 1/M Σ_i p_i at every token. Get one from `seqloom.ensemble`.

    It searches as the first of them does.
    """

    def __init__(self, parts: Sequence[Translator]):
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

    def report(self, split: str = "dev", **options: Any) -> Report:
        """Report every metric of a split of the data they were trained on. Nothing of it is kept in their runs."""
        refuse_other_data(self.parts, OTHER_SENTENCES)
        report: Report = self.own_task.report(self.model, split, self.decode_options(**options))
        return report

    def __repr__(self) -> str:
        return f"<{self.name}>"


def interpolate(
    models: Sequence[LanguageModel | str | Path], weights: Sequence[float] | None = None, device: str = "auto"
) -> InterpolatedLM:
    """Make two or more trained language models one, p = Σ_i λ_i p_i; without weights, those best on dev are found.

    They must have the same tokenizer, and to be weighed or evaluated on a split also the same data.
    """
    parts = [model if isinstance(model, LanguageModel) else load(model, device, LanguageModel) for model in models]
    return InterpolatedLM(parts, weights)


def ensemble(models: Sequence[Translator | str | Path], device: str = "auto") -> TranslatorEnsemble:
    """Make two or more trained translators one: the mean of their probabilities. They must share the tokenizer."""
    parts = [model if isinstance(model, Translator) else load(model, device, Translator) for model in models]
    return TranslatorEnsemble(parts)


def refuse_other_vocabularies(parts: Sequence[Predictor[Any]]) -> None:
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


def refuse_other_languages(parts: Sequence[Translator]) -> None:
    """Refuse translators between different languages: one tokenizer may serve both directions."""
    first, *others = parts
    for other in others:
        ways = [[part.run.data.get(side) or "?" for side in ("source", "target")] for part in (first, other)]
        if ways[0] != ways[1]:
            a, b = (" to ".join(way) for way in ways)
            raise UsageError(f"{first.name} and {other.name} cannot be mixed: one translates {a}, the other {b}.")


def refuse_other_data(parts: Sequence[Predictor[Any]], instead: str) -> None:
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
