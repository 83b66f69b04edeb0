"""Prompting: a language model reads a few examples and a question, and scores the choices or writes the answer."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from seqloom.core.errors import DataError
from seqloom.core.words import one_line
from seqloom.data.prompts import Prompt
from seqloom.evaluate.continuations import continuation_log_probs, in_common
from seqloom.predict.base import Prediction
from seqloom.text import Tokenizer

if TYPE_CHECKING:
    from seqloom.predict.language_model import LanguageModel

By = Literal["mean", "sum"]


@dataclass(frozen=True)
class ScoredChoice:
    """A choice, and how the model scores it."""

    label: str
    probability: float  # among the choices: softmax of their scores
    score: float  # what it was ranked by: mean or sum, calibrated or not
    log_prob: float  # Σ log p of its tokens
    tokens: int


@dataclass(frozen=True)
class PromptAnswer(Prediction):
    """What a prompted model answers to a text."""

    text: str
    left_out: int = 0  # shots, from the first, for which there was no room
    cut: bool = False  # whether the text alone is too long to be seen at once: the model saw its end
    expected: str | None = None  # the label that is right, where it is known

    @property
    def label(self) -> str:
        raise NotImplementedError

    def answer_json(self) -> dict[str, object]:
        raise NotImplementedError

    def to_json(self) -> dict[str, object]:
        expected = {} if self.expected is None else {"expected": self.expected or None}
        rest = {"unknown": list(self.unknown), "left_out": self.left_out, "cut": self.cut}
        return {"text": self.text, **self.answer_json(), **expected, **rest}


@dataclass(frozen=True)
class PromptedChoice(PromptAnswer):
    """A text and its likeliest label, the others after it. A blank text has no answer."""

    candidates: list[ScoredChoice] = field(default_factory=list)

    @property
    def label(self) -> str:
        return self.candidates[0].label if self.candidates else ""

    def to_line(self) -> str:
        """label, probability, the next label …"""
        return "\t".join(f"{one_line(one.label)}\t{one.probability:.4f}" for one in self.candidates)

    def answer_json(self) -> dict[str, object]:
        return {"label": self.label or None, "candidates": [asdict(one) for one in self.candidates]}


@dataclass(frozen=True)
class Completion(PromptAnswer):
    """A text and what the model wrote after it, or where its label belongs."""

    written: str = ""

    @property
    def label(self) -> str:
        return self.written

    def to_line(self) -> str:
        return one_line(self.written)

    def answer_json(self) -> dict[str, object]:
        return {"written": self.written}


def longest_of(model: Any) -> int | None:
    """Return how many tokens a model sees at once, END included; None for any number."""
    parts = getattr(model, "models", None) or [model]  # a mixture sees what all of its parts do
    found = (getattr(getattr(part, "config", None), "window", None) for part in parts)
    return min((window for window in found if window is not None), default=None)


def fit_shots(
    tokenizer: Tokenizer, prompt: Prompt, text: str, choices: Sequence[str], longest: int | None
) -> tuple[int, bool]:
    """How many shots, from the first, must be left out so that all else is seen at once with any choice after it; and
    whether even that does not help, the text itself being too long."""

    def fits(skip: int) -> bool:
        asked = prompt.text(text, skip)
        return max(len(tokenizer.encode(asked + choice)) for choice in choices) <= (longest or 0)

    if longest is None or fits(0):
        return 0, False
    most = len(prompt.shots)
    skip = 1 + bisect_left(range(1, most + 1), True, key=fits)
    return (skip, False) if skip <= most else (most, True)


class ChoiceScorer:
    """One prompt, and a language model that scores its choices for any number of texts."""

    def __init__(
        self,
        model: "LanguageModel",
        prompt: Prompt,
        choices: tuple[str, ...],
        *,
        by: By,
        calibrate: bool,
        batch_size: int,
        top: int | None,
    ) -> None:
        self.lm, self.prompt, self.choices, self.top = model, prompt, choices, top
        self.by, self.calibrate, self.batch_size = by, calibrate, batch_size
        self.longest = longest_of(model.model)
        self._blank: dict[int, list[float]] = {}  # scores of a blank text, by how many shots were left out
        self._checked = False

    def answer(self, lines: list[str]) -> Iterator[PromptedChoice]:
        filled = [line.strip() for line in lines if line.strip()]
        tokenizer = self.lm.tokenizer
        fitted = [fit_shots(tokenizer, self.prompt, text, self.choices, self.longest) for text in filled]
        skips = [skip for skip, _ in fitted]
        scored = iter(zip(fitted, self._score_choices(filled, skips), strict=True) if filled else ())
        for line in lines:
            if not line.strip():
                yield PromptedChoice(line)
                continue
            (skip, cut), found = next(scored)
            unknown = tuple(tokenizer.unknown_pieces(self.prompt.template.question(line.strip())))
            candidates = self._rank(found, skip)[: self.top]
            yield PromptedChoice(line, skip, cut, candidates=candidates, unknown=unknown)

    def _score_choices(self, texts: Sequence[str], skips: Sequence[int]) -> list[list[tuple[float, int]]]:
        """Of each text and each choice Σ log p of its tokens, and how many those are."""
        rows, starts = list[list[int]](), list[int]()
        for text, skip in zip(texts, skips, strict=True):
            own, start = self._rows(text, skip)
            rows, starts = [*rows, *own], [*starts, *[start] * len(own)]
        found = continuation_log_probs(
            self.lm.model,
            rows,
            starts,
            end=self.lm.tokenizer.end,
            at_once=self.batch_size,
            device=self.lm.device,
        )
        pairs = [(row.double().sum().item(), len(row)) for row in found]
        return [pairs[place : place + len(self.choices)] for place in range(0, len(pairs), len(self.choices))]

    def _rows(self, text: str, skip: int) -> tuple[list[list[int]], int]:
        """The tokens of the prompt with each choice, and where the choices begin.

        A tokenizer may join the end of the prompt and the beginning of a choice, as byte-pair joins a space and the
        word after it. So a choice begins where the tokens are no longer those of the prompt, or of all choices.
        """
        asked, encode = self.prompt.text(text, skip), self.lm.tokenizer.encode
        rows = [encode(asked + choice) for choice in self.choices]
        start = in_common([encode(asked), *rows])
        if not self._checked:
            self._check(rows, start)
            self._checked = True
        return rows, start

    def _check(self, rows: Sequence[Sequence[int]], start: int) -> None:
        """What the vocabulary cannot spell, or cannot tell apart, cannot be chosen."""
        unknown = self.lm.tokenizer.unknown
        for choice, row in zip(self.choices, rows, strict=True):
            if len(row) <= start or (unknown is not None and unknown in row[start:]):
                raise DataError(
                    f"The vocabulary of {self.lm.name} does not have the choice {choice!r}. Name choices in words "
                    "it was trained on, or ask a model that reads characters or byte pairs."
                )
        for place, row in enumerate(rows):
            if row in rows[:place]:
                pair = f"{self.choices[rows.index(row)]!r} and {self.choices[place]!r}"
                raise DataError(f"To {self.lm.name} the choices {pair} are the same tokens.")

    def _rank(self, scored: Sequence[tuple[float, int]], skip: int) -> list[ScoredChoice]:
        scores = self._scores(scored)
        if self.calibrate:
            if skip not in self._blank:
                self._blank[skip] = self._scores(self._score_choices([""], [skip])[0])
            scores = [own - blank for own, blank in zip(scores, self._blank[skip], strict=True)]
        shares = torch.tensor(scores, dtype=torch.float64).softmax(dim=0).tolist()
        found = [
            ScoredChoice(label, share, score, log_prob, tokens)
            for label, share, score, (log_prob, tokens) in zip(self.choices, shares, scores, scored, strict=True)
        ]
        return sorted(found, key=lambda one: -one.score)

    def _scores(self, scored: Sequence[tuple[float, int]]) -> list[float]:
        return [log_prob / tokens if self.by == "mean" else log_prob for log_prob, tokens in scored]
