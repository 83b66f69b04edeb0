"""The glimpse sensor: square patches of several sizes around a location of an image (Mnih et al. 2014).

    ρ(x, l) = [mean_{s^0}(crop_{g s^0}(x, l)); …; mean_{s^{K-1}}(crop_{g s^{K-1}}(x, l))]

crop_n cuts a square of n × n pixels around the location l, and mean_m averages squares of m × m pixels, so that all K
patches have g × g values. A location (row, column) is (−1, −1) at the top left corner and (1, 1) at the bottom right
corner of the image. Pixels outside the image are 0.
"""

import torch
from torch import Tensor


def patch_sides(patch: int, scales: int, zoom: int) -> list[int]:
    """Return the sides in pixels of the patches of a glimpse, smallest first."""
    return [patch * zoom**scale for scale in range(scales)]


def corners(locations: Tensor, side: int, height: int, width: int) -> Tensor:
    """Return the first row and the first column (B, 2) of squares whose centres are closest to locations (B, 2)."""
    centres = [(locations[:, axis] + 1) / 2 * size for axis, size in enumerate((height, width))]
    return (torch.stack(centres, dim=1) - side / 2).round().long()


def crop(x: Tensor, first: Tensor, side: int) -> Tensor:
    """Cut squares from images x (B, H, W, C), from the first row and column (B, 2): (B, side, side, C)."""
    B, H, W, _ = x.shape
    steps = torch.arange(side, device=x.device)
    rows, columns = first[:, :1] + steps, first[:, 1:] + steps  # (B, side)
    inside = ((rows >= 0) & (rows < H)).unsqueeze(2) & ((columns >= 0) & (columns < W)).unsqueeze(1)
    batch = torch.arange(B, device=x.device)[:, None, None]
    squares = x[batch, rows.clamp(0, H - 1).unsqueeze(2), columns.clamp(0, W - 1).unsqueeze(1)]
    return squares.masked_fill(~inside.unsqueeze(3), 0)


def glimpse(x: Tensor, locations: Tensor, patch: int, scales: int, zoom: int) -> Tensor:
    """Return the patches ρ(x, l) of images x (B, H, W, C) around locations (B, 2): (B, K, g, g, C)."""
    patches = []
    for scale, side in enumerate(patch_sides(patch, scales, zoom)):
        square = crop(x, corners(locations, side, x.shape[1], x.shape[2]), side)
        cells = square.unflatten(2, (patch, zoom**scale)).unflatten(1, (patch, zoom**scale))
        patches.append(cells.mean(dim=(2, 4)))
    return torch.stack(patches, dim=1)
