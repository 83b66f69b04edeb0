"""Glimpses and DRAW on a GPU: a training step does not wait for the device, and has the results of the CPU."""

import pytest
import torch
from tests.device_sync import forbid_device_sync

from seqloom.models.draw import DrawAttentionConfig, DrawConfig
from seqloom.models.glimpse_classifier import GlimpseClassifierConfig

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def test_glimpses_do_not_wait_for_the_device() -> None:
    torch.manual_seed(1)
    model = GlimpseClassifierConfig(glimpses=3, scales=2, hidden=16).build(28, 28, 1, 10)
    images = torch.randint(256, (4, 28, 28, 1), dtype=torch.uint8)
    expected = model.eval().log_probs({"images": images})
    model = model.cuda()
    torch.testing.assert_close(model.log_probs({"images": images.cuda()}).cpu(), expected, atol=1e-4, rtol=1e-4)
    batch = {"images": images.cuda(), "labels": torch.tensor([1, 2, 3, 4], device="cuda")}
    model.train().loss(batch)[0].backward()
    with forbid_device_sync():
        model.loss(batch)[0].backward()


def test_draw_does_not_wait_for_the_device() -> None:
    torch.manual_seed(1)
    model = DrawConfig(steps=3, hidden=16, latent=5, attention=DrawAttentionConfig()).build(28, 28, 1)
    images, noise = torch.randint(256, (4, 28, 28, 1), dtype=torch.uint8), torch.randn(4, 3, 5)
    expected = model(images, noise).total
    model, images = model.cuda(), images.cuda()
    torch.testing.assert_close(model(images, noise.cuda()).total.cpu(), expected, atol=1e-2, rtol=1e-4)
    model.loss(images).backward()
    with forbid_device_sync():
        model.loss(images).backward()
