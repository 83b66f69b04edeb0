"""Explanations of an image classification: which parts of an image support its label.

occlusion    p(label) − p(label | a square of the image has the mean colour), for each square
gradient     gradient × input, Σ_c x ∂logit/∂x, for each pixel
rollout      attention roll-out of a Transformer encoder, for each vector of the image
attention    the weights of attention pooling, for each vector of the image
glimpses     the squares that a model with glimpses reads, and p(label) after each of them
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from seqloom.core.device import device_of
from seqloom.core.progress import check_cancelled
from seqloom.data.images import Pixels
from seqloom.inspect.values import Array
from seqloom.models.image_classifier import AnyImageClassifier

SQUARES = 7  # approximate number of squares per side for occlusion
BATCH_SIZE = 256  # occluded copies of the image per batch


@dataclass(frozen=True)
class Region:
    """A square of an image, and the decrease in the probability of the label if the square is occluded."""

    rows: tuple[int, int]  # first and last, counted from 0
    columns: tuple[int, int]
    drop: float


@dataclass(frozen=True)
class Glimpse:
    """A glimpse at an image, and the probability of the label if the model stopped after this glimpse."""

    row: float  # the centre in pixels; 0 is the upper border of the image
    column: float
    sides: tuple[int, ...]  # the sides of the squares in pixels, smallest first
    probability: float


@dataclass(frozen=True)
class ImageReasons:
    """The maps of one image and its most important squares; a larger value means a more important cell."""

    label: str
    maps: Mapping[str, Array]  # (rows, columns)
    regions: tuple[Region, ...]  # the squares with the largest decreases
    glimpses: tuple[Glimpse, ...] = ()  # in the order of the model; empty for models without glimpses

    def to_fields(self) -> list[str]:
        """Return the most important squares, then the glimpses, as fields of a line."""
        squares = (
            f"rows {region.rows[0]}–{region.rows[1]}, columns {region.columns[0]}–{region.columns[1]}: "
            f"{region.drop:+.3f}"
            for region in self.regions
        )
        glimpses = (
            f"glimpse at row {glimpse.row:.0f}, column {glimpse.column:.0f}: {glimpse.probability:.3f}"
            for glimpse in self.glimpses
        )
        return [*squares, *glimpses]


def explain_image(model: AnyImageClassifier, pixels: Pixels, label: int, name: str, top: int = 3) -> ImageReasons:
    """Compute the maps of an image (H, W, C) for a label."""
    images = torch.from_numpy(pixels)[None].to(device_of(model))
    drops, side = occlusion(model, images[0], label)
    maps = {
        "occlusion": drops,
        "gradient": to_array(model.influence(images, torch.tensor([label], device=images.device))),
    }
    for kind, values in (("rollout", model.attention_rollout(images)), ("attention", model.attention(images))):
        if values is not None:
            maps[kind] = to_array(values)
    H, W, _ = pixels.shape
    order = np.argsort(-drops, axis=None, kind="stable")[:top]
    regions = []
    for row, column in zip(*np.unravel_index(order, drops.shape), strict=True):
        rows = int(row) * side, min(H, (int(row) + 1) * side) - 1
        columns = int(column) * side, min(W, (int(column) + 1) * side) - 1
        regions.append(Region(rows, columns, float(drops[row, column])))
    return ImageReasons(name, maps, tuple(regions), find_glimpses(model, images, label))


def find_glimpses(model: AnyImageClassifier, images: Tensor, label: int) -> tuple[Glimpse, ...]:
    """Return the glimpses of a model at one image (1, H, W, C)."""
    path = model.glimpse_path(images)
    if path is None:
        return ()
    _, H, W, _ = images.shape
    sides = tuple(model.patch_sides())
    return tuple(
        Glimpse((row + 1) / 2 * H, (column + 1) / 2 * W, sides, probability)
        for (row, column), probability in zip(path[0][0].tolist(), path[1][0, :, label].tolist(), strict=True)
    )


@torch.no_grad()
def occlusion(model: AnyImageClassifier, image: Tensor, label: int) -> tuple[Array, int]:
    """Return the decrease of p(label) for each square of an image (H, W, C), and the side of a square."""
    H, W, _ = image.shape
    side = max(1, round(min(H, W) / SQUARES))
    mean = image.float().mean(dim=(0, 1)).round().to(image.dtype)
    shape = -(-H // side), -(-W // side)
    copies = image.expand(shape[0] * shape[1], -1, -1, -1).clone()
    for number, copy in enumerate(copies):
        row, column = divmod(number, shape[1])
        copy[row * side : (row + 1) * side, column * side : (column + 1) * side] = mean
    before = model.probabilities({"images": image[None]})[0, label]
    after = []
    for part in copies.split(BATCH_SIZE):
        check_cancelled()
        after.append(model.probabilities({"images": part})[:, label])
    return (before - torch.cat(after)).double().cpu().numpy().reshape(shape), side


def to_array(values: Tensor) -> Array:
    """Return the map of a batch that contains one image (1, rows, columns)."""
    array: Array = values[0].double().cpu().numpy()
    return array
