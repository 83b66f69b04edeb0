"""Language models in use: they continue a prompt and say what they think of a text."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from seqloom.core.errors import DataError, UsageError
from seqloom.data.prompts import instruction_as_prompt
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.decoding.generate import generate
from seqloom.decoding.processors import SamplingConfig
from seqloom.decoding.streaming import text_stream
from seqloom.evaluate.perplexity import score_texts
from seqloom.predict.base import Predictor
from seqloom.predict.prompter import Prompting
from seqloom.tasks.hmm import letters
from seqloom.tasks.language_model import device_of

if TYPE_CHECKING:
    from seqloom.inspect.views.heads import HeadsView


@dataclass(frozen=True)
class Scored:
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


class Writer(Prompting):
    """What every language model that is ready for use can do."""

    @property
    def device(self) -> Any:
        return device_of(self.model)

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

        <unk> is never written, since no reader wants to see it, and read in the prompt only if `allow_unknown` is set.
        """
        sampling = SamplingConfig(banned=self._unwanted(), **options)
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
            banned=self._unwanted(),
        )
        return [
            Continuation(self._continued(ids, one.tokens[forced:]), one.score, one.log_prob, one.finished)
            for one in found[0]
        ]

    def _unwanted(self) -> tuple[int, ...]:
        return () if self.tokenizer.unknown is None else (self.tokenizer.unknown,)

    def as_taught(self, text: str, whole: bool = True) -> str:
        """A text, or a prompt that goes on, as texts were read when the model learned."""
        return text

    def _read(self, prompt: str, allow_unknown: bool) -> list[int]:
        """END and the tokens of a prompt."""
        prompt = self.as_taught(prompt, whole=False)
        unknown = self.tokenizer.unknown_pieces(prompt)
        if unknown and not allow_unknown:
            raise DataError(
                f"The vocabulary of {self.name} cannot spell {_quoted(unknown)} in the prompt. "
                "Write it without them, or read each as <unk>: --allow-unknown (in Python allow_unknown=True)."
            )
        return [self.tokenizer.end, *self.tokenizer.encode(prompt)]

    def _continued(self, before: Sequence[int], tokens: Sequence[int]) -> str:
        decoder = self.tokenizer.stream()
        decoder.read(before)
        return decoder.read(tokens) + decoder.flush()

    def score(self, texts: str | Sequence[str]) -> list[Scored]:
        """The log-probability of every token of each text, its end included."""
        texts = [texts] if isinstance(texts, str) else texts  # one text is a list of one, not of its letters
        read = [self.as_taught(text) for text in texts]
        encoded = [self.tokenizer.encode(text) for text in read]
        scores = score_texts(self.model, encoded, end=self.tokenizer.end, device=self.device)
        return [
            Scored(
                text,
                [self.tokenizer.token(token) for token in [*ids, self.tokenizer.end]],
                row.tolist(),
                self.tokenizer.unknown_pieces(seen),
            )
            for text, seen, ids, row in zip(texts, read, encoded, scores, strict=True)
        ]


class LanguageModel(Predictor, Writer):
    """A trained language model: it writes, and scores what others wrote."""

    what = "a language model"
    used_by = "`seqloom generate` and `seqloom score` use it"

    def as_taught(self, text: str, whole: bool = True) -> str:
        if self.run.recipe.get("read") != "letters":
            return text
        found = letters(text)
        return found.rstrip() if whole else found

    @property
    def own_template(self) -> str | None:
        form: str | None = self.run.recipe.get("template")
        return instruction_as_prompt(form) if form is not None and self.run.recipe["task"] == "instruct" else form

    @property
    def own_choices(self) -> tuple[str, ...]:
        return tuple(self.run.labels) if self.run.recipe["task"] == "prompt-tune" else ()

    def heads(self, text: str) -> "HeadsView":
        """Where every layer and head of a GPT looks back to while it says a text."""
        from seqloom.inspect.views.heads import text_heads_view

        return text_heads_view(self, text)


def _quoted(pieces: Sequence[str], most: int = 8) -> str:
    listed = ", ".join(repr(piece) for piece in pieces[:most])
    return f"{listed} and {len(pieces) - most} more" if len(pieces) > most else listed
