"""The interface of models that generate images from latent variables, and their bound on the likelihood.

    z ~ N(0, I)     p(x|z) = Π_i π_i^{x_i} (1 − π_i)^{1 − x_i}, π = σ(c(z))          the generator, with the canvas c
    q(z|x) = N(μ, diag(s²))                                                       the inference network
    −log p(x) ≤ −E_q[log p(x|z)] + KL(q(z|x) ‖ p(z))                               the bound, which is the loss
    KL = ½ Σ (μ² + s² − log s² − 1)

With several samples, −log (1/S Σ_s p(x|z_s) p(z_s) / q(z_s|x)) is a tighter bound (Burda et al. 2016). The values of
x are 0 or 1 for a binary image; for other values between 0 and 1, the bound is a cross-entropy, not a likelihood.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.nn.softmax import at_least_float32


class LikelihoodBound(NamedTuple):
    """The parts of the bound for one sample of z, each (B,) in nats."""

    reconstruction: Tensor  # −log p(x|z)
    kl: Tensor  # KL(q(z|x) ‖ p(z))
    log_ratio: Tensor  # log p(z) − log q(z|x) of the sample

    @property
    def total(self) -> Tensor:
        return self.reconstruction + self.kl

    @property
    def log_weight(self) -> Tensor:
        """log p(x|z) p(z) / q(z|x), the importance weight of the sample."""
        return self.log_ratio - self.reconstruction


class Drawing(NamedTuple):
    """Generated images, step by step."""

    canvases: Tensor  # (B, T, H, W, C): the probabilities π after each step
    frames: Tensor | None = None  # (B, T, 4): first and last row, first and last column of the region that is written


class ImageGenerator(nn.Module, ABC):
    """A model of images (B, H, W, C), whose values are bytes, with T latent vectors of size Z."""

    steps: int  # T
    latent: int  # Z

    @abstractmethod
    def bound(self, x: Tensor, noise: Tensor) -> LikelihoodBound:
        """Compute the bound of images x (B, C, H, W) with values from 0 to 1, with noise (B, T, Z) from N(0, I)."""

    @abstractmethod
    def draw(self, z: Tensor) -> Drawing:
        """Generate images from latent vectors z (B, T, Z)."""

    def forward(self, images: Tensor, noise: Tensor | None = None) -> LikelihoodBound:
        """Compute the bound of images (B, H, W, C), by default with random noise."""
        x = images.permute(0, 3, 1, 2).to(torch.get_default_dtype()) / 255
        if noise is None:
            noise = torch.randn(len(x), self.steps, self.latent, device=x.device)
        return self.bound(x, noise)

    def loss(self, images: Tensor) -> Tensor:
        """Return the mean bound of images (B, H, W, C) in nats per image."""
        return self(images).total.mean()


def reparameterize(mean: Tensor, log_deviation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return z = μ + s ε (B, Z), KL(q ‖ N(0, I)) (B,), and log p(z) − log q(z) (B,)."""
    mean, log_deviation = at_least_float32(mean), at_least_float32(log_deviation)
    z = mean + log_deviation.exp() * noise
    kl = 0.5 * (mean**2 + (2 * log_deviation).exp() - 2 * log_deviation - 1).sum(dim=1)
    log_ratio = (0.5 * (noise**2 - z**2) + log_deviation).sum(dim=1)
    return z, kl, log_ratio


def reconstruction_loss(canvas: Tensor, x: Tensor) -> Tensor:
    """Return −log p(x|z) (B,) of images x (B, C, H, W) for the logits c(z) (B, C, H, W)."""
    losses = F.binary_cross_entropy_with_logits(at_least_float32(canvas), at_least_float32(x), reduction="none")
    return losses.flatten(1).sum(dim=1)


def probabilities(canvas: Tensor) -> Tensor:
    """Return π = σ(c) (…, H, W, C) of canvases (…, C, H, W)."""
    return at_least_float32(canvas).sigmoid().movedim(-3, -1)
