"""EfficientNet-Lite0 (Tan and Le 2019; the Lite variant of 2020): a convolutional network for images of any size.

    MBConv      e = ReLU6(norm(conv_1×1(x)))              expansion to t · C channels, omitted if t = 1
                d = ReLU6(norm(depthwise_k×k(e)))         every channel has its own filter; stride s
                y = norm(conv_1×1(d))                     plus x if s = 1 and the shapes are equal
    network     stem 3×3, stride 2;  16 MBConv blocks;  head 1×1 to 1280 channels

The network has no squeeze-and-excitation. ReLU6(x) = min(max(x, 0), 6). As in TensorFlow, the larger part of the
padding is at the right and bottom. Images have the shape (B, C, H, W).
"""

import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.nn.convolution import BatchNorm

STEM, HEAD = 32, 1280  # channels
STAGES = (  # expansion t, kernel k, stride s of the first block, channels, blocks
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
STRIDE_16 = 11, 112  # number of blocks up to the last block with stride 16, and its output channels
EPSILON, MOMENTUM = 1e-3, 0.01


class NormalizedConvolution(nn.Module):
    """A convolution without bias, followed by batch norm and, if `activation` is set, ReLU6.

    Stride s gives ⌈H/s⌉ × ⌈W/s⌉ locations.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, activation: bool = True
    ) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
        self.norm = BatchNorm(outputs, EPSILON, MOMENTUM)
        self.kernel, self.stride, self.activation = kernel, stride, activation
        nn.init.kaiming_normal_(self.convolution.weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        pads: list[int] = []
        for size in (x.shape[3], x.shape[2]):
            pad = max(0, (-(-size // self.stride) - 1) * self.stride + self.kernel - size)
            pads += [pad // 2, pad - pad // 2]
        x = self.norm(self.convolution(F.pad(x, pads)))
        return F.relu6(x) if self.activation else x


class MBConv(nn.Module):
    """An inverted residual block; see the module docstring."""

    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = expansion * inputs
        self.expand = nn.Identity() if expansion == 1 else NormalizedConvolution(inputs, inner)
        self.depthwise = NormalizedConvolution(inner, inner, kernel, stride, groups=inner)
        self.project = NormalizedConvolution(inner, outputs, activation=False)
        self.has_skip = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y if self.has_skip else y


class EfficientNetLite0(nn.Module):
    """The features of EfficientNet-Lite0: 1280 channels at stride 32, or 112 channels at stride 16."""

    def __init__(self, stride: int = 32) -> None:
        super().__init__()
        self.stem = NormalizedConvolution(3, STEM, 3, 2)
        blocks, inputs = list[nn.Module](), STEM
        for expansion, kernel, first_stride, channels, repeats in STAGES:
            for number in range(repeats):
                blocks.append(MBConv(inputs, channels, expansion, kernel, first_stride if number == 0 else 1))
                inputs = channels
        self.stride, self.output_size = stride, HEAD
        self.head: nn.Module = NormalizedConvolution(inputs, HEAD)
        if stride == 16:
            blocks, self.output_size, self.head = blocks[: STRIDE_16[0]], STRIDE_16[1], nn.Identity()
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.head(self.blocks(self.stem(x)))
        return features
