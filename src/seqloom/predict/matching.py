"""Predictors for models with several input texts: sentence pairs, multiple choice and question answering."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.core.inputs import check_pairs, check_text, check_texts
from seqloom.core.tree import Tree, to_device
from seqloom.core.words import one_line
from seqloom.data.collate import ExampleRows, RowBatches
from seqloom.data.examples import scores_of
from seqloom.data.text_inputs import Window
from seqloom.evaluate.answers import f1
from seqloom.predict.base import (
    Prediction,
    SplitPredictor,
    as_lines,
    batch_by_length,
    predict_batches,
    predict_filled,
    predict_windows,
    ranked_columns,
    ranked_fields,
    split_columns,
)
from seqloom.predict.classify import ABSTAINED, ClassEvaluation, LabelPrediction, LabelPredictor
from seqloom.predict.confidence import CalibratedPredictor
from seqloom.predict.evaluation import AnswerRow, AnswersEvaluation, Evaluation
from seqloom.predict.results import returns_list
from seqloom.tasks.answer import TokenSpan, best_spans, spans_in_context
from seqloom.tasks.reading_base import row_reader

BUFFERED_BATCHES = 32  # number of batches of context windows that are read before prediction
Pair = tuple[str, str]
Choice = tuple[str, Sequence[str]]  # a text and its options


def check_text_pairs(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Return an iterator over pairs of texts that checks the types of the texts."""
    checked = check_pairs(pairs, "pairs", "two texts")
    return ((first, check_text(second, f"pairs[{index}][1]")) for index, (first, second) in enumerate(checked))


def check_choices(examples: Iterable[Choice]) -> Iterator[Choice]:
    """Return an iterator over texts with their options that checks the types of all texts."""
    checked = check_pairs(examples, "examples", "a text and a list of options")
    return ((text, check_texts(options, f"examples[{index}][1]")) for index, (text, options) in enumerate(checked))


def predict_rows(
    model: SplitPredictor[Any], rows: Sequence[ExampleRows], batch_size: int, compute: Callable[[Tree], Tensor]
) -> list[Any]:
    """Return the outputs of `compute` for all examples, in batches of similar length."""
    batches = RowBatches(rows, tokens=1)

    def predict(indices: list[int]) -> list[Any]:
        values: list[Any] = compute(to_device(batches.collate(np.array(indices)), model.device)).tolist()
        return values

    return predict_batches((batches.lengths * batches.rows).tolist(), batch_size, predict)


# --- sentence pairs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Match(LabelPrediction):
    """A sentence pair with its labels, best first, or with its score. A pair with a blank text has neither."""

    first: str = ""  # the unchanged input
    second: str = ""
    score: float | None = None
    scored: bool = False  # whether the model predicts scores instead of labels
    cut: bool = False  # whether a text was truncated
    json_names: ClassVar = ("unknown", "cut")

    def to_line(self) -> str:
        """Return the score, or tab-separated labels and probabilities."""
        return super().to_line() if self.score is None else f"{self.score:.4f}"

    def to_json(self) -> dict[str, object]:
        content = super().to_json()
        if self.scored:
            content = {"score": self.score, **{name: content[name] for name in self.json_names}}
        return {"first": self.first, "second": self.second, **content}

    def to_columns(self) -> dict[str, object]:
        return {"score": self.score} if self.scored else super().to_columns()


