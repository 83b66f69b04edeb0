"""Fine-tuned models: a pretrained backbone, and above it as little as the new task needs.

    classifier   h = backbone(x)     c = extract(h) or another pooling     p(y) = softmax(W c + b)
    tagger       h = backbone(x)     e_w = W h_{first(w)} + b, judged together where there is a CRF
    pair         rows r of a pair: one, or both orders   c = Σ_r summary(backbone(x_r))    p(y) = softmax(W c + b)
                 with a score for a label                ŷ = μ + σ (w · c + b), minimising (y − ŷ)² / σ²
    choice       a row for each option                   s_r = w · summary(backbone(x_r))  p(r) = softmax_r(s_r)
    answer       question and context in one row         s_j, e_j = W h_j       p(start = j), p(end = j) = softmax_j

A classifier and a tagger may have an encoder of the task's own between, h = encoder(backbone(x)):
above features that never change, as ELMo's. μ and σ are those of the training scores.
`seqloom.models.backbones` has the backbones, `seqloom.text.model_inputs` the rows.
`seqloom.train.optimizers` lets the layer groups of a backbone, and everything above them as one more,
learn at rates of their own, and one after the other.
"""

import math
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import Fraction
from seqloom.models.backbones import Backbone, BackboneConfig, backbone_class, build_backbone
from seqloom.models.classifier import Batch, Labelling, label_influence, label_loss, readings
from seqloom.models.tagger import Tagging
from seqloom.nn.encoders import AnyEncoderConfig, Encoder, EncoderConfig
from seqloom.nn.masks import at_last, make_dropout
from seqloom.nn.pooling import POOLINGS, Pooling
from seqloom.nn.softmax import IGNORE_INDEX, at_least_float32

NO_ENCODER: AnyEncoderConfig | None = None
SummaryKind = Literal["extract", "last", "mean", "max", "attention"]


@config
class FineTunedOptions:
    """The keys of every model on a backbone."""

    kind: str = ""
    backbone: BackboneConfig | None = None  # a pretrained model of any kind; with init.from that of the run
    dropout: Fraction = 0.1  # before the output layer, and before the encoder if there is one; the backbone has its own

    # Not every model makes a key of these.
    characters = vectors = None
    encoder = NO_ENCODER

    @property
    def longest(self) -> int | None:
        """The most tokens of a row it can read, special ones included; None for any number."""
        above = None if self.encoder is None else self.encoder.longest
        below = None if self.backbone is None else backbone_class(self.backbone).longest(self.backbone)
        return min((length for length in (above, below) if length is not None), default=None)


