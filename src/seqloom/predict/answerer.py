"""Models that answer questions in use: a question and a text in, the words of the text that answer it out."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from seqloom.core.tree import to_device
from seqloom.data.row_batches import RowBatches
from seqloom.data.row_reading import RowReader, Window
from seqloom.evaluate.answers import AnswerReport
from seqloom.predict.batching import alike, check_sizes, windows
from seqloom.predict.classifier import Understanding
from seqloom.tasks.answer import Place, best, placed, places_of
from seqloom.tasks.pair import row_reader

BATCHES = 32  # of windows that are held at a time


@dataclass(frozen=True)
class FoundAnswer:
    """Words of the context, and how probable the model finds them: p(start) · p(end), in the window they stand in."""

    text: str
    start: int  # characters of the context
    end: int
    probability: float


@dataclass(frozen=True)
class Answered:
    """A question and its answers, best first; a blank question, or one about a blank context, has none."""

    question: str
    answers: list[FoundAnswer]
    absent: float = 0.0  # how sure it is, in the window where it is least so, that the answer is not there
    windows: int = 0  # in how many the context was read
    unknown: tuple[str, ...] = ()  # pieces of the question the vocabulary does not have
    cut: bool = False  # whether only the beginning of the question was read

    @property
    def text(self) -> str:
        return self.answers[0].text if self.answers else ""


class Answerer(Understanding):
    """A trained model that answers questions about a text."""

    what = "a model that answers questions"
    used_by = "`seqloom answer` uses it"

    def answer(
        self,
        questions: str | Iterable[str],
        context: str,
        *,
        top: int = 1,
        batch_size: int = 32,
        window: int = 256,
    ) -> Iterator[Answered]:
        """Answer questions about one context, exactly one answer for each, in their order.

        `top` is how many answers are given, best first. `window` questions are read at a time, and windows of like
        length `batch_size` at a time.
        """
        check_sizes(batch_size=batch_size, window=window, top=top)
        asked = [questions] if isinstance(questions, str) else questions
        return (one for read in windows(asked, window) for one in self._answer(read, context, top, batch_size))

    def _answer(self, questions: Sequence[str], context: str, top: int, batch_size: int) -> Iterator[Answered]:
        reader = row_reader(self._recipe, self.tokenizer)
        spans = reader.spans(context) if context.strip() else []
        for asked in self._groups(reader, questions, context, BATCHES * batch_size):
            every = [window for own in asked.values() for window in own]
            places, absent = self._places(every, top, batch_size) if every else ({}, {})
            for number, own in asked.items():
                yield Answered(
                    question=questions[number],
                    answers=[_found(place, context, spans) for place in best(places.get(number, []), top)],
                    absent=math.exp(min(absent.get(number, [-math.inf]))),
                    windows=len(own),
                    unknown=tuple(reader.unknown(questions[number].strip())) if own else (),
                    cut=any(window.cut for window in own),
                )

    def _groups(
        self, reader: RowReader, questions: Sequence[str], context: str, most: int
    ) -> Iterator[dict[int, list[Window]]]:
        """The windows of each question by its number, a few questions at a time where a context has many windows."""
        batch, group = self._recipe.batch, dict[int, list[Window]]()
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
        """By question: the best places in its windows, and log p that the answer is not in each of them."""
        batches = RowBatches(
            [window.rows() for window in every], tokens=1, values={"summary": [one.row.summary for one in every]}
        )
        places: dict[int, list[Place]] = {}
        absent: dict[int, list[float]] = {}
        for chosen in alike(batches.lengths.tolist(), batch_size):
            tree = to_device(batches.tree(np.array(chosen)), self.device)
            spans = self.model.spans(tree, self._recipe.decode.longest, top)
            for place, own, missing in zip(chosen, places_of(spans), spans.absent.tolist(), strict=True):
                window = every[place]
                places.setdefault(window.number, []).extend(placed(window, own))
                absent.setdefault(window.number, []).append(missing)
        return places, absent

    def answers(self, split: str = "dev") -> list[str]:
        """The answer to every question of a split of the data it was trained on; read once."""
        return self._read(split)[0]

    def _read(self, split: str) -> tuple[list[str], float]:
        if split not in self._said:
            self._said[split] = self.own_task.answers(self.model, split)
        return self._said[split]

    @cached_property
    def _said(self) -> dict[str, tuple[list[str], float]]:
        return {}

    def _figures(self, split: str) -> AnswerReport:
        found: AnswerReport = self.own_task.figures(*self._read(split), split)
        return found


def _found(place: Place, context: str, spans: Sequence[tuple[int, int]]) -> FoundAnswer:
    start, end = spans[place.first][0], spans[place.last][1]
    said = context[start:end]
    start += len(said) - len(said.lstrip())
    return FoundAnswer(said.strip(), start, start + len(said.strip()), math.exp(place.log_prob))
