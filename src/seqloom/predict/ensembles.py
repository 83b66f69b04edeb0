"""Several translators as one."""

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.decoding import mixture
from seqloom.decoding.beam import BeamConfig
from seqloom.decoding.mixture import Mixture, checked_weights, mix
from seqloom.evaluate.interpolation import best_weights
from seqloom.evaluate.translation import Report
from seqloom.predict.base import Predictor
from seqloom.predict.language_model import LanguageModel, Writer
from seqloom.predict.loader import load
from seqloom.predict.translator import Translating, Translator
from seqloom.runs.record import vocabularies
from seqloom.text import Tokenizer

OTHER_SENTENCES = "evaluate other sentences: --source FILE --reference FILE"


class Ensemble(Translating):
    """Several trained translators as one, p = 1/M Σ_i p_i at every token. Get one from `seqloom.ensemble`.

    It searches as the first of them does.
    """

    def __init__(self, parts: Sequence[Translator]):
        self.parts = list(parts)
        refuse_strangers(self.parts)
        _refuse_other_languages(self.parts)

    @property
    def name(self) -> str:
        return " + ".join(part.name for part in self.parts)

    @cached_property
    def model(self) -> mixture.Ensemble:
        return mixture.Ensemble([part.model for part in self.parts]).eval()

    @property
    def tokenizer(self) -> Tokenizer:
        return self.parts[0].tokenizer

    @property
    def longest_source(self) -> int | None:
        """As long as all of them can read."""
        return min((n for part in self.parts if (n := part.longest_source) is not None), default=None)

    @property
    def longest_key(self) -> str:
        """Of the one that can read least."""
        return min(self.parts, key=lambda part: part.longest_source or math.inf).longest_key

    @property
    def decode(self) -> BeamConfig:
        return self.parts[0].decode

    def evaluate(self, split: str = "dev") -> dict[str, float]:
        """Every metric of a split of the data they were trained on."""
        return self.report(split).metrics

    def report(self, split: str = "dev", **options: Any) -> Report:
        """Everything found on a split of the data they were trained on. Nothing of it is kept in their runs."""
        refuse_other_data(self.parts, OTHER_SENTENCES)
        found: Report = self.parts[0].task().report(self.model, split, self.decode_options(**options))
        return found

    def report_pairs(self, sources: Sequence[str], references: Sequence[str], **options: Any) -> Report:
        """The same of any other sentences."""
        task = self.parts[0].task_of_pairs(sources, references)
        found: Report = task.report(self.model, "other", self.decode_options(**options))
        return found

    def __repr__(self) -> str:
        return f"<{self.name}>"


def ensemble(models: Sequence[Translator | str | Path], device: str = "auto") -> Ensemble:
    """Two or more trained translators as one: the mean of their probabilities. They must have the same tokenizer."""
    parts = [model if isinstance(model, Translator) else load(model, device, Translator) for model in models]
    return Ensemble(parts)


def _refuse_other_languages(parts: Sequence[Translator]) -> None:
    """One tokenizer serves both directions, so it does not tell them apart."""
    first, *others = parts
    for other in others:
        ways = [[part.run.data.get(side) or "?" for side in ("source", "target")] for part in (first, other)]
        if ways[0] != ways[1]:
            a, b = (" to ".join(way) for way in ways)
            raise UsageError(f"{first.name} and {other.name} cannot be mixed: one translates {a}, the other {b}.")


class Interpolated(Writer):
    """Several trained language models as one: p = Σ_i λ_i p_i. Get one from `seqloom.interpolate`."""

    def __init__(self, parts: Sequence[LanguageModel], weights: Sequence[float] | None = None):
        self.parts = list(parts)
        self._thoughts: dict[str, list[Tensor]] = {}  # what each part thought of the tokens of a split
        refuse_strangers(self.parts)
        if weights is None:
            weights = best_weights(self._thought("dev"))
        self.weights = checked_weights(weights, len(self.parts))

    @property
    def name(self) -> str:
        return " + ".join(part.name for part in self.parts)

    @cached_property
    def model(self) -> Mixture:
        return Mixture([part.model for part in self.parts], self.weights)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.parts[0].tokenizer

    def evaluate(self, split: str = "dev") -> dict[str, float]:
        """Every metric of a split of the data the models were trained on."""
        return self.measure(split)[0]

    def evaluate_documents(self, documents: Sequence[str]) -> dict[str, float]:
        """Every metric of any other text."""
        return self.measure(documents=documents)[0]

    def measure(self, split: str = "dev", documents: Sequence[str] | None = None) -> list[dict[str, float]]:
        """Every metric of a split, or of other documents: of the mixture first, then of each part alone."""
        if documents is None:
            task, thoughts = self.parts[0].task(), self._thought(split)
        else:
            tasks, split = [part.task(documents) for part in self.parts], "other"
            task = tasks[0]
            thoughts = [one.log_probs(part.model, split) for one, part in zip(tasks, self.parts, strict=True)]
        return [task.metrics(thought, split) for thought in (mix(thoughts, self.weights), *thoughts)]

    def _thought(self, split: str) -> list[Tensor]:
        """Each part is read as its own recipe says (in so many rows), and only once."""
        if split not in self._thoughts:
            refuse_other_data(self.parts)
            self._thoughts[split] = [part.task().log_probs(part.model, split) for part in self.parts]
        return self._thoughts[split]

    def __repr__(self) -> str:
        shown = " + ".join(f"{w:.3f} {part.name}" for w, part in zip(self.weights, self.parts, strict=True))
        return f"<{shown}>"


def interpolate(
    models: Sequence[LanguageModel | str | Path], weights: Sequence[float] | None = None, device: str = "auto"
) -> Interpolated:
    """Two or more trained language models as one, p = Σ_i λ_i p_i; without weights, those best on dev are found.

    They must have the same tokenizer, and to be weighed or evaluated on a split also the same data.
    """
    parts = [model if isinstance(model, LanguageModel) else load(model, device, LanguageModel) for model in models]
    return Interpolated(parts, weights)


def refuse_strangers(parts: Sequence[Predictor]) -> None:
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


INSTEAD = "give the weights and evaluate another text: --weights 0.5,0.5 --text FILE"


def refuse_other_data(parts: Sequence[Predictor], instead: str = INSTEAD) -> None:
    """A figure for a split means something only if it is the same text, and none of the models has learned from it."""
    first, *others = parts
    for other in others:
        a, b = first.run.data["sha256"], other.run.data["sha256"]
        differing = sorted(split for split in a.keys() | b.keys() if a.get(split) != b.get(split))
        if differing:
            raise UsageError(
                f"{first.name} and {other.name} were not trained on the same data: {', '.join(differing)} differ "
                f"({first.run.data['corpus']}; {other.run.data['corpus']}). Train them on the same, or {instead}."
            )
