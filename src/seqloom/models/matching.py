"""Fine-tuned models that read several texts at once: pairs, choices, questions; GPT's input transformations and BERT's.

    pair      rows r of a pair: one, or both orders   c = Σ_r summary(body(x_r))    p(y) = softmax(W c + b)
              with a score for a label                ŷ = μ + σ (w · c + b), (y − ŷ)² / σ² made small
    choice    a row for each option                   s_r = w · summary(body(x_r))  p(r) = softmax_r(s_r)
    answer    question and context in one row         s_j, e_j = W h_j              p(start = j), p(end = j) = softmax_j

μ and σ are those of the training scores. `seqloom.text.specials` has the rows, `seqloom.models.bodies` the bodies.
"""

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import config
from seqloom.models.bodies import BodyConfig, build_body, most_read
from seqloom.models.classifier import Batch, label_loss, readings
from seqloom.models.fine_tuned import Summary, SummaryKind, body_of, levels_above
from seqloom.nn.cross_entropy import IGNORE_INDEX
from seqloom.nn.dropout import make_dropout
from seqloom.nn.softmax import at_least_float32


@config
class FineTuned:
    """The keys that the configs of this file share."""

    kind: str = ""
    body: BodyConfig | None = None  # recurrent-lm, gpt or bert; with init.from that of the run
    dropout: float = 0.1  # before the output layer; the body has its own

    characters = vectors = None

    def problems(self) -> Iterator[str]:
        if not 0 <= self.dropout < 1:
            yield f"dropout must be at least 0 and below 1; got {self.dropout}"

    @property
    def longest(self) -> int | None:
        """The most tokens of a row it can read, special ones included; None for any number."""
        return None if self.body is None else most_read(self.body)


@config
class FineTunedPairConfig(FineTuned):
    kind: Literal["fine-tuned-pair"] = "fine-tuned-pair"
    pooling: SummaryKind = "extract"  # what sums a row up: extract (at [CLS]), last, mean, max or attention

    def build(self, vocabulary: int, labels: int = 0, scores: int = 0, outputs: int = 0) -> "FineTunedPair":
        """Of so many labels, or of one score. `outputs` is how many tokens the body also predicts: all, or none."""
        return FineTunedPair(self, vocabulary, labels or scores, outputs > 0)


@config
class FineTunedChoiceConfig(FineTuned):
    kind: Literal["fine-tuned-choice"] = "fine-tuned-choice"
    pooling: SummaryKind = "extract"  # what sums a row up: extract (at [CLS]), last, mean, max or attention

    def build(self, vocabulary: int, outputs: int = 0) -> "FineTunedChoice":
        return FineTunedChoice(self, vocabulary, outputs > 0)


@config
class FineTunedAnswerConfig(FineTuned):
    kind: Literal["fine-tuned-answer"] = "fine-tuned-answer"

    def build(self, vocabulary: int, outputs: int = 0) -> "FineTunedAnswer":
        return FineTunedAnswer(self, vocabulary, outputs > 0)


class OnBody(nn.Module):
    """A body and what stands above it. tokens, mask and segments are (B, R, S): R rows of each example."""

    def __init__(self, config: FineTuned, vocabulary: int, outputs: int, predicts: bool) -> None:
        super().__init__()
        self.config = config
        self.body = build_body(body_of(config), vocabulary, predicts)
        self.dropout = make_dropout(config.dropout)
        self.output = nn.Linear(self.body.width, outputs)
        nn.init.zeros_(self.output.bias)

    def notes(self) -> list[str]:
        return self.body.notes()

    def levels(self) -> list[list[nn.Parameter]]:
        return levels_above(self, self.body)

    def read(self, batch: Batch) -> Tensor:
        """h (B·R, S, H)"""
        tokens, mask, segments = (batch[name].flatten(0, 1) for name in ("tokens", "mask", "segments"))
        return self.body.read(tokens, mask, segments)

    def with_next_token(self, loss: Tensor, h: Tensor, batch: Batch, share: float) -> Tensor:
        """The loss and `share` times that of a language model on the same rows (Radford et al. 2018)."""
        if not share:
            return loss
        return loss + share * self.body.next_token_loss(h, *(batch[name].flatten(0, 1) for name in ("tokens", "mask")))


