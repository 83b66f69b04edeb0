"""Series classifier: many vectors in, one of L labels out.

    x_t = [(y_t − m) / s; observed]     h_1 … h_T = encoder(x_1 … x_T)     c = pooling(h)     p(l) = softmax(W c + b)

m and s are mean and deviation of each variable in train: buffers, so that they stay with the weights. The encoders are
those that read texts, `seqloom.nn.encoders`; the ways from many vectors to one are in `seqloom.nn.pooling`.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from seqloom.config import config
from seqloom.models.classifier import Batch, Labelling
from seqloom.nn.dropout import make_dropout
from seqloom.nn.encoders import EncoderConfig, RecurrentEncoderConfig
from seqloom.nn.pooling import POOLINGS, PoolingKind


@config
class SeriesClassifierConfig:
    kind: Literal["series-classifier"] = "series-classifier"
    encoder: EncoderConfig = RecurrentEncoderConfig()
    pooling: PoolingKind = "mean"  # last, mean, max or attention
    dropout: float = 0.0  # before the output layer

    def problems(self) -> Iterator[str]:
        if not 0 <= self.dropout < 1:
            yield f"dropout must be at least 0 and below 1; got {self.dropout}"

    def build(self, variables: int, labels: int) -> "SeriesClassifier":
        return SeriesClassifier(self, variables, labels)


class SeriesClassifier(Labelling):
    """Reads values (B, T, C) with a mask (B, T) of real steps, which stand first, and `observed` (B, T, C)."""

    centre: Tensor
    scale: Tensor

    def __init__(self, config: SeriesClassifierConfig, variables: int, labels: int) -> None:
        super().__init__()
        self.config, self.variables = config, variables
        self.encoder = config.encoder.build(2 * variables)
        self.pooling = POOLINGS[config.pooling](self.encoder.width)
        self.dropout = make_dropout(config.dropout)
        self.output = nn.Linear(self.encoder.width, labels)
        nn.init.zeros_(self.output.bias)
        self.register_buffer("centre", torch.zeros(variables))
        self.register_buffer("scale", torch.ones(variables))

    def set_scale(self, series: Sequence[Tensor]) -> None:
        """Mean and deviation of the training series (T, C), NaN where a value is missing; 1 where nothing varies."""
        whole = torch.cat(list(series)).double()
        known = ~whole.isnan()
        count = known.sum(dim=0).clamp(min=1)
        mean = whole.nan_to_num().sum(dim=0) / count
        variance = torch.where(known, (whole - mean) ** 2, 0).sum(dim=0) / count
        self.centre.copy_(mean)
        self.scale.copy_(torch.where(variance > 0, variance.sqrt(), 1.0))

    def notes(self) -> list[str]:
        return self.encoder.notes()

    def forward(self, batch: Batch) -> Tensor:
        """Logits (B, L)."""
        values, observed, mask = batch["values"], batch["observed"], batch["mask"]
        z = torch.where(observed, (values - self.centre) / self.scale, 0)
        h, ends = self.encoder.read(torch.cat([z, observed.to(z.dtype)], dim=2), mask)
        summary, _ = self.pooling(h, mask, ends)
        logits: Tensor = self.output(self.dropout(summary))
        return logits
