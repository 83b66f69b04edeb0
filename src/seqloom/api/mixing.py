"""Several language models as one."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from torch import Tensor

from seqloom.api.loading import load
from seqloom.api.trained import Trained
from seqloom.api.writing import LanguageModel, Writer
from seqloom.core.errors import UsageError
from seqloom.decoding.mixture import Mixture, checked_weights, mix
from seqloom.evaluate.interpolation import best_weights
from seqloom.runs.record import vocabularies
from seqloom.text import Tokenizer


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


def refuse_strangers(parts: Sequence[Trained]) -> None:
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


def refuse_other_data(parts: Sequence[Trained], instead: str = INSTEAD) -> None:
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
