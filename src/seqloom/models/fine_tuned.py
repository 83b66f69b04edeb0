"""Fine-tuned models: a pretrained backbone with a small output layer for the new task.

    classifier   h = backbone(x)     c = extract(h) or another pooling     p(y) = softmax(W c + b), or sigmoid
    tagger       h = backbone(x)     e_w = W h_{first(w)} + b, optionally with a CRF
    pair         one row, or a row r for each order      c = Σ_r pooler(backbone(x_r))     p(y) = softmax(W c + b)
                 with scores instead of labels           ŷ = μ + σ (w · c + b), minimizing (y − ŷ)² / σ²
    choice       one row per option                      s_r = w · pooler(backbone(x_r))   p(r) = softmax_r(s_r)
    answer       question and context in one row         s_j, e_j = W h_j       p(start = j), p(end = j) = softmax_j

A classifier or a tagger can have an additional encoder, h = encoder(backbone(x)), for example above a frozen ELMo. μ
and σ are the mean and the standard deviation of the training scores. Backbones are defined in
`seqloom.models.backbones`, and rows in `seqloom.text.model_inputs`. `seqloom.train.optimizers` sets the learning rate
of each layer group and unfreezes the groups; the layers above the backbone are one group.
"""

import math
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import Fraction
from seqloom.models.backbones import Backbone, BackboneConfig, backbone_class, build_backbone
from seqloom.models.classifier import (
    Batch,
    ChoosingModel,
    ClassifierBase,
    label_influence,
    label_loss,
    repeat_for_consistency,
)
from seqloom.models.tagger import TaggerBase
from seqloom.nn.encoders import AnyEncoderConfig, Encoder, EncoderConfig
from seqloom.nn.masks import make_dropout, select_last
from seqloom.nn.pooling import POOLINGS, Pooling
from seqloom.nn.softmax import IGNORE_INDEX, at_least_float32

NO_ENCODER: AnyEncoderConfig | None = None
PoolerKind = Literal["extract", "last", "mean", "max", "attention"]


@config
class FineTunedOptions:
    """The options of every model with a backbone."""

    kind: str = ""
    backbone: BackboneConfig | None = None  # configuration of the pretrained model, set by `init.from`
    dropout: Fraction = 0.1  # dropout before the encoder and the output layer; the backbone has a separate dropout

    # Values for models without these keys
    characters = vectors = None
    encoder = NO_ENCODER

    @property
    def longest(self) -> int | None:
        """The maximum number of tokens per row, including special tokens; None means no limit."""
        above = None if self.encoder is None else self.encoder.longest
        below = None if self.backbone is None else backbone_class(self.backbone).longest(self.backbone)
        return min((length for length in (above, below) if length is not None), default=None)


