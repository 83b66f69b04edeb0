"""DRAW and the VAE: their bounds compared with exact likelihoods, and their equations with independent computations."""

from collections.abc import Iterator
from math import log

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Normal, kl_divergence

from seqloom.models.draw import DRAW, DrawAttentionConfig, DrawConfig
from seqloom.models.image_generator import ImageGenerator, reparameterize
from seqloom.models.image_vae import ImageVAEConfig
from seqloom.nn.cells import Cell
from seqloom.nn.filter_banks import filter_bank

H, W, C = 3, 4, 1
NAMES = ("draw", "draw-whole", "vae")


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def build(name: str, latent: int = 1, channels: int = C) -> ImageGenerator:
    torch.manual_seed(6)
    attention = DrawAttentionConfig(read=2, write=3) if name == "draw" else None
    draw = DrawConfig(steps=2, hidden=5, latent=latent, attention=attention)
    config = ImageVAEConfig(hidden=5, latent=latent) if name == "vae" else draw
    model: ImageGenerator = config.build(H, W, channels)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.6)
    return model


def binary_images(count: int, channels: int = C) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return 255 * torch.randint(2, (count, H, W, channels), dtype=torch.uint8, generator=generator)


def log_likelihood(model: ImageGenerator, images: Tensor, points: int = 81) -> Tensor:
    """Return log p(x) (B,) by integrating p(x|z) p(z) over a grid of latent values (steps · latent ≤ 2)."""
    axis = torch.linspace(-6, 6, points)
    size = model.steps * model.latent
    grid = torch.cartesian_prod(*[axis] * size).reshape(-1, model.steps, model.latent)
    with torch.no_grad():
        pixels = model.draw(grid).canvases[:, -1]  # (N, H, W, C)
    prior = Normal(0.0, 1.0).log_prob(grid).sum(dim=(1, 2)) + size * log(12 / (points - 1))
    x = images.double() / 255
    given = torch.stack([Bernoulli(pixels).log_prob(image).sum(dim=(1, 2, 3)) for image in x])  # (B, N)
    return (given + prior).logsumexp(dim=1)


# --- likelihood -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_bound_exceeds_the_exact_negative_log_likelihood(name: str) -> None:
    """The gap is KL(q(z|x) ‖ p(z|x)) > 0, and many importance samples close it."""
    model, images, samples = build(name), binary_images(3), 20_000
    exact = -log_likelihood(model, images)
    for image, expected in zip(images, exact.tolist(), strict=True):
        torch.manual_seed(0)
        bound = model(image.expand(samples, -1, -1, -1))
        error = bound.total.std().item() / samples**0.5
        assert bound.total.mean().item() > expected + 4 * error
        few = log(10) - bound.log_weight.reshape(-1, 10).logsumexp(dim=1)
        assert bound.total.mean().item() > few.mean().item() > expected - 0.02  # tighter, but still a bound
        ratios = (bound.log_weight + expected).exp()  # p(x) in units of its exact value
        assert abs(ratios.mean().item() - 1) < 5 * ratios.std().item() / samples**0.5
        weighted = log(samples) - bound.log_weight.logsumexp(dim=0).item()
        assert weighted == pytest.approx(expected, abs=0.2)


def test_kl_divergence_matches_torch() -> None:
    mean, log_deviation, noise = torch.randn(3, 4, 7)
    z, kl, log_ratio = reparameterize(mean, log_deviation, noise)
    q, p = Normal(mean, log_deviation.exp()), Normal(torch.zeros(()), torch.ones(()))
    torch.testing.assert_close(z, mean + log_deviation.exp() * noise)
    torch.testing.assert_close(kl, kl_divergence(q, p).sum(dim=1), atol=1e-10, rtol=0)
    torch.testing.assert_close(log_ratio, (p.log_prob(z) - q.log_prob(z)).sum(dim=1), atol=1e-10, rtol=0)


# --- equations --------------------------------------------------------------------------------------------------------


