"""Language models that are asked, not trained: a few examples, a question, and the likeliest of several answers."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from seqloom.core.errors import DataError, UsageError
from seqloom.data.prompts import Prompt, Shot, Template, check_choices
from seqloom.evaluate.continuations import continuation_log_probs, in_common
from seqloom.predict.batching import answered
from seqloom.text import Tokenizer

By = Literal["mean", "sum"]


@dataclass(frozen=True)
class Picked:
    """A choice, and what the model thinks of it."""

    label: str
    probability: float  # among the choices: softmax of their scores
    score: float  # what it was ranked by: mean or sum, calibrated or not
    log_prob: float  # Σ log p of its tokens
    tokens: int


@dataclass(frozen=True)
class Prompted:
    """A text and its likeliest label, the others after it. A blank text has no answer."""

    text: str
    candidates: list[Picked]
    unknown: tuple[str, ...] = ()  # pieces of the text, as the template writes it, the vocabulary does not have
    left_out: int = 0  # shots, from the first, for which there was no room
    cut: bool = False  # whether the text alone is too long to be seen at once: the model saw its end

    @property
    def label(self) -> str:
        return self.candidates[0].label if self.candidates else ""


@dataclass(frozen=True)
class Completion:
    """A text and what the model wrote where its label belongs."""

    text: str
    written: str
    unknown: tuple[str, ...] = ()
    left_out: int = 0
    cut: bool = False

    @property
    def label(self) -> str:
        return self.written


class Prompting(ABC):
    """What every language model can do besides writing and scoring: be asked."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def model(self) -> Any: ...

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer: ...

    @property
    @abstractmethod
    def device(self) -> Any: ...

    @abstractmethod
    def generate(self, prompt: str = "", **options: Any) -> Iterator[str]: ...

    @property
    def own_template(self) -> str | None:
        """How a model was trained to be asked, where it was."""
        return None

    @property
    def own_choices(self) -> tuple[str, ...]:
        """What it was trained to answer, where it was."""
        return ()

    def choose(
        self,
        texts: str | Iterable[str],
        choices: Sequence[str] = (),
        *,
        shots: Sequence[tuple[str, str]] = (),
        template: str | None = None,
        separator: str = "\n",
        by: By = "mean",
        calibrate: bool = False,
        batch_size: int = 32,
        window: int = 1024,
    ) -> Iterator[Prompted]:
        """The likeliest label of each text, exactly one answer for each, in their order; all choices are named in it.

        `shots` are (text, label); without `choices` their labels are chosen from. `by` compares choices by the `mean`
        of log p over their tokens or by the `sum`; `calibrate` takes off what the model says of a blank text.
        """
        if by not in ("mean", "sum"):
            raise UsageError(f"Choices are compared by mean or sum; got {by!r}.")
        prompt = self._prompt(shots, template, separator)
        found = check_choices(choices or (() if shots else self.own_choices), prompt.shots)
        asking = _Asking(self, prompt, found, by, calibrate, batch_size)
        return answered(texts, asking.answer, batch_size=batch_size, window=window)

    def complete(
        self,
        texts: str | Iterable[str],
        *,
        shots: Sequence[tuple[str, str]] = (),
        template: str | None = None,
        separator: str = "\n",
        max_tokens: int = 50,
        window: int = 1,
        **options: Any,
    ) -> Iterator[Completion]:
        """What the model writes where the label of each text belongs, up to where a shot would end.

        `options` are those of `generate`; without any, the likeliest token is taken every time.
        """
        prompt = self._prompt(shots, template, separator)
        stop = [mark for mark in (prompt.template.after.format(), separator) if mark][:1]
        options = {"temperature": 0.0, "stop": stop, **options}

        def write(lines: list[str]) -> Iterator[Completion]:
            for line in lines:
                yield self._completed(line, prompt, max_tokens, options)

        return answered(texts, write, batch_size=1, window=window)

    def _completed(self, line: str, prompt: Prompt, max_tokens: int, options: dict[str, Any]) -> Completion:
        if not line.strip():
            return Completion(line, "")
        text, labels = line.strip(), tuple(shot.label for shot in prompt.shots) or ("",)
        skip, cut = fitting(self.tokenizer, prompt, text, labels, longest_of(self.model))
        asked = prompt.text(text, skip).rstrip(" ")  # the space belongs to the first token of what follows
        written = "".join(self.generate(asked, max_tokens=max_tokens, allow_unknown=True, **options))
        unknown = tuple(self.tokenizer.unknown_pieces(prompt.template.question(text)))
        return Completion(line, written.strip(), unknown, skip, cut)

    def _prompt(self, shots: Sequence[tuple[str, str]], template: str | None, separator: str) -> Prompt:
        form = template if template is not None else self.own_template
        parsed = Prompt().template if form is None else Template.parse(form)
        return Prompt(tuple(Shot(*shot) for shot in shots), parsed, separator)