class PairPredictor(LabelPredictor[Match]):
    """A trained model of sentence pairs."""

    description = "a model of sentence pairs"
    usage = "use `seqloom match`"
    inputs = ("first", "second")
    notes: ClassVar = {"{lines} longer than {max_length} tokens: truncated": lambda answer: answer.cut, **ABSTAINED}

    @property
    def scored(self) -> bool:
        """Whether the model predicts scores instead of labels."""
        return bool(self.recipe.target == "score")

    @property
    def evaluation_class(self) -> type[Evaluation]:
        return AnswersEvaluation if self.scored else ClassEvaluation

    def answer_rows(self, split: str) -> Iterator[AnswerRow]:
        corpus = self.training_task.corpus
        examples, scores = corpus.split(split), scores_of(corpus, split)
        for pair, right, score in zip(examples, scores, self.outputs(split), strict=True):
            yield AnswerRow(abs(right - score), pair.label, f"{score:.2f}", f"{pair.first} · {pair.second}")

    @returns_list
    def predict(self, lines: str | Iterable[str], *, batch_size: int = 32, window: int = 1024) -> Iterator[Match]:
        """Match the two tab-separated texts in each line."""
        pairs = split_columns(as_lines(lines), 2, "two texts", most=2)
        both = ((first, second) for first, second in pairs)
        return self.match(both, top=1, batch_size=batch_size, window=window, stream=True)

    @returns_list
    def match(
        self, pairs: Iterable[Pair], *, top: int | None = None, batch_size: int = 32, window: int = 1024
    ) -> Iterator[Match]:
        """Predict the label or score of each pair, and return one result per pair.

        `top` limits the number of labels; by default, all labels are returned. `window` and `batch_size` work as in
        `predict`.
        """
        return predict_windows(check_text_pairs(pairs), self._match, batch_size=batch_size, window=window, top=top)

    def _match(self, pairs: Sequence[Pair], batch_size: int, top: int | None) -> Iterator[Match]:
        reader, scored = row_reader(self.recipe, self.tokenizer), self.scored
        compute = self.model if scored else self.model.probabilities

        def match(filled: list[Pair]) -> Iterator[Match]:
            texts = [(first.strip(), second.strip()) for first, second in filled]
            rows = [reader.pair(*pair, self.recipe.both_orders) for pair in texts]
            outputs = predict_rows(self, rows, batch_size, compute)
            for (first, second), pair, row, output in zip(filled, texts, rows, outputs, strict=True):
                candidates = [] if scored else self.rank(output, top)
                yield Match(
                    candidates=candidates,
                    abstained=not scored and self.abstains(candidates),
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
    position: int  # position among the given options, counted from 1
    probability: float


@dataclass(frozen=True)
class ChoicePrediction(Prediction):
    """A text and its options, best first. If the text or an option is blank, there are no options."""

    text: str
    options: list[Option]
    cut: bool = False
    json_names: ClassVar = ("text", "options", "unknown", "cut")

    @property
    def best(self) -> Option | None:
        return self.options[0] if self.options else None

    def to_line(self) -> str:
        """Return tab-separated positions, probabilities and options."""
        rows = (f"{option.position}\t{option.probability:.4f}\t{one_line(option.text)}" for option in self.options)
        return "\t".join(rows)

    def to_columns(self) -> dict[str, object]:
        options = (
            {"choice": each.text, "position": each.position, "probability": each.probability} for each in self.options
        )
        return ranked_columns(options) or dict.fromkeys(("choice", "position", "probability"))


class ChoicePredictor(CalibratedPredictor[ChoicePrediction]):
    """A trained multiple-choice model."""

    description = "a multiple-choice model"
    usage = "use `seqloom choose`"
    inputs = ("text", "options")
    evaluation_class = AnswersEvaluation
    notes: ClassVar = {"{lines} longer than {max_length} tokens: truncated": lambda answer: answer.cut}

    def targets(self, split: str) -> list[int]:
        return [choice.answer for choice in self.training_task.corpus.split(split)]

    def answer_rows(self, split: str) -> Iterator[AnswerRow]:
        """Yield all examples. The error is the log-probability ratio of the predicted and the correct option."""
        for choice, log_probs in zip(self.training_task.corpus.split(split), self.outputs(split), strict=True):
            best = max(range(len(log_probs)), key=log_probs.__getitem__)
            error = log_probs[best] - log_probs[choice.answer]
            yield AnswerRow(error, choice.options[choice.answer], choice.options[best], choice.text)

    @returns_list
    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = 8, window: int = 256
    ) -> Iterator[ChoicePrediction]:
        """Choose an option for each line. A line contains a text and its options, separated by tabs."""
        columns = split_columns(as_lines(lines), 3, "a text and at least two options")
        choices = ((text, options) for text, *options in columns)
        return self.choose(choices, top=1, batch_size=batch_size, window=window, stream=True)

    @returns_list
    def choose(
        self, examples: Iterable[Choice], *, top: int | None = None, batch_size: int = 8, window: int = 256
    ) -> Iterator[ChoicePrediction]:
        """Rank the options of each text. Return one result per text with the `top` options, by default all options."""
        return predict_windows(check_choices(examples), self._choose, batch_size=batch_size, window=window, top=top)

    def _choose(self, examples: Sequence[Choice], batch_size: int, top: int | None) -> Iterator[ChoicePrediction]:
        reader = row_reader(self.recipe, self.tokenizer)
        for text, options in examples:
            if text.strip() and len(options) < 2:
                raise UsageError(f"At least two options are needed; got {len(options)}.")

        def choose(filled: list[Choice]) -> Iterator[ChoicePrediction]:
            texts = [(text.strip(), [option.strip() for option in options]) for text, options in filled]
            rows = [reader.choice(text, options) for text, options in texts]
            outputs = predict_rows(self, rows, batch_size, self.model.probabilities)
            for (raw, _), (text, options), row, probabilities in zip(filled, texts, rows, outputs, strict=True):
                pairs = enumerate(zip(options, probabilities, strict=False), start=1)
                ranked = [Option(option, position, probability) for position, (option, probability) in pairs]
                ranked = sorted(ranked, key=lambda option: -option.probability)[:top]
                yield ChoicePrediction(raw, ranked, cut=bool(row.cut), unknown=tuple(reader.unknown(text, *options)))

        def is_filled(example: Choice) -> bool:
            return bool(example[0].strip()) and all(option.strip() for option in example[1])

        return predict_filled(examples, is_filled, choose, lambda example: ChoicePrediction(example[0], []))


