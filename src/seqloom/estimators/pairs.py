"""Estimators that read several texts: sentence pairs, multiple choice and question answering."""

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from seqloom.core.inputs import check_lengths, check_list, check_text, check_texts
from seqloom.estimators.base import Estimator, Examples, json_lines
from seqloom.estimators.labels import LabelEstimator, check_labels
from seqloom.predict.results import Metrics


class PairClassifier(LabelEstimator):
    """A classifier of sentence pairs, or a model of their similarity if the labels are fractional numbers."""

    tasks: ClassVar = ("pair",)

    def fit(
        self, first: Iterable[str], second: Iterable[str], labels: Iterable[Hashable], *, validation: float = 0.1
    ) -> Self:
        """Train on pairs of texts and their labels or scores."""
        first, second = self._check(first, second)
        labels = check_labels(labels)
        check_lengths(first=first, second=second, labels=labels)
        if is_scores(labels):
            return self._train(self._examples(first, second, list(map(str, labels))), validation)
        return self._train_labels(lambda names: self._examples(first, second, names), labels, validation)

    @staticmethod
    def _check(first: Iterable[str], second: Iterable[str]) -> tuple[list[str], list[str]]:
        first, second = check_texts(first, "first"), check_texts(second, "second")
        if len(first) != len(second):
            check_lengths(first=first, second=second)
        return first, second

    @staticmethod
    def _examples(first: list[str], second: list[str], labels: list[str]) -> Examples:
        data = {"corpus": "sentence-pairs", "first": "first", "second": "second", "label": "label"}
        return Examples(data, ".jsonl", json_lines(first=first, second=second, label=labels), len(first))

    def predict(self, first: Iterable[str], second: Iterable[str]) -> list[Any]:
        """Return the label or the score of each pair; a pair with a blank text has no score (NaN)."""
        first, second = self._check(first, second)
        if not self.predictor.scored:
            return self._best(self.predict_proba(first, second))
        matches = self.predictor.match(zip(first, second, strict=True), stream=True)
        return [np.nan if match.score is None else match.score for match in matches]

    def predict_proba(self, first: Iterable[str], second: Iterable[str]) -> NDArray[np.float64]:
        """Return the probability of each class for each pair (N, C)."""
        first, second = self._check(first, second)
        if self.predictor.scored:
            raise ValueError("predict_proba requires labels; this model predicts scores")
        matches = self.predictor.match(zip(first, second, strict=True), stream=True)
        return self._probabilities(match.candidates for match in matches)

    def evaluate(self, first: Iterable[str], second: Iterable[str], labels: Iterable[Hashable]) -> Metrics:
        """Return all metrics of `seqloom evaluate`."""
        first, second = self._check(first, second)
        labels = check_labels(labels)
        check_lengths(first=first, second=second, labels=labels)
        if self.predictor.scored:
            return self._measure(self._examples(first, second, list(map(str, labels))))
        return self._measure_labels(lambda names: self._examples(first, second, names), labels)


def is_scores(labels: Sequence[Hashable]) -> bool:
    """Return whether all labels are numbers and some of them are fractional."""
    are_numbers = all(isinstance(label, int | float) and not isinstance(label, bool) for label in labels)
    return are_numbers and any(isinstance(label, float) and not label.is_integer() for label in labels)


