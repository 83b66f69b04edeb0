"""The glimpse sensor and the Gaussian filter banks, compared with brute-force computations."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seqloom.nn.filter_banks import FilterBank, filter_bank, tiling_parameters
from seqloom.nn.glimpses import corners, crop, glimpse, patch_sides

H, W, C = 9, 12, 2


def image(seed: int = 1, rows: int = 1) -> Tensor:
    return torch.rand(rows, H, W, C, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def brute_force_square(x: np.ndarray, location: tuple[float, float], side: int) -> np.ndarray:
    """Cut a square pixel by pixel."""
    square = np.zeros((side, side, C))
    first = [math.floor((place + 1) / 2 * size - side / 2 + 0.5) for place, size in zip(location, (H, W), strict=True)]
    for row in range(side):
        for column in range(side):
            r, c = first[0] + row, first[1] + column
            if 0 <= r < H and 0 <= c < W:
                square[row, column] = x[r, c]
    return square


# --- glimpses ---------------------------------------------------------------------------------------------------------


@given(row=st.floats(-1, 1), column=st.floats(-1, 1), patch=st.integers(1, 4), scales=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_glimpse_matches_squares_cropped_pixel_by_pixel(row: float, column: float, patch: int, scales: int) -> None:
    x = image()
    places = [(place + 1) / 2 * size - side / 2 for side in patch_sides(patch, scales, 2) for place, size in
              ((row, H), (column, W))]  # fmt: skip
    if any(abs(place % 1 - 0.5) < 1e-6 for place in places):  # two squares are equally close
        return
    found = glimpse(x, torch.tensor([[row, column]], dtype=torch.float64), patch, scales, 2)
    assert found.shape == (1, scales, patch, patch, C)
    for scale, side in enumerate(patch_sides(patch, scales, 2)):
        square, m = brute_force_square(x[0].numpy(), (row, column), side), 2**scale
        expected = [
            [square[m * r : m * r + m, m * c : m * c + m].mean(axis=(0, 1)) for c in range(patch)] for r in range(patch)
        ]
        np.testing.assert_allclose(found[0, scale].numpy(), np.array(expected), atol=1e-12)


def test_every_image_of_a_batch_has_its_location() -> None:
    x = image(rows=3)
    locations = torch.tensor([[-1.0, -1.0], [0.0, 0.3], [1.0, 1.0]])
    together = glimpse(x, locations, 3, 2, 3)
    apart = [glimpse(x[n : n + 1], locations[n : n + 1], 3, 2, 3) for n in range(3)]
    assert torch.equal(together, torch.cat(apart))
    assert corners(torch.tensor([[0.0, 0.0]]), 4, 28, 28).tolist() == [[12, 12]]
    assert (together[0, 0, 0] == 0).all() and (together[0, 0, 2, 2] != 0).all()  # the corner has three quarters outside


def test_gradient_reaches_only_pixels_of_the_square() -> None:
    x = image().requires_grad_()
    crop(x, torch.tensor([[7, -1]]), 3).sum().backward()
    expected = torch.zeros(H, W)
    expected[7:9, 0:2] = 1
    assert x.grad is not None and torch.equal(x.grad[0, :, :, 0].float(), expected)


# --- filter banks -----------------------------------------------------------------------------------------------------


def brute_force_filters(values: list[float], points: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Compute F_Y, F_X and γ with the equations of Gregor et al. (2015), one value at a time."""
    x, y, log_variance, log_stride, log_intensity = values
    centre = {W: (W + 1) / 2 * (x + 1), H: (H + 1) / 2 * (y + 1)}
    stride = (max(H, W) - 1) / (points - 1) * math.exp(log_stride)
    banks = {}
    for size in (H, W):
        bank = np.zeros((points, size))
        for i in range(1, points + 1):
            mean = centre[size] + (i - points / 2 - 0.5) * stride
            for a in range(1, size + 1):
                bank[i - 1, a - 1] = math.exp(-((a - mean) ** 2) / (2 * math.exp(log_variance)))
            bank[i - 1] /= max(bank[i - 1].sum(), 1e-8)
        banks[size] = bank
    return banks[H], banks[W], math.exp(log_intensity)


