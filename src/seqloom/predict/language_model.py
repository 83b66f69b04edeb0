"""Language models: they continue a prompt, score texts, and answer after a few examples."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import one_line
from seqloom.data.prompts import Prompt, Shot, Template, check_choices, instruction_as_prompt
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.decoding.generate import generate, text_stream
from seqloom.decoding.processors import SamplingConfig
from seqloom.evaluate.perplexity import common_prefix_length, continuation_log_probs, score_texts
from seqloom.predict.base import Prediction, Predictor, predict_filled, predict_windows, ranked_fields
from seqloom.runs.trained import WritingModel
from seqloom.tasks.hmm import keep_letters
from seqloom.text import Tokenizer

if TYPE_CHECKING:
    from seqloom.inspect.views.attention import HeadsView


By = Literal["mean", "sum"]
MOST_QUOTED = 8  # unknown pieces that an error names


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

    def to_json(self) -> dict[str, object]:
        expected = {} if self.expected is None else {"expected": self.expected or None}
        rest = {"unknown": list(self.unknown), "left_out": self.left_out, "cut": self.cut}
        return {"text": self.text, **super().to_json(), **expected, **rest}


@dataclass(frozen=True)
class PromptedChoice(PromptAnswer):
    """A text and its likeliest label, the others after it. A blank text has no answer."""

    candidates: list[ScoredChoice] = field(default_factory=list)
    json_names: ClassVar = ("label", "candidates")

    @property
    def label(self) -> str:
        return self.candidates[0].label if self.candidates else ""

    def to_line(self) -> str:
        """label, probability, the next label …"""
        return ranked_fields((one.label, one.probability) for one in self.candidates)

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), "label": self.label or None}


@dataclass(frozen=True)
class Completion(PromptAnswer):
    """A text and what the model wrote after it, or where its label belongs."""

    written: str = ""
    json_names: ClassVar = ("written",)

    @property
    def label(self) -> str:
        return self.written

    def to_line(self) -> str:
        return one_line(self.written)


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
        self, model: "LanguageModelPredictor", prompt: Prompt, choices: tuple[str, ...], by: By, calibrate: bool
    ) -> None:
        self.lm, self.prompt, self.choices, self.by, self.calibrate = model, prompt, choices, by, calibrate
        self._blank: dict[int, list[float]] = {}  # scores of a blank text, by how many shots were left out
        self._checked = False

    def answer(self, lines: list[str], batch_size: int, top: int | None) -> Iterator[PromptedChoice]:
        """Rank the choices for each line."""

        def score(filled: list[str]) -> Iterator[PromptedChoice]:
            tokenizer, texts = self.lm.tokenizer, [line.strip() for line in filled]
            fitted = [fit_shots(tokenizer, self.prompt, text, self.choices, self.lm.longest) for text in texts]
            scored = self._score_choices(texts, [skip for skip, _ in fitted], batch_size)
            for line, text, (skip, cut), scores in zip(filled, texts, fitted, scored, strict=True):
                unknown = tuple(tokenizer.unknown_pieces(self.prompt.template.question(text)))
                candidates = self._rank(scores, skip, batch_size)[:top]
                yield PromptedChoice(line, skip, cut, candidates=candidates, unknown=unknown)

        return predict_filled(lines, str.strip, score, PromptedChoice)

    def _score_choices(
        self, texts: Sequence[str], skips: Sequence[int], batch_size: int
    ) -> list[list[tuple[float, int]]]:
        """Return for each text and each choice Σ log p of its tokens, and how many those are."""
        rows, starts, lm = list[list[int]](), list[int](), self.lm
        for text, skip in zip(texts, skips, strict=True):
            own, start = self._rows(text, skip)
            rows += own
            starts += [start] * len(own)
        log_probs = continuation_log_probs(
            lm.model, rows, starts, end=lm.tokenizer.end, batch_size=batch_size, device=lm.device
        )
        pairs = [(row.double().sum().item(), len(row)) for row in log_probs]
        return [pairs[place : place + len(self.choices)] for place in range(0, len(pairs), len(self.choices))]

    def _rows(self, text: str, skip: int) -> tuple[list[list[int]], int]:
        """The tokens of the prompt with each choice, and where the choices begin.

        A tokenizer may join the end of the prompt and the beginning of a choice, as byte-pair joins
        a space and the word after it. So a choice begins where the tokens are no longer those of
        the prompt, or of all choices.
        """
        asked, encode = self.prompt.text(text, skip), self.lm.tokenizer.encode
        rows = [encode(asked + choice) for choice in self.choices]
        start = common_prefix_length([encode(asked), *rows])
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

    def _rank(self, scored: Sequence[tuple[float, int]], skip: int, batch_size: int) -> list[ScoredChoice]:
        scores = self._scores(scored)
        if self.calibrate:
            if skip not in self._blank:
                self._blank[skip] = self._scores(self._score_choices([""], [skip], batch_size)[0])
            scores = [own - blank for own, blank in zip(scores, self._blank[skip], strict=True)]
        shares = torch.tensor(scores, dtype=torch.float64).softmax(dim=0).tolist()
        choices = [
            ScoredChoice(label, share, score, log_prob, tokens)
            for label, share, score, (log_prob, tokens) in zip(self.choices, shares, scores, scored, strict=True)
        ]
        return sorted(choices, key=lambda one: -one.score)

    def _scores(self, scored: Sequence[tuple[float, int]]) -> list[float]:
        return [log_prob / tokens if self.by == "mean" else log_prob for log_prob, tokens in scored]


@dataclass(frozen=True)
class ScoredText:
    """A text and what a language model thinks of it; the last token is END."""

    text: str
    tokens: list[str]
    log_probs: list[float]
    unknown: list[str]  # pieces of the text the vocabulary does not have

    @property
    def log_prob(self) -> float:
        return sum(self.log_probs)

    @property
    def perplexity(self) -> float:
        return math.exp(-self.log_prob / len(self.log_probs))


@dataclass(frozen=True)
class Continuation:
    """How a prompt goes on, as a beam search found it."""

    text: str  # without the prompt
    score: float  # what it was ranked by
    log_prob: float  # of the whole, the prompt included
    finished: bool  # whether the document ends here


class LanguageModelPredictor(Predictor[PromptAnswer], WritingModel):
    """A trained language model: it writes, scores what others wrote, and answers prompts."""

    what = "a language model"
    used_by = "`seqloom generate` and `seqloom score` use it"
    problems: ClassVar = {
        "there was no room for all shots before {lines}: the first were left out": lambda one: one.left_out > 0,
        "{lines} cannot be seen at once, even without shots: the model saw the end": lambda one: one.cut,
    }

    @property
    def longest(self) -> int | None:
        """How many tokens it sees at once, END included; None for any number."""
        is_bounded = self.run.recipe["model"]["kind"] in ("gpt", "window-lm", "soft-prompt")
        return self.model.config.window if is_bounded else None

    @property
    def banned(self) -> tuple[int, ...]:
        """Tokens that are never written."""
        return () if self.tokenizer.unknown is None else (self.tokenizer.unknown,)

    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = 32, window: int = 1024
    ) -> Iterator[PromptAnswer]:
        """Choose the likeliest label of each line if it was trained on labels, otherwise continue the line greedily."""
        if self.own_choices:
            return self.choose(lines, top=1, batch_size=batch_size, window=window)
        return self.complete(lines, template=None if self.own_template else "{text}{label}")

    def generate(
        self,
        prompt: str = "",
        *,
        max_tokens: int = 300,
        seed: int = 0,
        stop: Sequence[str] = (),
        allow_unknown: bool = False,
        **options: Any,
    ) -> Iterator[str]:
        """Continue a prompt, piece by piece. `options` are those of `SamplingConfig`: temperature, top_p, top_k …

        <unk> is never written, since no reader wants to see it, and read in the prompt only if
        `allow_unknown` is set.
        """
        sampling = SamplingConfig(banned=self.banned, **options)
        ids = self._read(prompt, allow_unknown)
        steps = generate(
            self.model,
            torch.tensor([ids], device=self.device),
            options=sampling,
            max_tokens=max_tokens,
            end=self.tokenizer.end,
            seed=seed,
        )
        decoder = self.tokenizer.stream()
        decoder.read(ids)  # so that what follows begins with the space, or not, that belongs there
        return text_stream(steps, decoder, stop)

    def search(
        self,
        prompt: str = "",
        *,
        max_tokens: int = 300,
        min_tokens: int = 0,
        allow_unknown: bool = False,
        **options: Any,
    ) -> list[Continuation]:
        """The most probable continuations that beam search finds, best first.

        `options` are those of `BeamConfig`: beam, n_best, length_penalty, stopping.
        """
        ids = self._read(prompt, allow_unknown)
        forced = len(ids) - 1  # the first is END
        if max_tokens < max(min_tokens, 1):
            raise UsageError(f"max_tokens must be at least 1, and min_tokens; got {max_tokens} and {min_tokens}.")
        try:
            wanted = BeamConfig(min_length=forced + min_tokens, max_length=forced + max_tokens, **options)
        except ValueError as error:
            raise UsageError(f"{error}.") from None
        found = beam_search(
            self.model,
            prompt=torch.tensor([ids[1:]], dtype=torch.long),
            options=wanted,
            end=self.tokenizer.end,
            banned=self.banned,
        )
        return [
            Continuation(self.continue_text(ids, one.tokens[forced:]), one.score, one.log_prob, one.finished)
            for one in found[0]
        ]

    def to_training_format(self, text: str, complete: bool = True) -> str:
        """Return a text, or a prompt to continue, in the form of the training texts."""
        if self.run.recipe.get("read") != "letters":
            return text
        return keep_letters(text).rstrip() if complete else keep_letters(text)

    def _read(self, prompt: str, allow_unknown: bool) -> list[int]:
        """END and the tokens of a prompt."""
        prompt = self.to_training_format(prompt, complete=False)
        unknown = self.tokenizer.unknown_pieces(prompt)
        if unknown and not allow_unknown:
            listed = ", ".join(map(repr, unknown[:MOST_QUOTED]))
            more = f" and {len(unknown) - MOST_QUOTED} more" if len(unknown) > MOST_QUOTED else ""
            raise DataError(
                f"The vocabulary of {self.name} cannot spell {listed}{more} in the prompt. "
                "Write it without them, or read each as <unk>: --allow-unknown (in Python allow_unknown=True)."
            )
        return [self.tokenizer.end, *self.tokenizer.encode(prompt)]

    def continue_text(self, before: Sequence[int], tokens: Sequence[int]) -> str:
        """Return the text of tokens that follow others."""
        decoder = self.tokenizer.stream()
        decoder.read(before)
        return decoder.read(tokens) + decoder.flush()

    def score(self, texts: str | Sequence[str]) -> list[ScoredText]:
        """The log-probability of every token of each text, its end included."""
        texts = [texts] if isinstance(texts, str) else texts  # one text is a list of one, not of its letters
        read = [self.to_training_format(text) for text in texts]
        encoded = [self.tokenizer.encode(text) for text in read]
        scores = score_texts(self.model, encoded, end=self.tokenizer.end, device=self.device)
        return [
            ScoredText(
                text,
                [self.tokenizer.token(token) for token in [*ids, self.tokenizer.end]],
                row.tolist(),
                self.tokenizer.unknown_pieces(seen),
            )
            for text, seen, ids, row in zip(texts, read, encoded, scores, strict=True)
        ]

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
        top: int | None = None,
        batch_size: int = 32,
        window: int = 1024,
    ) -> Iterator[PromptedChoice]:
        """Return the likeliest label of each text, exactly one answer for each, in order, with all (or `top`) choices.

        `shots` are (text, label); without `choices` their labels are chosen from. `by` compares
        choices by the `mean` of log p over their tokens or by the `sum`; `calibrate` subtracts the
        score of a blank text.
        """
        if by not in ("mean", "sum"):
            raise UsageError(f"Choices are compared by mean or sum; got {by!r}.")
        prompt = self._prompt(shots, template, separator)
        named = check_choices(choices or (() if shots else self.own_choices), prompt.shots)
        scorer = ChoiceScorer(self, prompt, named, by, calibrate)
        return predict_windows(texts, scorer.answer, batch_size=batch_size, window=window, top=top)

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
        """Write where the label of each text belongs, up to where a shot would end.

        `options` are those of `generate`; without any, the likeliest token is taken every time.
        """
        prompt = self._prompt(shots, template, separator)
        stop = [mark for mark in (prompt.template.after.format(), separator) if mark][:1]
        options = {"temperature": 0.0, "stop": stop, **options}

        def write(lines: list[str], batch_size: int) -> Iterator[Completion]:
            return (self._complete(line, prompt, max_tokens, options) for line in lines)

        return predict_windows(texts, write, batch_size=1, window=window)

    def _complete(self, line: str, prompt: Prompt, max_tokens: int, options: dict[str, Any]) -> Completion:
        if not line.strip():
            return Completion(line)
        text, labels = line.strip(), tuple(shot.label for shot in prompt.shots) or ("",)
        skip, cut = fit_shots(self.tokenizer, prompt, text, labels, self.longest)
        asked = prompt.text(text, skip).rstrip(" ")  # the space belongs to the first token of what follows
        written = "".join(self.generate(asked, max_tokens=max_tokens, allow_unknown=True, **options))
        unknown = tuple(self.tokenizer.unknown_pieces(prompt.template.question(text)))
        return Completion(line, skip, cut, written=written.strip(), unknown=unknown)

    def _prompt(self, shots: Sequence[tuple[str, str]], template: str | None, separator: str) -> Prompt:
        form = template if template is not None else self.own_template
        parsed = Prompt().template if form is None else Template.parse(form)
        return Prompt(tuple(Shot(*shot) for shot in shots), parsed, separator)

    @property
    def own_template(self) -> str | None:
        """The template of the examples the model was trained on, where it was."""
        form: str | None = self.run.recipe.get("template")
        return instruction_as_prompt(form) if form is not None and self.run.recipe["task"] == "instruct" else form

    @property
    def own_choices(self) -> tuple[str, ...]:
        """The labels the model was trained to answer, where it was."""
        return tuple(self.run.labels) if self.run.recipe["task"] == "prompt-tune" else ()

    def heads(self, text: str) -> "HeadsView":
        """Return where every layer and head of a GPT attends while it reads a text."""
        from seqloom.inspect.views.attention import gpt_heads_view

        return gpt_heads_view(self, text)
