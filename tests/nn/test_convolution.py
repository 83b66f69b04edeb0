"""Convolutions, batch norm, residual blocks and patches compared with independent computations."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.nn.convolution import BatchNorm, Convolution, ResidualBlock, ResNet, make_convolution_norm, patches


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1)
    yield
    torch.set_default_dtype(torch.float32)


def convolve(x: np.ndarray, weight: np.ndarray, stride: int) -> np.ndarray:
    """Compute the equation of the module docstring with loops."""
    (outputs, inputs, k, _), (B, _, H, W), p = weight.shape, x.shape, weight.shape[2] // 2
    y = np.zeros((B, outputs, -(-H // stride), -(-W // stride)))
    for b, o, r, c in itertools.product(*map(range, y.shape)):
        for i, u, v in itertools.product(range(inputs), range(k), range(k)):
            row, column = stride * r + u - p, stride * c + v - p
            if 0 <= row < H and 0 <= column < W:
                y[b, o, r, c] += weight[o, i, u, v] * x[b, i, row, column]
    return y


@pytest.mark.parametrize(("kernel", "stride", "size"), [(3, 1, (5, 4)), (3, 2, (5, 4)), (1, 2, (5, 5)), (7, 4, (9, 6))])
def test_convolution_matches_its_equation(kernel: int, stride: int, size: tuple[int, int]) -> None:
    layer, x = Convolution(2, 3, kernel, stride, norm="none"), torch.randn(2, 2, *size)
    nn.init.zeros_(layer.get_parameter("convolution.bias"))
    expected = np.maximum(convolve(x.numpy(), layer.convolution.weight.detach().numpy(), stride), 0)
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, atol=1e-10)


def test_batch_norm_matches_torch_in_training_and_evaluation() -> None:
    layer, reference = BatchNorm(3), nn.BatchNorm2d(3)
    for part in (layer, reference):
        nn.init.constant_(part.weight, 1.5)
        nn.init.constant_(part.bias, -0.5)
    for _ in range(4):
        x = torch.randn(5, 3, 4, 2) * 3 + 1
        torch.testing.assert_close(layer(x), reference(x))
    torch.testing.assert_close(layer.running_mean, reference.running_mean)
    torch.testing.assert_close(layer.running_variance, reference.running_var)
    x = torch.randn(2, 3, 4, 4)
    before = layer.running_mean.clone()
    torch.testing.assert_close(layer.eval()(x), reference.eval()(x))
    assert torch.equal(before, layer.running_mean)


def test_batch_norm_normalizes_each_channel_over_examples_and_positions() -> None:
    x = torch.randn(6, 2, 3, 3) * 4 + 7
    y = BatchNorm(2, epsilon=1e-12)(x)
    torch.testing.assert_close(y.mean(dim=(0, 2, 3)), torch.zeros(2), atol=1e-12, rtol=0)
    torch.testing.assert_close(y.var(dim=(0, 2, 3), unbiased=False), torch.ones(2))


def test_group_norm_has_groups_of_eight_channels() -> None:
    groups = [make_convolution_norm("group", channels).num_groups for channels in (32, 8, 12)]
    assert groups == [4, 1, 1]


def plain_block(x: Tensor, block: ResidualBlock, stride: int) -> Tensor:
    first, second = block.first.convolution.weight, block.second.convolution.weight
    y = F.conv2d(F.relu(F.conv2d(x, first, stride=stride, padding=1)), second, padding=1)
    shortcut = (
        x if isinstance(block.shortcut, nn.Identity) else F.conv2d(x, block.shortcut.convolution.weight, stride=stride)
    )
    return F.relu(shortcut + y)


@pytest.mark.parametrize(("inputs", "outputs", "stride"), [(4, 4, 1), (4, 6, 1), (4, 4, 2)])
def test_residual_block_adds_its_input(inputs: int, outputs: int, stride: int) -> None:
    block = ResidualBlock(inputs, outputs, stride, norm="none")
    for name, parameter in block.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
    x = torch.randn(2, inputs, 5, 6)
    torch.testing.assert_close(block(x), plain_block(x, block, stride))


@pytest.mark.parametrize("size", [(28, 28), (9, 14), (1, 1), (5, 33)])
@pytest.mark.parametrize("first_stride", [1, 2, 4])
def test_grid_of_resnet_is_the_size_of_its_output(size: tuple[int, int], first_stride: int) -> None:
    network = ResNet(3, (4, 4, 8), 1, first_stride).eval()
    assert network(torch.randn(1, 3, *size)).shape == (1, 8, *network.grid(*size))


def test_patches_are_blocks_of_pixels() -> None:
    x = torch.randn(2, 5, 7, 3)
    found = patches(x, 3)
    padded = np.zeros((2, 6, 9, 3))
    padded[:, :5, :7] = x.numpy()
    expected = [padded[:, r : r + 3, c : c + 3].reshape(2, -1) for r in (0, 3) for c in (0, 3, 6)]
    assert torch.equal(found, torch.from_numpy(np.stack(expected, axis=1)))
