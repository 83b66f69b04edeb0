"""The variational autoencoder of images (Kingma and Welling 2014), with feed-forward networks.

    h = tanh(W_2 tanh(W_1 x + b_1) + b_2)     μ = W_μ h + b_μ     log s = W_s h + b_s     z = μ + s ε
    g = tanh(V_2 tanh(V_1 z + a_1) + a_2)     c = V_3 g + a_3

The bound is that of `seqloom.models.image_generator`. There is a single latent vector and a single drawing step.
"""

from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.models.image_encoder import ImageModelOptions
from seqloom.models.image_generator import (
    Drawing,
    ImageGenerator,
    LikelihoodBound,
    probabilities,
    reconstruction_loss,
    reparameterize,
)


@config
class ImageVAEConfig(ImageModelOptions):
    kind: Literal["image-vae"] = "image-vae"
    layers: PositiveInt = 2  # number of hidden layers of the encoder, and of the decoder
    hidden: PositiveInt = 500  # size of a hidden layer
    latent: PositiveInt = 100  # size of z

    def build(self, height: int, width: int, channels: int) -> "ImageVAE":
        return ImageVAE(self, height, width, channels)


class ImageVAE(ImageGenerator):
    """The variational autoencoder of images with H rows, W columns and C channels."""

    steps = 1

    def __init__(self, config: ImageVAEConfig, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.config, self.latent, self.shape = config, config.latent, (channels, height, width)
        size = channels * height * width
        self.encoder = tanh_layers(size, config.hidden, config.layers)
        self.mean = nn.Linear(config.hidden, config.latent)
        self.log_deviation = nn.Linear(config.hidden, config.latent)
        self.decoder = tanh_layers(config.latent, config.hidden, config.layers)
        self.output = nn.Linear(config.hidden, size)

    def bound(self, x: Tensor, noise: Tensor) -> LikelihoodBound:
        h = self.encoder(x.flatten(1))
        z, kl, log_ratio = reparameterize(self.mean(h), self.log_deviation(h), noise[:, 0])
        return LikelihoodBound(reconstruction_loss(self.canvas(z), x), kl, log_ratio)

    def canvas(self, z: Tensor) -> Tensor:
        """Compute the logits c(z) (B, C, H, W) of latent vectors (B, Z)."""
        logits: Tensor = self.output(self.decoder(z))
        return logits.unflatten(1, self.shape)

    def draw(self, z: Tensor) -> Drawing:
        return Drawing(probabilities(self.canvas(z[:, 0])).unsqueeze(1))


def tanh_layers(inputs: int, hidden: int, layers: int) -> nn.Sequential:
    """Create linear layers, each followed by tanh."""
    sizes = [inputs, *[hidden] * layers]
    parts = [(nn.Linear(before, after), nn.Tanh()) for before, after in pairwise(sizes)]
    return nn.Sequential(*(module for part in parts for module in part))