class MultipleChoice(Estimator):
    """A model that chooses one of several options for a text."""

    tasks: ClassVar = ("choice",)

    def fit(
        self,
        texts: Iterable[str],
        options: Iterable[Sequence[str]],
        answers: Iterable[int | str],
        *,
        validation: float = 0.1,
    ) -> Self:
        """Train on texts, the list of options of each text, and the index (from 0) or the text of the right option."""
        return self._train(self._examples(texts, options, answers), validation)

    @staticmethod
    def _check(texts: Iterable[str], options: Iterable[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
        texts = check_texts(texts, "texts")
        rows = check_list(options, "options", "lists of options")
        if len(texts) != len(rows):
            check_lengths(texts=texts, options=rows)
        for index, row in enumerate(rows):
            rows[index] = [option.strip() for option in check_texts(row, f"options[{index}]", "options")]
            if len(set(rows[index])) < max(2, len(rows[index])) or not all(rows[index]):
                raise ValueError(f"options[{index}] must be at least two different texts; got {row!r}")
        return texts, rows

    def _examples(
        self, texts: Iterable[str], options: Iterable[Sequence[str]], answers: Iterable[int | str]
    ) -> Examples:
        texts, rows = self._check(texts, options)
        answers = check_list(answers, "answers", "answers")
        check_lengths(texts=texts, options=rows, answers=answers)
        right = [find_option(answer, rows[index], f"answers[{index}]") for index, answer in enumerate(answers)]
        data = {"corpus": "choices", "text": "text", "options": "options", "answer": "answer", "index_base": 0}
        return Examples(data, ".jsonl", json_lines(text=texts, options=rows, answer=right), len(texts))

    def predict(self, texts: Iterable[str], options: Iterable[Sequence[str]]) -> list[int]:
        """Return the index of the chosen option for each text, counted from 0; the index for a blank text is 0."""
        texts, rows = self._check(texts, options)
        predictions = self.predictor.choose(zip(texts, rows, strict=True), top=1, stream=True)
        return [0 if prediction.best is None else prediction.best.position - 1 for prediction in predictions]

    def score(self, texts: Iterable[str], options: Iterable[Sequence[str]], answers: Iterable[int | str]) -> float:
        """Return the accuracy."""
        return self.evaluate(texts, options, answers)["accuracy"]

    def evaluate(self, texts: Iterable[str], options: Iterable[Sequence[str]], answers: Iterable[int | str]) -> Metrics:
        """Return all metrics of `seqloom evaluate`."""
        return self._measure(self._examples(texts, options, answers))


def find_option(answer: object, options: Sequence[str], name: str) -> str:
    """Return the option that an answer names by its text or by its index, counted from 0."""
    answer = answer.item() if isinstance(answer, np.generic) else answer
    if isinstance(answer, str):
        if answer.strip() in options:
            return answer.strip()
    elif isinstance(answer, int) and not isinstance(answer, bool):
        if 0 <= answer < len(options):
            return options[answer]
    else:
        raise TypeError(f"{name} must be the index or the text of an option; got {type(answer).__name__}")
    raise ValueError(f"{name} must be one of its options or an index from 0 to {len(options) - 1}; got {answer!r}")


Answers = str | Sequence[str] | Mapping[str, Any]


class QuestionAnswering(Estimator):
    """A model that finds the answer to a question in a text, the context."""

    tasks: ClassVar = ("answer",)

    def fit(
        self,
        questions: Iterable[str],
        contexts: str | Iterable[str],
        answers: Iterable[Answers],
        *,
        validation: float = 0.1,
    ) -> Self:
        """Train on questions, their contexts and answers.

        `contexts` may be a single text for all questions. An answer is a part of the context, a list of
        alternative answers, or a dictionary with the keys text and answer_start as in SQuAD.
        """
        return self._train(self._examples(questions, contexts, answers), validation)

    @staticmethod
    def _check(questions: Iterable[str], contexts: str | Iterable[str]) -> tuple[list[str], list[str]]:
        questions = check_texts(questions, "questions")
        texts = [contexts] * len(questions) if isinstance(contexts, str) else check_texts(contexts, "contexts")
        if len(questions) != len(texts):
            check_lengths(questions=questions, contexts=texts)
        for name, values in (("questions", questions), ("contexts", texts)):
            if blank := [index for index, value in enumerate(values) if not value.strip()]:
                raise ValueError(f"{name}[{blank[0]}] must not be blank")
        return questions, texts

    @classmethod
    def _examples(cls, questions: Iterable[str], contexts: str | Iterable[str], answers: Iterable[Answers]) -> Examples:
        questions, texts = cls._check(questions, contexts)
        answers = check_list(answers, "answers", "answers")
        check_lengths(questions=questions, contexts=texts, answers=answers)
        paragraphs: dict[str, list[dict[str, object]]] = {}
        for index, (question, context, answer) in enumerate(zip(questions, texts, answers, strict=True)):
            spans = find_answers(answer, context, f"answers[{index}]")
            entry: dict[str, object] = {"id": str(index), "question": question, "answers": spans}
            paragraphs.setdefault(context, []).append(entry)
        articles = [{"paragraphs": [{"context": context, "qas": entries}]} for context, entries in paragraphs.items()]
        content = json.dumps({"data": articles}, ensure_ascii=False)
        return Examples({"corpus": "squad-files"}, ".json", content, len(articles))

    def predict(self, questions: Iterable[str], contexts: str | Iterable[str]) -> list[str]:
        """Return the answer to each question. An answer is a span of the context."""
        questions, texts = self._check(questions, contexts)
        by_context: dict[str, list[int]] = {}
        for index, context in enumerate(texts):
            by_context.setdefault(context, []).append(index)
        answers = [""] * len(questions)
        for context, indices in by_context.items():
            found = self.predictor.answer([questions[index] for index in indices], context, stream=True)
            for index, answer in zip(indices, found, strict=True):
                answers[index] = answer.text
        return answers

    def evaluate(self, questions: Iterable[str], contexts: str | Iterable[str], answers: Iterable[Answers]) -> Metrics:
        """Return all metrics of `seqloom evaluate`, such as the F1 of the answers."""
        return self._measure(self._examples(questions, contexts, answers))


def find_answers(answer: Any, context: str, name: str) -> list[dict[str, object]]:
    """Return the answers to a question in SQuAD format, with their positions in the context."""
    starts = list[Any]()
    if isinstance(answer, Mapping):
        if "text" not in answer:
            raise ValueError(f"{name} must have the key 'text'; got the keys {', '.join(map(str, answer)) or 'none'}")
        starts = np.atleast_1d(answer.get("answer_start", [])).tolist()
        answer = answer["text"]
    is_single = isinstance(answer, str) or not isinstance(answer, Sequence | np.ndarray)
    texts = [check_text(answer, name)] if is_single else check_texts(answer, name, "answers")
    if not texts:
        raise ValueError(f"{name} must have at least one answer")
    spans = list[dict[str, object]]()
    for number, text in enumerate(texts):
        start: Any = starts[number] if number < len(starts) and type(starts[number]) is int else context.find(text)
        if not text.strip() or text not in context:
            raise ValueError(f"{name} must be a part of its context; got {text!r}")
        spans.append({"text": text, "answer_start": start})
    return spans
