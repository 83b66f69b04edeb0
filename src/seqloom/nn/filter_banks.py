"""Gaussian filter banks: differentiable reading and writing of a part of an image (DRAW, Gregor et al. 2015).

The filters form a grid of N × N points with the centre (g_X, g_Y) and the stride δ in an image of B × A pixels:

    g_X = (A + 1)/2 (g̃_X + 1)     g_Y = (B + 1)/2 (g̃_Y + 1)     δ = (max(A, B) − 1)/(N − 1) · exp(log δ̃)
    μ_i = g + (i − N/2 − 0.5) δ                                   i = 1 … N
    F[i, a] = exp(−(a − μ_i)² / (2σ²)) / Z_i                      Σ_a F[i, a] = 1,  a = 1, 2, …
    read(x) = γ F_Y x F_Xᵀ                                        (N × N)
    write(w) = 1/γ · F_Yᵀ w F_X                                   (B × A)

A filter that lies outside the image has sums close to 0, so Z_i is at least `SMALLEST`. With N = 1, δ has no effect.
`tiling_parameters` are suitable initial biases: from parameters of 0, DRAW learns much more slowly.
"""

from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from seqloom.nn.softmax import at_least_float32

SMALLEST = 1e-8
PARAMETERS = 5  # g̃_X, g̃_Y, log σ², log δ̃, log γ


class FilterBank(NamedTuple):
    """The filters of a batch, and the parameters of their grids, each (B,)."""

    rows: Tensor  # F_Y (B, N, height)
    columns: Tensor  # F_X (B, N, width)
    intensity: Tensor  # γ
    centre_row: Tensor  # g_Y, counted from 1
    centre_column: Tensor  # g_X, counted from 1
    stride: Tensor  # δ
    variance: Tensor  # σ²

    def read(self, x: Tensor) -> Tensor:
        """Read images x (B, C, height, width): (B, C, N, N)."""
        rows, columns = self.rows.unsqueeze(1), self.columns.unsqueeze(1)
        return self.intensity[:, None, None, None] * (rows @ x @ columns.mT)

    def write(self, w: Tensor) -> Tensor:
        """Write patches w (B, C, N, N): (B, C, height, width)."""
        rows, columns = self.rows.unsqueeze(1), self.columns.unsqueeze(1)
        return (rows.mT @ w @ columns) / self.intensity[:, None, None, None]


def filter_bank(parameters: Tensor, points: int, height: int, width: int) -> FilterBank:
    """Compute the filters from the parameters (B, 5), in the order of `PARAMETERS`."""
    x, y, log_variance, log_stride, log_intensity = at_least_float32(parameters).unbind(dim=1)
    centre_column, centre_row = (width + 1) / 2 * (x + 1), (height + 1) / 2 * (y + 1)
    stride = (max(height, width) - 1) / max(1, points - 1) * log_stride.exp()
    variance = log_variance.exp()
    return FilterBank(
        rows=gaussians(centre_row, stride, variance, points, height),
        columns=gaussians(centre_column, stride, variance, points, width),
        intensity=log_intensity.exp(),
        centre_row=centre_row,
        centre_column=centre_column,
        stride=stride,
        variance=variance,
    )


def tiling_parameters(points: int, height: int, width: int, writes: bool) -> Tensor:
    """Return parameters (5,) of filters that tile the image: the stride is 1/N of its larger side, and σ = δ/2.

    γ = 1 reads means of the image, and γ = 1/δ² writes the values of a patch.
    """
    size = max(height, width)
    stride = size / points
    log_stride = log(stride / ((size - 1) / max(1, points - 1)))
    return torch.tensor([0.0, 0.0, 2 * log(stride / 2), log_stride, -2 * log(stride) if writes else 0.0])


def gaussians(centre: Tensor, stride: Tensor, variance: Tensor, points: int, size: int) -> Tensor:
    """Return N normalized Gaussian filters (B, N, size) along one dimension of an image."""
    i = torch.arange(1, points + 1, dtype=centre.dtype, device=centre.device)
    a = torch.arange(1, size + 1, dtype=centre.dtype, device=centre.device)
    mean = centre.unsqueeze(1) + (i - points / 2 - 0.5) * stride.unsqueeze(1)  # (B, N)
    f = torch.exp(-((a - mean.unsqueeze(2)) ** 2) / (2 * variance[:, None, None]))
    return f / f.sum(dim=2, keepdim=True).clamp(min=SMALLEST)
