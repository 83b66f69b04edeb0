"""Models of clips, which read the frames as a sequence of vectors:

    v_t1 … v_tN = image encoder(frame_t)         see `seqloom.models.image_encoder`
    x_t = v_t1 … v_tN combined                   concatenated, or the mean or maximum over the N locations
    h_1 … h_T = encoder(x_1 … x_T)               recurrent, convolution or Transformer; without an encoder h = x

    label of the clip      p(y) = softmax(W pooling(h) + b)
    label of each frame    e_t = W h_t + b, p(y_1 … y_T) by a CRF, or p(y_t) = softmax(e_t) without one
    caption                p(w_1 … w_M | x_1 … x_T) by the encoder–decoder `seq2seq`

The frame average has no encoder and the pooling "mean": it ignores the order of the frames. A recurrent encoder over a
convolutional image encoder is the architecture CNN → RNN. Attention over frames is the pooling "attention", a
Transformer encoder, or the attention of a decoder.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from seqloom.config import Discriminator, config
from seqloom.config.constraints import Fraction
from seqloom.core.tree import Tree
from seqloom.models.classifier import Batch, ClassifierBase
from seqloom.models.image_encoder import AnyImageEncoderConfig, ImageModelOptions, ResNetEncoderConfig
from seqloom.models.image_to_text import SequenceToTextConfig
from seqloom.models.seq2seq import Seq2Seq, SourceVectors
from seqloom.models.tagger import TaggerBase
from seqloom.nn.encoders import AnyEncoderConfig, Encoder, RecurrentEncoderConfig
from seqloom.nn.masks import make_dropout
from seqloom.nn.pooling import POOLINGS, PoolingKind

Locations = Literal["concatenate", "mean", "max"]


@config
class FrameOptions(ImageModelOptions):
    """The keys of every model of clips that describe how a frame becomes a vector."""

    image: Annotated[AnyImageEncoderConfig, Discriminator("kind")] = ResNetEncoderConfig()  # encoder of each frame
    # how the vectors of the locations become one vector: concatenate keeps their positions; mean, max
    locations: Locations = "concatenate"

    @property
    def image_encoder(self) -> AnyImageEncoderConfig:
        return self.image

    def frame_encoder(self, height: int, width: int, channels: int) -> "FrameEncoder":
        return FrameEncoder(self, height, width, channels)


class FrameEncoder(SourceVectors):
    """Map clips, {"frames": (B, T, H, W, C)} as bytes, to x (B, T, D)."""

    def __init__(self, options: FrameOptions, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.locations = options.locations
        self.image = options.image.build(height, width, channels)
        self.output_size = self.image.output_size * (self.image.length if self.locations == "concatenate" else 1)

    def forward(self, source: Tree) -> Tensor:
        frames = source["frames"]
        vectors = self.image(frames.flatten(0, 1))  # (B·T, N, D)
        if self.locations == "concatenate":
            x = vectors.flatten(1)
        else:
            x = vectors.mean(dim=1) if self.locations == "mean" else vectors.amax(dim=1)
        return x.unflatten(0, frames.shape[:2])


# --- labels of clips --------------------------------------------------------------------------------------------------


@config
class VideoClassifierConfig(FrameOptions):
    kind: Literal["video-classifier"] = "video-classifier"
    # encoder that reads the vectors of the frames; null: none
    encoder: Annotated[AnyEncoderConfig, Discriminator("kind")] | None = RecurrentEncoderConfig()
    pooling: PoolingKind = "mean"  # pooling over the frames: last, mean, max or attention
    dropout: Fraction = 0.0  # dropout before the output layer

    def problems(self) -> Iterator[str]:
        if self.encoder is None and self.pooling == "last":
            yield "pooling last needs an encoder; without an encoder, use mean, max or attention"

    def build(self, height: int, width: int, channels: int, labels: int) -> "VideoClassifier":
        return VideoClassifier(self, height, width, channels, labels)


class VideoClassifier(ClassifierBase):
    """A classifier of clips. A batch contains frames (B, T, H, W, C) as bytes and their mask (B, T)."""

    def __init__(self, config: VideoClassifierConfig, height: int, width: int, channels: int, labels: int) -> None:
        super().__init__()
        self.config = config
        self.frames = config.frame_encoder(height, width, channels)
        self.encoder: Encoder | None = None
        size = self.frames.output_size
        if config.encoder is not None:
            self.encoder = config.encoder.build(size)
            size = self.encoder.output_size
        self.pooling = POOLINGS[config.pooling](size)
        self.dropout = make_dropout(config.dropout)
        self.output = nn.Linear(size, labels)
        nn.init.zeros_(self.output.bias)

    def notes(self) -> list[str]:
        """Return notes for the user on behaviour that the recipe does not show."""
        return [] if self.encoder is None else self.encoder.notes()

    def forward(self, batch: Batch) -> Tensor:
        return self._logits(batch)[0]

    def _logits(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Compute the logits (B, L) and the weights (B, T) of attention pooling."""
        h, mask = self.frames(batch), batch["mask"]
        ends = h[:, -1]
        if self.encoder is not None:
            h, ends = self.encoder.read(h, mask)
        pooled, weights = self.pooling(h, mask, ends)
        return self.output(self.dropout(pooled)), weights

    @torch.no_grad()
    def attention(self, batch: Batch) -> Tensor | None:
        """Return the attention-pooling weight of each frame (B, T), 0 at padding, or None with other poolings."""
        return self._logits(batch)[1]


