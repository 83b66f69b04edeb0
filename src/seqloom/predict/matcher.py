"""Models of pairs and of choices in use: texts that belong together in, an answer for each, in their order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from seqloom.core.errors import UsageError
from seqloom.core.tree import to_device
from seqloom.data.row_batches import RowBatches, Rows
from seqloom.data.row_reading import RowReader
from seqloom.evaluate.figures import Figures
from seqloom.predict.batching import alike, check_sizes, windows
from seqloom.predict.classifier import Judging, Said, Understanding
from seqloom.tasks.pair import row_reader

Example = TypeVar("Example")
Given = TypeVar("Given")
MakeRows = Callable[[RowReader, Any], Rows]


@dataclass(frozen=True)
class Match:
    """A pair and how it goes together: labels, best first, or a score. A pair with a blank text has neither."""

    first: str  # as they came
    second: str
    candidates: list[Said]
    score: float | None = None
    unknown: tuple[str, ...] = ()  # pieces of the texts the vocabulary does not have
    cut: bool = False  # whether not all of the texts was read

    @property
    def label(self) -> str:
        return self.candidates[0].label if self.candidates else ""

    @property
    def probability(self) -> float:
        return self.candidates[0].probability if self.candidates else 0.0


@dataclass(frozen=True)
class Option:
    text: str
    place: int  # among the options as they were given, from 1
    probability: float


@dataclass(frozen=True)
class Chosen:
    """A text and its options, best first. Where the text or an option is blank there are none."""

    text: str
    options: list[Option]
    unknown: tuple[str, ...] = ()
    cut: bool = False

    @property
    def best(self) -> Option | None:
        return self.options[0] if self.options else None


class Matcher(Judging):
    """A trained model of pairs."""

    what = "a model of pairs of texts"
    used_by = "`seqloom match` uses it"

    @property
    def scored(self) -> bool:
        """Whether it gives scores, not labels."""
        return bool(self._recipe.target == "score")

    def match(
        self, pairs: Iterable[tuple[str, str]], *, top: int | None = None, batch_size: int = 32, window: int = 1024
    ) -> Iterator[Match]:
        """Say how the texts of each pair go together, exactly one answer for each, in their order.

        `top` is how many labels are named, best first; all, if left out. `window` pairs are read at a time, and those
        of like length `batch_size` at a time.
        """
        check_sizes(batch_size=batch_size, window=window, **({} if top is None else {"top": top}))
        return (one for read in windows(pairs, window) for one in self._answer(read, batch_size, top))

    def _answer(self, pairs: Sequence[tuple[str, str]], batch_size: int, top: int | None) -> Iterator[Match]:
        reader, both = row_reader(self._recipe, self.tokenizer), self._recipe.both_orders
        stripped = [(first.strip(), second.strip()) for first, second in pairs]
        answers = [Match(first, second, []) for first, second in pairs]
        read = [place for place, texts in enumerate(stripped) if all(texts)]
        rows = [reader.pair(*stripped[place], both) for place in read]
        for number, found in self._judged_rows(rows, batch_size):
            place = read[number]
            plain = replace(answers[place], unknown=tuple(reader.unknown(*stripped[place])), cut=bool(rows[number].cut))
            answers[place] = self._said(plain, found, top)
        yield from answers

    def _judged_rows(self, rows: Sequence[Rows], batch_size: int) -> Iterator[tuple[int, Any]]:
        """The number of each example, and what the model says of it: a score, or p of every label."""
        ask = self.model if self.scored else self.model.probabilities
        return read_together(rows, batch_size, lambda batch: ask(to_device(batch, self.device)).tolist())

    def _said(self, plain: Match, found: Any, top: int | None) -> Match:
        if self.scored:
            return replace(plain, score=float(found))
        order = sorted(range(len(found)), key=lambda label: -found[label])[:top]
        return replace(plain, candidates=[Said(self.labels[label], found[label]) for label in order])

    def scores(self, split: str = "dev") -> list[float]:
        """The score of every pair of a split of the data it was trained on; read once."""
        if split not in self._scores:
            self._scores[split] = self.own_task.scores(self.model, split)
        return self._scores[split]

    @cached_property
    def _scores(self) -> dict[str, list[float]]:
        return {}

    def report(self, split: str = "dev") -> Any:
        return Understanding.report(self, split)

    def _figures(self, split: str) -> Any:
        return self.own_task.score_figures(self.scores(split), split) if self.scored else super()._figures(split)


class Chooser(Understanding):
    """A trained model of choices."""

    what = "a model of choices"
    used_by = "`seqloom choose` uses it"

    def choose(
        self, examples: Iterable[tuple[str, Sequence[str]]], *, batch_size: int = 8, window: int = 256
    ) -> Iterator[Chosen]:
        """Rank the options of each text, exactly one answer for each, in their order.

        `window` texts are read at a time, and those of like length `batch_size` at a time.
        """
        check_sizes(batch_size=batch_size, window=window)
        return (one for read in windows(examples, window) for one in self._answer(read, batch_size))

    def _answer(self, examples: Sequence[tuple[str, Sequence[str]]], batch_size: int) -> Iterator[Chosen]:
        reader = row_reader(self._recipe, self.tokenizer)
        stripped = [(text.strip(), [option.strip() for option in options]) for text, options in examples]
        answers = [Chosen(text, []) for text, _ in examples]
        read = [place for place, (text, options) in enumerate(stripped) if text and _choosable(options)]
        rows = [reader.choice(*stripped[place]) for place in read]
        ask = self.model.probabilities
        for number, found in read_together(rows, batch_size, lambda batch: ask(to_device(batch, self.device)).tolist()):
            place = read[number]
            text, options = stripped[place]
            ranked = sorted(range(len(options)), key=lambda own: -found[own])
            answers[place] = Chosen(
                answers[place].text,
                [Option(options[own], own + 1, found[own]) for own in ranked],
                tuple(reader.unknown(text, *options)),
                bool(rows[number].cut),
            )
        yield from answers

    def log_probs(self, split: str = "dev") -> list[list[float]]:
        """log p of every option of every example of a split of the data it was trained on; read once."""
        if split not in self._thoughts:
            self._thoughts[split] = self.own_task.log_probs(self.model, split)
        return self._thoughts[split]

    @cached_property
    def _thoughts(self) -> dict[str, list[list[float]]]:
        return {}

    def _figures(self, split: str) -> Figures:
        found: Figures = self.own_task.figures(self.log_probs(split), split)
        return found


def _choosable(options: Sequence[str]) -> bool:
    """Whether there is something to choose from; one option alone is a mistake."""
    if len(options) < 2:
        raise UsageError(f"There must be two options or more to choose from, got {len(options)}.")
    return all(options)


def read_together(
    rows: Sequence[Rows], batch_size: int, ask: Callable[[Any], Sequence[Any]]
) -> Iterator[tuple[int, Any]]:
    """What `ask` says of each example, with its number; those of like length are read together."""
    if not rows:
        return
    batches = RowBatches(rows, tokens=1)
    for chosen in alike((batches.lengths * batches.rows).tolist(), batch_size):
        yield from zip(chosen, ask(batches.tree(np.array(chosen))), strict=True)
