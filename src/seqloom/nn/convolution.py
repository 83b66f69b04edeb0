"""2-D convolutions, residual blocks, and patches of images.

    convolution     y_{o,r,c} = b_o + Σ_i Σ_u Σ_v W_{o,i,u,v} x_{i, s·r + u − p, s·c + v − p}     stride s, padding p
    batch norm      y = γ ⊙ (x − μ) / √(σ² + ε) + β
                    training: μ and σ² of each channel, over the examples and positions of the batch
                    evaluation: μ and σ² are running averages, μ ← (1 − m) μ + m μ_batch, stored as buffers
    residual        y = ReLU(x' + norm(conv(ReLU(norm(conv(x))))))        x' = x, or norm(conv_1×1(x)) if shapes differ

Images have the shape (B, C, H, W). Convolutions pad each side with ⌊k/2⌋ zeros, so that stride 1 keeps the size and
stride s gives ⌈H / s⌉ × ⌈W / s⌉. The forward pass changes the running averages of batch norm. If a step is not applied,
the averages must be restored (`running_statistics`, see `seqloom.train.state`).
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ConvolutionNorm = Literal["batch", "group", "none"]
GROUP_SIZE = 8  # number of channels in a group, if it divides the number of channels
BATCH_NORM_EPSILON = 1e-5
MOMENTUM = 0.1  # m


class BatchNorm(nn.Module):
    """Batch norm over x (B, C, H, W) with running averages; see the module docstring."""

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, channels: int, epsilon: float = BATCH_NORM_EPSILON, momentum: float = MOMENTUM) -> None:
        super().__init__()
        self.epsilon, self.momentum = epsilon, momentum
        self.weight = nn.Parameter(torch.ones(channels))  # γ
        self.bias = nn.Parameter(torch.zeros(channels))  # β
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_variance", torch.ones(channels))

    def running_statistics(self) -> tuple[Tensor, Tensor]:
        """Return the tensors that a forward pass in training changes."""
        return self.running_mean, self.running_variance

    def forward(self, x: Tensor) -> Tensor:
        averages = self.running_mean, self.running_variance
        return F.batch_norm(x, *averages, self.weight, self.bias, self.training, self.momentum, self.epsilon)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}"


def make_convolution_norm(kind: ConvolutionNorm, channels: int) -> nn.Module:
    """Create the norm of x (B, C, H, W): batch norm, group norm, or none."""
    if kind == "none":
        return nn.Identity()
    groups = 1 if channels % GROUP_SIZE else channels // GROUP_SIZE
    return BatchNorm(channels) if kind == "batch" else nn.GroupNorm(groups, channels)


class Convolution(nn.Module):
    """A convolution, a norm and, unless `activation` is False, a ReLU: (B, C, H, W) → (B, C', ⌈H/s⌉, ⌈W/s⌉)."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        stride: int = 1,
        norm: ConvolutionNorm = "batch",
        activation: bool = True,
    ) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=norm == "none")
        self.norm, self.activation = make_convolution_norm(norm, outputs), activation
        nn.init.kaiming_normal_(self.convolution.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.convolution(x))
        return F.relu(x) if self.activation else x


class ResidualBlock(nn.Module):
    """Two convolutions with a residual connection (He et al. 2016). The first convolution has the stride."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, norm: ConvolutionNorm = "batch") -> None:
        super().__init__()
        self.first = Convolution(inputs, outputs, stride=stride, norm=norm)
        self.second = Convolution(outputs, outputs, norm=norm, activation=False)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else Convolution(inputs, outputs, 1, stride, norm=norm, activation=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + self.second(self.first(x)))


class ResNet(nn.Module):
    """A residual network: a first convolution, followed by stages of blocks. Each later stage halves the size.

    x (B, C, H, W) → (B, channels[-1], ⌈H / stride⌉, ⌈W / stride⌉), where `stride` is the stride of the first
    convolution, doubled by each later stage.
    """

    def __init__(
        self,
        inputs: int,
        channels: Sequence[int],
        blocks: int = 2,
        first_stride: int = 1,
        norm: ConvolutionNorm = "batch",
    ) -> None:
        super().__init__()
        kernel = 3 if first_stride == 1 else 2 * first_stride - 1
        self.first = Convolution(inputs, channels[0], kernel, first_stride, norm)
        self.output_size, self.stride = channels[-1], first_stride * 2 ** (len(channels) - 1)
        layers, size = list[nn.Module](), channels[0]
        for stage, outputs in enumerate(channels):
            for block in range(blocks):
                layers.append(ResidualBlock(size, outputs, 2 if stage > 0 and block == 0 else 1, norm))
                size = outputs
        self.blocks = nn.Sequential(*layers)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the number of rows and columns of the output for an image of this size."""
        rows, columns, stride = height, width, self.stride
        while stride > 1:
            rows, columns, stride = -(-rows // 2), -(-columns // 2), stride // 2
        return rows, columns

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.blocks(self.first(x))
        return features


def patches(x: Tensor, size: int) -> Tensor:
    """Divide images (B, H, W, C) into patches (B, N, size·size·C), row by row, with zeros added at right and bottom.

    A patch consists of its pixels row by row, each pixel with all its channels.
    """
    B, H, W, C = x.shape
    x = F.pad(x, (0, 0, 0, -W % size, 0, -H % size))
    x = x.unflatten(2, (-1, size)).unflatten(1, (-1, size))  # (B, rows, size, columns, size, C)
    return x.transpose(2, 3).reshape(B, -1, size * size * C)
