"""A classifier of images that reads an image as a sequence of vectors:

    x_1 … x_N = image encoder(image)                 locations, patches, rows or pixels
    h = encoder(x_1 … x_N)                           recurrent, convolution or Transformer; without an encoder h = x
    h = encoder(c, x_1 … x_N)                        with the pooling "class": c is a learned vector
    p(y) = softmax(W pooling(h) + b)                 the pooling "class" selects the h of c

The Vision Transformer (ViT) has patches, a Transformer encoder and a class token. Image encoders are defined in
`seqloom.models.image_encoder`, and encoders in `seqloom.nn.encoders`. `ImageClassifierOptions` and `AnyImageClassifier`
are the interface of all classifiers of images.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from seqloom.config import Discriminator, config
from seqloom.config.constraints import Fraction
from seqloom.core.errors import UsageError
from seqloom.models.classifier import Batch, ClassifierBase
from seqloom.models.image_encoder import AnyImageEncoderConfig, ImageModelOptions, PatchEncoderConfig, normalize
from seqloom.nn.encoders import AnyEncoderConfig, Encoder, TransformerEncoder
from seqloom.nn.masks import make_dropout
from seqloom.nn.pooling import POOLINGS
from seqloom.nn.softmax import at_least_float32

ImagePooling = Literal["class", "last", "mean", "max", "attention"]
CLASS_DEVIATION = 0.02  # standard deviation of the initial class token


@config
class ImageClassifierOptions(ImageModelOptions):
    """The interface of the configs of image classifiers."""

    loss_remark: ClassVar[str] = ""  # what the training loss contains in addition to −log p

    def check_vectors(self, vectors: int) -> None:
        """Raise `UsageError` if the model cannot read an image as this number of vectors."""


class AnyImageClassifier(ClassifierBase, ABC):
    """The interface of image classifiers. A batch contains images (B, H, W, C) as bytes."""

    def pixel_values(self, images: Tensor) -> Tensor:
        """Map images (B, H, W, C) to the input x of the model."""
        return normalize(images)

    @abstractmethod
    def logits(self, x: Tensor) -> Tensor:
        """Compute the logits (B, L) of normalized images x (B, H, W, C)."""

    def forward(self, batch: Batch) -> Tensor:
        return self.logits(self.pixel_values(batch["images"]))

    @torch.enable_grad()
    def influence(self, images: Tensor, labels: Tensor) -> Tensor:
        """Compute gradient × input, Σ_c x ∂logit/∂x (B, H, W), of the logit of a label (B,)."""
        x = self.pixel_values(images).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.logits(x).gather(1, labels.unsqueeze(1)).sum(), x)
        return at_least_float32(x.detach() * gradient).sum(dim=3)

    def attention(self, images: Tensor) -> Tensor | None:
        """Return the attention-pooling weights on the grid (B, rows, columns), or None with other poolings."""
        return None

    def attention_rollout(self, images: Tensor) -> Tensor | None:
        """Return the attention roll-out on the grid (B, rows, columns), or None without a Transformer encoder."""
        return None

    def glimpse_path(self, images: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the locations (B, T, 2) of glimpses, and p (B, T, L) after each glimpse; None without glimpses."""
        return None

    def patch_sides(self) -> list[int]:
        """Return the sides in pixels of the patches of a glimpse, smallest first."""
        return []


@config
class ImageClassifierConfig(ImageClassifierOptions):
    kind: Literal["image-classifier"] = "image-classifier"
    image: Annotated[AnyImageEncoderConfig, Discriminator("kind")] = PatchEncoderConfig()
    # encoder that reads the vectors of the image; null: none
    encoder: Annotated[AnyEncoderConfig, Discriminator("kind")] | None = None
    pooling: ImagePooling = "mean"  # pooling over the vectors: class, last, mean, max or attention
    dropout: Fraction = 0.0  # dropout before the output layer

    def problems(self) -> Iterator[str]:
        if self.encoder is None and self.pooling in ("class", "last"):
            yield f"pooling {self.pooling} needs an encoder; without an encoder, use mean, max or attention"

    @property
    def image_encoder(self) -> AnyImageEncoderConfig:
        return self.image

    def check_vectors(self, vectors: int) -> None:
        longest = None if self.encoder is None else self.encoder.longest
        needed = vectors + (self.pooling == "class")
        if longest is not None and needed > longest:
            raise UsageError(
                f"An image has {needed} vectors, but the encoder has {longest} positions: set "
                f"model.encoder.positions.max_length={needed}."
            )

    def build(self, height: int, width: int, channels: int, labels: int) -> "ImageClassifierModel":
        return ImageClassifierModel(self, height, width, channels, labels)