class Summed(OnBody):
    """What sums every row up in one vector."""

    def __init__(
        self, config: FineTunedPairConfig | FineTunedChoiceConfig, vocabulary: int, outputs: int, predicts: bool
    ) -> None:
        super().__init__(config, vocabulary, outputs, predicts)
        self.summary = Summary(config.pooling, self.body.width)

    def summaries(self, h: Tensor, batch: Batch) -> Tensor:
        """h (B·R, S, H) to c (B, R, H), 0 of rows without tokens."""
        mask = batch["mask"]
        c, _ = self.summary(self.body, h, mask.flatten(0, 1))
        return c.unflatten(0, mask.shape[:2]).where(mask.any(dim=2, keepdim=True), 0)


# --- pairs ------------------------------------------------------------------------------------------------------------


class FineTunedPair(Summed):
    """Reads two texts and says how they go together: one of several labels, or, with one output, a score.

    Labels below 0 are of a kind that was never seen in training: they have no loss.
    """

    def __init__(self, config: FineTunedPairConfig, vocabulary: int, outputs: int, predicts: bool = False) -> None:
        super().__init__(config, vocabulary, outputs, predicts)
        self.scored = outputs == 1
        if self.scored:
            self.register_buffer("center", torch.zeros(()))
            self.register_buffer("scale", torch.ones(()))
        self.center: Tensor
        self.scale: Tensor

    @torch.no_grad()
    def set_scores(self, center: float, scale: float) -> None:
        """The mean and the standard deviation of the training scores: where the model begins."""
        self.center.fill_(center)
        self.scale.fill_(scale)

    def forward(self, batch: Batch) -> Tensor:
        """Logits (B, L), or scores (B,)."""
        return self._outputs(self.read(batch), batch)

    def _outputs(self, h: Tensor, batch: Batch) -> Tensor:
        found: Tensor = self.output(self.dropout(self.summaries(h, batch).sum(dim=1)))  # (B, L)
        return self.center + self.scale * at_least_float32(found.squeeze(1)) if self.scored else found

    def loss(
        self,
        batch: Batch,
        class_weights: Tensor | None = None,
        label_smoothing: float = 0.0,
        consistency: float = 0.0,
        language_model: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Of labels: see `label_loss`. Of scores: the mean of (y − ŷ)² / σ² over the examples that are there."""
        batch, consistency = readings(self, batch, consistency)
        h = self.read(batch)
        found = self._outputs(h, batch)
        if self.scored:
            there = batch["mask"].any(dim=(1, 2))
            count = there.sum()
            error = ((found - batch["scores"]) / self.scale).square() * there
            value = error.sum() / count.clamp(min=1)
        else:
            value, count = label_loss(found, batch["labels"], class_weights, label_smoothing, consistency)
        return self.with_next_token(value, h, batch, language_model), count

    @torch.no_grad()
    def probabilities(self, batch: Batch) -> Tensor:
        """p (B, L) of every label."""
        return at_least_float32(self(batch)).softmax(dim=1)


# --- choices ----------------------------------------------------------------------------------------------------------


class FineTunedChoice(Summed):
    """Reads a text with each of its options and says which is right. An example may have fewer options than others."""

    def __init__(self, config: FineTunedChoiceConfig, vocabulary: int, predicts: bool = False) -> None:
        super().__init__(config, vocabulary, 1, predicts)

    def forward(self, batch: Batch) -> Tensor:
        """Logits (B, R), −∞ where there is no option."""
        return self._logits(self.read(batch), batch)

    def _logits(self, h: Tensor, batch: Batch) -> Tensor:
        scores = self.output(self.dropout(self.summaries(h, batch))).squeeze(2)  # (B, R)
        return scores.masked_fill(~batch["mask"].any(dim=2), -torch.inf)

    def loss(self, batch: Batch, language_model: float = 0.0) -> tuple[Tensor, Tensor]:
        """The mean of −log p of the right options, and how many examples there are."""
        h = self.read(batch)
        there = batch["mask"].any(dim=(1, 2))
        logits = at_least_float32(self._logits(h, batch)).where(
            there.unsqueeze(1), 0
        )  # rows without an example: all alike
        targets = batch["answers"].masked_fill(~there, IGNORE_INDEX)
        count = there.sum()
        value = F.cross_entropy(logits, targets, reduction="sum") / count.clamp(min=1)
        return self.with_next_token(value, h, batch, language_model), count

    @torch.no_grad()
    def probabilities(self, batch: Batch) -> Tensor:
        """p (B, R) of every option, 0 where there is none."""
        return at_least_float32(self(batch)).softmax(dim=1)


# --- answers ----------------------------------------------------------------------------------------------------------


class FineTunedAnswer(OnBody):
    """Reads a question and a context, in one row, and says where in the context the answer begins and ends.

    `places` (B, 1, S) are where it may: the tokens of the context, and [CLS], which is pointed at where the answer is
    not in this window of the context.
    """

    def __init__(self, config: FineTunedAnswerConfig, vocabulary: int, predicts: bool = False) -> None:
        super().__init__(config, vocabulary, 2, predicts)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """log p (B, S) of every place as the first token of the answer, and as the last; −∞ where it may not be."""
        return self._log_probs(self.read(batch), batch)

    def _log_probs(self, h: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        places = batch["places"].flatten(0, 1)
        barred = ~places & places.any(dim=1, keepdim=True)  # rows without an example: all alike, and numbers
        logits = at_least_float32(self.output(self.dropout(h))).masked_fill(
            barred.unsqueeze(2), -torch.inf
        )  # (B, S, 2)
        first, last = logits.log_softmax(dim=1).unbind(dim=2)
        return first, last

    def loss(self, batch: Batch, language_model: float = 0.0) -> tuple[Tensor, Tensor]:
        """The mean of −(log p(start) + log p(end)) / 2, and how many windows there are."""
        h = self.read(batch)
        losses, count = told(*self._log_probs(h, batch), batch), batch["mask"].any(dim=(1, 2)).sum()
        return self.with_next_token(losses.sum() / count.clamp(min=1), h, batch, language_model), count

    @torch.no_grad()
    def spans(self, batch: Batch, longest: int, most: int = 1) -> "Spans":
        """The `most` best spans of at most `longest` tokens in the context of each row."""
        first, last = self(batch)
        summary = at_summary(batch)
        context = batch["places"].flatten(0, 1) & ~summary
        starts, ends = (log_probs.masked_fill(~context, -torch.inf) for log_probs in (first, last))
        longest = min(longest, starts.shape[1])
        after = F.pad(ends, (0, longest - 1), value=-torch.inf).unfold(
            1, longest, 1
        )  # (B, S, longest): S × S may be too many
        ranked = (starts.unsqueeze(2) + after).flatten(1).topk(min(most, after[0].numel()), dim=1)
        began = ranked.indices // longest
        absent = (first + last).masked_fill(~summary, -torch.inf).amax(dim=1)
        losses = told(first, last, batch) if "starts" in batch else None
        return Spans(ranked.values, began, began + ranked.indices % longest, absent, losses)


class Spans(NamedTuple):
    """Answers in rows, best first; where there are fewer than asked for, the others have log p = −∞."""

    log_probs: Tensor  # (B, K): log p(start) + log p(end)
    first: Tensor  # (B, K), the place of their first token in the row
    last: Tensor  # (B, K)
    absent: Tensor  # (B,): log p(start) + log p(end) of [CLS], where the answer is not in this window
    losses: Tensor | None  # (B,), where it is known what is right


def told(first: Tensor, last: Tensor, batch: Batch) -> Tensor:
    """−(log p(start) + log p(end)) / 2 (B,) of what is right; 0 of rows without an example."""
    both = [
        log_probs.gather(1, batch[name].clamp(min=0).unsqueeze(1)).squeeze(1)
        for log_probs, name in ((first, "starts"), (last, "ends"))
    ]
    return (-(both[0] + both[1]) / 2).where(batch["mask"].any(dim=(1, 2)), 0)


def at_summary(batch: Batch) -> Tensor:
    """Where [CLS] stands (B, S)."""
    places = torch.arange(batch["tokens"].shape[2], device=batch["tokens"].device)
    return places == batch["summary"].unsqueeze(1)


def spread(scores: list[float]) -> tuple[float, float]:
    """The mean of scores, and their standard deviation; 1 where all are the same."""
    center = math.fsum(scores) / len(scores)
    scale = math.sqrt(math.fsum((score - center) ** 2 for score in scores) / len(scores))
    return center, scale or 1.0