def longest_of(model: Any) -> int | None:
    """How many tokens a model sees at once, END included; None for any number."""
    parts = getattr(model, "models", None) or [model]  # a mixture sees what all of its parts do
    found = (getattr(getattr(part, "config", None), "window", None) for part in parts)
    return min((window for window in found if window is not None), default=None)


def fitting(
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


class _Asking:
    """One prompt put to one model, for any number of texts."""

    def __init__(
        self, asked: Prompting, prompt: Prompt, choices: tuple[str, ...], by: By, calibrate: bool, at_once: int
    ) -> None:
        self.asked, self.prompt, self.choices = asked, prompt, choices
        self.by, self.calibrate, self.at_once = by, calibrate, at_once
        self.longest = longest_of(asked.model)
        self._blank: dict[int, list[float]] = {}  # scores of a blank text, by how many shots were left out
        self._checked = False

    def answer(self, lines: list[str]) -> Iterator[Prompted]:
        filled = [line.strip() for line in lines if line.strip()]
        tokenizer = self.asked.tokenizer
        fitted = [fitting(tokenizer, self.prompt, text, self.choices, self.longest) for text in filled]
        skips = [skip for skip, _ in fitted]
        scored = iter(zip(fitted, self._scored(filled, skips), strict=True) if filled else ())
        for line in lines:
            if not line.strip():
                yield Prompted(line, [])
                continue
            (skip, cut), found = next(scored)
            unknown = tuple(tokenizer.unknown_pieces(self.prompt.template.question(line.strip())))
            yield Prompted(line, self._ranked(found, skip), unknown, skip, cut)

    def _scored(self, texts: Sequence[str], skips: Sequence[int]) -> list[list[tuple[float, int]]]:
        """Of each text and each choice Σ log p of its tokens, and how many those are."""
        rows, starts = list[list[int]](), list[int]()
        for text, skip in zip(texts, skips, strict=True):
            own, start = self._rows(text, skip)
            rows, starts = [*rows, *own], [*starts, *[start] * len(own)]
        found = continuation_log_probs(
            self.asked.model,
            rows,
            starts,
            end=self.asked.tokenizer.end,
            at_once=self.at_once,
            device=self.asked.device,
        )
        pairs = [(row.double().sum().item(), len(row)) for row in found]
        return [pairs[place : place + len(self.choices)] for place in range(0, len(pairs), len(self.choices))]

    def _rows(self, text: str, skip: int) -> tuple[list[list[int]], int]:
        """The tokens of the prompt with each choice, and where the choices begin.

        A tokenizer may join the end of the prompt and the beginning of a choice, as byte-pair joins a space and the
        word after it. So a choice begins where the tokens are no longer those of the prompt, or of all choices.
        """
        asked, encode = self.prompt.text(text, skip), self.asked.tokenizer.encode
        rows = [encode(asked + choice) for choice in self.choices]
        start = in_common([encode(asked), *rows])
        if not self._checked:
            self._check(rows, start)
            self._checked = True
        return rows, start

    def _check(self, rows: Sequence[Sequence[int]], start: int) -> None:
        """What the vocabulary cannot spell, or cannot tell apart, cannot be chosen."""
        unknown = self.asked.tokenizer.unknown
        for choice, row in zip(self.choices, rows, strict=True):
            if len(row) <= start or (unknown is not None and unknown in row[start:]):
                raise DataError(
                    f"The vocabulary of {self.asked.name} does not have the choice {choice!r}. Name choices in words "
                    "it was trained on, or ask a model that reads characters or byte pairs."
                )
        for place, row in enumerate(rows):
            if row in rows[:place]:
                pair = f"{self.choices[rows.index(row)]!r} and {self.choices[place]!r}"
                raise DataError(f"To {self.asked.name} the choices {pair} are the same tokens.")

    def _ranked(self, scored: Sequence[tuple[float, int]], skip: int) -> list[Picked]:
        scores = self._scores(scored)
        if self.calibrate:
            if skip not in self._blank:
                self._blank[skip] = self._scores(self._scored([""], [skip])[0])
            scores = [own - blank for own, blank in zip(scores, self._blank[skip], strict=True)]
        shares = torch.tensor(scores, dtype=torch.float64).softmax(dim=0).tolist()
        found = [
            Picked(label, share, score, log_prob, tokens)
            for label, share, score, (log_prob, tokens) in zip(self.choices, shares, scores, scored, strict=True)
        ]
        return sorted(found, key=lambda one: -one.score)

    def _scores(self, scored: Sequence[tuple[float, int]]) -> list[float]:
        return [log_prob / tokens if self.by == "mean" else log_prob for log_prob, tokens in scored]
