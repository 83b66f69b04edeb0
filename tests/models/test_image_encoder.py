"""Image encoders: vectors, grids, and the location of each vector."""

from typing import Any

import pytest
import torch

from seqloom.models.image_encoder import (
    ImageEncoder,
    PatchEncoderConfig,
    PixelEncoderConfig,
    ResNetEncoderConfig,
    RowEncoderConfig,
)

CONFIGS: list[Any] = [
    ResNetEncoderConfig(channels=(8, 16), blocks=1),
    ResNetEncoderConfig(channels=(8,), blocks=1, first_stride=4, norm="group"),
    PatchEncoderConfig(patch=4, d_model=16),
    RowEncoderConfig(),
    PixelEncoderConfig(),
    PixelEncoderConfig(permutation=3),
]


def images(height: int = 13, width: int = 10, channels: int = 3, count: int = 2) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randint(256, (count, height, width, channels), dtype=torch.uint8)


def build(config: Any, height: int = 13, width: int = 10, channels: int = 3) -> ImageEncoder:
    torch.manual_seed(2)
    encoder: ImageEncoder = config.build(height, width, channels)
    return encoder.eval()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_vectors_have_the_announced_shape(config: Any) -> None:
    encoder = build(config)
    rows, columns = encoder.grid
    x = encoder(images())
    assert x.shape == (2, encoder.length, encoder.output_size)
    assert encoder.on_grid(x[..., 0]).shape == (2, rows, columns)


def changed_cells(config: Any) -> tuple[torch.Tensor, tuple[int, int]]:
    """Return the cells (rows, columns) that change with one pixel, and the cell of this pixel."""
    encoder, before = build(config, 48, 48), images(48, 48, count=1)
    after = before.clone()
    after[:, 30, 41] = 255 - after[:, 30, 41]
    change = encoder.on_grid((encoder(after) - encoder(before)).abs().sum(dim=2).detach())[0]
    rows, columns = encoder.grid
    return change > 0, (30 * rows // 48, 41 * columns // 48)


@pytest.mark.parametrize("config", CONFIGS[2:], ids=lambda config: config.kind)
def test_changing_a_pixel_changes_only_the_vector_of_its_location(config: Any) -> None:
    cells, cell = changed_cells(config)
    assert [tuple(found) for found in cells.nonzero().tolist()] == [cell]


def test_changing_a_pixel_changes_the_feature_map_around_its_location() -> None:
    cells, (row, column) = changed_cells(CONFIGS[0])
    reach = 4  # at stride 2, the pixels within ±(1 + 2 + 1 + 2) of a location
    assert cells[row, column]
    assert (
        not cells[: row - reach].any() and not cells[row + reach + 1 :].any() and not cells[:, : column - reach].any()
    )


def test_bytes_are_normalized() -> None:
    x = build(RowEncoderConfig(), 1, 3, 1)(torch.tensor([[[[0], [127], [255]]]], dtype=torch.uint8))
    assert x.tolist() == [[[-127 / 128, 0, 1]]]


def test_permutation_is_fixed_and_is_undone_on_the_grid() -> None:
    picture = images(4, 5, 1, 1)
    encoder, plain = build(PixelEncoderConfig(permutation=3), 4, 5, 1), build(PixelEncoderConfig(), 4, 5, 1)
    x, in_order = encoder(picture)[..., 0], plain(picture)[..., 0]
    assert not torch.equal(x, in_order)
    assert torch.equal(x.sort().values, in_order.sort().values)
    assert torch.equal(encoder.on_grid(x), plain.on_grid(in_order))
    assert torch.equal(x, build(PixelEncoderConfig(permutation=3), 4, 5, 1)(picture)[..., 0])
    assert not torch.equal(x, build(PixelEncoderConfig(permutation=4), 4, 5, 1)(picture)[..., 0])


def test_positions_distinguish_equal_patches() -> None:
    same = torch.full((1, 8, 8, 1), 90, dtype=torch.uint8)
    with_positions = build(PatchEncoderConfig(patch=4, d_model=8), 8, 8, 1)(same)[0]
    without = build(PatchEncoderConfig(patch=4, d_model=8, positions=False), 8, 8, 1)(same)[0]
    assert len(with_positions.unique(dim=0)) == 4
    assert len(without.unique(dim=0)) == 1