class ImageClassifierModel(AnyImageClassifier):
    """A classifier of the vectors of an image encoder."""

    def __init__(self, config: ImageClassifierConfig, height: int, width: int, channels: int, labels: int) -> None:
        super().__init__()
        self.config = config
        self.image = config.image.build(height, width, channels)
        self.encoder: Encoder | None = None
        size = self.image.output_size
        if config.pooling == "class":
            self.class_token = nn.Parameter(torch.randn(size) * CLASS_DEVIATION)
        if config.encoder is not None:
            self.encoder = config.encoder.build(size)
            size = self.encoder.output_size
        if config.pooling != "class":
            self.pooling = POOLINGS[config.pooling](size)
        self.dropout = make_dropout(config.dropout)
        self.output = nn.Linear(size, labels)
        nn.init.zeros_(self.output.bias)

    def notes(self) -> list[str]:
        """Return notes for the user on behaviour that the recipe does not show."""
        return [] if self.encoder is None or self.image.has_positions else self.encoder.notes()

    def vectors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map normalized images x (B, H, W, C) to the input (B, S, D) of the encoder and its mask (B, S)."""
        vectors = self.image.encode(x)
        if self.config.pooling == "class":
            vectors = torch.cat([self.class_token.to(vectors.dtype).expand(len(x), 1, -1), vectors], dim=1)
        return vectors, torch.ones(vectors.shape[:2], dtype=torch.bool, device=x.device)

    def logits(self, x: Tensor) -> Tensor:
        return self._logits(x)[0]

    def _logits(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Compute the logits (B, L) of normalized images and the weights (B, N) of attention pooling."""
        h, mask = self.vectors(x)
        ends, weights = h[:, -1], None
        if self.encoder is not None:
            h, ends = self.encoder.read(h, mask)
        if self.config.pooling == "class":
            pooled = h[:, 0]
        else:
            pooled, weights = self.pooling(h, mask, ends)
        return self.output(self.dropout(pooled)), weights

    # --- explanations -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def attention(self, images: Tensor) -> Tensor | None:
        """Return the attention-pooling weights on the grid (B, rows, columns), or None with other poolings."""
        weights = self._logits(normalize(images))[1]
        return None if weights is None else self.image.on_grid(weights)

    @torch.no_grad()
    def attention_rollout(self, images: Tensor) -> Tensor | None:
        """Return the attention roll-out on the grid (B, rows, columns), or None without a Transformer encoder.

        R = Ã_L … Ã_1 with Ã = (Ā + I) / 2, where Ā is the mean over the heads of a layer. R is the influence of each
        vector on each output if every layer passes on half of its input (Abnar and Zuidema 2020). The result is the row
        of R for the class token, or the mean of all rows. The column of the class token is omitted, and the values sum
        to 1.
        """
        if not isinstance(self.encoder, TransformerEncoder):
            return None
        layers = self.encoder.attentions(*self.vectors(normalize(images)))
        rollout = torch.eye(layers[0].shape[2], device=images.device)
        for weights in layers:
            mean = at_least_float32(weights).mean(dim=1)
            rollout = (mean + torch.eye(mean.shape[1], device=mean.device)) / 2 @ rollout
        has_class = self.config.pooling == "class"
        flow = rollout[:, 0, 1:] if has_class else rollout.mean(dim=1)
        return self.image.on_grid(flow / flow.sum(dim=1, keepdim=True))
