"""Image encoders, which map an image to a sequence of vectors with one vector for each location of a grid.

    resnet     the feature map of a residual network: x_n is the vector of a location
    efficientnet-lite0   the feature map of EfficientNet-Lite0, by default with weights trained on ImageNet
    patches    x_n = P · patch_n + b + p_n          with learned positions p_n, unless `positions` is false
    rows       x_n is the n-th row of pixels
    pixels     x_n is the n-th pixel, optionally in a fixed random order

All encoders read images (B, H, W, C) of bytes and return x (B, N, D), where N = rows · columns of the `grid`, in row
order. A byte b is read as (b − 127) / 128. Decoders, attention, recurrent stacks and Transformers process x like any
other sequence of vectors; `on_grid` places values of the N vectors on the image.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Annotated, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import Discriminator, config
from seqloom.config.constraints import Ge, Le, MinLen, PositiveInt
from seqloom.models.efficientnet import EfficientNetLite0
from seqloom.nn.convolution import ConvolutionNorm, ResNet, patches

CENTRE, SCALE = 127.0, 128.0
POSITION_DEVIATION = 0.02  # standard deviation of the initial position vectors


class ImageEncoder(nn.Module, ABC):
    """The interface of the image encoders."""

    output_size: int  # D
    grid: tuple[int, int]  # rows and columns
    has_positions = False  # whether the vectors encode their locations

    @abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """Map normalized images x (B, H, W, C) to vectors (B, N, D)."""

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, H, W, C), whose values are bytes, to vectors (B, N, D)."""
        return self.encode(normalize(images))

    @property
    def length(self) -> int:
        """N, the number of vectors of an image."""
        return self.grid[0] * self.grid[1]

    def on_grid(self, values: Tensor) -> Tensor:
        """Arrange values (…, N) of the vectors on the grid (…, rows, columns)."""
        return values.unflatten(-1, self.grid)


def normalize(images: Tensor) -> Tensor:
    """Map bytes to about [−1, 1] in the default precision. Images with floating-point values keep their precision."""
    x = images if images.is_floating_point() else images.to(torch.get_default_dtype())
    return (x - CENTRE) / SCALE


# --- residual network -------------------------------------------------------------------------------------------------


@config
class ResNetEncoderConfig:
    kind: Literal["resnet"] = "resnet"
    channels: Annotated[tuple[PositiveInt, ...], MinLen(1)] = (
        32,
        64,
        128,
    )  # number of channels of each stage; each later stage halves the height and the width
    blocks: PositiveInt = 2  # number of residual blocks of each stage
    first_stride: Literal[1, 2, 4] = 1  # stride of the first convolution
    norm: ConvolutionNorm = "batch"  # normalization: batch, group or none

    def build(self, height: int, width: int, channels: int) -> "ResNetEncoder":
        return ResNetEncoder(self, height, width, channels)


