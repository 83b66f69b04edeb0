"""Fine-tuned models: a pretrained body, and on it as little as the new task needs.

    classifier   h = body(x)     c = extract(h) or another pooling     p(y) = softmax(W c + b)
    tagger       h = body(x)     e_w = W h_{first(w)} + b, judged together where there is a CRF

An encoder of the task's own may stand between, h = encoder(body(x)): above features that never change, as ELMo's.
`seqloom.models.bodies` has the bodies. Their levels, and above them everything else as one more, are what
`seqloom.train.optimizers` lets learn at rates of their own, and one after the other.
"""

from collections.abc import Iterator
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.models.bodies import AnyBodyConfig, Body, BodyConfig, build_body, most_read
from seqloom.models.classifier import Batch, Labelling, label_loss, readings
from seqloom.models.tagger import Tagging
from seqloom.nn.dropout import make_dropout
from seqloom.nn.encoders import AnyEncoderConfig, Encoder, EncoderConfig
from seqloom.nn.masks import at_last
from seqloom.nn.pooling import POOLINGS, Pooling
from seqloom.nn.softmax import at_least_float32

SummaryKind = Literal["extract", "last", "mean", "max", "attention"]


class OnABody(Protocol):
    """The config of a model on a body."""

    @property
    def body(self) -> AnyBodyConfig | None: ...


def body_of(config: OnABody) -> AnyBodyConfig:
    """The body a recipe was filled in with, if nobody wrote it there."""
    if config.body is None:
        raise ValueError("model.body must be given, or a run to take it from, init.from")
    return config.body