def lstm(cell: Cell, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    after = torch.lstm_cell(x, state, cell.weight_x, cell.weight_h, cell.bias_x, cell.bias_h)
    return after[0], after[1]


def independent_bound(model: DRAW, images: Tensor, noise: Tensor, has_attention: bool) -> tuple[Tensor, Tensor]:
    """Compute the reconstruction loss and KL with the equations of Gregor et al. (2015) and the LSTM of torch."""
    x = images.permute(0, 3, 1, 2).double() / 255
    canvas, B = model.first_canvas.expand(len(x), -1, -1, -1), len(x)
    first = (model.first_encoder_state.values, model.first_decoder_state.values)
    encoder, decoder = ((part["h"].expand(B, -1), part["c"].expand(B, -1)) for part in first)
    kl = torch.zeros(B)
    for step in range(model.steps):
        error = x - torch.sigmoid(canvas)
        if has_attention:
            assert model.read.focus is not None and model.write.focus is not None
            bank = filter_bank(model.read.focus(decoder[0]), 2, H, W)
            parts = [torch.einsum("b,bnh,bchw,bmw->bcnm", bank.intensity, bank.rows, part, bank.columns)
                     for part in (x, error)]  # fmt: skip
        else:
            parts = [x, error]
        r = torch.cat([part.flatten(1) for part in parts], dim=1)
        encoder = lstm(model.encoder, torch.cat([r, decoder[0]], dim=1), encoder)
        q = Normal(model.mean(encoder[0]), model.log_deviation(encoder[0]).exp())
        kl = kl + kl_divergence(q, Normal(torch.zeros(()), torch.ones(()))).sum(dim=1)
        decoder = lstm(model.decoder, q.mean + q.stddev * noise[:, step], decoder)
        content = model.write.content(decoder[0])
        if has_attention and model.write.focus is not None:
            bank = filter_bank(model.write.focus(decoder[0]), 3, H, W)
            patch = content.reshape(B, C, 3, 3)
            written = torch.einsum("bnh,bcnm,bmw->bchw", bank.rows, patch, bank.columns)
            canvas = canvas + written / bank.intensity[:, None, None, None]
        else:
            canvas = canvas + content.reshape(B, C, H, W)
    return -Bernoulli(logits=canvas).log_prob(x).sum(dim=(1, 2, 3)), kl


@pytest.mark.parametrize("name", ["draw", "draw-whole"])
def test_draw_model_matches_its_equations(name: str) -> None:
    model, images, noise = build(name, latent=3), binary_images(4), torch.randn(4, 2, 3)
    assert isinstance(model, DRAW)
    bound = model(images, noise)
    reconstruction, kl = independent_bound(model, images, noise, name == "draw")
    torch.testing.assert_close(bound.reconstruction, reconstruction, atol=1e-10, rtol=0)
    torch.testing.assert_close(bound.kl, kl, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_all_parameters_get_a_gradient(name: str) -> None:
    model = build(name, latent=2, channels=3)
    model.loss(binary_images(4, 3)).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_generated_images_match_the_canvas_of_the_same_latent_vectors(name: str) -> None:
    """The generator of the bound is the one that draws: −log p(x|z) follows from the drawn probabilities."""
    model, images, noise = build(name, latent=2), binary_images(4), torch.randn(4, 2, 2)
    nn.init.zeros_(model.mean.weight)  # type: ignore[union-attr,arg-type]
    nn.init.zeros_(model.mean.bias)  # type: ignore[union-attr,arg-type]
    nn.init.zeros_(model.log_deviation.weight)  # type: ignore[union-attr,arg-type]
    nn.init.zeros_(model.log_deviation.bias)  # type: ignore[union-attr,arg-type]
    noise = noise[:, : model.steps]
    bound, drawing = model(images, noise), model.draw(noise)  # q is the prior, so z is the noise
    assert bound.kl.abs().max().item() < 1e-12
    expected = -Bernoulli(drawing.canvases[:, -1]).log_prob(images.double() / 255).sum(dim=(1, 2, 3))
    torch.testing.assert_close(bound.reconstruction, expected, atol=1e-8, rtol=0)
    assert drawing.canvases.shape == (4, model.steps, H, W, C)
    assert (drawing.frames is None) == (name != "draw")


@torch.no_grad()
def test_frames_contain_the_written_pixels() -> None:
    """With sharp filters, all changes of the canvas are inside the frame."""
    model = build("draw", latent=2)
    assert isinstance(model, DRAW) and model.write.focus is not None
    nn.init.zeros_(model.write.focus.weight)
    stride = log(1 / 3 * 2)  # δ = (4 − 1)/(3 − 1) · 2/3 = 1
    model.write.focus.bias.data = torch.tensor([2 * 3 / 5 - 1, 2 * 2 / 4 - 1, -6.0, stride, 0.0])
    drawing = model.draw(torch.randn(1, 2, 2))
    assert drawing.frames is not None
    np.testing.assert_allclose(drawing.frames[0, 0].numpy(), [0, 2, 1, 3], atol=1e-12)  # rows 0–2, columns 1–3
    change = drawing.canvases[0, 1, :, :, 0] - drawing.canvases[0, 0, :, :, 0]
    assert change[:, 0].abs().max() < 1e-9 < change[:, 1:].abs().min()
