"""Images as inputs of predictors."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import UsageError
from seqloom.data.files import expand_home
from seqloom.data.images import PixelImage, StoredImage

ImageInput = str | Path | NDArray[np.uint8]  # a file, or pixels (H, W) or (H, W, C)
ANIMATED = "{lines} with an animated image: only the first frame was used"


def is_blank(image: ImageInput) -> bool:
    return isinstance(image, str) and not image.strip()


def name_of(image: ImageInput) -> str:
    """Return the name of a file, or "" for an array."""
    return str(image) if isinstance(image, str | Path) else ""


def as_image(image: ImageInput) -> StoredImage | PixelImage:
    """Return the handle of an image. Raise `UsageError` if an array is not an image of bytes."""
    if isinstance(image, str | Path):
        return StoredImage(expand_home(Path(image)))
    pixels = image[:, :, None] if image.ndim == 2 else image
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or 0 in pixels.shape:
        raise UsageError(
            "An image must be an array of bytes (uint8) with the shape (H, W), (H, W, 1) or (H, W, 3); got "
            f"{pixels.dtype} {image.shape}."
        )
    return PixelImage("array", pixels)
