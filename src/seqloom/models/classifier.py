"""Classifiers of texts and of series, which predict one of L labels for a sequence.

    x_j = [E w_j; spelling]     h_1 … h_S = encoder(x_1 … x_S)     c = pooling(h)     p(y) = softmax(W c + b)

A multi-label classifier predicts any number of labels: p(y_k) = sigmoid((W c + b)_k) for each label k.

A bag of words has no order and no pooling: c = Σ_j w_j x_j. The other encoders are defined in `seqloom.nn.encoders`,
poolings and the bag of words in `seqloom.nn.pooling`, and token vectors in `seqloom.nn.lexicon`.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import Discriminator, config
from seqloom.config.constraints import Fraction
from seqloom.nn.encoders import AnyEncoderConfig, Encoder, EncoderConfig, RecurrentEncoderConfig
from seqloom.nn.lexicon import Lexicon, LexiconOptions
from seqloom.nn.masks import make_dropout, masked_moments
from seqloom.nn.pooling import POOLINGS, Bag, BagConfig, PoolingKind
from seqloom.nn.softmax import IGNORE_INDEX, at_least_float32, symmetric_kl

# tokens (B, S), mask (B, S), and labels (B,), or labels (B, L) of 0 and 1 for multi-label classifiers. Models that read
# spelling also have characters (B, S, C), 0 at padding.
Batch = dict[str, Tensor]


@config
class ClassifierConfig(LexiconOptions):
    kind: Literal["classifier"] = "classifier"
    encoder: Annotated[BagConfig | AnyEncoderConfig, Discriminator("kind")] = RecurrentEncoderConfig()
    # pooling over the tokens: last, mean, max or attention; null: mean; not for a bag
    pooling: PoolingKind | None = None

    def problems(self) -> Iterator[str]:
        if self.pooling is not None and self.encoder.kind == "bag":
            yield "pooling needs an encoder other than bag; remove pooling"

    @property
    def longest(self) -> int | None:
        """The maximum number of tokens; None means no limit."""
        return None if isinstance(self.encoder, BagConfig) else self.encoder.longest

    def build(self, vocabulary: int, labels: int, characters: int = 0, multi_label: int = 0) -> "TextClassifier":
        model = TextClassifier(self, vocabulary, labels, characters)
        model.multi_label = bool(multi_label)
        return model


class ChoosingModel(nn.Module):
    """The base class of models that choose one of L labels or options: p = softmax(logits / T).

    With `multi_label`, every label has a separate probability, p = sigmoid(logits / T). The loss ignores labels below
    0, which represent labels that do not occur in train.
    """

    temperature = 1.0  # T, which a predictor sets for a calibrated run; training does not use it
    multi_label = False  # whether an example may have any number of labels

    def forward(self, batch: Batch) -> Tensor:
        """Compute the logits (B, L)."""
        raise NotImplementedError

    @torch.no_grad()
    def probabilities(self, batch: Batch) -> Tensor:
        """Return p (B, L) of every label or option; options that do not exist have p = 0."""
        logits = self.scaled_logits(batch)
        return logits.sigmoid() if self.multi_label else logits.softmax(dim=1)

    @torch.no_grad()
    def log_probs(self, batch: Batch) -> Tensor:
        """Return log p (B, L)."""
        return self.normalize(self.scaled_logits(batch))

    @torch.no_grad()
    def scaled_logits(self, batch: Batch) -> Tensor:
        """Return the logits (B, L) divided by the temperature."""
        return at_least_float32(self(batch)) / self.temperature

    def normalize(self, logits: Tensor) -> Tensor:
        """Return log p (B, L) for logits."""
        return F.logsigmoid(logits) if self.multi_label else logits.log_softmax(dim=1)


class ClassifierBase(ChoosingModel):
    """The base class of classifiers, with their loss."""

    def loss(
        self,
        batch: Batch,
        class_weights: Tensor | None = None,
        label_smoothing: float = 0.0,
        consistency: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Return the mean loss and the number of examples; see `label_loss` and `multi_label_loss`."""
        batch, consistency = repeat_for_consistency(self, batch, consistency)
        return label_loss(self(batch), batch["labels"], class_weights, label_smoothing, consistency)


def repeat_for_consistency(model: nn.Module, batch: Batch, consistency: float) -> tuple[Batch, float]:
    """Append a copy of the batch, so that each text is read with two dropout masks.

    Outside training, the batch is returned unchanged, and consistency is 0.
    """
    if not consistency or not model.training:
        return batch, 0.0
    return {name: torch.cat([value] * 2) for name, value in batch.items() if isinstance(value, Tensor)}, consistency


