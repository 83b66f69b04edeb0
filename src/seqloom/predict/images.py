"""Images as inputs of predictors."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import UsageError
from seqloom.data.files import expand_home
from seqloom.data.images import EncodedImage, Image, ImageShape, PixelImage, PixelSource, StoredImage, check_bytes

# a file, the content of a file, pixels (H, W) or (H, W, C), or the handle of an image or a clip
ImageInput = str | Path | bytes | NDArray[np.uint8] | PixelSource
ONE_IMAGE = (str, Path, bytes, np.ndarray, PixelSource)  # types of a single image
MAX_SHOWN_SIDE = 384  # maximum side in pixels of an image in a plot
ANIMATED = "{lines} with an animated image: only the first frame was used"


def is_blank(image: ImageInput) -> bool:
    return isinstance(image, str) and not image.strip()


def name_of(image: ImageInput) -> str:
    """Return the name of a file or handle, or "" for the content of a file and for an array."""
    if isinstance(image, PixelSource):
        return image.name
    return str(image) if isinstance(image, str | Path) else ""


def as_image(image: ImageInput) -> Image:
    """Return the handle of an image. Raise `UsageError` if the argument is not an image, such as an array of floats."""
    if isinstance(image, Image):
        return image
    if isinstance(image, str | Path):
        return StoredImage(expand_home(Path(image)))
    if isinstance(image, bytes):
        check_bytes(len(image), "the image")
        return EncodedImage("the image", image)
    if not isinstance(image, np.ndarray):
        raise UsageError(f"An image must be a file, the content of a file or an array; got {type(image).__name__}.")
    pixels = image[:, :, None] if image.ndim == 2 else image
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or 0 in pixels.shape:
        raise UsageError(
            "An image must be an array of bytes (uint8) with the shape (H, W), (H, W, 1) or (H, W, 3); got "
            f"{pixels.dtype} {image.shape}."
        )
    return PixelImage("array", pixels)


def shown_shape(image: Image, shape: ImageShape) -> ImageShape:
    """Return the shape in which an image is plotted if a model reads it in `shape`.

    Both shapes show the same part of the image. A stretched image is plotted with its own proportions.
    """
    H, W, _ = image.decode().pixels.shape
    if shape.fit == "stretch":
        scale = min(1.0, MAX_SHOWN_SIDE / max(H, W))
        return shape._replace(height=max(1, round(H * scale)), width=max(1, round(W * scale)))
    factor = max(1, min(max(H, W), MAX_SHOWN_SIDE) // max(shape.height, shape.width))
    return shape._replace(height=factor * shape.height, width=factor * shape.width)