class Summary(nn.Module):
    """One vector for a row: h (B, S, H) to c (B, H), and to weights (B, S) where it attends.

    extract is what [CLS] says; last is the h before the special token at the end; mean, max and
    attention are over all real tokens. Above an encoder, extract is where its reading ended.
    """

    def __init__(self, kind: SummaryKind, width: int) -> None:
        super().__init__()
        self.kind = kind
        self.pooling: Pooling | None = None
        if kind != "extract" and kind != "last":
            self.pooling = POOLINGS[kind](width)

    def forward(
        self, backbone: Backbone, h: Tensor, mask: Tensor, ends: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """`ends` (B, H) is where an encoder's reading ended, if h is of one."""
        if self.kind == "extract":
            return backbone.extract(h, mask) if ends is None else ends, None
        if self.pooling is None:
            return at_last(h[:, :-1], mask[:, 1:]), None
        c, weights = self.pooling(h, mask, h[:, 0])
        return c, weights


class FineTuned(nn.Module):
    """A backbone, and layers above it. tokens, mask and segments are (B, S), or (B, R, S): R rows of each example."""

    def __init__(self, config: FineTunedOptions, vocabulary: int, predicts: bool = False) -> None:
        super().__init__()
        if config.backbone is None:
            raise ValueError("model.backbone must be given, or a run to take it from, init.from")
        self.config = config
        self.backbone = build_backbone(config.backbone, vocabulary, predicts)
        self.encoder: Encoder | None = (
            None if config.encoder is None else config.encoder.build(self.backbone.output_size)
        )
        self.output_size = self.backbone.output_size if self.encoder is None else self.encoder.output_size

    def notes(self) -> list[str]:
        """What the backbone does beyond what its recipe says."""
        return self.backbone.notes()

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Return the layer groups of the backbone, and one group with all other parameters."""
        groups = self.backbone.layer_groups()
        below = {id(parameter) for group in groups for parameter in group}
        return [*groups, [parameter for parameter in self.parameters() if id(parameter) not in below]]

    def read(self, batch: Batch) -> Tensor:
        """h (B·R, S, H) of the backbone."""
        segments = batch.get("segments")
        rows = batch["tokens"].flatten(0, -2), batch["mask"].flatten(0, -2)
        return self.backbone.read(*rows, None if segments is None else segments.flatten(0, -2))

    def add_next_token_loss(self, loss: Tensor, h: Tensor, batch: Batch, share: float) -> Tensor:
        """The loss and `share` times that of a language model on the same rows (Radford et al. 2018)."""
        if not share:
            return loss
        rows = batch["tokens"].flatten(0, -2), batch["mask"].flatten(0, -2)
        return loss + share * self.backbone.next_token_loss(h, *rows)

    @torch.no_grad()
    def attentions(self, batch: Batch) -> list[Tensor]:
        """The attention weights of each layer of the backbone (B, N, S, S), 0 at padding; empty without attention."""
        return self.backbone.attentions(batch["tokens"], batch["mask"])


class LabelModel(FineTuned):
    """A model with one prediction for each example, and a loss of labels."""

    def outputs(self, h: Tensor, batch: Batch) -> Tensor:
        """h (B·R, S, H) of the backbone to logits (B, L)."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> Tensor:
        return self.outputs(self.read(batch), batch)

    def output_loss(self, outputs: Tensor, batch: Batch, *options: Any) -> tuple[Tensor, Tensor]:
        """See `label_loss`."""
        return label_loss(outputs, batch["labels"], *options)

    def loss(
        self,
        batch: Batch,
        class_weights: Tensor | None = None,
        label_smoothing: float = 0.0,
        consistency: float = 0.0,
        language_model: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """The loss of the predictions, and λ times that of a language model on the same texts (Radford et al. 2018)."""
        batch, consistency = readings(self, batch, consistency)
        h = self.read(batch)
        value, count = self.output_loss(self.outputs(h, batch), batch, class_weights, label_smoothing, consistency)
        return self.add_next_token_loss(value, h, batch, language_model), count


# --- classifier -------------------------------------------------------------------------------------------------------


@config
class FineTunedClassifierConfig(FineTunedOptions):
    kind: Literal["fine-tuned-classifier"] = "fine-tuned-classifier"
    encoder: EncoderConfig | None = (
        None  # reads what the backbone makes of a text: recurrent, convolution or transformer
    )
    pooling: SummaryKind = "extract"  # what sums a text up: extract (at [CLS]), last, mean, max or attention

    def build(self, vocabulary: int, labels: int, outputs: int = 0) -> "FineTunedClassifier":
        """`outputs` is how many tokens the backbone also predicts: all, or none."""
        return FineTunedClassifier(self, vocabulary, labels, outputs > 0)


class FineTunedClassifier(LabelModel, Labelling):
    """Predicts the label of a text that stands between special tokens."""

    def __init__(self, config: FineTunedClassifierConfig, vocabulary: int, labels: int, predicts: bool = False) -> None:
        super().__init__(config, vocabulary, predicts)
        self.summary = Summary(config.pooling, self.output_size)
        self.dropout = make_dropout(config.dropout)
        self.output = nn.Linear(self.output_size, labels)
        nn.init.zeros_(self.output.bias)

    def outputs(self, h: Tensor, batch: Batch) -> Tensor:
        return self._logits(h, batch)[0]

    def _logits(self, h: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """h (B, S, H) of the backbone to logits (B, L), and to the weights (B, S) of pooling that attends."""
        mask, ends = batch["mask"], None
        if self.encoder is not None:
            h, ends = self.encoder.read(self.dropout(h), mask)
        c, weights = self.summary(self.backbone, h, mask, ends)
        return self.output(self.dropout(c)), weights

    @torch.no_grad()
    def attention(self, batch: Batch) -> Tensor | None:
        """The weight of each token (B, S) in the pooling, 0 at padding; None where pooling does not attend."""
        return self._logits(self.read(batch), batch)[1]

    @torch.enable_grad()
    def influence(self, batch: Batch, labels: Tensor | None = None) -> Tensor:
        """What each token (B, S) adds to the logit of a label (B,), to first order: xᵀ ∂logit/∂x, x its vector."""
        vectors: list[Tensor] = []

        def watch(module: nn.Module, given: object, x: Tensor) -> Tensor:
            vectors.append(x.detach().requires_grad_())
            return vectors[0]

        handle = self.backbone.vectors().register_forward_hook(watch)
        try:
            logits = self(batch)
        finally:
            handle.remove()
        return label_influence(logits, vectors[0], batch["mask"], labels)


# --- tagger -----------------------------------------------------------------------------------------------------------


@config
class FineTunedTaggerConfig(FineTunedOptions):
    kind: Literal["fine-tuned-tagger"] = "fine-tuned-tagger"
    encoder: EncoderConfig | None = (
        None  # reads what the backbone makes of a text: recurrent, convolution or transformer
    )
    crf: bool = False  # judge the tags of a sentence together
    constrain: bool = True  # where tags mark spans, only sequences that are valid: no I-PER after O

    def build(self, vocabulary: int, tags: int) -> "FineTunedTagger":
        return FineTunedTagger(self, vocabulary, tags)


class FineTunedTagger(FineTuned, Tagging):
    """Predicts a tag for each word of a sentence that stands between special tokens, at the word's first token."""

    def __init__(self, config: FineTunedTaggerConfig, vocabulary: int, tags: int) -> None:
        super().__init__(config, vocabulary)
        self.top(self.output_size, tags, dropout=config.dropout, crf=config.crf, constrained=config.constrain)

    def read(self, batch: Batch) -> Tensor:
        h = super().read(batch)
        if self.encoder is None:
            return h
        encoded: Tensor = self.encoder(self.dropout(h), batch["mask"])
        return encoded


# --- pairs ------------------------------------------------------------------------------------------------------------


@config
class FineTunedPairConfig(FineTunedOptions):
    kind: Literal["fine-tuned-pair"] = "fine-tuned-pair"
    pooling: SummaryKind = "extract"  # what sums a row up: extract (at [CLS]), last, mean, max or attention

    def build(self, vocabulary: int, labels: int = 0, scores: int = 0, outputs: int = 0) -> "FineTunedPair":
        """Of so many labels, or of one score. `outputs` is how many tokens the backbone also predicts: all, or none."""
        return FineTunedPair(self, vocabulary, labels or scores, outputs > 0)


class RowModel(FineTuned):
    """A model that reads one or several rows (B, R, S) of each example, with a linear layer above them."""

    summary: Summary  # of models that need one vector for each row

    def __init__(self, config: FineTunedOptions, vocabulary: int, outputs: int, predicts: bool) -> None:
        super().__init__(config, vocabulary, predicts)
        self.dropout = make_dropout(config.dropout)
        self.output = nn.Linear(self.output_size, outputs)
        nn.init.zeros_(self.output.bias)

    def summaries(self, h: Tensor, batch: Batch) -> Tensor:
        """h (B·R, S, H) to c (B, R, H), 0 of rows without tokens."""
        mask = batch["mask"]
        c, _ = self.summary(self.backbone, h, mask.flatten(0, 1))
        return c.unflatten(0, mask.shape[:2]).where(mask.any(dim=2, keepdim=True), 0)

    @torch.no_grad()
    def probabilities(self, batch: Batch) -> Tensor:
        """p (B, L) of every label or option, 0 where there is none."""
        return at_least_float32(self(batch)).softmax(dim=1)


class FineTunedPair(RowModel, LabelModel):
    """Reads two texts and predicts how they go together: one of several labels, or, with one output, a score.

    Labels below 0 never occurred in training: they have no loss.
    """

    center: Tensor
    scale: Tensor

    def __init__(self, config: FineTunedPairConfig, vocabulary: int, outputs: int, predicts: bool = False) -> None:
        super().__init__(config, vocabulary, outputs, predicts)
        self.summary = Summary(config.pooling, self.output_size)
        self.scored = outputs == 1
        if self.scored:
            self.register_buffer("center", torch.zeros(()))
            self.register_buffer("scale", torch.ones(()))

    @torch.no_grad()
    def set_scores(self, center: float, scale: float) -> None:
        """Begin with the mean and the standard deviation of the training scores."""
        self.center.fill_(center)
        self.scale.fill_(scale)

    def outputs(self, h: Tensor, batch: Batch) -> Tensor:
        """Logits (B, L), or scores (B,)."""
        outputs: Tensor = self.output(self.dropout(self.summaries(h, batch).sum(dim=1)))  # (B, L)
        return self.center + self.scale * at_least_float32(outputs.squeeze(1)) if self.scored else outputs

    def output_loss(self, outputs: Tensor, batch: Batch, *options: Any) -> tuple[Tensor, Tensor]:
        """Of labels: see `label_loss`. Of scores: the mean of (y − ŷ)² / σ² over the examples that are there."""
        if not self.scored:
            return super().output_loss(outputs, batch, *options)
        present = batch["mask"].any(dim=(1, 2))
        error = ((outputs - batch["scores"]) / self.scale).square() * present
        return error.sum() / present.sum().clamp(min=1), present.sum()


def mean_and_deviation(scores: list[float]) -> tuple[float, float]:
    """The mean of scores, and their standard deviation; 1 where all are the same."""
    mean = math.fsum(scores) / len(scores)
    return mean, math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores)) or 1.0


# --- choices ----------------------------------------------------------------------------------------------------------


@config
class FineTunedChoiceConfig(FineTunedOptions):
    kind: Literal["fine-tuned-choice"] = "fine-tuned-choice"
    pooling: SummaryKind = "extract"  # what sums a row up: extract (at [CLS]), last, mean, max or attention

    def build(self, vocabulary: int, outputs: int = 0) -> "FineTunedChoice":
        return FineTunedChoice(self, vocabulary, outputs > 0)


class FineTunedChoice(RowModel):
    """Reads a text with each of its options and predicts which is right. Examples may have different numbers."""

    def __init__(self, config: FineTunedChoiceConfig, vocabulary: int, predicts: bool = False) -> None:
        super().__init__(config, vocabulary, 1, predicts)
        self.summary = Summary(config.pooling, self.output_size)

    def forward(self, batch: Batch) -> Tensor:
        """Logits (B, R), −∞ where there is no option."""
        return self._logits(self.read(batch), batch)

    def _logits(self, h: Tensor, batch: Batch) -> Tensor:
        scores = self.output(self.dropout(self.summaries(h, batch))).squeeze(2)  # (B, R)
        return scores.masked_fill(~batch["mask"].any(dim=2), -torch.inf)

    def loss(self, batch: Batch, language_model: float = 0.0) -> tuple[Tensor, Tensor]:
        """The mean of −log p of the right options, and how many examples there are."""
        h = self.read(batch)
        present = batch["mask"].any(dim=(1, 2))  # rows without an example have equal logits
        logits = at_least_float32(self._logits(h, batch)).where(present.unsqueeze(1), 0)
        targets, count = batch["answers"].masked_fill(~present, IGNORE_INDEX), present.sum()
        value = F.cross_entropy(logits, targets, reduction="sum") / count.clamp(min=1)
        return self.add_next_token_loss(value, h, batch, language_model), count


# --- answers ----------------------------------------------------------------------------------------------------------


@config
class FineTunedAnswerConfig(FineTunedOptions):
    kind: Literal["fine-tuned-answer"] = "fine-tuned-answer"

    def build(self, vocabulary: int, outputs: int = 0) -> "FineTunedAnswer":
        return FineTunedAnswer(self, vocabulary, outputs > 0)


class Spans(NamedTuple):
    """Answers in rows, best first; where there are fewer than asked for, the others have log p = −∞."""

    log_probs: Tensor  # (B, K): log p(start) + log p(end)
    first: Tensor  # (B, K), the position of their first token in the row
    last: Tensor  # (B, K)
    absent: Tensor  # (B,): log p(start) + log p(end) of [CLS], where the answer is not in this window
    losses: Tensor | None  # (B,), where the right answer is known


class FineTunedAnswer(RowModel):
    """Reads a question and a context, in one row, and predicts where in the context the answer begins and ends.

    `places` (B, 1, S) are where it may: the tokens of the context, and [CLS], which is the target
    where the answer is not in this window of the context.
    """

    def __init__(self, config: FineTunedAnswerConfig, vocabulary: int, predicts: bool = False) -> None:
        super().__init__(config, vocabulary, 2, predicts)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """log p (B, S) of every position as the first token of the answer, and as the last; −∞ where it may not be."""
        return self._log_probs(self.read(batch), batch)

    def _log_probs(self, h: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        allowed = batch["answerable"].flatten(0, 1)
        barred = ~allowed & allowed.any(dim=1, keepdim=True)  # rows without an example have equal, finite logits
        logits = at_least_float32(self.output(self.dropout(h)))  # (B, S, 2)
        first, last = logits.masked_fill(barred.unsqueeze(2), -torch.inf).log_softmax(dim=1).unbind(dim=2)
        return first, last

    def loss(self, batch: Batch, language_model: float = 0.0) -> tuple[Tensor, Tensor]:
        """The mean of −(log p(start) + log p(end)) / 2, and how many windows there are."""
        h = self.read(batch)
        losses, count = self.losses(*self._log_probs(h, batch), batch), batch["mask"].any(dim=(1, 2)).sum()
        return self.add_next_token_loss(losses.sum() / count.clamp(min=1), h, batch, language_model), count

    def losses(self, first: Tensor, last: Tensor, batch: Batch) -> Tensor:
        """−(log p(start) + log p(end)) / 2 (B,) of the right answers; 0 of rows without an example."""
        start, end = (
            log_probs.gather(1, batch[name].clamp(min=0).unsqueeze(1)).squeeze(1)
            for log_probs, name in ((first, "starts"), (last, "ends"))
        )
        return (-(start + end) / 2).where(batch["mask"].any(dim=(1, 2)), 0)

    @torch.no_grad()
    def spans(self, batch: Batch, longest: int, most: int = 1) -> Spans:
        """The `most` best spans of at most `longest` tokens in the context of each row."""
        first, last = self(batch)
        summary = torch.arange(batch["tokens"].shape[2], device=first.device) == batch["summary"].unsqueeze(1)
        context = batch["answerable"].flatten(0, 1) & ~summary
        starts, ends = (log_probs.masked_fill(~context, -torch.inf) for log_probs in (first, last))
        longest = min(longest, starts.shape[1])
        after = F.pad(ends, (0, longest - 1), value=-torch.inf).unfold(1, longest, 1)  # (B, S, longest), not S × S
        ranked = (starts.unsqueeze(2) + after).flatten(1).topk(min(most, after[0].numel()), dim=1)
        begins = ranked.indices // longest
        absent = (first + last).masked_fill(~summary, -torch.inf).amax(dim=1)
        losses = self.losses(first, last, batch) if "starts" in batch else None
        return Spans(ranked.values, begins, begins + ranked.indices % longest, absent, losses)