class Pooler(nn.Module):
    """Pooling of the states of a row: it maps h (B, S, H) to c (B, H), and with attention also to weights (B, S).

    `extract` selects the vector that the backbone extracts at [CLS], or the final state of an encoder above the
    backbone. `last` selects the state before the final special token. `mean`, `max` and `attention` pool all tokens.
    """

    def __init__(self, kind: PoolerKind, width: int) -> None:
        super().__init__()
        self.kind = kind
        self.pooling: Pooling | None = None
        if kind != "extract" and kind != "last":
            self.pooling = POOLINGS[kind](width)

    def forward(
        self, backbone: Backbone, h: Tensor, mask: Tensor, ends: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Pool h. `ends` (B, H) are the final states of an encoder above the backbone."""
        if self.kind == "extract":
            return backbone.extract(h, mask) if ends is None else ends, None
        if self.pooling is None:
            return select_last(h[:, :-1], mask[:, 1:]), None
        c, weights = self.pooling(h, mask, h[:, 0])
        return c, weights


class FineTuned(nn.Module):
    """A backbone with layers above it.

    Tokens, mask and segments have the shape (B, S), or (B, R, S) with R rows per example.
    """

    def __init__(self, config: FineTunedOptions, vocabulary: int, predicts: bool = False) -> None:
        super().__init__()
        if config.backbone is None:
            raise ValueError("model.backbone is missing; set it, or set init.from to a run")
        self.config = config
        self.backbone = build_backbone(config.backbone, vocabulary, predicts)
        self.encoder: Encoder | None = (
            None if config.encoder is None else config.encoder.build(self.backbone.output_size)
        )
        self.output_size = self.backbone.output_size if self.encoder is None else self.encoder.output_size

    def notes(self) -> list[str]:
        """Return notes for the user on behaviour that the recipe does not show."""
        return self.backbone.notes()

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Return the layer groups of the backbone, and one group with all other parameters."""
        groups = self.backbone.layer_groups()
        below = {id(parameter) for group in groups for parameter in group}
        return [*groups, [parameter for parameter in self.parameters() if id(parameter) not in below]]

    def read(self, batch: Batch) -> Tensor:
        """Compute h (B·R, S, H) with the backbone."""
        segments = batch.get("segments")
        rows = batch["tokens"].flatten(0, -2), batch["mask"].flatten(0, -2)
        return self.backbone.read(*rows, None if segments is None else segments.flatten(0, -2))

    def add_next_token_loss(self, loss: Tensor, h: Tensor, batch: Batch, weight: float) -> Tensor:
        """Add `weight` times the language-model loss on the same rows (Radford et al. 2018)."""
        if not weight:
            return loss
        rows = batch["tokens"].flatten(0, -2), batch["mask"].flatten(0, -2)
        return loss + weight * self.backbone.next_token_loss(h, *rows)

    @torch.no_grad()
    def attentions(self, batch: Batch) -> list[Tensor]:
        """Return the attention weights (B, N, S, S) of each backbone layer, 0 at padding.

        The list is empty if the backbone has no attention.
        """
        return self.backbone.attentions(batch["tokens"], batch["mask"])


class LabelModel(FineTuned):
    """The base class of models with one label per example."""

    def outputs(self, h: Tensor, batch: Batch) -> Tensor:
        """Compute the logits (B, L) from h (B·R, S, H) of the backbone."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> Tensor:
        return self.outputs(self.read(batch), batch)

    def output_loss(self, outputs: Tensor, batch: Batch, *options: Any) -> tuple[Tensor, Tensor]:
        """Return the loss of the outputs and the number of examples; see `label_loss`."""
        return label_loss(outputs, batch["labels"], *options)

    def loss(
        self,
        batch: Batch,
        class_weights: Tensor | None = None,
        label_smoothing: float = 0.0,
        consistency: float = 0.0,
        language_model: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Return the label loss plus `language_model` times the language-model loss, and the number of examples."""
        batch, consistency = repeat_for_consistency(self, batch, consistency)
        h = self.read(batch)
        value, count = self.output_loss(self.outputs(h, batch), batch, class_weights, label_smoothing, consistency)
        return self.add_next_token_loss(value, h, batch, language_model), count


# --- classifier -------------------------------------------------------------------------------------------------------


@config
class FineTunedClassifierConfig(FineTunedOptions):
    kind: Literal["fine-tuned-classifier"] = "fine-tuned-classifier"
    encoder: EncoderConfig | None = None  # encoder above the backbone: recurrent, convolution or transformer
    pooling: PoolerKind = "extract"  # pooling over the tokens: extract (at [CLS]), last, mean, max or attention

    def build(self, vocabulary: int, labels: int, outputs: int = 0, multi_label: int = 0) -> "FineTunedClassifier":
        """Create the model. If `outputs` is above 0, the backbone can also predict the next token."""
        model = FineTunedClassifier(self, vocabulary, labels, outputs > 0)
        model.multi_label = bool(multi_label)
        return model


class FineTunedClassifier(LabelModel, ClassifierBase):
    """A classifier of texts with special tokens."""

    def __init__(self, config: FineTunedClassifierConfig, vocabulary: int, labels: int, predicts: bool = False) -> None:
        super().__init__(config, vocabulary, predicts)
        self.pooler = Pooler(config.pooling, self.output_size)
        self.dropout = make_dropout(config.dropout)
        self.output = nn.Linear(self.output_size, labels)
        nn.init.zeros_(self.output.bias)

    def outputs(self, h: Tensor, batch: Batch) -> Tensor:
        return self._logits(h, batch)[0]

    def _logits(self, h: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Compute the logits (B, L) and the weights (B, S) of attention pooling from h (B, S, H) of the backbone."""
        mask, ends = batch["mask"], None
        if self.encoder is not None:
            h, ends = self.encoder.read(self.dropout(h), mask)
        c, weights = self.pooler(self.backbone, h, mask, ends)
        return self.output(self.dropout(c)), weights

    @torch.no_grad()
    def attention(self, batch: Batch) -> Tensor | None:
        """Return the attention-pooling weight of each token (B, S), 0 at padding, or None with other poolings."""
        return self._logits(self.read(batch), batch)[1]

    @torch.enable_grad()
    def influence(self, batch: Batch, labels: Tensor | None = None) -> Tensor:
        """Compute the contribution of each token (B, S) to the logit of a label (B,); see `label_influence`."""
        vectors: list[Tensor] = []

        def record(module: nn.Module, inputs: object, x: Tensor) -> Tensor:
            vectors.append(x.detach().requires_grad_())
            return vectors[0]

        handle = self.backbone.token_embedding().register_forward_hook(record)
        try:
            logits = self(batch)
        finally:
            handle.remove()
        return label_influence(logits, vectors[0], batch["mask"], labels)


# --- tagger -----------------------------------------------------------------------------------------------------------


@config
class FineTunedTaggerConfig(FineTunedOptions):
    kind: Literal["fine-tuned-tagger"] = "fine-tuned-tagger"
    encoder: EncoderConfig | None = None  # encoder above the backbone: recurrent, convolution or transformer
    crf: bool = False  # predict the tags of a sentence jointly with a conditional random field
    constrain: bool = True  # for tags that mark spans, allow only valid sequences: no I-PER after O

    def build(self, vocabulary: int, tags: int) -> "FineTunedTagger":
        return FineTunedTagger(self, vocabulary, tags)


class FineTunedTagger(FineTuned, TaggerBase):
    """A tagger of sentences with special tokens. The tag of a word is predicted at the word's first token."""

    def __init__(self, config: FineTunedTaggerConfig, vocabulary: int, tags: int) -> None:
        super().__init__(config, vocabulary)
        self.build_output(self.output_size, tags, dropout=config.dropout, crf=config.crf, constrained=config.constrain)

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
    pooling: PoolerKind = "extract"  # pooling over a row: extract (at [CLS]), last, mean, max or attention

    def build(self, vocabulary: int, labels: int = 0, scores: int = 0, outputs: int = 0) -> "FineTunedPair":
        """Create a model for `labels` labels, or for one score; see `FineTunedClassifierConfig.build` for `outputs`."""
        return FineTunedPair(self, vocabulary, labels or scores, outputs > 0)


class RowModel(FineTuned):
    """The base class of models that read one or more rows (B, R, S) per example."""

    pooler: Pooler  # defined by models that need one vector per row

    def __init__(self, config: FineTunedOptions, vocabulary: int, outputs: int, predicts: bool) -> None:
        super().__init__(config, vocabulary, predicts)
        self.dropout = make_dropout(config.dropout)
        self.output = nn.Linear(self.output_size, outputs)
        nn.init.zeros_(self.output.bias)

    def pool_rows(self, h: Tensor, batch: Batch) -> Tensor:
        """Pool h (B·R, S, H) to c (B, R, H). For rows without tokens, c is 0."""
        mask = batch["mask"]
        c, _ = self.pooler(self.backbone, h, mask.flatten(0, 1))
        return c.unflatten(0, mask.shape[:2]).where(mask.any(dim=2, keepdim=True), 0)


class FineTunedPair(RowModel, LabelModel, ChoosingModel):
    """A model of sentence pairs that predicts a label. With a single output, it predicts a score.

    The loss ignores labels below 0, which represent labels that do not occur in train.
    """

    center: Tensor
    scale: Tensor

    def __init__(self, config: FineTunedPairConfig, vocabulary: int, outputs: int, predicts: bool = False) -> None:
        super().__init__(config, vocabulary, outputs, predicts)
        self.pooler = Pooler(config.pooling, self.output_size)
        self.is_regression = outputs == 1
        if self.is_regression:
            self.register_buffer("center", torch.zeros(()))
            self.register_buffer("scale", torch.ones(()))

    @torch.no_grad()
    def set_score_scale(self, center: float, scale: float) -> None:
        """Set the mean and the standard deviation of the training scores."""
        self.center.fill_(center)
        self.scale.fill_(scale)

    def outputs(self, h: Tensor, batch: Batch) -> Tensor:
        """Compute logits (B, L), or scores (B,)."""
        outputs: Tensor = self.output(self.dropout(self.pool_rows(h, batch).sum(dim=1)))  # (B, L)
        return self.center + self.scale * at_least_float32(outputs.squeeze(1)) if self.is_regression else outputs

    def output_loss(self, outputs: Tensor, batch: Batch, *options: Any) -> tuple[Tensor, Tensor]:
        """Return the loss of labels (`label_loss`) or scores (mean of (y − ŷ)² / σ²), and the number of examples."""
        if not self.is_regression:
            return super().output_loss(outputs, batch, *options)
        present = batch["mask"].any(dim=(1, 2))
        error = ((outputs - batch["scores"]) / self.scale).square() * present
        return error.sum() / present.sum().clamp(min=1), present.sum()


def mean_and_deviation(scores: list[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation of scores. The deviation is 1 if all scores are equal."""
    mean = math.fsum(scores) / len(scores)
    return mean, math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores)) or 1.0


# --- choices ----------------------------------------------------------------------------------------------------------


@config
class FineTunedChoiceConfig(FineTunedOptions):
    kind: Literal["fine-tuned-choice"] = "fine-tuned-choice"
    pooling: PoolerKind = "extract"  # pooling over a row: extract (at [CLS]), last, mean, max or attention

    def build(self, vocabulary: int, outputs: int = 0) -> "FineTunedChoice":
        return FineTunedChoice(self, vocabulary, outputs > 0)


class FineTunedChoice(RowModel, ChoosingModel):
    """A multiple-choice model that reads one row per option. The number of options may vary between examples."""

    def __init__(self, config: FineTunedChoiceConfig, vocabulary: int, predicts: bool = False) -> None:
        super().__init__(config, vocabulary, 1, predicts)
        self.pooler = Pooler(config.pooling, self.output_size)

    def forward(self, batch: Batch) -> Tensor:
        """Compute the logits (B, R). Options that do not exist have the logit −∞."""
        return self._logits(self.read(batch), batch)

    def _logits(self, h: Tensor, batch: Batch) -> Tensor:
        scores = self.output(self.dropout(self.pool_rows(h, batch))).squeeze(2)  # (B, R)
        return scores.masked_fill(~batch["mask"].any(dim=2), -torch.inf)

    def loss(self, batch: Batch, language_model: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the mean of −log p of the correct options, and the number of examples."""
        h = self.read(batch)
        present = batch["mask"].any(dim=(1, 2))  # the logits of a row without an example are all equal
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


class AnswerSpans(NamedTuple):
    """The best answers of each row, best first. A missing answer has log p = −∞."""

    log_probs: Tensor  # (B, K): log p(start) + log p(end)
    first: Tensor  # (B, K), the position of the first token in the row
    last: Tensor  # (B, K), the position of the last token in the row
    absent: Tensor  # (B,): log p(start) + log p(end) of [CLS], which means that this window has no answer
    losses: Tensor | None  # (B,), if the batch has targets


class FineTunedAnswer(RowModel):
    """An extractive question-answering model that predicts the first and the last token of the answer.

    A row contains the question and a window of the context. `answerable` (B, 1, S) marks the tokens of the context and
    [CLS], which is the target if the window does not contain the answer.
    """

    def __init__(self, config: FineTunedAnswerConfig, vocabulary: int, predicts: bool = False) -> None:
        super().__init__(config, vocabulary, 2, predicts)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute log p(start) and log p(end) (B, S) of every position, −∞ where `answerable` is False."""
        return self._log_probs(self.read(batch), batch)

    def _log_probs(self, h: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        allowed = batch["answerable"].flatten(0, 1)
        excluded = ~allowed & allowed.any(dim=1, keepdim=True)  # for a row without an example, all logits stay finite
        logits = at_least_float32(self.output(self.dropout(h)))  # (B, S, 2)
        first, last = logits.masked_fill(excluded.unsqueeze(2), -torch.inf).log_softmax(dim=1).unbind(dim=2)
        return first, last

    def loss(self, batch: Batch, language_model: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the mean of −(log p(start) + log p(end)) / 2, and the number of windows."""
        h = self.read(batch)
        losses, count = self.losses(*self._log_probs(h, batch), batch), batch["mask"].any(dim=(1, 2)).sum()
        return self.add_next_token_loss(losses.sum() / count.clamp(min=1), h, batch, language_model), count

    def losses(self, first: Tensor, last: Tensor, batch: Batch) -> Tensor:
        """Return −(log p(start) + log p(end)) / 2 (B,) of the correct answers, or 0 for rows without an example."""
        start, end = (
            log_probs.gather(1, batch[name].clamp(min=0).unsqueeze(1)).squeeze(1)
            for log_probs, name in ((first, "starts"), (last, "ends"))
        )
        return (-(start + end) / 2).where(batch["mask"].any(dim=(1, 2)), 0)

    @torch.no_grad()
    def best_spans(self, batch: Batch, max_length: int, count: int = 1) -> AnswerSpans:
        """Return the `count` best spans of at most `max_length` tokens in the context of each row."""
        first, last = self(batch)
        is_cls = torch.arange(batch["tokens"].shape[2], device=first.device) == batch["cls_positions"].unsqueeze(1)
        context = batch["answerable"].flatten(0, 1) & ~is_cls
        starts, ends = (log_probs.masked_fill(~context, -torch.inf) for log_probs in (first, last))
        length = min(max_length, starts.shape[1])
        # (B, S, length) instead of (B, S, S)
        after = F.pad(ends, (0, length - 1), value=-torch.inf).unfold(1, length, 1)
        ranked = (starts.unsqueeze(2) + after).flatten(1).topk(min(count, after[0].numel()), dim=1)
        begins = ranked.indices // length
        absent = (first + last).masked_fill(~is_cls, -torch.inf).amax(dim=1)
        losses = self.losses(first, last, batch) if "starts" in batch else None
        return AnswerSpans(ranked.values, begins, begins + ranked.indices % length, absent, losses)
