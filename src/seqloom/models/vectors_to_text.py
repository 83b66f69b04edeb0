"""Models that read a sequence of vectors, such as frames of sound or offsets of a pen, and write a text.

    h_1 … h_S' = encoder(x_1 … x_S)            recurrent, pyramidal (S' < S), convolution or Transformer

    attention    ℓ = −log p(y | h) by the encoder–decoder `seq2seq`, which reads h
    ctc          ℓ = −log p(y | h),  p_t = softmax(W h_t + b) over the tokens and the blank; see `seqloom.nn.ctc`
    joint        ℓ = (1 − λ) · ℓ_attention + λ · ℓ_ctc (Watanabe et al. 2017)

All losses are divided by the number of target tokens, END included.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from seqloom.config import Discriminator, config
from seqloom.config.constraints import Fraction, Probability
from seqloom.core.tree import Tree
from seqloom.models.image_to_text import SequenceToTextConfig
from seqloom.models.seq2seq import Batch, Seq2Seq, SourceVectors
from seqloom.nn.ctc import ctc_log_likelihood
from seqloom.nn.encoders import AnyEncoderConfig, RecurrentEncoderConfig
from seqloom.nn.masks import make_dropout
from seqloom.nn.pyramid import PyramidalEncoderConfig
from seqloom.nn.softmax import at_least_float32

VectorEncoderConfig = AnyEncoderConfig | PyramidalEncoderConfig
LossKind = Literal["attention", "ctc", "joint"]


@config
class VectorsToTextConfig(SequenceToTextConfig):
    kind: Literal["vectors-to-text"] = "vectors-to-text"
    encoder: Annotated[VectorEncoderConfig, Discriminator("kind")] = RecurrentEncoderConfig()
    loss: LossKind = "attention"  # attention: an encoder–decoder; ctc: a label or a blank for each frame; joint: both
    ctc_weight: Probability = 0.3  # λ, the weight of CTC in the joint loss
    dropout: Fraction = 0.0  # dropout on the outputs of the encoder

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.seq2seq.kind == "recurrent-seq2seq" and self.seq2seq.context == "first":
            yield "seq2seq.context must be start or every; got first"

    @property
    def has_decoder(self) -> bool:
        """Whether the model has an encoder–decoder."""
        return self.loss != "ctc"

    @property
    def has_ctc(self) -> bool:
        """Whether the model has an output layer for CTC."""
        return self.loss != "attention"

    @property
    def reduction(self) -> int:
        """The number of vectors that the encoder combines into one output."""
        return self.encoder.reduction if isinstance(self.encoder, PyramidalEncoderConfig) else 1

    @property
    def longest_vectors(self) -> int | None:
        """The maximum number of vectors of a recording; None means no limit."""
        return min((longest for longest, _ in self._position_limits()), default=None)

    @property
    def longest_vectors_key(self) -> str:
        """The option that limits the number of vectors of a recording."""
        return min(self._position_limits(), default=(0, ""))[1]

    def _position_limits(self) -> list[tuple[int, str]]:
        """Return the limits of the encoder and of the encoder–decoder, each with its option."""
        limits = [(self.encoder.longest, "encoder.positions.max_length")]
        limits += [(self.longest_source, self.longest_key)] if self.has_decoder else []
        return [(longest * self.reduction, key) for longest, key in limits if longest is not None]

    def build(self, vocabulary: int, size: int) -> "VectorsToText":
        """Create a model that reads vectors of `size` values."""
        return VectorsToText(self, vocabulary, size)


class EncodedVectors(SourceVectors):
    """The outputs h (B, S', H) of an encoder, {"encoded": h}, as the source of an encoder–decoder."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.output_size = size

    def forward(self, source: Tree) -> Tensor:
        encoded: Tensor = source["encoded"]
        return encoded


class VectorsToText(nn.Module):
    """A model of transcriptions. A batch contains vectors (B, S, D), mask, inputs, targets and target_mask (B, T)."""

    def __init__(self, config: VectorsToTextConfig, vocabulary: int, size: int) -> None:
        super().__init__()
        self.config = config
        self.encoder = config.encoder.build(size)
        encoded = self.encoder.output_size
        self.dropout = make_dropout(config.dropout)
        self.seq2seq: Seq2Seq | None = None
        if config.has_decoder:
            self.seq2seq = config.seq2seq.build(vocabulary, source=EncodedVectors(encoded))
        self.labels = nn.Linear(encoded, vocabulary) if config.has_ctc else None  # the blank has the id of END

    def notes(self) -> list[str]:
        """Return notes for the user on behaviour that the recipe does not show."""
        decoder = [] if self.seq2seq is None else self.seq2seq.notes()
        return [*self.encoder.notes(), *decoder]

    def encode(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the outputs h (B, S', H) of the encoder and their mask (B, S')."""
        h: Tensor = self.dropout(self.encoder(batch["vectors"], batch["mask"]))
        return h, self.encoder.output_mask(batch["mask"])

    def decoder_source(self, h: Tensor, mask: Tensor) -> dict[str, Tree]:
        """Return the source of the encoder–decoder for h (B, S', H)."""
        return {"source": {"encoded": h}, "source_mask": mask}

    def label_log_probs(self, h: Tensor) -> Tensor:
        """Return log p_t (B, S', V) of the tokens and the blank."""
        assert self.labels is not None, "the model has no CTC"
        log_probs: Tensor = at_least_float32(self.labels(h)).log_softmax(dim=-1)
        return log_probs

    def loss(self, batch: Batch, label_smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the loss per target token and the number of target tokens. Texts without an alignment are ignored."""
        h, mask = self.encode(batch)
        count = batch["target_mask"].sum().clamp(min=1)
        weight = {"attention": 0.0, "ctc": 1.0, "joint": self.config.ctc_weight}[self.config.loss]
        total = h.new_zeros(())
        if self.seq2seq is not None:
            total = (1 - weight) * self.seq2seq.loss({**batch, **self.decoder_source(h, mask)}, label_smoothing)[0]
        if self.labels is not None:
            log_likelihood = ctc_log_likelihood(self.label_log_probs(h), mask, batch["targets"], batch["target_mask"])
            total = total - weight * log_likelihood.masked_fill(log_likelihood.isneginf(), 0).sum() / count
        return total, count

    @torch.no_grad()
    def log_likelihoods(self, batch: Batch) -> dict[str, Tensor]:
        """Return log p(y | x) (B,) by `attention` and by `ctc`, if the model has them."""
        h, mask = self.encode(batch)
        result: dict[str, Tensor] = {}
        if self.seq2seq is not None:
            source = self.decoder_source(h, mask)
            result["attention"] = self.seq2seq.target_log_probs({**batch, **source}).sum(dim=1)
        if self.labels is not None:
            result["ctc"] = ctc_log_likelihood(self.label_log_probs(h), mask, batch["targets"], batch["target_mask"])
        return result
