"""Encoder–decoders that read an image, or an image and a text, and write a text.

    v_1 … v_N = image encoder(image)                    locations, patches, rows or pixels
    x = v_1 … v_N                                       the source of a caption
    x = W v_1 + k … W v_N + k, E w_1 + l … E w_S + l    with a text w_1 … w_S, such as a question; k, l are learned
    p(y_1 … y_T | x)                                    by the encoder–decoder `seq2seq`, recurrent or Transformer

The encoder–decoder reads x like any other source. Training, beam search, attention and ensembles work as in
`seqloom.models.seq2seq`.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from seqloom.config import Discriminator, config
from seqloom.core.tree import Tree
from seqloom.models import MODELS
from seqloom.models.image_encoder import (
    AnyImageEncoderConfig,
    ImageEncoder,
    ImageModelOptions,
    ResNetEncoderConfig,
)
from seqloom.models.seq2seq import Seq2Seq, SourceVectors

KIND_DEVIATION = 0.1  # standard deviation of the initial k and l


@config
class SequenceToTextConfig:
    """The keys of encoder–decoders whose source is a sequence of vectors."""

    seq2seq: Annotated[Any, MODELS.only("recurrent-seq2seq", "transformer")] = MODELS.default("transformer")

    def problems(self) -> Iterator[str]:
        if self.seq2seq.tied == "all":
            yield "seq2seq.tied must be decoder or none, because the source has no token embeddings; got all"
        if self.seq2seq.kind == "recurrent-seq2seq" and self.seq2seq.reverse:
            yield "seq2seq.reverse needs a text as the source: remove it"

    @property
    def has_attention(self) -> bool:
        """Whether the decoder attends to the vectors."""
        return self.seq2seq.kind != "recurrent-seq2seq" or self.seq2seq.attention is not None

    @property
    def has_hard_attention(self) -> bool:
        """Whether training samples positions of the source; see `seqloom.models.hard_attention`."""
        return self.seq2seq.kind == "recurrent-seq2seq" and bool(self.seq2seq.has_hard_attention)

    @property
    def longest_key(self) -> str:
        """The option that limits the length of a source."""
        return f"seq2seq.{self.seq2seq.longest_key}"

    @property
    def longest_source(self) -> int | None:
        """The maximum number of vectors in a source; None means no limit."""
        longest: int | None = self.seq2seq.longest_source
        return longest

    @property
    def longest_target(self) -> int | None:
        """The maximum number of target tokens, including END; None means no limit."""
        longest: int | None = self.seq2seq.longest_target
        return longest


@config
class ImageToTextConfig(ImageModelOptions, SequenceToTextConfig):
    kind: Literal["image-to-text"] = "image-to-text"
    image: Annotated[AnyImageEncoderConfig, Discriminator("kind")] = ResNetEncoderConfig()  # maps an image to vectors

    @property
    def image_encoder(self) -> AnyImageEncoderConfig:
        return self.image

    def build(self, vocabulary: int, height: int, width: int, channels: int, texts: int = 0) -> Seq2Seq:
        """Create the model. It reads an image, and with texts=1 also a text."""
        image = self.image.build(height, width, channels)
        source = ImageTextSource(image, vocabulary) if texts else ImageSource(image)
        model: Seq2Seq = self.seq2seq.build(vocabulary, source=source)
        return model


def image_vectors(image: ImageEncoder, source: Tree) -> Tensor:
    """Return the vectors (B, N, D) of a source that contains images or their vectors."""
    vectors: Tensor = image(source["images"]) if "images" in source else source["vectors"].to(torch.get_default_dtype())
    return vectors


class ImageSource(SourceVectors):
    """The vectors of images, {"images": (B, H, W, C)}, or {"vectors": (B, N, D)}, which a frozen encoder computed."""

    def __init__(self, image: ImageEncoder) -> None:
        super().__init__()
        self.image, self.output_size = image, image.output_size

    def forward(self, source: Tree) -> Tensor:
        return image_vectors(self.image, source)


class ImageTextSource(SourceVectors):
    """The vectors of images, as in `ImageSource`, followed by those of texts {"text": (B, S)}; S may be 0."""

    def __init__(self, image: ImageEncoder, vocabulary: int) -> None:
        super().__init__()
        self.image, self.output_size = image, image.output_size
        self.project = nn.Linear(image.output_size, image.output_size)
        self.embed = nn.Embedding(vocabulary, image.output_size)
        self.kinds = nn.Parameter(torch.randn(2, image.output_size) * KIND_DEVIATION)  # k and l

    def forward(self, source: Tree) -> Tensor:
        image, text = self.project(image_vectors(self.image, source)), self.embed(source["text"])
        return torch.cat([image + self.kinds[0], text + self.kinds[1]], dim=1)
