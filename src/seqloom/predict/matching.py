"""Models that read several texts at once: sentence pairs, multiple choice and question answering."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.core.tree import Tree, to_device
from seqloom.core.words import one_line
from seqloom.data.collate import ExampleRows, RowBatches
from seqloom.data.examples import scores_of
from seqloom.data.readers import Window
from seqloom.evaluate.answers import f1
from seqloom.predict.base import (
    Prediction,
    SplitPredictor,
    as_lines,
    predict_batches,
    predict_filled,
    predict_windows,
    ranked_fields,
    similar_lengths,
    split_columns,
)
from seqloom.predict.classify import ClassEvaluation, LabelPrediction, LabelPredictor
from seqloom.predict.evaluation import AnswerRow, AnswersEvaluation, Evaluation
from seqloom.tasks.answer import TokenSpan, best_spans, spans_in_context
from seqloom.tasks.reading_base import row_reader

HELD_BATCHES = 32  # of windows that are held at a time
Pair = tuple[str, str]
Choice = tuple[str, Sequence[str]]  # a text and its options


def predict_rows(
    model: SplitPredictor[Any], rows: Sequence[ExampleRows], batch_size: int, compute: Callable[[Tree], Tensor]
) -> list[Any]:
    """Return what `compute` gives for each example; examples of similar length are computed together."""
    batches = RowBatches(rows, tokens=1)

    def predict(indices: list[int]) -> list[Any]:
        values: list[Any] = compute(to_device(batches.collate(np.array(indices)), model.device)).tolist()
        return values

    return predict_batches((batches.lengths * batches.rows).tolist(), batch_size, predict)


# --- sentence pairs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Match(LabelPrediction):
    """A pair of texts and how they go together: labels, best first, or a score; neither if a text is blank."""

    first: str = ""  # as they came
    second: str = ""
    score: float | None = None
    scored: bool = False  # whether the model gives scores instead of labels
    cut: bool = False  # whether not all of the texts was read
    json_names: ClassVar = ("unknown", "cut")

    def to_line(self) -> str:
        """The score, or label, probability, the next label …"""
        return super().to_line() if self.score is None else f"{self.score:.4f}"

    def to_json(self) -> dict[str, object]:
        rest = super().to_json()
        if self.scored:
            rest = {"score": self.score, **{name: rest[name] for name in self.json_names}}
        return {"first": self.first, "second": self.second, **rest}


class PairPredictor(LabelPredictor[Match]):
    """A trained model of pairs."""

    what = "a model of pairs of texts"
    used_by = "`seqloom match` uses it"
    problems: ClassVar = {"of {lines} with more than {longest} tokens not all was read": lambda answer: answer.cut}

    @property
    def scored(self) -> bool:
        """Whether it gives scores, not labels."""
        return bool(self.recipe.target == "score")

    @property
    def evaluation_class(self) -> type[Evaluation]:
        return AnswersEvaluation if self.scored else ClassEvaluation

    def answer_rows(self, split: str) -> Iterator[AnswerRow]:
        corpus = self.own_task.corpus
        examples, scores = corpus.split(split), scores_of(corpus, split)
        for pair, right, score in zip(examples, scores, self.outputs(split), strict=True):
            yield AnswerRow(abs(right - score), pair.label, f"{score:.2f}", f"{pair.first} · {pair.second}")

    def predict(self, lines: str | Iterable[str], *, batch_size: int = 32, window: int = 1024) -> Iterator[Match]:
        """Match the two texts of each line, which has a tab between them."""
        pairs = split_columns(as_lines(lines), 2, "two texts", most=2)
        return self.match(((first, second) for first, second in pairs), top=1, batch_size=batch_size, window=window)

    def match(
        self, pairs: Iterable[Pair], *, top: int | None = None, batch_size: int = 32, window: int = 1024
    ) -> Iterator[Match]:
        """Say how the texts of each pair go together, exactly one answer for each, in order.

        `top` is how many labels are named, best first; all, if left out. `window` and `batch_size`
        as in `predict`.
        """
        return predict_windows(pairs, self._match, batch_size=batch_size, window=window, top=top)

    def _match(self, pairs: Sequence[Pair], batch_size: int, top: int | None) -> Iterator[Match]:
        reader, scored = row_reader(self.recipe, self.tokenizer), self.scored
        compute = self.model if scored else self.model.probabilities

        def match(filled: list[Pair]) -> Iterator[Match]:
            texts = [(first.strip(), second.strip()) for first, second in filled]
            rows = [reader.pair(*pair, self.recipe.both_orders) for pair in texts]
            outputs = predict_rows(self, rows, batch_size, compute)
            for (first, second), pair, row, output in zip(filled, texts, rows, outputs, strict=True):
                yield Match(
                    candidates=[] if scored else self.rank(output, top),
                    first=first,
                    second=second,
                    score=float(output) if scored else None,
                    scored=scored,
                    cut=bool(row.cut),
                    unknown=tuple(reader.unknown(*pair)),
                )

        def blank(pair: Pair) -> Match:
            return Match([], first=pair[0], second=pair[1], scored=scored)

        return predict_filled(pairs, lambda pair: pair[0].strip() and pair[1].strip(), match, blank)


# --- multiple choice --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """An option and its probability."""

    text: str
    place: int  # among the options as they were given, from 1
    probability: float


@dataclass(frozen=True)
class ChoicePrediction(Prediction):
    """A text and its options, best first. Where the text or an option is blank there are none."""

    text: str
    options: list[Option]
    cut: bool = False
    json_names: ClassVar = ("text", "options", "unknown", "cut")

    @property
    def best(self) -> Option | None:
        return self.options[0] if self.options else None

    def to_line(self) -> str:
        """number of the option, probability, option, the next number …"""
        return "\t".join(f"{own.place}\t{own.probability:.4f}\t{one_line(own.text)}" for own in self.options)


class ChoicePredictor(SplitPredictor[ChoicePrediction]):
    """A trained model of choices."""

    what = "a model of choices"
    used_by = "`seqloom choose` uses it"
    evaluation_class = AnswersEvaluation
    problems: ClassVar = {"of {lines} with more than {longest} tokens not all was read": lambda answer: answer.cut}

    def answer_rows(self, split: str) -> Iterator[AnswerRow]:
        """The error is how much likelier the chosen option is than the right one."""
        for choice, log_probs in zip(self.own_task.corpus.split(split), self.outputs(split), strict=True):
            best = max(range(len(log_probs)), key=log_probs.__getitem__)
            error = log_probs[best] - log_probs[choice.answer]
            yield AnswerRow(error, choice.options[choice.answer], choice.options[best], choice.text)

    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = 8, window: int = 256
    ) -> Iterator[ChoicePrediction]:
        """Choose among the options of each line: a text and two options or more, with tabs between."""
        given = split_columns(as_lines(lines), 3, "a text and two options or more")
        choices = ((text, options) for text, *options in given)
        return self.choose(choices, top=1, batch_size=batch_size, window=window)

    def choose(
        self, examples: Iterable[Choice], *, top: int | None = None, batch_size: int = 8, window: int = 256
    ) -> Iterator[ChoicePrediction]:
        """Rank the options of each text, exactly one answer for each, in order; with `top`, only the best are named."""
        return predict_windows(examples, self._choose, batch_size=batch_size, window=window, top=top)

    def _choose(self, examples: Sequence[Choice], batch_size: int, top: int | None) -> Iterator[ChoicePrediction]:
        reader = row_reader(self.recipe, self.tokenizer)
        for text, options in examples:
            if text.strip() and len(options) < 2:
                raise UsageError(f"There must be two options or more to choose from, got {len(options)}.")

        def choose(filled: list[Choice]) -> Iterator[ChoicePrediction]:
            texts = [(text.strip(), [option.strip() for option in options]) for text, options in filled]
            rows = [reader.choice(text, options) for text, options in texts]
            outputs = predict_rows(self, rows, batch_size, self.model.probabilities)
            for (raw, _), (text, options), row, probabilities in zip(filled, texts, rows, outputs, strict=True):
                pairs = enumerate(zip(options, probabilities, strict=False), start=1)
                named = [Option(option, place, probability) for place, (option, probability) in pairs]
                named = sorted(named, key=lambda option: -option.probability)[:top]
                yield ChoicePrediction(raw, named, cut=bool(row.cut), unknown=tuple(reader.unknown(text, *options)))

        def is_filled(example: Choice) -> bool:
            return bool(example[0].strip()) and all(option.strip() for option in example[1])

        return predict_filled(examples, is_filled, choose, lambda example: ChoicePrediction(example[0], []))


# --- question answering -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AnswerSpan:
    """Words of the context, and their probability: p(start) · p(end), in the window they stand in."""

    text: str
    start: int  # characters of the context
    end: int
    probability: float

    @classmethod
    def of(cls, span: TokenSpan, context: str, tokens: Sequence[tuple[int, int]]) -> "AnswerSpan":
        """Return what stands at a span of tokens, without white space at its ends."""
        start, end = tokens[span.first][0], tokens[span.last][1]
        text = context[start:end]
        start += len(text) - len(text.lstrip())
        return cls(text.strip(), start, start + len(text.strip()), math.exp(span.log_prob))


@dataclass(frozen=True)
class QuestionAnswer(Prediction):
    """A question and its answers, best first; a blank question, or one about a blank context, has none."""

    question: str
    answers: list[AnswerSpan]
    absent: float = 0.0  # how sure it is, in the window where it is least so, that the answer is not there
    windows: int = 0  # in how many the context was read
    cut: bool = False  # whether only the beginning of the question was read
    json_names: ClassVar = ("question", "answer", "answers", "absent", "windows", "unknown", "cut")

    @property
    def text(self) -> str:
        return self.answers[0].text if self.answers else ""

    @property
    def answer(self) -> str | None:
        """The best answer; None if there is none."""
        return self.text or None

    def to_line(self) -> str:
        """answer, probability, the next answer …"""
        return ranked_fields((own.text, own.probability) for own in self.answers)

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), "absent": self.absent if self.windows else None}


class AnswerPredictor(SplitPredictor[QuestionAnswer]):
    """A trained model that answers questions about a text."""

    what = "a model that answers questions"
    used_by = "`seqloom answer` uses it"
    evaluation_class = AnswersEvaluation
    problems: ClassVar = {
        "of {lines} only the beginning was read (batch.max_question_length)": lambda answer: answer.cut,
        "the model rather thinks the text has no answer to {lines}": lambda answer: (
            bool(answer.answers) and answer.absent > answer.answers[0].probability
        ),
    }

    def answer_rows(self, split: str) -> Iterator[AnswerRow]:
        for one, text in zip(self.own_task.corpus.split(split), self.outputs(split)[0], strict=True):
            error = 1 - max(f1(text, answer.text) for answer in one.answers)
            yield AnswerRow(error, one.answer.text, text, one.question)

    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = 32, window: int = 256
    ) -> Iterator[QuestionAnswer]:
        """Answer the question of each line: a question and the text to answer it from, with a tab between."""
        rows = split_columns(as_lines(lines), 2, "a question and a text", most=2)
        for context, group in groupby(rows, key=lambda row: row[1]):
            yield from self.answer((question for question, _ in group), context, batch_size=batch_size, window=window)

    def answer(
        self,
        questions: str | Iterable[str],
        context: str,
        *,
        top: int = 1,
        batch_size: int = 32,
        window: int = 256,
    ) -> Iterator[QuestionAnswer]:
        """Answer questions about one context, exactly one answer for each, in order.

        `top` is how many answers are given, best first. `window` questions are read at a time, and
        windows of the context of similar length are computed `batch_size` at a time.
        """
        options = {"batch_size": batch_size, "window": window, "top": top}
        return predict_windows(questions, self._answer, context=context, **options)

    def _answer(self, questions: Sequence[str], context: str, top: int, batch_size: int) -> Iterator[QuestionAnswer]:
        reader, batch = row_reader(self.recipe, self.tokenizer), self.recipe.batch
        tokens = reader.spans(context) if context.strip() else []
        by_question: dict[int, list[Window]] = {}
        for number, question in enumerate(questions):
            text, windows = question.strip(), list[Window]()
            if text and context.strip():
                windows = list(reader.windows(number, text, context, batch.max_question_length, batch.stride))
            by_question[number] = windows
            if sum(map(len, by_question.values())) < HELD_BATCHES * batch_size and number + 1 < len(questions):
                continue
            spans, absent = self._find_spans(by_question, top, batch_size)
            for place, own in by_question.items():
                yield QuestionAnswer(
                    question=questions[place],
                    answers=[AnswerSpan.of(span, context, tokens) for span in best_spans(spans[place], top)],
                    absent=math.exp(min(absent[place], default=-math.inf)),
                    windows=len(own),
                    unknown=tuple(reader.unknown(questions[place].strip())) if own else (),
                    cut=any(window.cut for window in own),
                )
            by_question = {}

    def _find_spans(
        self, by_question: dict[int, list[Window]], top: int, batch_size: int
    ) -> tuple[dict[int, list[TokenSpan]], dict[int, list[float]]]:
        """Return by question the best spans of its windows, and log p that the answer is not in each of them."""
        windows = [window for own in by_question.values() for window in own]
        found: dict[int, list[TokenSpan]] = {number: [] for number in by_question}
        absent: dict[int, list[float]] = {number: [] for number in by_question}
        if not windows:
            return found, absent
        cls_positions = {"cls_positions": [window.row.cls_position for window in windows]}
        batches = RowBatches([window.rows() for window in windows], tokens=1, values=cls_positions)
        for chosen in similar_lengths(batches.lengths.tolist(), batch_size):
            tree = to_device(batches.collate(np.array(chosen)), self.device)
            spans = self.model.best_spans(tree, self.recipe.decode.max_answer_length, top)
            answers = spans_in_context(spans, windows, chosen)
            for index, own, missing in zip(chosen, answers, spans.absent.tolist(), strict=True):
                found[windows[index].number] += own
                absent[windows[index].number].append(missing)
        return found, absent
