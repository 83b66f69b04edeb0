"""Models of sentence pairs and of multiple choice: texts that belong together in, an answer for each, in order."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.core.tree import to_device
from seqloom.core.words import one_line
from seqloom.data.collate import ExampleRows, RowBatches
from seqloom.data.readers import RowReader, Window
from seqloom.predict.base import (
    Prediction,
    Problems,
    SplitPredictor,
    as_lines,
    check_sizes,
    predict_batches,
    predict_windows,
    similar_lengths,
    split_columns,
)
from seqloom.predict.classify import LabelPrediction, LabelPredictor
from seqloom.tasks.answer import TokenSpan, best_spans, spans_in_context
from seqloom.tasks.reading_base import row_reader

Choice = tuple[str, Sequence[str]]  # a text and its options


@dataclass(frozen=True)
class Match(LabelPrediction):
    """A pair of texts and how they go together: labels, best first, or a score; neither if a text is blank."""

    first: str = ""  # as they came
    second: str = ""
    score: float | None = None
    scored: bool = False  # whether the model gives scores instead of labels
    cut: bool = False  # whether not all of the texts was read

    def to_line(self) -> str:
        """The score, or label, probability, the next label …"""
        return super().to_line() if self.score is None else f"{self.score:.4f}"

    def to_json(self) -> dict[str, object]:
        found = {"score": self.score} if self.scored else super().to_json()
        texts = {"first": self.first, "second": self.second}
        return {**texts, **found, "unknown": list(self.unknown), "cut": self.cut}


@dataclass(frozen=True)
class Option:
    text: str
    place: int  # among the options as they were given, from 1
    probability: float


@dataclass(frozen=True)
class ChoicePrediction(Prediction):
    """A text and its options, best first. Where the text or an option is blank there are none."""

    text: str
    options: list[Option]
    cut: bool = False

    @property
    def best(self) -> Option | None:
        return self.options[0] if self.options else None

    def to_line(self) -> str:
        """number of the option, probability, option, the next number …"""
        return "\t".join(f"{own.place}\t{own.probability:.4f}\t{one_line(own.text)}" for own in self.options)

    def to_json(self) -> dict[str, object]:
        options = [asdict(option) for option in self.options]
        return {"text": self.text, "options": options, "unknown": list(self.unknown), "cut": self.cut}


def predict_rows(
    model: SplitPredictor[Any], rows: Sequence[ExampleRows], batch_size: int, compute: Callable[[Any], Tensor]
) -> list[Any]:
    """Return what `compute` gives for each example; examples of similar length are computed together."""
    if not rows:
        return []
    batches = RowBatches(rows, tokens=1)

    def predict(indices: list[int]) -> list[Any]:
        found: list[Any] = compute(to_device(batches.collate(np.array(indices)), model.device)).tolist()
        return found

    return predict_batches((batches.lengths * batches.rows).tolist(), batch_size, predict)


class PairPredictor(LabelPredictor[Match]):
    """A trained model of pairs."""

    what = "a model of pairs of texts"
    used_by = "`seqloom match` uses it"

    @property
    def scored(self) -> bool:
        """Whether it gives scores, not labels."""
        return bool(self.recipe.target == "score")

    def predict(self, lines: str | Iterable[str], *, batch_size: int = 32, window: int = 1024) -> Iterator[Match]:
        """Match the two texts of each line, which has a tab between them."""
        pairs = split_columns(as_lines(lines), 2, "two texts", most=2)
        return self.match(((first, second) for first, second in pairs), top=1, batch_size=batch_size, window=window)

    def problems(self) -> Problems[Match]:
        return {f"of {{lines}} with more than {self.longest} tokens not all was read": lambda answer: answer.cut}

    def match(
        self, pairs: Iterable[tuple[str, str]], *, top: int | None = None, batch_size: int = 32, window: int = 1024
    ) -> Iterator[Match]:
        """Say how the texts of each pair go together, exactly one answer for each, in order.

        `top` is how many labels are named, best first; all, if left out. `window` and `batch_size` as in `predict`.
        """
        check_sizes(batch_size=batch_size, window=window, top=top)
        answer = partial(self._match, batch_size=batch_size, top=top)
        return predict_windows(pairs, answer, batch_size=batch_size, window=window)

    def _match(self, pairs: Sequence[tuple[str, str]], batch_size: int, top: int | None) -> Iterator[Match]:
        reader = row_reader(self.recipe, self.tokenizer)
        compute = self.model if self.scored else self.model.probabilities
        filled = [(first.strip(), second.strip()) for first, second in pairs if first.strip() and second.strip()]
        rows = [reader.pair(*texts, self.recipe.both_orders) for texts in filled]
        found = zip(filled, rows, predict_rows(self, rows, batch_size, compute), strict=True)
        for first, second in pairs:
            blank = Match([], first=first, second=second, scored=self.scored)
            if not (first.strip() and second.strip()):
                yield blank
                continue
            texts, row, output = next(found)
            answer = replace(blank, unknown=tuple(reader.unknown(*texts)), cut=bool(row.cut))
            if self.scored:
                yield replace(answer, score=float(output))
            else:
                yield replace(answer, candidates=self.rank(output, top))


class ChoicePredictor(SplitPredictor[ChoicePrediction]):
    """A trained model of choices."""

    what = "a model of choices"
    used_by = "`seqloom choose` uses it"

    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = 8, window: int = 256
    ) -> Iterator[ChoicePrediction]:
        """Choose among the options of each line: a text and two options or more, with tabs between."""
        given = split_columns(as_lines(lines), 3, "a text and two options or more")
        choices = ((text, options) for text, *options in given)
        return self.choose(choices, top=1, batch_size=batch_size, window=window)

    def problems(self) -> Problems[ChoicePrediction]:
        return {f"of {{lines}} with more than {self.longest} tokens not all was read": lambda answer: answer.cut}

    def choose(
        self, examples: Iterable[Choice], *, top: int | None = None, batch_size: int = 8, window: int = 256
    ) -> Iterator[ChoicePrediction]:
        """Rank the options of each text, exactly one answer for each, in order; with `top`, only the best are named."""
        check_sizes(top=top)
        answer = partial(self._choose, batch_size=batch_size, top=top)
        return predict_windows(examples, answer, batch_size=batch_size, window=window)

    def _choose(self, examples: Sequence[Choice], batch_size: int, top: int | None) -> Iterator[ChoicePrediction]:
        reader = row_reader(self.recipe, self.tokenizer)
        stripped = [(text.strip(), [option.strip() for option in options]) for text, options in examples]
        rows = [_read_choice(reader, text, options) for text, options in stripped]
        filled = [row for row in rows if row is not None]
        found = iter(predict_rows(self, filled, batch_size, self.model.probabilities))
        for (raw, _), (text, options), row in zip(examples, stripped, rows, strict=True):
            if row is None:
                yield ChoicePrediction(raw, [])
                continue
            probabilities = next(found)
            ranked = sorted(range(len(options)), key=lambda place: -probabilities[place])[:top]
            named = [Option(options[place], place + 1, probabilities[place]) for place in ranked]
            yield ChoicePrediction(raw, named, cut=bool(row.cut), unknown=tuple(reader.unknown(text, *options)))


def _read_choice(reader: RowReader, text: str, options: Sequence[str]) -> ExampleRows | None:
    """Return the rows of an example; None where a text is blank."""
    if not text:
        return None
    if len(options) < 2:
        raise UsageError(f"There must be two options or more to choose from, got {len(options)}.")
    return reader.choice(text, list(options)) if all(options) else None


BATCHES = 32  # of windows that are held at a time


@dataclass(frozen=True)
class AnswerSpan:
    """Words of the context, and their probability: p(start) · p(end), in the window they stand in."""

    text: str
    start: int  # characters of the context
    end: int
    probability: float


@dataclass(frozen=True)
class QuestionAnswer(Prediction):
    """A question and its answers, best first; a blank question, or one about a blank context, has none."""

    question: str
    answers: list[AnswerSpan]
    absent: float = 0.0  # how sure it is, in the window where it is least so, that the answer is not there
    windows: int = 0  # in how many the context was read
    cut: bool = False  # whether only the beginning of the question was read

    @property
    def text(self) -> str:
        return self.answers[0].text if self.answers else ""

    def to_line(self) -> str:
        """answer, probability, the next answer …"""
        return "\t".join(f"{one_line(own.text)}\t{own.probability:.4f}" for own in self.answers)

    def to_json(self) -> dict[str, object]:
        return {
            "question": self.question,
            "answer": self.text or None,
            "answers": [asdict(own) for own in self.answers],
            "absent": self.absent if self.windows else None,
            "windows": self.windows,
            "unknown": list(self.unknown),
            "cut": self.cut,
        }


class AnswerPredictor(SplitPredictor[QuestionAnswer]):
    """A trained model that answers questions about a text."""

    what = "a model that answers questions"
    used_by = "`seqloom answer` uses it"

    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = 32, window: int = 256
    ) -> Iterator[QuestionAnswer]:
        """Answer the question of each line: a question and the text to answer it from, with a tab between."""
        rows = split_columns(as_lines(lines), 2, "a question and a text", most=2)
        for context, group in groupby(rows, key=lambda row: row[1]):
            yield from self.answer((question for question, _ in group), context, batch_size=batch_size, window=window)

    def problems(self) -> Problems[QuestionAnswer]:
        return {
            "of {lines} only the beginning was read (batch.question)": lambda answer: answer.cut,
            "the model rather thinks the text has no answer to {lines}": lambda answer: (
                bool(answer.answers) and answer.absent > answer.answers[0].probability
            ),
        }

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

        `top` is how many answers are given, best first. `window` questions are read at a time, and windows of the
        context of similar length are computed `batch_size` at a time.
        """
        check_sizes(batch_size=batch_size, window=window, top=top)
        answer = partial(self._answer, context=context, top=top, batch_size=batch_size)
        return predict_windows(as_lines(questions), answer, batch_size=batch_size, window=window)

    def _answer(self, questions: Sequence[str], context: str, top: int, batch_size: int) -> Iterator[QuestionAnswer]:
        reader = row_reader(self.recipe, self.tokenizer)
        spans = reader.spans(context) if context.strip() else []
        for asked in self._groups(reader, questions, context, BATCHES * batch_size):
            every = [window for own in asked.values() for window in own]
            places, absent = self._places(every, top, batch_size) if every else ({}, {})
            for number, own in asked.items():
                yield QuestionAnswer(
                    question=questions[number],
                    answers=[_span(place, context, spans) for place in best_spans(places.get(number, []), top)],
                    absent=math.exp(min(absent.get(number, [-math.inf]))),
                    windows=len(own),
                    unknown=tuple(reader.unknown(questions[number].strip())) if own else (),
                    cut=any(window.cut for window in own),
                )

    def _groups(
        self, reader: RowReader, questions: Sequence[str], context: str, most: int
    ) -> Iterator[dict[int, list[Window]]]:
        """Yield the windows of each question by its number, a few questions at a time where there are many windows."""
        batch, group = self.recipe.batch, dict[int, list[Window]]()
        for number, question in enumerate(map(str.strip, questions)):
            real = question and context.strip()
            found = reader.windows(number, question, context, batch.question, batch.stride) if real else ()
            group[number] = list(found)
            if sum(map(len, group.values())) >= most:
                yield group
                group = {}
        yield group

    def _places(
        self, every: Sequence[Window], top: int, batch_size: int
    ) -> tuple[dict[int, list[TokenSpan]], dict[int, list[float]]]:
        """Return by question the best places in its windows, and log p that the answer is not in each of them."""
        batches = RowBatches(
            [window.rows() for window in every], tokens=1, values={"summary": [one.row.summary for one in every]}
        )
        places: dict[int, list[TokenSpan]] = {}
        absent: dict[int, list[float]] = {}
        for chosen in similar_lengths(batches.lengths.tolist(), batch_size):
            tree = to_device(batches.collate(np.array(chosen)), self.device)
            spans = self.model.spans(tree, self.recipe.decode.longest, top)
            answers = spans_in_context(spans, every, chosen)
            for index, own, missing in zip(chosen, answers, spans.absent.tolist(), strict=True):
                number = every[index].number
                places.setdefault(number, []).extend(own)
                absent.setdefault(number, []).append(missing)
        return places, absent


def _span(place: TokenSpan, context: str, spans: Sequence[tuple[int, int]]) -> AnswerSpan:
    start, end = spans[place.first][0], spans[place.last][1]
    text = context[start:end]
    start += len(text) - len(text.lstrip())
    return AnswerSpan(text.strip(), start, start + len(text.strip()), math.exp(place.log_prob))
