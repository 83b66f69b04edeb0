"""Question answering: a question and a text in, the words of the text that answer it out."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby

import numpy as np

from seqloom.core.tree import to_device
from seqloom.core.words import one_line
from seqloom.data.collate import RowBatches
from seqloom.data.row_readers import RowReader, Window
from seqloom.evaluate.answers import AnswerReport
from seqloom.predict.base import Prediction, Problems, SplitPredictor
from seqloom.predict.batching import as_lines, check_sizes, predict_windows, similar_lengths, split_columns
from seqloom.tasks.answer import Place, best, placed, places_of
from seqloom.tasks.reading_base import row_reader

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


class Answerer(SplitPredictor[QuestionAnswer]):
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
                    answers=[_span(place, context, spans) for place in best(places.get(number, []), top)],
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
    ) -> tuple[dict[int, list[Place]], dict[int, list[float]]]:
        """Return by question the best places in its windows, and log p that the answer is not in each of them."""
        batches = RowBatches(
            [window.rows() for window in every], tokens=1, values={"summary": [one.row.summary for one in every]}
        )
        places: dict[int, list[Place]] = {}
        absent: dict[int, list[float]] = {}
        for chosen in similar_lengths(batches.lengths.tolist(), batch_size):
            tree = to_device(batches.collate(np.array(chosen)), self.device)
            spans = self.model.spans(tree, self.recipe.decode.longest, top)
            for place, own, missing in zip(chosen, places_of(spans), spans.absent.tolist(), strict=True):
                window = every[place]
                places.setdefault(window.number, []).extend(placed(window, own))
                absent.setdefault(window.number, []).append(missing)
        return places, absent

    def answers(self, split: str = "dev") -> list[str]:
        """Return the answer to every question of a split of its own data; each split is read once."""
        return self._answers_and_loss(split)[0]

    def _answers_and_loss(self, split: str) -> tuple[list[str], float]:
        return self.compute_once(split, lambda: self.own_task.answers(self.model, split))

    def compute_report(self, split: str) -> AnswerReport:
        report: AnswerReport = self.own_task.figures(*self._answers_and_loss(split), split)
        return report


def _span(place: Place, context: str, spans: Sequence[tuple[int, int]]) -> AnswerSpan:
    start, end = spans[place.first][0], spans[place.last][1]
    text = context[start:end]
    start += len(text) - len(text.lstrip())
    return AnswerSpan(text.strip(), start, start + len(text.strip()), math.exp(place.log_prob))
