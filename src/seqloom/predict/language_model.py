"""The predictor for language models: generation, scoring and prompting."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from seqloom.core.errors import DataError, UsageError
from seqloom.core.inputs import check_options, check_pairs, check_text, check_texts, check_whole
from seqloom.core.words import escape_controls, one_line, shorten
from seqloom.data.prompts import Prompt, Shot, Template, check_choices, instruction_as_prompt
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.decoding.generate import generate, text_stream
from seqloom.decoding.processors import SamplingConfig
from seqloom.evaluate.perplexity import common_prefix_length, continuation_log_probs, score_texts
from seqloom.predict.base import (
    Prediction,
    Predictor,
    as_lines,
    predict_filled,
    predict_windows,
    ranked_columns,
    ranked_fields,
)
from seqloom.predict.results import Predictions, returns_list, returns_text
from seqloom.runs.trained import WritingModel
from seqloom.tasks.hmm import keep_letters
from seqloom.text import Tokenizer

if TYPE_CHECKING:
    from seqloom.inspect.views.attention import HeadsView

Scoring = Literal["mean", "sum"]
MAX_QUOTED = 8  # maximum number of unknown pieces in an error message


@dataclass(frozen=True)
class ScoredChoice:
    """A choice with its score."""

    label: str
    probability: float  # softmax of the scores of all choices
    score: float  # mean or sum of log p, calibrated if requested
    log_prob: float  # Σ log p of its tokens
    tokens: int


@dataclass(frozen=True)
class PromptAnswer(Prediction):
    """The prediction of a prompted model for a text."""

    text: str
    dropped_shots: int = 0  # number of leading shots that were dropped
    cut: bool = False  # whether the beginning of the text was cut
    expected: str | None = None  # true label, or None if it is not known

    @property
    def label(self) -> str:
        raise NotImplementedError

    def to_json(self) -> dict[str, object]:
        expected = {} if self.expected is None else {"expected": self.expected or None}
        details = {"unknown": list(self.unknown), "dropped_shots": self.dropped_shots, "cut": self.cut}
        return {"text": self.text, **super().to_json(), **expected, **details}


@dataclass(frozen=True)
class PromptedChoice(PromptAnswer):
    """A text with its labels, most probable first. A blank text has no labels."""

    candidates: list[ScoredChoice] = field(default_factory=list)
    json_names: ClassVar = ("label", "candidates")

    @property
    def label(self) -> str:
        return self.candidates[0].label if self.candidates else ""

    def to_line(self) -> str:
        """Return tab-separated labels and probabilities."""
        return ranked_fields((candidate.label, candidate.probability) for candidate in self.candidates)

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), "label": self.label or None}

    def to_columns(self) -> dict[str, object]:
        pairs = ({"label": each.label, "probability": each.probability} for each in self.candidates)
        return ranked_columns(pairs) or {"label": None, "probability": None}


@dataclass(frozen=True)
class Completion(PromptAnswer):
    """A text and the continuation or label that was generated."""

    completion: str = ""
    json_names: ClassVar = ("completion",)

    @property
    def label(self) -> str:
        return self.completion

    def to_line(self) -> str:
        return one_line(self.completion)

    def to_columns(self) -> dict[str, object]:
        return {"completion": self.completion}


def fit_shots(
    tokenizer: Tokenizer, prompt: Prompt, text: str, choices: Sequence[str], max_length: int | None
) -> tuple[int, bool]:
    """Return how many leading shots to drop so that the prompt with any choice fits into the context.

    The second value is True if the text is too long even without shots.
    """

    def fits(skip: int) -> bool:
        prefix = prompt.text(text, skip)
        return max(len(tokenizer.encode(prefix + choice)) for choice in choices) <= (max_length or 0)

    if max_length is None or fits(0):
        return 0, False
    most = len(prompt.shots)
    skip = 1 + bisect_left(range(1, most + 1), True, key=fits)
    return (skip, False) if skip <= most else (most, True)


class ChoiceScorer:
    """A scorer that rates the choices of a prompt with a language model."""

    def __init__(
        self, model: "LanguageModelPredictor", prompt: Prompt, choices: tuple[str, ...], by: Scoring, calibrate: bool
    ) -> None:
        self.lm, self.prompt, self.choices, self.by, self.calibrate = model, prompt, choices, by, calibrate
        self._blank: dict[int, list[float]] = {}  # scores for a blank text by number of dropped shots
        self._checked = False

    @returns_list
    def answer(self, lines: list[str], batch_size: int, top: int | None) -> Iterator[PromptedChoice]:
        """Rank the choices for each line."""

        def score(filled: list[str]) -> Iterator[PromptedChoice]:
            tokenizer, texts = self.lm.tokenizer, [line.strip() for line in filled]
            fitted = [fit_shots(tokenizer, self.prompt, text, self.choices, self.lm.max_length) for text in texts]
            scored = self._score_choices(texts, [skip for skip, _ in fitted], batch_size)
            for line, text, (skip, cut), scores in zip(filled, texts, fitted, scored, strict=True):
                unknown = tuple(tokenizer.unknown_pieces(self.prompt.template.question(text)))
                candidates = self._rank(scores, skip, batch_size)[:top]
                yield PromptedChoice(line, skip, cut, candidates=candidates, unknown=unknown)

        return predict_filled(lines, str.strip, score, PromptedChoice)

    def _score_choices(
        self, texts: Sequence[str], skips: Sequence[int], batch_size: int
    ) -> list[list[tuple[float, int]]]:
        """Return Σ log p and the number of tokens of each choice for each text."""
        rows, starts, lm = list[list[int]](), list[int](), self.lm
        for text, skip in zip(texts, skips, strict=True):
            choice_rows, start = self._rows(text, skip)
            rows += choice_rows
            starts += [start] * len(choice_rows)
        log_probs = continuation_log_probs(
            lm.model, rows, starts, end=lm.tokenizer.end, batch_size=batch_size, device=lm.device
        )
        pairs = [(row.double().sum().item(), len(row)) for row in log_probs]
        return [pairs[first : first + len(self.choices)] for first in range(0, len(pairs), len(self.choices))]

    def _rows(self, text: str, skip: int) -> tuple[list[list[int]], int]:
        """Return the tokens of the prompt with each choice appended, and the position where the choices start.

        A token may span the end of the prompt and the start of a choice, for example a byte pair with a leading space.
        The choices therefore start after the common prefix of the prompt and all rows.
        """
        prefix, encode = self.prompt.text(text, skip), self.lm.tokenizer.encode
        rows = [encode(prefix + choice) for choice in self.choices]
        start = common_prefix_length([encode(prefix), *rows])
        if not self._checked:
            self._check(rows, start)
            self._checked = True
        return rows, start

    def _check(self, rows: Sequence[Sequence[int]], start: int) -> None:
        """Check that all choices are in the vocabulary and have different tokens."""
        unknown = self.lm.tokenizer.unknown
        for choice, row in zip(self.choices, rows, strict=True):
            if len(row) <= start or (unknown is not None and unknown in row[start:]):
                raise DataError(
                    f"The choice {choice!r} is not in the vocabulary of {self.lm.name}. Use words of the training "
                    "data, or a model of characters or byte pairs."
                )
        for index, row in enumerate(rows):
            if row in rows[:index]:
                pair = f"{self.choices[rows.index(row)]!r} and {self.choices[index]!r}"
                raise DataError(f"The choices {pair} have the same tokens in {self.lm.name}.")

    def _rank(self, scored: Sequence[tuple[float, int]], skip: int, batch_size: int) -> list[ScoredChoice]:
        scores = self._scores(scored)
        if self.calibrate:
            if skip not in self._blank:
                self._blank[skip] = self._scores(self._score_choices([""], [skip], batch_size)[0])
            scores = [score - blank for score, blank in zip(scores, self._blank[skip], strict=True)]
        probabilities = torch.tensor(scores, dtype=torch.float64).softmax(dim=0).tolist()
        choices = [
            ScoredChoice(label, probability, score, *log_prob_and_tokens)
            for label, probability, score, log_prob_and_tokens in zip(
                self.choices, probabilities, scores, scored, strict=True
            )
        ]
        return sorted(choices, key=lambda choice: -choice.score)

    def _scores(self, scored: Sequence[tuple[float, int]]) -> list[float]:
        return [log_prob / tokens if self.by == "mean" else log_prob for log_prob, tokens in scored]


@dataclass(frozen=True)
class ScoredText(Prediction):
    """A text with the log-probabilities of its tokens. The last token is END."""

    text: str
    tokens: list[str]
    log_probs: list[float]

    @property
    def log_prob(self) -> float:
        return sum(self.log_probs)

    @property
    def perplexity(self) -> float:
        return math.exp(-self.log_prob / len(self.log_probs))

    def to_line(self) -> str:
        """Return the log-probability, the perplexity and the text."""
        unknown = f"   (unknown: {', '.join(self.unknown)})" if self.unknown else ""
        text = escape_controls(self.text + unknown)
        return f"{self.log_prob:10.3f}  perplexity {self.perplexity:10.2f}  {text}"

    def to_json(self) -> dict[str, object]:
        tokens = zip(self.tokens, self.log_probs, strict=True)
        return {
            "text": self.text,
            **self.to_columns(),
            "tokens": [{"token": token, "log_prob": value} for token, value in tokens],
            "unknown": self.unknown,
        }

    def to_columns(self) -> dict[str, object]:
        return {"log_prob": self.log_prob, "perplexity": self.perplexity}


@dataclass(frozen=True)
class Continuation:
    """A continuation of a prompt by beam search."""

    text: str  # the continuation without the prompt
    score: float  # the score that determines the rank
    log_prob: float  # log p of the prompt and the continuation
    finished: bool  # whether END was predicted


class LanguageModelPredictor(Predictor[PromptAnswer], WritingModel):
    """A trained language model, which can generate texts, score texts and complete prompts."""

    description = "a language model"
    usage = "use `seqloom generate` and `seqloom score`"
    notes: ClassVar = {
        "{lines}: the first shots were dropped because the prompt was too long": lambda answer: (
            answer.dropped_shots > 0
        ),
        "{lines} too long even without shots: only the end was read": lambda answer: answer.cut,
    }

    @property
    def max_length(self) -> int | None:
        """The maximum number of tokens of the context, including END, or None if unlimited."""
        is_bounded = self.run.recipe["model"]["kind"] in ("gpt", "window-lm", "soft-prompt")
        return self.run.model_config().window if is_bounded else None

    @property
    def banned(self) -> tuple[int, ...]:
        """Tokens that are never generated."""
        return () if self.tokenizer.unknown is None else (self.tokenizer.unknown,)

    @returns_list
    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = 32, window: int = 1024
    ) -> Iterator[PromptAnswer]:
        """Predict the label of each line if the model was trained on labels. Otherwise, continue each line greedily."""
        if self.training_labels:
            return self.choose(lines, top=1, batch_size=batch_size, window=window, stream=True)
        return self.complete(lines, template=None if self.training_template else "{text}{label}", stream=True)

    @returns_text
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
        """Return a continuation of a prompt. With `stream=True`, return an iterator over its pieces.

        `options` are fields of `SamplingConfig`, such as temperature, top_p and top_k. <unk> is never generated.
        `allow_unknown` allows unknown words in the prompt.
        """
        check_options(SamplingConfig, options)
        check_whole(max_tokens=max_tokens, seed=seed)
        stop = check_texts(stop, "stop")
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
        decoder.read(ids)  # the continuation may start with a space
        return text_stream(steps, decoder, stop)

    def search(
        self,
        prompt: str = "",
        *,
        max_tokens: int = 300,
        min_tokens: int = 0,
        allow_unknown: bool = False,
        **options: Any,
    ) -> Predictions[Continuation]:
        """Return the best continuations of a prompt by beam search.

        `options` are fields of `BeamConfig`: beam, n_best, length_penalty, stopping.
        """
        check_options(BeamConfig, options)
        check_whole(max_tokens=max_tokens, min_tokens=min_tokens)
        ids = self._read(prompt, allow_unknown)
        forced = len(ids) - 1  # the first token is END
        if max_tokens < max(min_tokens, 1):
            raise UsageError(f"max_tokens must be at least {max(min_tokens, 1)} (1 and min_tokens); got {max_tokens}.")
        try:
            search = BeamConfig(min_length=forced + min_tokens, max_length=forced + max_tokens, **options)
        except ValueError as error:
            raise UsageError(f"{error}.") from None
        hypotheses = beam_search(
            self.model,
            prompt=torch.tensor([ids[1:]], dtype=torch.long),
            options=search,
            end=self.tokenizer.end,
            banned=self.banned,
        )
        return Predictions(
            Continuation(self.continue_text(ids, best.tokens[forced:]), best.score, best.log_prob, best.finished)
            for best in hypotheses[0]
        )

    def to_training_format(self, text: str, complete: bool = True) -> str:
        """Normalize a text as in training. If the text is not `complete`, its trailing space is kept."""
        if self.run.recipe.get("read") != "letters":
            return text
        return keep_letters(text).rstrip() if complete else keep_letters(text)

    def _read(self, prompt: str, allow_unknown: bool) -> list[int]:
        """Return END followed by the tokens of a prompt."""
        prompt = self.to_training_format(check_text(prompt, "prompt"), complete=False)
        if not allow_unknown:
            self._check_known(prompt, "The prompt")
        return [self.tokenizer.end, *self.tokenizer.encode(prompt)]

    def _check_known(self, text: str, subject: str) -> None:
        """Raise an error if a text has pieces that are not in the vocabulary."""
        if unknown := self.tokenizer.unknown_pieces(text):
            listed = ", ".join(map(repr, unknown[:MAX_QUOTED]))
            more = f" and {len(unknown) - MAX_QUOTED} more" if len(unknown) > MAX_QUOTED else ""
            raise DataError(
                f"{subject} has characters or words that are not in the vocabulary of {self.name}: {listed}{more}. "
                "Remove them, or read each as <unk>: --allow-unknown (in Python allow_unknown=True)."
            )

    def continue_text(self, before: Sequence[int], tokens: Sequence[int]) -> str:
        """Decode the tokens that follow the tokens `before`."""
        decoder = self.tokenizer.stream()
        decoder.read(before)
        return decoder.read(tokens) + decoder.flush()

    def score(self, texts: str | Sequence[str], *, allow_unknown: bool = True) -> Predictions[ScoredText]:
        """Return the log-probabilities of the tokens of each text, including END.

        Unknown words are scored as <unk> and listed in the results. Without `allow_unknown`, they are an error.
        """
        texts = list(as_lines(texts))
        read = [self.to_training_format(text) for text in texts]
        for text in () if allow_unknown else read:
            self._check_known(text, f"The text {shorten(text)}")
        encoded = [self.tokenizer.encode(text) for text in read]
        scores = score_texts(self.model, encoded, end=self.tokenizer.end, device=self.device)
        return Predictions(
            ScoredText(
                text,
                [self.tokenizer.token(token) for token in [*ids, self.tokenizer.end]],
                row.tolist(),
                unknown=tuple(self.tokenizer.unknown_pieces(normalized)),
            )
            for text, normalized, ids, row in zip(texts, read, encoded, scores, strict=True)
        )

    @returns_list
    def choose(
        self,
        texts: str | Iterable[str],
        choices: Sequence[str] = (),
        *,
        shots: Sequence[tuple[str, str]] = (),
        template: str | None = None,
        separator: str = "\n",
        by: Scoring = "mean",
        calibrate: bool = False,
        top: int | None = None,
        batch_size: int = 32,
        window: int = 1024,
    ) -> Iterator[PromptedChoice]:
        """Rank the choices for each text. Return one result per text with the `top` choices, by default all choices.

        `shots` are pairs (text, label), whose labels are the default of `choices`. A score is the `mean` or the `sum`
        of log p over the tokens of a choice. `calibrate` subtracts the score of the choice for a blank text.
        """
        if by not in ("mean", "sum"):
            raise UsageError(f"by must be mean or sum; got {by!r}.")
        prompt = self._prompt(shots, template, separator)
        choices = check_texts(choices, "choices")
        labels = check_choices(choices or (() if shots else self.training_labels), prompt.shots)
        scorer = ChoiceScorer(self, prompt, labels, by, calibrate)
        return predict_windows(as_lines(texts), scorer.answer, batch_size=batch_size, window=window, top=top)

    @returns_list
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
        """Generate the label of each text. The label ends where the template continues after it.

        `options` are passed to `generate`. The default is greedy search.
        """
        prompt = self._prompt(shots, template, separator)
        stop = [mark for mark in (prompt.template.after.format(), separator) if mark][:1]
        options = {"temperature": 0.0, "stop": stop, **options}

        def complete(lines: list[str], batch_size: int) -> Iterator[Completion]:
            return (self._complete(line, prompt, max_tokens, options) for line in lines)

        return predict_windows(as_lines(texts), complete, batch_size=1, window=window)

    def _complete(self, line: str, prompt: Prompt, max_tokens: int, options: dict[str, Any]) -> Completion:
        if not line.strip():
            return Completion(line)
        text, labels = line.strip(), tuple(shot.label for shot in prompt.shots) or ("",)
        skip, cut = fit_shots(self.tokenizer, prompt, text, labels, self.max_length)
        prefix = prompt.text(text, skip).rstrip(" ")  # the space is part of the next token
        completion = self.generate(prefix, max_tokens=max_tokens, allow_unknown=True, **options)
        unknown = tuple(self.tokenizer.unknown_pieces(prompt.template.question(text)))
        return Completion(line, skip, cut, completion=completion.strip(), unknown=unknown)

    def _prompt(self, shots: Sequence[tuple[str, str]], template: str | None, separator: str) -> Prompt:
        form = template if template is not None else self.training_template
        parsed = Prompt().template if form is None else Template.parse(form)
        pairs = enumerate(check_pairs(shots, "shots", "a text and its label"))
        read = tuple(Shot(text, check_text(label, f"shots[{index}][1]")) for index, (text, label) in pairs)
        return Prompt(read, parsed, separator)

    @property
    def training_template(self) -> str | None:
        """The template of the training examples, or None."""
        form: str | None = self.run.recipe.get("template")
        return instruction_as_prompt(form) if form is not None and self.run.recipe["task"] == "instruct" else form

    @property
    def training_labels(self) -> tuple[str, ...]:
        """The labels of a prompt-tuned model. Other models have no labels."""
        return tuple(self.run.labels) if self.run.recipe["task"] == "prompt-tune" else ()

    def heads(self, text: str) -> "HeadsView":
        """Return the attention weights of all layers and heads of a GPT for a text."""
        from seqloom.inspect.views.attention import gpt_heads_view

        return gpt_heads_view(self, text)
