"""Classifiers in use: texts in, a label for each, in their order."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.core.errors import ResourceError, UsageError
from seqloom.core.tree import to_device
from seqloom.core.words import did_you_mean
from seqloom.data.reading import TextReader
from seqloom.data.series import LabelledSeries
from seqloom.data.spellings import SpelledBatches
from seqloom.evaluate.classification import Report
from seqloom.inspect.views.alignment import one_line
from seqloom.inspect.views.heads import HeadsView, Read, heads_of_reader
from seqloom.inspect.views.why import Why, WhyKind, explain, without
from seqloom.predict.base import Predictor
from seqloom.predict.batching import alike, answered, check_sizes
from seqloom.runs.init import read_length
from seqloom.tasks.classify import spellings_of, text_reader
from seqloom.tasks.series_classify import tree_of


@dataclass(frozen=True)
class Said:
    """A label, and how probable the model finds it."""

    label: str
    probability: float


@dataclass(frozen=True)
class Classification:
    """A text and what it is, best first. What is asked of it is answered by the best; a blank text has no answer."""

    text: str  # as it came
    candidates: list[Said]
    unknown: tuple[str, ...] = ()  # pieces of the text the vocabulary does not have
    cut: bool = False  # whether only its beginning was read
    why: Why | None = None  # how much each word weighed, where that was asked for

    @property
    def label(self) -> str:
        return self.candidates[0].label if self.candidates else ""

    @property
    def probability(self) -> float:
        return self.candidates[0].probability if self.candidates else 0.0


@dataclass(frozen=True)
class Judged:
    """An example of a split, and what the model says it is."""

    text: str
    expected: str
    label: str
    probability: float


class Understanding(Predictor):
    """What classifiers and taggers share."""

    @property
    def longest(self) -> int | None:
        """How many tokens are read at once, END or special ones included; None for any number."""
        return read_length(self._recipe)

    @property
    def spells(self) -> bool:
        """Whether it reads how words are spelled, so that words it does not know are still told apart."""
        return self.run.characters is not None

    @cached_property
    def own_task(self) -> Any:
        """The task it was trained for, on its own data; opened once."""
        return self.task()

    def evaluate(self, split: str = "dev") -> dict[str, float]:
        metrics: dict[str, float] = self.report(split).metrics
        return metrics

    def report(self, split: str = "dev") -> Any:
        """Every figure of a split of the data it was trained on; kept in the run for `compare`."""
        found = self._figures(split)
        with suppress(ResourceError):  # a run that cannot be written to can still be measured
            self.run.save_metrics(split, found.kept())
        return found

    def _figures(self, split: str) -> Any:
        raise NotImplementedError

    def heads(self, text: str) -> HeadsView:
        """Where every layer and head of a Transformer encoder looks while it reads a text."""
        return heads_of_reader(self, self.looked(text))

    def looked(self, text: str) -> Read:
        """A text as the model reads it, and what it says of it: for whoever looks inside."""
        return self._looked(one_line(text, "text"))

    def _looked(self, line: str) -> Read:
        raise UsageError(
            f"{self.name} is {self.what}: heads are shown of models that read one text, and this one reads several."
        )


class Judging(Understanding):
    """What says of each example which of several labels it has."""

    @property
    def labels(self) -> list[str]:
        return self.run.labels

    def judged(self, split: str = "dev") -> list[Judged]:
        """Every example of a split of the data it was trained on, and what it says of it."""
        best = self._thought(split).exp().max(dim=1)
        rows = zip(self.own_task.corpus.split(split), best.indices.tolist(), best.values.tolist(), strict=True)
        return [Judged(one.text, one.label, self.labels[label], probability) for one, label, probability in rows]

    def _thought(self, split: str) -> Tensor:
        """log p (N, L); each split is read once."""
        if split not in self._thoughts:
            self._thoughts[split] = self.own_task.log_probs(self.model, split)
        return self._thoughts[split]

    @cached_property
    def _thoughts(self) -> dict[str, Tensor]:
        return {}

    def report(self, split: str = "dev") -> Report:
        found: Report = super().report(split)
        return found

    def _figures(self, split: str) -> Report:
        found: Report = self.own_task.figures(self._thought(split), split)
        return found


class Classifier(Judging):
    """A trained classifier."""

    what = "a classifier"
    used_by = "`seqloom classify` uses it"

    def classify(
        self,
        texts: str | Iterable[str],
        *,
        top: int | None = None,
        why: bool = False,
        batch_size: int = 128,
        window: int = 1024,
    ) -> Iterator[Classification]:
        """Say what each text is, exactly one answer for each, in their order; a blank text stays without one.

        `top` is how many labels are named, best first; all, if left out. With `why`, an answer also says how much each
        word weighed. `window` texts are read at a time, and those of like length `batch_size` at a time; with window=1
        every text is answered before the next is read.
        """
        if top is not None:
            check_sizes(top=top)
        return answered(
            texts, lambda lines: self._answer(lines, batch_size, top, why), batch_size=batch_size, window=window
        )

    def _answer(self, lines: Sequence[str], batch_size: int, top: int | None, why: bool) -> Iterator[Classification]:
        answers = [Classification(line, []) for line in lines]
        places = [place for place, line in enumerate(lines) if line.strip()]
        if places:
            texts, reader = [lines[place].strip() for place in places], self._reader()
            batches = reader.batches(texts, tokens=1)
            for chosen in alike(batches.texts.lengths.tolist(), batch_size):
                for number, one in zip(chosen, self._judge(reader, batches, chosen, texts, top, why), strict=True):
                    answers[places[number]] = as_it_came(one, lines[places[number]])
        yield from answers

    def _judge(
        self,
        reader: TextReader,
        batches: SpelledBatches,
        chosen: list[int],
        texts: Sequence[str],
        top: int | None,
        why: bool,
    ) -> Iterator[Classification]:
        batch = to_device(batches.tree(np.array(chosen)), self.device)
        own = [texts[number] for number in chosen]
        reasons: Sequence[Why | None] = [None] * len(own)
        if why:
            before = 0 if reader.frame is None else reader.frame.before
            reasons = explain(self.model, batch, own, [reader.read(text)[1] for text in own], self.tokenizer, before)
        ordered = self.model.probabilities(batch).sort(dim=1, descending=True, stable=True)
        rows = zip(own, chosen, ordered.values.tolist(), ordered.indices.tolist(), reasons, strict=True)
        for text, number, values, labels, reason in rows:
            yield Classification(
                text=text,
                candidates=[Said(self.labels[label], p) for label, p in zip(labels[:top], values[:top], strict=True)],
                unknown=tuple(reader.unknown(text)),
                cut=bool(batches.was_cut[number]),
                why=reason,
            )

    def why(self, text: str, label: str | None = None, kind: WhyKind | None = None) -> Why:
        """How much each word of a text weighs for a label, the most probable one unless another is named.

        By attention where the pooling attends, else by influence, unless the kind is named. See `inspect.views.why`.
        """
        line = one_line(text, "text")
        (said,) = self.classify(line)
        number = self._label_number(said.label if label is None else label)
        reader = self._reader()
        batch = to_device(reader.batches([line], tokens=1).tree(np.array([0])), self.device)
        if kind == "attention" and self.model.attention(batch) is None:
            raise UsageError(f"{self.name} does not attend: its words weigh by influence, or by being left out.")
        before, spans = 0 if reader.frame is None else reader.frame.before, reader.read(line)[1]
        labels, found = torch.tensor([number], device=self.device), "influence" if kind == "left out" else kind
        (reason,) = explain(self.model, batch, [line], [spans], self.tokenizer, before, labels, found)
        if kind == "left out":
            reason = self._left_out(said, reason, self.labels[number])
        return reason.moved(len(text) - len(text.lstrip()))

    def _left_out(self, said: Classification, reason: Why, label: str) -> Why:
        def chance(one: Classification) -> float:
            return next((each.probability for each in one.candidates if each.label == label), 0.0)

        rest = self.classify(without(said.text, reason.words))
        drops = [chance(said) - chance(one) if one.candidates else 0.0 for one in rest]
        words = [replace(word, weight=drop) for word, drop in zip(reason.words, drops, strict=True)]
        return Why("left out", words, 0.0)

    def _label_number(self, label: str) -> int:
        if label not in self.labels:
            raise UsageError(f"{self.name} knows no label {label!r}: {did_you_mean(label, self.labels)}.")
        return self.labels.index(label)

    def _reader(self) -> TextReader:
        return text_reader(self._recipe, self.tokenizer, spellings_of(self.run))

    def _looked(self, line: str) -> Read:
        (said,), reader = self.classify(line, top=1), self._reader()
        batch = to_device(reader.batches([line], tokens=1).tree(np.array([0])), self.device)
        log_prob = math.log(said.probability)
        return Read(line, line, reader.read(line)[1], batch, "label", said.label, log_prob, said.unknown, reader.frame)


def as_it_came(one: Classification, line: str) -> Classification:
    """The answer to a line that was read without the white space at its ends."""
    before = len(line) - len(line.lstrip())
    return replace(one, text=line, why=None if one.why is None else one.why.moved(before))


class SeriesClassifier(Judging):
    """A trained classifier of series."""

    what = "a classifier of series"
    used_by = "`seqloom classify` uses it"

    @property
    def variables(self) -> int:
        return self.run.sizes["variables"]

    def classify(self, values: Sequence[float] | NDArray[np.floating[Any]], *, top: int | None = None) -> list[Said]:
        """What a series is, best first: values (T, C), or in one row all of the first variable, then of the second …"""
        array = np.asarray(values, dtype=np.float64)
        if array.ndim == 1:
            if len(array) == 0 or len(array) % self.variables:
                raise UsageError(f"{self.name} reads {self.variables} variables; got {len(array)} numbers.")
            array = array.reshape(self.variables, -1).T
        if array.ndim != 2 or array.shape[1] != self.variables or len(array) == 0 or np.isinf(array).any():
            raise UsageError(f"{self.name} reads finite values (T, {self.variables}); got {array.shape}.")
        batch = to_device(tree_of([LabelledSeries(array, "")], {}, len(array)), self.device)
        ordered = self.model.probabilities(batch)[0].sort(descending=True, stable=True)
        pairs = zip(ordered.indices.tolist(), ordered.values.tolist(), strict=True)
        return [Said(self.labels[label], probability) for label, probability in pairs][:top]
