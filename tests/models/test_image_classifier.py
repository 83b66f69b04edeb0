"""The image classifier: the Vision Transformer and its explanations compared with independent computations."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.inspect.views.images import explain_image, occlusion
from seqloom.models.image_classifier import ImageClassifierConfig, ImageClassifierModel
from seqloom.models.image_encoder import (
    PatchEncoderConfig,
    PixelEncoderConfig,
    ResNetEncoderConfig,
    RowEncoderConfig,
)
from seqloom.nn.encoders import RecurrentEncoderConfig, TransformerEncoderConfig
from seqloom.nn.positions import PositionsConfig

VIT = TransformerEncoderConfig(
    d_model=8,
    heads=2,
    layers=2,
    d_ff=12,
    activation="gelu",
    input_scale=False,
    dropout=0.0,
    positions=PositionsConfig(kind="none"),
)
CONFIGS: dict[str, ImageClassifierConfig] = {
    "vit": ImageClassifierConfig(image=PatchEncoderConfig(patch=3, d_model=8), encoder=VIT, pooling="class"),
    "vit-mean": ImageClassifierConfig(image=PatchEncoderConfig(patch=3, d_model=8), encoder=VIT, pooling="mean"),
    "cnn": ImageClassifierConfig(image=ResNetEncoderConfig(channels=(4, 6), blocks=1), pooling="attention"),
    "rows": ImageClassifierConfig(image=RowEncoderConfig(), encoder=RecurrentEncoderConfig(hidden=5), pooling="last"),
    "pixels": ImageClassifierConfig(
        image=PixelEncoderConfig(permutation=2), encoder=RecurrentEncoderConfig(hidden=5), pooling="max"
    ),
}
H, W, C, LABELS = 6, 9, 2 + 1, 4


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def build(name: str) -> ImageClassifierModel:
    torch.manual_seed(3)
    return CONFIGS[name].build(H, W, C, LABELS).eval()


def images(count: int = 3) -> Tensor:
    return torch.randint(256, (count, H, W, C), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))


def vision_transformer(model: Any, batch: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Compute logits and attention weights (B, N, S, S) as in Dosovitskiy et al. (2021), with the norms of torch."""
    x = ((batch.double() - 127) / 128).reshape(len(batch), H // 3, 3, W // 3, 3, C)
    patches = torch.stack([x[:, r, :, c].reshape(len(batch), -1) for r in range(H // 3) for c in range(W // 3)], dim=1)
    z = patches @ model.image.project.weight.T + model.image.project.bias + model.image.positions
    z = torch.cat([model.class_token.expand(len(batch), 1, -1), z], dim=1)
    weights = []
    for block in model.encoder.blocks:
        attention, feed = block.self_attention, block.feed_forward
        y = F.layer_norm(z, (8,), block.mixer_residual.norm.weight, block.mixer_residual.norm.bias)
        q, k, v = (part(y).view(len(y), -1, 2, 4).transpose(1, 2) for part in (attention.q, attention.k, attention.v))
        weights.append((q @ k.transpose(2, 3) / 2).softmax(dim=3))
        z = z + attention.out((weights[-1] @ v).transpose(1, 2).flatten(2))
        y = F.layer_norm(z, (8,), block.feed_forward_residual.norm.weight, block.feed_forward_residual.norm.bias)
        z = z + feed.down(F.gelu(feed.up(y)))
    z = F.layer_norm(z, (8,), model.encoder.norm.weight, model.encoder.norm.bias)
    return model.output(z[:, 0]), weights


def test_vision_transformer_matches_its_equations() -> None:
    model, batch = build("vit"), images()
    for parameter in model.parameters():  # biases and norms must also have an effect
        nn.init.normal_(parameter, std=0.5)
    torch.testing.assert_close(model({"images": batch}), vision_transformer(model, batch)[0], atol=1e-10, rtol=0)


def test_attention_rollout_matches_its_equation() -> None:
    model, batch = build("vit"), images()
    rollout = model.attention_rollout(batch)
    assert rollout is not None
    for number, grid in enumerate(rollout.numpy()):
        flow = np.eye(7)
        for weights in vision_transformer(model, batch)[1]:
            mean = weights[number].detach().numpy().mean(axis=0)
            flow = (0.5 * mean + 0.5 * np.eye(7)) @ flow
        expected = flow[0, 1:] / flow[0, 1:].sum()
        np.testing.assert_allclose(grid, expected.reshape(2, 3), atol=1e-10)
    assert build("vit-mean").attention_rollout(batch) is not None
    assert build("rows").attention_rollout(batch) is None


@pytest.mark.parametrize("name", CONFIGS)
def test_influence_is_gradient_times_input(name: str) -> None:
    model, batch = build(name), images(2)
    labels = torch.tensor([1, 3])
    found = model.influence(batch, labels)
    generator = np.random.default_rng(1)
    for _ in range(3):
        number, row, column = generator.integers([2, H, W])
        expected = 0.0
        for channel in range(C):
            values = []
            for step in (1e-4, -1e-4):
                changed = batch.double()
                changed[number, row, column, channel] += step
                values.append(model({"images": changed})[number, labels[number]].item())
            slope = (values[0] - values[1]) / 2e-4
            expected += slope * (batch[number, row, column, channel].item() - 127)
        assert found[number, row, column].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
def test_occlusion_is_the_decrease_in_probability_without_a_square(name: str) -> None:
    model, (image,) = build(name), images(1)
    drops, side = occlusion(model, image, 2)
    assert side == 1 and drops.shape == (H, W)
    p = model.probabilities({"images": image[None]})[0, 2]
    changed = image.clone()
    changed[4, 7] = image.double().mean(dim=(0, 1)).round().to(torch.uint8)
    assert drops[4, 7] == pytest.approx((p - model.probabilities({"images": changed[None]})[0, 2]).item(), abs=1e-12)


def test_reasons_name_the_squares_with_the_largest_drops() -> None:
    big = torch.randint(256, (50, 30, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))
    torch.manual_seed(1)
    model = CONFIGS["cnn"].build(50, 30, 3, LABELS).eval()
    reasons = explain_image(model, big.numpy(), 1, "one")
    drops = reasons.maps["occlusion"]
    assert drops.shape == (13, 8) and [region.drop for region in reasons.regions] == sorted(drops.ravel())[:-4:-1]
    region = reasons.regions[0]
    assert drops[region.rows[0] // 4, region.columns[0] // 4] == region.drop
    assert region.rows[1] - region.rows[0] == 3 or region.rows[1] == 49
    assert set(reasons.maps) == {"occlusion", "gradient", "attention"}
    assert reasons.maps["attention"].sum() == pytest.approx(1)


@pytest.mark.parametrize("name", CONFIGS)
def test_predictions_do_not_depend_on_other_images_of_the_batch(name: str) -> None:
    model, batch = build(name), images(3)
    together = model({"images": batch})
    alone = torch.cat([model({"images": batch[i : i + 1]}) for i in range(3)])
    torch.testing.assert_close(together, alone)
    assert not torch.allclose(together[0], together[1])


def test_pooling_of_a_missing_encoder_is_rejected() -> None:
    for pooling in ("class", "last"):
        with pytest.raises(ValueError, match=f"pooling {pooling} needs an encoder"):
            ImageClassifierConfig(pooling=pooling)


def test_note_on_missing_positions_depends_on_the_image_encoder() -> None:
    without = PatchEncoderConfig(patch=3, d_model=8, positions=False)
    assert build("vit").notes() == []
    assert "without positions" in ImageClassifierConfig(image=without, encoder=VIT).build(H, W, C, 2).notes()[0]
