"""Extractive question answering: a model reads a question and a text, and marks the answer in the text.

    loss = −(log p(start) + log p(end)) / 2, the mean over the windows of all contexts

If a context is longer than a row, it is read in overlapping windows. The target of a window without the answer is
[CLS], so that windows are comparable. The answer is the span with the largest log p(start) + log p(end) over all
windows. `seqloom.evaluate.answers` defines the metrics.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch

from seqloom.config import Discriminator, config
from seqloom.config.constraints import Ge, PositiveInt
from seqloom.core.device import device_of
from seqloom.core.tree import to_device
from seqloom.data.collate import RowBatches
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.examples import QuestionAnsweringExample
from seqloom.data.text_inputs import RowReader, Window, tokens_covering
from seqloom.evaluate.answers import AnswerReport, report
from seqloom.models.fine_tuned import AnswerSpans, FineTunedAnswer, FineTunedAnswerConfig
from seqloom.tasks.base import TaskInfo, cached_method
from seqloom.tasks.reading_base import RowBatchConfig, RowLossConfig, RowRecipe, RowTask, max_row_length, row_reader
from seqloom.text.base import Span
from seqloom.train.config import FitConfig


@config
class BatchConfig(RowBatchConfig):
    """Batches of windows of contexts."""

    # maximum length of a window in tokens, including the question and special tokens
    max_length: Annotated[int, Ge(5)] | None = 384
    max_question_length: PositiveInt = 64  # maximum length of a question in tokens; longer questions are truncated
    stride: PositiveInt | None = None  # number of tokens between the starts of two windows; null: half a window


@config
class DecodeConfig:
    max_answer_length: PositiveInt = 30  # maximum length of an answer in tokens


@config
class Recipe(RowRecipe):
    task: Literal["answer"] = "answer"
    data: CorpusConfig[QuestionAnsweringExample]
    batch: BatchConfig = BatchConfig()
    model: Annotated[FineTunedAnswerConfig, Discriminator("kind")] = FineTunedAnswerConfig()
    loss: RowLossConfig = RowLossConfig()
    decode: DecodeConfig = DecodeConfig()
    monitor: Literal["loss", "answer_f1", "answer_exact"] = "answer_f1"  # dev metric that selects the best checkpoint
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        most = max_row_length(self) if self.model.backbone is not None else self.batch.max_length
        if most is not None and most >= 5 and self.batch.max_question_length > most - 4:
            yield (
                f"batch.max_question_length must leave room for the context in rows of {most} tokens, 3 of them "
                f"special; got {self.batch.max_question_length}"
            )


@dataclass(frozen=True)
class TokenSpan:
    """An answer, given as the tokens `first` to `last` of a row or of the context."""

    log_prob: float  # log p(start) + log p(end) in the best window
    first: int
    last: int


class Task(RowTask[Recipe, FineTunedAnswer]):
    corpus: Corpus[QuestionAnsweringExample]

    @cached_method
    def reader(self) -> RowReader:
        return row_reader(self.recipe, self.tokenizer)

    @cached_method
    def spans(self, context: str) -> list[Span]:
        """Return the character spans of the tokens of a context."""
        return self.reader().spans(context)

    @cached_method
    def windows(self, split: str) -> list[Window]:
        """Return all windows of a split in the order of the questions."""
        reader, batch = self.reader(), self.recipe.batch
        reader.read_ahead(self.corpus.texts(split))
        return [
            window
            for number, example in enumerate(self.corpus.split(split))
            for window in reader.windows(
                number, example.question, example.context, batch.max_question_length, batch.stride
            )
        ]

    def make_batches(self, split: str, *, tokens: int, shapes: int | None = None) -> RowBatches:
        windows = self.windows(split)
        starts, ends = zip(*self.answer_spans(split), strict=True)
        values = {"cls_positions": [window.row.cls_position for window in windows], "starts": starts, "ends": ends}
        return RowBatches([window.rows() for window in windows], values=values, tokens=tokens, shapes=shapes)

    def answer_spans(self, split: str) -> list[tuple[int, int]]:
        """Return the first and last token of the answer in each window."""
        answers = [
            tokens_covering(self.spans(example.context), example.answer.start, example.answer.end)
            for example in self.corpus.split(split)
        ]
        return [window.targets(answers[window.number]) for window in self.windows(split)]

    def truncated_count(self) -> int:
        """Return the number of truncated questions. Contexts are never truncated."""
        return len({window.number for window in self.windows("train") if window.cut})

    def truncation_note(self, count: int) -> str:
        return (
            f"{count:,} of {len(self.corpus.split('train')):,} training questions have more than "
            f"{self.recipe.batch.max_question_length} tokens and are truncated (batch.max_question_length)."
        )

    def warnings(self) -> list[str]:
        notes = super().warnings()
        several = len({window.number for window in self.windows("train") if window.start})
        if several:
            notes.append(
                f"The contexts of {several:,} of {len(self.corpus.split('train')):,} training questions do not fit "
                f"in {max_row_length(self.recipe)} tokens with the question, so they are read in windows."
            )
        return notes

    # --- evaluation -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def outputs(self, model: FineTunedAnswer, split: str) -> tuple[list[str], float]:
        """Return the answer to each question of a split and the mean loss of its windows."""
        windows, total = self.windows(split), 0.0
        by_question: list[list[TokenSpan]] = [[] for _ in self.corpus.split(split)]
        for members, batch in self.eval_batches(split).all_batches():
            spans = model.best_spans(to_device(batch, device_of(model)), self.recipe.decode.max_answer_length)
            assert spans.losses is not None  # because the batch contains the answers
            total += float(spans.losses.double().sum())
            for index, answers in zip(members.tolist(), spans_in_context(spans, windows, members), strict=False):
                by_question[windows[index].number] += answers
        texts = []
        for answers, example in zip(by_question, self.corpus.split(split), strict=True):
            tokens = self.spans(example.context)
            best = best_spans(answers, 1)
            texts.append(example.context[tokens[best[0].first][0] : tokens[best[0].last][1]].strip() if best else "")
        return texts, total / len(windows)

    def measure(self, outputs: tuple[Sequence[str], float], split: str) -> AnswerReport:
        texts, loss = outputs
        references = [[answer.text for answer in example.answers] for example in self.corpus.split(split)]
        answer_report = report(texts, references)
        return replace(answer_report, metrics={"loss": loss, **answer_report.metrics})


def spans_in_context(
    spans: AnswerSpans, windows: Sequence[Window], members: Iterable[int]
) -> Iterator[list[TokenSpan]]:
    """Yield the spans of each window, with token numbers of the context."""
    rows = zip(spans.log_probs.tolist(), spans.first.tolist(), spans.last.tolist(), strict=True)
    for index, row in zip(members, rows, strict=False):
        shift = windows[index].shift
        spans_of_row = zip(*row, strict=True)
        yield [TokenSpan(p, first - shift, last - shift) for p, first, last in spans_of_row if p > -math.inf]


def best_spans(spans: Sequence[TokenSpan], max_count: int) -> list[TokenSpan]:
    """Return the best distinct spans over all windows, best first."""
    best: dict[tuple[int, int], TokenSpan] = {}
    for span in sorted(spans, key=lambda span: (-span.log_prob, span.first, span.last)):
        best.setdefault((span.first, span.last), span)
    return list(best.values())[:max_count]


INFO = TaskInfo(
    name="answer",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.matching:AnswerPredictor",
    command='answer {run} --context page.txt --question "…"',
    pipeline_tag="question-answering",
    metric="answer_f1",
    loss_per="window",
    examples="questions",
    views=("understand", "vectors"),
)