def label_loss(
    logits: Tensor,
    labels: Tensor,
    class_weights: Tensor | None = None,
    label_smoothing: float = 0.0,
    consistency: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the mean of ℓ = −log p over the labels (B,) ≥ 0, and their number, without device synchronization.

    With class weights w (L,), the mean is Σ w_y · (−log p(y)) / Σ w_y. With label smoothing ε, the loss of a text is
    (1−ε) · (−log p(y)) + ε/L · Σ_v −log p(v), with each −log p(v) multiplied by w_v. With consistency α, the second
    half of the batch repeats the first half (`repeat_for_consistency`), and the loss is (ℓ(p) + ℓ(q)) / 2 + α/4 ·
    (KL(p‖q) + KL(q‖p)). For labels (B, L) of a multi-label classifier, see `multi_label_loss`.
    """
    if labels.dim() == 2:
        return multi_label_loss(logits, labels, class_weights, label_smoothing)
    counted = labels >= 0
    targets, logits = labels.masked_fill(~counted, IGNORE_INDEX), at_least_float32(logits)
    weight = None if class_weights is None else at_least_float32(class_weights)
    total = F.cross_entropy(logits, targets, weight, reduction="sum", label_smoothing=label_smoothing)
    count = counted.sum()
    divisor = count if weight is None else (weight[labels.clamp(min=0)] * counted).sum()
    value = total / divisor.to(total.dtype).clamp(min=torch.finfo(total.dtype).tiny)
    if not consistency:
        return value, count
    value = value + consistency / 2 * symmetric_kl(logits.log_softmax(dim=1), targets) / count.clamp(min=1)
    return value, count // 2


def multi_label_loss(
    logits: Tensor, labels: Tensor, positive_weights: Tensor | None = None, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return the mean binary cross-entropy over texts and labels, and the number of texts.

    `labels` (B, L) contains 0 and 1; rows with values below 0 are ignored. With y the target and p = sigmoid(logit),

        ℓ = −(w y log p + (1 − y) log(1 − p))     y = (1 − ε) · label + ε/2

    where w is the positive weight (L,) of the label, 1 by default, and ε the label smoothing.
    """
    counted, logits = labels[:, 0] >= 0, at_least_float32(logits)
    targets = labels.clamp(min=0).to(logits.dtype) * (1 - label_smoothing) + label_smoothing / 2
    weight = None if positive_weights is None else positive_weights.to(logits.dtype)
    losses = F.binary_cross_entropy_with_logits(logits, targets, pos_weight=weight, reduction="none")
    count = counted.sum()
    return (losses.mean(dim=1) * counted).sum() / count.clamp(min=1), count


def label_influence(logits: Tensor, x: Tensor, mask: Tensor, labels: Tensor | None) -> Tensor:
    """Compute gradient × input, xᵀ ∂logit/∂x (B, S), for x (B, S, D) and the logit of a label (B,).

    By default, the label is the most probable label. The result is 0 at padding.
    """
    chosen = logits.argmax(dim=1) if labels is None else labels
    (gradient,) = torch.autograd.grad(logits.gather(1, chosen.unsqueeze(1)).sum(), x)
    return at_least_float32(x.detach() * gradient).sum(dim=2).masked_fill(~mask, 0)


class TextClassifier(ClassifierBase):
    """A text classifier. Padding comes last, and a text may be empty."""

    def __init__(self, config: ClassifierConfig, vocabulary: int, labels: int, characters: int = 0) -> None:
        super().__init__()
        self.config = config
        self.lexicon = Lexicon(config, vocabulary, characters)
        self.bag: Bag | None = None
        self.encoder: Encoder | None = None
        if isinstance(config.encoder, BagConfig):
            self.bag, width = config.encoder.build(vocabulary), self.lexicon.output_size
        else:
            self.encoder = config.encoder.build(self.lexicon.output_size)
            width = self.encoder.output_size
            self.pooling = POOLINGS[config.pooling or "mean"](width)
        self.dropout = make_dropout(config.dropout)
        self.output = nn.Linear(width, labels)
        nn.init.zeros_(self.output.bias)

    def notes(self) -> list[str]:
        """Return notes for the user on behaviour that the recipe does not show."""
        return [] if self.encoder is None else self.encoder.notes()

    def set_documents(self, document_counts: Tensor, documents: int) -> None:
        """Set the numbers for tf-idf: the training texts that contain each token (V,), and all training texts."""
        if self.bag is not None:
            self.bag.set_documents(document_counts, documents)

    def read(self, batch: Batch) -> Tensor:
        """Compute the token vectors x (B, S, D)."""
        x: Tensor = self.lexicon(batch["tokens"], self.lexicon.read_spelling(batch.get("characters")))
        return x

    def forward(self, batch: Batch) -> Tensor:
        return self._logits(self.read(batch), batch)[0]

    def _logits(self, x: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Compute the logits (B, L) and the weights (B, S) of attention pooling."""
        mask, weights = batch["mask"], None
        if self.encoder is not None:
            h, ends = self.encoder.read(x, mask)  # (B, S, H), (B, H)
            c, weights = self.pooling(h, mask, ends)
        elif self.bag is not None:
            c = self.bag(x, batch["tokens"], mask)
        return self.output(self.dropout(c)), weights

    @torch.no_grad()
    def attention(self, batch: Batch) -> Tensor | None:
        """Return the attention-pooling weight of each token (B, S), 0 at padding, or None with other poolings."""
        return self._logits(self.read(batch), batch)[1]

    @torch.no_grad()
    def attentions(self, batch: Batch) -> list[Tensor]:
        """Return the attention weights (B, N, S, S) of each encoder layer, 0 at padding.

        The list is empty if the encoder has no attention.
        """
        return [] if self.encoder is None else self.encoder.attentions(self.read(batch), batch["mask"])

    @torch.enable_grad()
    def influence(self, batch: Batch, labels: Tensor | None = None) -> Tensor:
        """Compute the contribution (B, S) of each token to a logit; see `label_influence`.

        For a bag of words, the contribution is exact.
        """
        x = self.read(batch).detach().requires_grad_()
        return label_influence(self._logits(x, batch)[0], x, batch["mask"], labels)


# --- series -----------------------------------------------------------------------------------------------------------


@config
class SeriesClassifierConfig:
    kind: Literal["series-classifier"] = "series-classifier"
    encoder: EncoderConfig = RecurrentEncoderConfig()
    pooling: PoolingKind = "mean"  # pooling over the steps: last, mean, max or attention
    dropout: Fraction = 0.0  # dropout before the output layer

    def build(self, variables: int, labels: int) -> "SeriesClassifierModel":
        return SeriesClassifierModel(self, variables, labels)


class SeriesClassifierModel(ClassifierBase):
    """A classifier of series:

        x_t = [(y_t − m) / s; observed]    h_1 … h_T = encoder(x_1 … x_T)    c = pooling(h)    p(l) = softmax(W c + b)

    m and s are the mean and the standard deviation of each variable in train, stored as buffers.
    A batch contains `values` (B, T, C), `observed` (B, T, C), and the mask (B, T) of steps with padding last.
    """

    centre: Tensor
    scale: Tensor

    def __init__(self, config: SeriesClassifierConfig, variables: int, labels: int) -> None:
        super().__init__()
        self.config, self.variables = config, variables
        self.encoder = config.encoder.build(2 * variables)
        self.pooling = POOLINGS[config.pooling](self.encoder.output_size)
        self.dropout = make_dropout(config.dropout)
        self.output = nn.Linear(self.encoder.output_size, labels)
        nn.init.zeros_(self.output.bias)
        self.register_buffer("centre", torch.zeros(variables))
        self.register_buffer("scale", torch.ones(variables))

    def set_scale(self, series: Sequence[Tensor]) -> None:
        """Set the mean and the standard deviation of training series (T, C), in which missing values are NaN.

        The standard deviation of a constant variable is 1.
        """
        mean, deviation = masked_moments(series, [~values.isnan() for values in series])
        self.centre.copy_(mean)
        self.scale.copy_(deviation)

    def notes(self) -> list[str]:
        return self.encoder.notes()

    def forward(self, batch: Batch) -> Tensor:
        """Compute the logits (B, L)."""
        values, observed, mask = batch["values"], batch["observed"], batch["mask"]
        z = torch.where(observed, (values - self.centre) / self.scale, 0)
        h, ends = self.encoder.read(torch.cat([z, observed.to(z.dtype)], dim=2), mask)
        c, _ = self.pooling(h, mask, ends)
        logits: Tensor = self.output(self.dropout(c))
        return logits