# --- question answering -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AnswerSpan:
    """A span of the context with its probability, which is p(start) · p(end) in its window."""

    text: str
    start: int  # character offset in the context
    end: int
    probability: float

    @classmethod
    def of(cls, span: TokenSpan, context: str, tokens: Sequence[tuple[int, int]]) -> "AnswerSpan":
        """Return the stripped text of a span of tokens."""
        start, end = tokens[span.first][0], tokens[span.last][1]
        text = context[start:end]
        start += len(text) - len(text.lstrip())
        return cls(text.strip(), start, start + len(text.strip()), math.exp(span.log_prob))


@dataclass(frozen=True)
class QuestionAnswer(Prediction):
    """A question and its answers, best first. A blank question or context has no answers."""

    question: str
    answers: list[AnswerSpan]
    no_answer_probability: float = 0.0  # the minimum probability over all windows
    windows: int = 0  # number of context windows
    cut: bool = False  # whether the question was truncated
    json_names: ClassVar = ("question", "answer", "answers", "no_answer_probability", "windows", "unknown", "cut")

    @property
    def text(self) -> str:
        return self.answers[0].text if self.answers else ""

    @property
    def answer(self) -> str | None:
        """The best answer, or None if there is no answer."""
        return self.text or None

    def to_line(self) -> str:
        """Return tab-separated answers and probabilities."""
        return ranked_fields((answer.text, answer.probability) for answer in self.answers)

    def to_json(self) -> dict[str, object]:
        probability = self.no_answer_probability if self.windows else None
        return {**super().to_json(), "no_answer_probability": probability}

    def to_columns(self) -> dict[str, object]:
        answers = (
            {"answer": each.text, "start": each.start, "end": each.end, "probability": each.probability}
            for each in self.answers
        )
        columns = ranked_columns(answers) or dict.fromkeys(("answer", "start", "end", "probability"))
        return {**columns, "no_answer_probability": self.to_json()["no_answer_probability"]}