class Summary(nn.Module):
    """One vector for a row: h (B, S, H) to c (B, H), and to weights (B, S) where it attends.

    extract is what [CLS] says; last is the h before the special token at the end; mean, max and attention are over all
    real tokens. Above an encoder, extract is where its reading ended.
    """

    def __init__(self, kind: SummaryKind, width: int) -> None:
        super().__init__()
        self.kind = kind
        self.pooling: Pooling | None = None
        if kind != "extract" and kind != "last":
            self.pooling = POOLINGS[kind](width)

    def forward(self, body: Body, h: Tensor, mask: Tensor, ends: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """`ends` (B, H) is where an encoder's reading ended, if h is of one."""
        if self.kind == "extract":
            return body.extract(h, mask) if ends is None else ends, None
        if self.pooling is None:
            return at_last(h[:, :-1], mask[:, 1:]), None
        c, weights = self.pooling(h, mask, h[:, 0])
        return c, weights


def levels_above(model: nn.Module, body: Body) -> list[list[nn.Parameter]]:
    """The levels of a body, and one of all that stands above it."""
    levels = body.levels()
    below = {id(parameter) for level in levels for parameter in level}
    return [*levels, [parameter for parameter in model.parameters() if id(parameter) not in below]]


class Above(Protocol):
    """The config of a model on a body with, perhaps, an encoder of its own."""

    @property
    def body(self) -> AnyBodyConfig | None: ...
    @property
    def encoder(self) -> AnyEncoderConfig | None: ...
    @property
    def dropout(self) -> float: ...


def above_problems(config: Above) -> Iterator[str]:
    if not 0 <= config.dropout < 1:
        yield f"dropout must be at least 0 and below 1; got {config.dropout}"


def longest_above(config: Above) -> int | None:
    """The most tokens that body and encoder can read, special ones included; None for any number."""
    found = [None if config.body is None else most_read(config.body)]
    found += [] if config.encoder is None else [config.encoder.longest]
    return min((most for most in found if most is not None), default=None)


def encoder_above(config: Above, body: Body) -> tuple[Encoder | None, int]:
    """The encoder that reads what a body makes of a text, if there is one; and how wide what comes out is."""
    if config.encoder is None:
        return None, body.width
    encoder = config.encoder.build(body.width)
    return encoder, encoder.width


# --- classifier -------------------------------------------------------------------------------------------------------


@config
class FineTunedClassifierConfig:
    kind: Literal["fine-tuned-classifier"] = "fine-tuned-classifier"
    body: BodyConfig | None = None  # a pretrained model of any kind; with init.from that of the run
    encoder: EncoderConfig | None = None  # reads what the body makes of a text: recurrent, convolution or transformer
    pooling: SummaryKind = "extract"  # what sums a text up: extract (at [CLS]), last, mean, max or attention
    dropout: float = 0.1  # before the encoder and the output layer; the body has its own

    characters = vectors = None  # what other classifiers may read besides

    def problems(self) -> Iterator[str]:
        yield from above_problems(self)

    @property
    def longest(self) -> int | None:
        return longest_above(self)

    def build(self, vocabulary: int, labels: int, outputs: int = 0) -> "FineTunedClassifier":
        """`outputs` is how many tokens the body also predicts: all, or none."""
        return FineTunedClassifier(self, vocabulary, labels, outputs > 0)


class FineTunedClassifier(Labelling):
    """Reads a text that stands between special tokens and says what it is."""

    def __init__(self, config: FineTunedClassifierConfig, vocabulary: int, labels: int, predicts: bool = False) -> None:
        super().__init__()
        self.config = config
        self.body = build_body(body_of(config), vocabulary, predicts)
        self.encoder, width = encoder_above(config, self.body)
        self.summary = Summary(config.pooling, width)
        self.dropout = make_dropout(config.dropout)
        self.output = nn.Linear(width, labels)
        nn.init.zeros_(self.output.bias)

    def notes(self) -> list[str]:
        return self.body.notes()

    def levels(self) -> list[list[nn.Parameter]]:
        return levels_above(self, self.body)

    def read(self, batch: Batch) -> Tensor:
        """h (B, S, H) of the body."""
        return self.body.read(batch["tokens"], batch["mask"], batch.get("segments"))

    def forward(self, batch: Batch) -> Tensor:
        return self._logits(self.read(batch), batch)[0]

    def _logits(self, h: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
        mask, ends = batch["mask"], None
        if self.encoder is not None:
            h, ends = self.encoder.read(self.dropout(h), mask)
        c, weights = self.summary(self.body, h, mask, ends)
        return self.output(self.dropout(c)), weights

    def loss(
        self,
        batch: Batch,
        class_weights: Tensor | None = None,
        label_smoothing: float = 0.0,
        consistency: float = 0.0,
        language_model: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """That of the labels, and λ times that of a language model on the same texts (Radford et al. 2018)."""
        batch, consistency = readings(self, batch, consistency)
        h = self.read(batch)
        logits, labels = self._logits(h, batch)[0], batch["labels"]
        value, count = label_loss(logits, labels, class_weights, label_smoothing, consistency)
        if language_model:
            value = value + language_model * self.body.next_token_loss(h, batch["tokens"], batch["mask"])
        return value, count

    @torch.no_grad()
    def attentions(self, batch: Batch) -> list[Tensor]:
        """Where the heads of each layer of the body look (B, N, S, S), 0 at padding; empty where there are none."""
        return self.body.attentions(batch["tokens"], batch["mask"])

    @torch.no_grad()
    def attention(self, batch: Batch) -> Tensor | None:
        """How much each token (B, S) weighed in the pooling, 0 at padding; None where pooling does not attend."""
        return self._logits(self.read(batch), batch)[1]

    @torch.enable_grad()
    def influence(self, batch: Batch, labels: Tensor | None = None) -> Tensor:
        """What each token (B, S) adds to the logit of a label (B,), to first order: xᵀ ∂logit/∂x, x its vector."""
        seen: list[Tensor] = []

        def watch(module: nn.Module, given: object, x: Tensor) -> Tensor:
            seen.append(x.detach().requires_grad_())
            return seen[0]

        handle = self.body.vectors().register_forward_hook(watch)
        try:
            logits = self(batch)
        finally:
            handle.remove()
        chosen = logits.argmax(dim=1) if labels is None else labels
        (gradient,) = torch.autograd.grad(logits.gather(1, chosen.unsqueeze(1)).sum(), seen[0])
        return at_least_float32(seen[0].detach() * gradient).sum(dim=2).masked_fill(~batch["mask"], 0)


# --- tagger -----------------------------------------------------------------------------------------------------------


@config
class FineTunedTaggerConfig:
    kind: Literal["fine-tuned-tagger"] = "fine-tuned-tagger"
    body: BodyConfig | None = None  # a pretrained model of any kind; with init.from that of the run
    encoder: EncoderConfig | None = None  # reads what the body makes of a text: recurrent, convolution or transformer
    dropout: float = 0.1  # before the encoder and the output layer; the body has its own
    crf: bool = False  # judge the tags of a sentence together
    constrain: bool = True  # where tags mark spans, only sequences that are valid: no I-PER after O

    characters = vectors = None

    def problems(self) -> Iterator[str]:
        yield from above_problems(self)

    @property
    def longest(self) -> int | None:
        return longest_above(self)

    def build(self, vocabulary: int, tags: int) -> "FineTunedTagger":
        return FineTunedTagger(self, vocabulary, tags)


class FineTunedTagger(Tagging):
    """Reads a sentence that stands between special tokens and says what each word is, at its first token."""

    def __init__(self, config: FineTunedTaggerConfig, vocabulary: int, tags: int) -> None:
        super().__init__()
        self.config = config
        self.body = build_body(body_of(config), vocabulary)
        self.encoder, width = encoder_above(config, self.body)
        self.top(width, tags, dropout=config.dropout, crf=config.crf, constrained=config.constrain)

    def notes(self) -> list[str]:
        return self.body.notes()

    def levels(self) -> list[list[nn.Parameter]]:
        return levels_above(self, self.body)

    def read(self, batch: Batch) -> Tensor:
        h = self.body.read(batch["tokens"], batch["mask"])
        if self.encoder is None:
            return h
        read: Tensor = self.encoder(self.dropout(h), batch["mask"])
        return read

    @torch.no_grad()
    def attentions(self, batch: Batch) -> list[Tensor]:
        """Where the heads of each layer of the body look (B, N, S, S), 0 at padding; empty where there are none."""
        return self.body.attentions(batch["tokens"], batch["mask"])


FineTunedConfig = FineTunedClassifierConfig | FineTunedTaggerConfig
