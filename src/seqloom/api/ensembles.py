"""Several translators as one."""

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from seqloom.api.loading import load
from seqloom.api.mixing import refuse_other_data, refuse_strangers
from seqloom.api.translating import Translating, Translator
from seqloom.core.errors import UsageError
from seqloom.decoding import mixture
from seqloom.decoding.beam import BeamConfig
from seqloom.evaluate.translation import Report
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
