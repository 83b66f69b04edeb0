"""Answers: a model reads a question and a text, and points at the words of the text that answer it.

    −(log p(start) + log p(end)) / 2 is made small, over the windows of each context

Where a context is longer than a row, it is read in windows that overlap. A window without the answer is taught to point
at [CLS], so that windows can be compared: of all spans of all windows, the one with the largest
log p(start) + log p(end) is the answer. `seqloom.evaluate.answers` says how it is measured.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import torch

from seqloom.config import Discriminator, config
from seqloom.config.constraints import Ge, PositiveInt
from seqloom.core.device import device_of
from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree, to_device
from seqloom.data.collate import RowBatches
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.examples import QuestionAnsweringExample
from seqloom.data.readers import RowReader, Window, covering
from seqloom.evaluate.answers import AnswerReport, report
from seqloom.models.matching import FineTunedAnswerConfig, Spans
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.reading_base import RowBatchConfig, RowLossConfig, RowRecipe, RowTask, read_length
from seqloom.text import Tokenizer
from seqloom.text.base import Span
from seqloom.train.config import FitConfig


@config
class BatchConfig(RowBatchConfig):
    """How windows of contexts are put together."""

    max_length: Annotated[int, Ge(5)] | None = 384  # tokens of a window, question and special ones included
    question: PositiveInt = 64  # tokens read of a question, at most
    stride: PositiveInt | None = None  # tokens from the beginning of a window to that of the next; null: half of it


@config
class DecodeConfig:
    longest: PositiveInt = 30  # tokens of an answer, at most


@config
class Recipe(RowRecipe):
    task: Literal["answer"] = "answer"
    data: CorpusConfig[QuestionAnsweringExample]
    batch: BatchConfig = BatchConfig()
    model: Annotated[FineTunedAnswerConfig, Discriminator("kind")] = FineTunedAnswerConfig()
    loss: RowLossConfig = RowLossConfig()
    decode: DecodeConfig = DecodeConfig()
    goal: Literal["loss", "answer_f1", "answer_exact"] = "answer_f1"  # which metric of dev selects the best
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        most = read_length(self) if self.model.body is not None else self.batch.max_length
        if most is not None and most >= 5 and self.batch.question > most - 4:
            yield (
                f"batch.question must leave room for the context: a row has {most} tokens, 3 of them special; got "
                f"{self.batch.question}"
            )


@dataclass(frozen=True)
class Place:
    """An answer that was found: tokens `first` to `last` of the context."""

    log_prob: float  # log p(start) + log p(end), in the window where they are largest
    first: int
    last: int


class Task(RowTask):
    corpus: Corpus[QuestionAnsweringExample]

    def __init__(self, recipe: Any, corpus: Any, tokenizer: Tokenizer, names: Sequence[str] = ()):
        super().__init__(recipe, corpus, tokenizer, names)
        self._windows: dict[str, list[Window]] = {}
        self._spans: dict[str, list[Span]] = {}  # by context

    def loss_unit(self) -> str:
        return self.recipe.loss.unit("window")

    # --- data -------------------------------------------------------------------------------------------------------

    @cached_property
    def _reader(self) -> RowReader:
        return super().reader()

    def reader(self) -> RowReader:
        return self._reader

    def spans(self, context: str) -> list[Span]:
        """Where the tokens of a context stand in it."""
        if context not in self._spans:
            self._spans[context] = self.reader().spans(context)
        return self._spans[context]

    def windows(self, split: str) -> list[Window]:
        """All windows of a split, those of a question side by side."""
        if split not in self._windows:
            batch = self.recipe.batch
            self.reader().read_ahead(self.corpus.texts(split))
            self._windows[split] = [
                window
                for number, one in enumerate(self.corpus.split(split))
                for window in self.reader().windows(number, one.question, one.context, batch.question, batch.stride)
            ]
        return self._windows[split]

    def make_batches(self, split: str, *, tokens: int, shapes: int | None = None) -> Any:
        windows = self.windows(split)
        values: dict[str, Sequence[float]] = {"summary": [window.row.summary for window in windows]}
        values["starts"], values["ends"] = zip(*self._targets(split), strict=True)
        return RowBatches([window.rows() for window in windows], values=values, tokens=tokens, shapes=shapes)

    def _targets(self, split: str) -> Iterator[tuple[int, int]]:
        questions = self.corpus.split(split)
        answers = [covering(self.spans(one.context), one.answer.start, one.answer.end) for one in questions]
        return (window.targets(answers[window.number]) for window in self.windows(split))

    def cut(self) -> int:
        """Questions of which only the beginning is read; a context is never cut."""
        return len({window.number for window in self.windows("train") if window.cut})

    def about_cut(self, cut: int) -> str:
        return (
            f"{cut:,} of {len(self.corpus.split('train')):,} training questions have more than "
            f"{self.recipe.batch.question} tokens: only their beginning is read (batch.question)."
        )

    def warnings(self) -> list[str]:
        found = super().warnings()
        several = len({window.number for window in self.windows("train") if window.start})
        if several:
            found.append(
                f"The contexts of {several:,} of {len(self.corpus.split('train')):,} training questions have no room "
                f"in {read_length(self.recipe)} tokens beside the question: they are read in windows."
            )
        return found

    # --- training and measuring -------------------------------------------------------------------------------------

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        value, count = model.loss(batch, self.recipe.loss.language_model)
        return Loss(value, None, batch["read"], count)

    def report(self, model: Any, split: str) -> AnswerReport:
        return self.figures(*self.answers(model, split), split)

    def figures(self, said: Sequence[str], loss: float, split: str) -> AnswerReport:
        """Every figure, given the answers that a model gave, and its loss."""
        found = report(said, [[answer.text for answer in one.answers] for one in self.corpus.split(split)])
        return replace(found, metrics={"loss": loss, **found.metrics})

    @torch.no_grad()
    def answers(self, model: Any, split: str) -> tuple[list[str], float]:
        """The answer to every question of a split, and the mean loss of its windows."""
        windows, total = self.windows(split), 0.0
        found: list[list[Place]] = [[] for _ in self.corpus.split(split)]
        for members, batch in self.read(split).every():
            spans = model.spans(to_device(batch, device_of(model)), self.recipe.decode.longest)
            total += float(spans.losses.double().sum())
            for place, own in zip(members.tolist(), places_of(spans), strict=False):
                found[windows[place].number] += placed(windows[place], own)
        said = [
            text_of(best(places, 1), one.context, self.spans(one.context))
            for places, one in zip(found, self.corpus.split(split), strict=True)
        ]
        return [answers[0] if answers else "" for answers in said], total / len(windows)


def places_of(spans: Spans) -> list[list[Place]]:
    """The spans of each row, by their places in the row."""
    rows = zip(spans.log_probs.tolist(), spans.first.tolist(), spans.last.tolist(), strict=True)
    return [[Place(*one) for one in zip(*row, strict=True) if one[0] > -math.inf] for row in rows]


def placed(window: Window, places: Sequence[Place]) -> list[Place]:
    """Places in a window's row as tokens of its context."""
    return [Place(one.log_prob, one.first - window.shift, one.last - window.shift) for one in places]


def best(places: Sequence[Place], most: int) -> list[Place]:
    """The best of all windows, best first; what two windows found counts once."""
    found: dict[tuple[int, int], Place] = {}
    for place in sorted(places, key=lambda one: (-one.log_prob, one.first, one.last)):
        found.setdefault((place.first, place.last), place)
    return list(found.values())[:most]


def text_of(places: Sequence[Place], context: str, spans: Sequence[Span]) -> list[str]:
    """What stands at these places of a context, without white space at its ends."""
    return [context[spans[place.first][0] : spans[place.last][1]].strip() for place in places]


INFO = TaskInfo(
    name="answer",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.matching:AnswerPredictor",
    command='answer {run} --context page.txt --question "…"',
    metric="answer_f1",
    loss_per="window",
    examples="questions",
    views=("understand", "vectors"),
)
