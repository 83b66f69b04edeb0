"""DRAW: a recurrent autoencoder that draws an image step by step on a canvas (Gregor et al. 2015).

    x̂_t = x − σ(c_{t-1})                                              the error image
    r_t = read(x, x̂_t, h^dec_{t-1})
    h^enc_t = cell^enc([r_t; h^dec_{t-1}], h^enc_{t-1})
    μ_t = W_μ h^enc_t + b_μ     log s_t = W_s h^enc_t + b_s            q(z_t|x, z_{<t}) = N(μ_t, diag(s_t²))
    z_t = μ_t + s_t ε_t                                               generation: z_t ~ N(0, I)
    h^dec_t = cell^dec(z_t, h^dec_{t-1})
    c_t = c_{t-1} + write(h^dec_t)                                    t = 1 … T
    −log p(x) ≤ −log p(x|c_T) + Σ_t KL(q(z_t|x, z_{<t}) ‖ N(0, I))

With attention, both operations use the filter banks of `seqloom.nn.filter_banks`, whose parameters depend on h^dec:

    read = [γ F_Y x F_Xᵀ; γ F_Y x̂ F_Xᵀ]     (g̃_X, g̃_Y, log σ², log δ̃, log γ) = W_r h^dec_{t-1} + b_r
    write = 1/γ · F_Yᵀ w F_X                 w = W_w h^dec_t + b_w, and other parameters

Initially, the filters tile the image. Without attention, read = [x; x̂] and write = W h^dec_t + b. c_0 and the
initial states are learned.
"""

from typing import Literal

import torch
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
from seqloom.nn.cells import Cell, CellOptions, State
from seqloom.nn.filter_banks import PARAMETERS, FilterBank, filter_bank, tiling_parameters


@config
class DrawAttentionConfig:
    read: PositiveInt = 2  # N of the filters that read: N × N values of the image and of the error image
    write: PositiveInt = 5  # N of the filters that write


@config
class DrawConfig(CellOptions, ImageModelOptions):
    kind: Literal["draw"] = "draw"
    steps: PositiveInt = 64  # T, the number of steps
    hidden: PositiveInt = 256  # size of the states of the encoder and the decoder
    latent: PositiveInt = 100  # size of z_t
    attention: DrawAttentionConfig | None = DrawAttentionConfig()  # filter banks; null: read and write whole images

    def build(self, height: int, width: int, channels: int) -> "DRAW":
        return DRAW(self, height, width, channels)


def make_focus(hidden: int, points: int, height: int, width: int, writes: bool) -> nn.Linear | None:
    """Create the layer that computes the parameters of the filters, or return None without attention."""
    if not points:
        return None
    focus = nn.Linear(hidden, PARAMETERS)
    focus.bias.data = tiling_parameters(points, height, width, writes)
    return focus


class Reader(nn.Module):
    """read(x, x̂, h): (B, output_size)."""

    def __init__(self, config: DrawConfig, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.size, self.points = (height, width), 0 if config.attention is None else config.attention.read
        self.output_size = 2 * channels * (self.points**2 or height * width)
        self.focus = make_focus(config.hidden, self.points, *self.size, writes=False)

    def forward(self, x: Tensor, error: Tensor, h: Tensor) -> Tensor:
        if self.focus is None:
            return torch.cat([x.flatten(1), error.flatten(1)], dim=1)
        bank = filter_bank(self.focus(h), self.points, *self.size)
        return torch.cat([bank.read(x).flatten(1), bank.read(error).flatten(1)], dim=1)


class Writer(nn.Module):
    """write(h): an addition to the canvas (B, C, H, W), and the filters with attention."""

    def __init__(self, config: DrawConfig, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.size, self.points = (height, width), 0 if config.attention is None else config.attention.write
        self.shape = (channels, self.points, self.points) if self.points else (channels, height, width)
        self.content = nn.Linear(config.hidden, self.shape[0] * self.shape[1] * self.shape[2])
        self.focus = make_focus(config.hidden, self.points, *self.size, writes=True)

    def forward(self, h: Tensor) -> tuple[Tensor, FilterBank | None]:
        content = self.content(h).unflatten(1, self.shape)
        if self.focus is None:
            return content, None
        bank = filter_bank(self.focus(h), self.points, *self.size)
        return bank.write(content), bank


class FirstState(nn.Module):
    """The learned initial state of a cell."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.values = nn.ParameterDict({name: torch.zeros(cell.hidden) for name in cell.state_names})

    def forward(self, rows: int) -> State:
        return {name: value.expand(rows, -1) for name, value in self.values.items()}


class DRAW(ImageGenerator):
    """The DRAW model of images with H rows, W columns and C channels."""

    def __init__(self, config: DrawConfig, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.config, self.steps, self.latent = config, config.steps, config.latent
        self.read = Reader(config, height, width, channels)
        self.encoder = config.make_cell(self.read.output_size + config.hidden, config.hidden)
        self.mean = nn.Linear(config.hidden, config.latent)
        self.log_deviation = nn.Linear(config.hidden, config.latent)
        self.decoder = config.make_cell(config.latent, config.hidden)
        self.write = Writer(config, height, width, channels)
        self.first_canvas = nn.Parameter(torch.zeros(channels, height, width))
        self.first_encoder_state, self.first_decoder_state = FirstState(self.encoder), FirstState(self.decoder)

    def bound(self, x: Tensor, noise: Tensor) -> LikelihoodBound:
        encoder, decoder = self.first_encoder_state(len(x)), self.first_decoder_state(len(x))
        canvas = self.first_canvas.expand(len(x), -1, -1, -1)
        kl = log_ratio = noise.new_zeros(len(x))
        for noise_t in noise.unbind(dim=1):
            h = decoder["h"]
            r = self.read(x, x - canvas.sigmoid(), h)
            encoder = self.encoder(torch.cat([r.to(h.dtype), h], dim=1), encoder)
            mean, log_deviation = self.mean(encoder["h"]), self.log_deviation(encoder["h"])
            z, kl_t, log_ratio_t = reparameterize(mean, log_deviation, noise_t)
            decoder = self.decoder(z, decoder)
            canvas = canvas + self.write(decoder["h"])[0]
            kl, log_ratio = kl + kl_t, log_ratio + log_ratio_t
        return LikelihoodBound(reconstruction_loss(canvas, x), kl, log_ratio)

    def draw(self, z: Tensor) -> Drawing:
        decoder, canvas = self.first_decoder_state(len(z)), self.first_canvas.expand(len(z), -1, -1, -1)
        canvases, frames = [], []
        for z_t in z.unbind(dim=1):
            decoder = self.decoder(z_t, decoder)
            addition, bank = self.write(decoder["h"])
            canvas = canvas + addition
            canvases.append(probabilities(canvas))
            if bank is not None:
                frames.append(written_frame(bank))
        return Drawing(torch.stack(canvases, dim=1), torch.stack(frames, dim=1) if frames else None)


def written_frame(bank: FilterBank) -> Tensor:
    """Return the first and last row and column (B, 4) of the filter means, counted from 0."""
    reach = (bank.rows.shape[1] - 1) / 2 * bank.stride
    edges = [centre + sign * reach - 1 for centre in (bank.centre_row, bank.centre_column) for sign in (-1, 1)]
    return torch.stack(edges, dim=1)