# --- labels of frames -------------------------------------------------------------------------------------------------


@config
class VideoTaggerConfig(FrameOptions):
    kind: Literal["video-tagger"] = "video-tagger"
    # encoder that reads the vectors of the frames; null: none, each frame is labelled independently
    encoder: Annotated[AnyEncoderConfig, Discriminator("kind")] | None = RecurrentEncoderConfig()
    crf: bool = False  # predict the labels of a clip jointly with a conditional random field
    dropout: Fraction = 0.0  # dropout before the output layer

    def build(self, height: int, width: int, channels: int, tags: int) -> "VideoTagger":
        return VideoTagger(self, height, width, channels, tags)


class VideoTagger(TaggerBase):
    """A model that labels each frame. A batch contains frames (B, T, H, W, C), their mask and tags (B, T)."""

    def __init__(self, config: VideoTaggerConfig, height: int, width: int, channels: int, tags: int) -> None:
        super().__init__()
        self.config = config
        self.frames = config.frame_encoder(height, width, channels)
        self.encoder = None if config.encoder is None else config.encoder.build(self.frames.output_size)
        size = self.frames.output_size if self.encoder is None else self.encoder.output_size
        self.build_output(size, tags, dropout=config.dropout, crf=config.crf, constrained=False)

    def notes(self) -> list[str]:
        """Return notes for the user on behaviour that the recipe does not show."""
        return [] if self.encoder is None else self.encoder.notes()

    def read(self, batch: Batch) -> Tensor:
        """Compute h (B, T, H) of the frames."""
        x: Tensor = self.frames(batch)
        return x if self.encoder is None else self.encoder(x, batch["words"])

    def forward(self, batch: Batch) -> Tensor:
        """Compute the emissions (B, T, K). Without a CRF, the emissions are logits."""
        emissions: Tensor = self.output(self.dropout(self.read(batch)))
        return emissions


# --- captions ---------------------------------------------------------------------------------------------------------


@config
class VideoToTextConfig(FrameOptions, SequenceToTextConfig):
    kind: Literal["video-to-text"] = "video-to-text"

    def build(self, vocabulary: int, height: int, width: int, channels: int) -> Seq2Seq:
        """Create the encoder–decoder, whose source is the sequence of frames."""
        model: Seq2Seq = self.seq2seq.build(vocabulary, source=self.frame_encoder(height, width, channels))
        return model