@given(
    values=st.lists(st.floats(-1.5, 1.5), min_size=5, max_size=5),
    points=st.integers(2, 5),
)
@settings(max_examples=40, deadline=None)
def test_reading_and_writing_match_the_equations(values: list[float], points: int) -> None:
    bank = filter_bank(torch.tensor([values], dtype=torch.float64), points, H, W)
    rows, columns, intensity = brute_force_filters(values, points)
    np.testing.assert_allclose(bank.rows[0].numpy(), rows, atol=1e-12)
    np.testing.assert_allclose(bank.columns[0].numpy(), columns, atol=1e-12)
    x, w = image(2).permute(0, 3, 1, 2), torch.rand(1, C, points, points, dtype=torch.float64)
    for channel in range(C):
        read = [[sum(intensity * rows[i, a] * x[0, channel, a, b].item() * columns[j, b] for a in range(H)
                     for b in range(W)) for j in range(points)] for i in range(points)]  # fmt: skip
        np.testing.assert_allclose(bank.read(x)[0, channel].numpy(), read, atol=1e-10)
        written = rows.T @ w[0, channel].numpy() @ columns / intensity
        np.testing.assert_allclose(bank.write(w)[0, channel].numpy(), written, atol=1e-10)


def sharp(points: int, x: float, y: float, log_stride: float) -> FilterBank:
    return filter_bank(torch.tensor([[x, y, -8.0, log_stride, 0.0]], dtype=torch.float64), points, H, W)


def test_sharp_filters_read_single_pixels() -> None:
    """With δ = 1 and a small variance, the filters read a square of pixels and write it to the same place."""
    x = image().permute(0, 3, 1, 2)
    bank = sharp(3, 2 * 5 / (W + 1) - 1, 2 * 4 / (H + 1) - 1, math.log(2 / (W - 1)))  # the centre is row 4, column 5
    torch.testing.assert_close(bank.read(x), x[:, :, 2:5, 3:6], atol=1e-8, rtol=0)
    canvas = bank.write(x[:, :, 2:5, 3:6])
    torch.testing.assert_close(canvas[:, :, 2:5, 3:6], x[:, :, 2:5, 3:6], atol=1e-8, rtol=0)
    assert canvas.sum().item() == pytest.approx(x[:, :, 2:5, 3:6].sum().item())


def test_filters_far_outside_are_finite() -> None:
    parameters = torch.tensor([[9.0, -9.0, -6.0, 1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    bank = filter_bank(parameters, 4, H, W)
    bank.read(image().permute(0, 3, 1, 2)).sum().backward()
    assert parameters.grad is not None and torch.isfinite(parameters.grad).all()


@pytest.mark.parametrize("points", [2, 3, 5])
def test_initial_filters_tile_the_image_and_keep_its_values(points: int) -> None:
    """Reading gives means, and a constant patch is written with its value in the middle of the image."""
    for writes in (False, True):
        bank = filter_bank(tiling_parameters(points, 28, 28, writes).double().unsqueeze(0), points, 28, 28)
        ones = torch.ones(1, 1, 28, 28, dtype=torch.float64)
        if not writes:
            torch.testing.assert_close(bank.read(ones), ones[:, :, :points, :points])
        else:
            middle = bank.write(ones[:, :, :points, :points])[0, 0, 10:18, 10:18]
            assert middle.min() > 0.8 and middle.max() < 1.6  # filters at the border are larger
        centres = (bank.columns[0] * torch.arange(1, 29)).sum(dim=1)
        expected = 14.5 + (torch.arange(1, points + 1) - (points + 1) / 2) * 28 / points
        assert (centres - expected).abs().max() < 28 / points / 4  # filters at the border are cut