class ResNetEncoder(ImageEncoder):
    """The feature map of a residual network. x_n depends on the part of the image around location n."""

    def __init__(self, config: ResNetEncoderConfig, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.network = ResNet(channels, config.channels, config.blocks, config.first_stride, config.norm)
        self.output_size, self.grid = self.network.output_size, self.network.grid(height, width)

    def encode(self, x: Tensor) -> Tensor:
        features: Tensor = self.network(x.permute(0, 3, 1, 2))  # (B, D, rows, columns)
        return features.flatten(2).transpose(1, 2)


# --- patches ----------------------------------------------------------------------------------------------------------


@config
class PatchEncoderConfig:
    kind: Literal["patches"] = "patches"
    patch: PositiveInt = 4  # side of a patch in pixels; images are padded to a multiple of this size
    d_model: PositiveInt = 128  # size of the vectors
    positions: bool = True  # add a learned vector to each location

    def build(self, height: int, width: int, channels: int) -> "PatchEncoder":
        return PatchEncoder(self, height, width, channels)


class PatchEncoder(ImageEncoder):
    """Linear projections of patches (Dosovitskiy et al. 2021)."""

    def __init__(self, config: PatchEncoderConfig, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.patch, self.output_size = config.patch, config.d_model
        self.grid = -(-height // self.patch), -(-width // self.patch)
        self.project = nn.Linear(self.patch**2 * channels, config.d_model)
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.zeros_(self.project.bias)
        self.has_positions = config.positions
        if config.positions:
            self.positions = nn.Parameter(torch.randn(self.length, config.d_model) * POSITION_DEVIATION)

    def encode(self, x: Tensor) -> Tensor:
        vectors: Tensor = self.project(patches(x, self.patch))
        return vectors + self.positions if self.has_positions else vectors


# --- rows and pixels --------------------------------------------------------------------------------------------------


@config
class RowEncoderConfig:
    kind: Literal["rows"] = "rows"

    def build(self, height: int, width: int, channels: int) -> "RowEncoder":
        return RowEncoder(height, width, channels)


class RowEncoder(ImageEncoder):
    """The rows of pixels, starting at the top. The grid has a single column."""

    def __init__(self, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.output_size, self.grid = width * channels, (height, 1)

    def encode(self, x: Tensor) -> Tensor:
        return x.flatten(2)


@config
class PixelEncoderConfig:
    kind: Literal["pixels"] = "pixels"
    permutation: int | None = None  # seed of a fixed random order of the pixels; null: row by row

    def build(self, height: int, width: int, channels: int) -> "PixelEncoder":
        return PixelEncoder(self, height, width, channels)

    def problems(self) -> Iterator[str]:
        if self.permutation is not None and self.permutation < 0:
            yield f"permutation must be at least 0; got {self.permutation}"


class PixelEncoder(ImageEncoder):
    """The pixels, x_n = pixel[order[n]]. All images have the same order."""

    order: Tensor  # (N,)

    def __init__(self, config: PixelEncoderConfig, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.output_size, self.grid = channels, (height, width)
        order = np.arange(self.length)
        if config.permutation is not None:
            order = np.random.default_rng(config.permutation).permutation(self.length)
        self.register_buffer("order", torch.from_numpy(order))

    def encode(self, x: Tensor) -> Tensor:
        return x.flatten(1, 2).index_select(1, self.order)

    def on_grid(self, values: Tensor) -> Tensor:
        return torch.empty_like(values).index_copy(-1, self.order, values).unflatten(-1, self.grid)


# --- EfficientNet-Lite0 -----------------------------------------------------------------------------------------------


@config
class EfficientNetEncoderConfig:
    kind: Literal["efficientnet-lite0"] = "efficientnet-lite0"
    pretrained: bool = True  # start from weights trained on ImageNet, which requires seqloom[efficientnet]
    frozen: bool = True  # do not train the network
    # side in pixels to which images are scaled; the weights were trained at 224
    size: Annotated[int, Ge(32), Le(1024)] = 224
    stride: Literal[16, 32] = 32  # number of pixels between locations: 32 gives 1280 channels, 16 gives 112

    def build(self, height: int, width: int, channels: int) -> "EfficientNetEncoder":
        return EfficientNetEncoder(self)

    def problems(self) -> Iterator[str]:
        if self.frozen and not self.pretrained:
            yield "frozen needs pretrained weights: set pretrained to true, or frozen to false"


class EfficientNetEncoder(ImageEncoder):
    """The feature map of EfficientNet-Lite0. Images are scaled on the device, and grey images are converted to RGB.

    With pretrained weights, batch norm always uses the running statistics of ImageNet.
    """

    def __init__(self, config: EfficientNetEncoderConfig) -> None:
        super().__init__()
        self.config, self.network = config, EfficientNetLite0(config.stride)
        side = -(-config.size // config.stride)
        self.output_size, self.grid = self.network.output_size, (side, side)
        if config.frozen:
            self.network.requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.config.pretrained:
            self.network.eval()
        return self

    def encode(self, x: Tensor) -> Tensor:
        x = x.permute(0, 3, 1, 2).expand(-1, 3, -1, -1)  # (B, 3, H, W)
        if x.shape[2:] != (self.config.size, self.config.size):
            x = F.interpolate(x, size=self.config.size, mode="bilinear", antialias=max(x.shape[2:]) > self.config.size)
        features: Tensor = self.network(x)  # (B, D, rows, columns)
        return features.flatten(2).transpose(1, 2)


AnyImageEncoderConfig = (
    ResNetEncoderConfig | PatchEncoderConfig | RowEncoderConfig | PixelEncoderConfig | EfficientNetEncoderConfig
)
ImageEncoderConfig = Annotated[AnyImageEncoderConfig, Discriminator("kind")]


class ImageModelOptions:
    """The interface of the configs of models that read images."""

    @property
    def image_encoder(self) -> AnyImageEncoderConfig | None:
        """The config of the image encoder, or None if the model reads pixels in another way."""
        return None