class AnswerPredictor(SplitPredictor[QuestionAnswer]):
    """A trained question-answering model."""

    description = "a question-answering model"
    usage = "use `seqloom answer`"
    inputs = ("question", "context")
    evaluation_class = AnswersEvaluation
    notes: ClassVar = {
        "{lines}: the question was truncated (batch.max_question_length)": lambda answer: answer.cut,
        "{lines}: it is more probable that the text has no answer": lambda answer: (
            bool(answer.answers) and answer.no_answer_probability > answer.answers[0].probability
        ),
    }

    def answer_rows(self, split: str) -> Iterator[AnswerRow]:
        for example, text in zip(self.training_task.corpus.split(split), self.outputs(split)[0], strict=True):
            error = 1 - max(f1(text, answer.text) for answer in example.answers)
            yield AnswerRow(error, example.answer.text, text, example.question)

    @returns_list
    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = 32, window: int = 256
    ) -> Iterator[QuestionAnswer]:
        """Answer one question per line. A line contains a question and a context, separated by a tab."""
        rows = split_columns(as_lines(lines), 2, "a question and a context", most=2)
        pairs = ((question, text) for question, text in rows)
        return self.answer_pairs(pairs, batch_size=batch_size, window=window, stream=True)

    @returns_list
    def answer_pairs(
        self, pairs: Iterable[Pair], *, top: int = 1, batch_size: int = 32, window: int = 256
    ) -> Iterator[QuestionAnswer]:
        """Answer questions, each with its own context. Questions with the same context should be adjacent for speed."""
        for context, group in groupby(check_text_pairs(pairs), key=lambda pair: pair[1]):
            questions = (question for question, _ in group)
            yield from self.answer(questions, context, top=top, batch_size=batch_size, window=window, stream=True)

    @returns_list
    def answer(
        self,
        questions: str | Iterable[str],
        context: str,
        *,
        top: int = 1,
        batch_size: int = 32,
        window: int = 256,
    ) -> Iterator[QuestionAnswer]:
        """Answer questions about one context, and return one result per question.

        `top` limits the number of answers. Questions are read in groups of `window`; context windows of similar length
        form batches of `batch_size`.
        """
        options = {"batch_size": batch_size, "window": window, "top": top}
        context = check_text(context, "context")
        return predict_windows(as_lines(questions, "questions"), self._answer, context=context, **options)

    def _answer(self, questions: Sequence[str], context: str, top: int, batch_size: int) -> Iterator[QuestionAnswer]:
        reader, batch = row_reader(self.recipe, self.tokenizer), self.recipe.batch
        tokens = reader.spans(context) if context.strip() else []
        by_question: dict[int, list[Window]] = {}
        for number, question in enumerate(questions):
            text, windows = question.strip(), list[Window]()
            if text and context.strip():
                windows = list(reader.windows(number, text, context, batch.max_question_length, batch.stride))
            by_question[number] = windows
            if sum(map(len, by_question.values())) < BUFFERED_BATCHES * batch_size and number + 1 < len(questions):
                continue
            spans, no_answer = self._find_spans(by_question, top, batch_size)
            for index, context_windows in by_question.items():
                yield QuestionAnswer(
                    question=questions[index],
                    answers=[AnswerSpan.of(span, context, tokens) for span in best_spans(spans[index], top)],
                    no_answer_probability=math.exp(min(no_answer[index], default=-math.inf)),
                    windows=len(context_windows),
                    unknown=tuple(reader.unknown(questions[index].strip())) if context_windows else (),
                    cut=any(window.cut for window in context_windows),
                )
            by_question = {}

    def _find_spans(
        self, by_question: dict[int, list[Window]], top: int, batch_size: int
    ) -> tuple[dict[int, list[TokenSpan]], dict[int, list[float]]]:
        """Return the best spans of each question over all windows, and log p of "no answer" for each window."""
        windows = [window for group in by_question.values() for window in group]
        best: dict[int, list[TokenSpan]] = {number: [] for number in by_question}
        no_answer: dict[int, list[float]] = {number: [] for number in by_question}
        if not windows:
            return best, no_answer
        cls_positions = {"cls_positions": [window.row.cls_position for window in windows]}
        batches = RowBatches([window.rows() for window in windows], tokens=1, values=cls_positions)
        for chosen in batch_by_length(batches.lengths.tolist(), batch_size):
            tree = to_device(batches.collate(np.array(chosen)), self.device)
            spans = self.model.best_spans(tree, self.recipe.decode.max_answer_length, top)
            answers = spans_in_context(spans, windows, chosen)
            for index, window_spans, log_prob in zip(chosen, answers, spans.absent.tolist(), strict=True):
                best[windows[index].number] += window_spans
                no_answer[windows[index].number].append(log_prob)
        return best, no_answer
