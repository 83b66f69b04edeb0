"""Binary images: each pixel is 255 with a probability equal to its grey value, and otherwise 0.

    stochastic    a new random image at every training step
    fixed         one random image per example, which depends only on the seed and the position in the split
    threshold     255 from the value 128
    none          no change

In evaluation, `stochastic` uses the images of `fixed`, so that the test data do not change.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from seqloom.core.device import derive_seed
from seqloom.data.images import Pixels

Members = NDArray[np.int64]
Binarization = Literal["stochastic", "fixed", "threshold", "none"]


def binarize(images: Pixels, draws: np.random.Generator) -> Pixels:
    """Return random binary images."""
    return np.where(draws.integers(0, 255, size=images.shape) < images, 255, 0).astype(np.uint8)


def binarize_training(images: Pixels, members: Members, kind: Binarization, seed: int, step: int) -> Pixels:
    """Return binary images (B, H, W, C) of a training step. `members` are their positions in the split."""
    if kind == "stochastic":
        return binarize(images, np.random.default_rng(derive_seed(seed, "binarize", step)))
    return binarize_fixed(images, members, kind, "train")


def binarize_fixed(images: Pixels, members: Members, kind: Binarization, split: str) -> Pixels:
    """Return binary images (B, H, W, C) of a split that do not depend on the step. `members` are their positions."""
    if kind == "none":
        return images
    if kind == "threshold":
        return np.where(images >= 128, 255, 0).astype(np.uint8)
    seeds = [derive_seed(0, "binarize", split, member) for member in members.tolist()]
    pairs = zip(images, map(np.random.default_rng, seeds), strict=True)
    return np.stack([binarize(image, draws) for image, draws in pairs])
