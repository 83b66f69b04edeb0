"""Language models in use: they continue a prompt and say what they think of a text."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from seqloom.api.trained import Trained
from seqloom.core.errors import DataError
from seqloom.decoding.generate import generate
from seqloom.decoding.processors import SamplingConfig
from seqloom.decoding.streaming import text_stream
from seqloom.evaluate.perplexity import score_texts
from seqloom.tasks.language_model import device_of
from seqloom.text import Tokenizer


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


class Writer(ABC):
    """What every language model that is ready for use can do."""

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
        unwanted = () if self.tokenizer.unknown is None else (self.tokenizer.unknown,)
        sampling = SamplingConfig(banned=unwanted, **options)
        unknown = self.tokenizer.unknown_pieces(prompt)
        if unknown and not allow_unknown:
            raise DataError(
                f"The vocabulary of {self.name} cannot spell {_quoted(unknown)} in the prompt. "
                "Write it without them, or read each as <unk>: --allow-unknown (in Python allow_unknown=True)."
            )
        ids = torch.tensor([[self.tokenizer.end, *self.tokenizer.encode(prompt)]], device=self.device)
        steps = generate(self.model, ids, options=sampling, max_tokens=max_tokens, end=self.tokenizer.end, seed=seed)
        decoder = self.tokenizer.stream()
        decoder.read(ids[0].tolist())  # so that what follows begins with the space, or not, that belongs there
        return text_stream(steps, decoder, stop)

    def score(self, texts: str | Sequence[str]) -> list[Scored]:
        """The log-probability of every token of each text, its end included."""
        texts = [texts] if isinstance(texts, str) else texts  # one text is a list of one, not of its letters
        encoded = [self.tokenizer.encode(text) for text in texts]
        scores = score_texts(self.model, encoded, end=self.tokenizer.end, device=self.device)
        return [
            Scored(
                text,
                [self.tokenizer.token(token) for token in [*ids, self.tokenizer.end]],
                row.tolist(),
                self.tokenizer.unknown_pieces(text),
            )
            for text, ids, row in zip(texts, encoded, scores, strict=True)
        ]


class LanguageModel(Trained, Writer):
    """A trained language model: it writes, and scores what others wrote."""

    what = "a language model: `seqloom generate` and `seqloom score` use it"


def _quoted(pieces: Sequence[str], most: int = 8) -> str:
    listed = ", ".join(repr(piece) for piece in pieces[:most])
    return f"{listed} and {len(pieces) - most} more" if len(pieces) > most else listed
