"""Estimators that read images."""

from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from seqloom.core.inputs import check_lengths, check_list, is_missing
from seqloom.data.files import IMAGE_EXTENSIONS, expand_home
from seqloom.data.images import (
    EncodedImage,
    Image,
    PixelImage,
    StoredImage,
    encode_png,
    import_pillow,
    to_pixels,
)
from seqloom.estimators.base import Examples, json_lines, value_errors
from seqloom.estimators.labels import LabelEstimator, check_labels
from seqloom.predict.results import Metrics

Images = Iterable[Any]  # files, contents of files, arrays of bytes or images of Pillow, or an array of all images
SHAPES = "(H, W), (H, W, 1) or (H, W, 3)"


def check_image(value: Any, name: str) -> Image:
    """Return the handle of an image; raise TypeError or ValueError if `value` is not an image."""
    if isinstance(value, Image):
        return value
    if isinstance(value, str | Path):
        path = expand_home(Path(value))
        if not path.is_file():
            raise ValueError(f"{name} must be an image file, but {str(value)!r} does not exist")
        return StoredImage(path)
    if isinstance(value, bytes | bytearray):
        return EncodedImage(name, bytes(value))
    if isinstance(value, import_pillow().Image):
        return PixelImage(name, to_pixels(value, None))
    if is_missing(value):
        raise ValueError(f"{name} must be an image; got {value!r}: drop missing values first")
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name} must be a file, bytes, an array or a Pillow image; got {type(value).__name__}")
    pixels = value[:, :, None] if value.ndim == 2 else value
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or 0 in pixels.shape:
        raise ValueError(
            f"{name} must be an array of bytes (uint8) with the shape {SHAPES}; got {value.dtype} {value.shape}"
        )
    return PixelImage(name, pixels)


def check_images(values: Any, name: str = "images") -> list[Image]:
    """Return the handles of images, whose headers are valid."""
    if isinstance(values, np.ndarray) and values.ndim > 1:
        if values.ndim not in (3, 4):
            raise ValueError(f"{name} must have the shape (N, H, W) or (N, H, W, C); got {values.shape}")
        values = list(values)
    images = [check_image(value, f"{name}[{index}]") for index, value in enumerate(check_list(values, name, "images"))]
    with value_errors():
        for image in images:
            if not isinstance(image, PixelImage):
                image.decode()
    return images


def image_files(images: Sequence[Image]) -> dict[str, bytes]:
    """Return the content of a file for each image, by name. Pixels are stored as PNG files, without loss."""
    files = {}
    for index, image in enumerate(images):
        suffix = Path(image.name).suffix.lower() if isinstance(image, StoredImage) else ".png"
        content = encode_png(image.pixels) if isinstance(image, PixelImage) else image.content()
        files[f"{index:07}{suffix if suffix in IMAGE_EXTENSIONS else '.png'}"] = content
    return files


class ImageClassifier(LabelEstimator):
    """A classifier of images: files, arrays of bytes (H, W) or (H, W, C), or images of Pillow."""

    tasks: ClassVar = ("classify-images",)

    def fit(self, images: Images, labels: Iterable[Hashable], *, validation: float = 0.1) -> Self:
        """Train on images and their labels. The fraction `validation` is held out to select the best checkpoint.

        `images` is a list of images, or an array (N, H, W) or (N, H, W, C). The images are copied.
        """
        handles, labels = self._check(images, labels)
        return self._train_labels(lambda names: self._examples(handles, names), labels, validation)

    @staticmethod
    def _check(images: Images, labels: Iterable[Hashable]) -> tuple[list[Image], list[Hashable]]:
        handles, checked = check_images(images), check_labels(labels)
        check_lengths(images=handles, labels=checked)
        return handles, checked

    @staticmethod
    def _examples(images: list[Image], names: list[str]) -> Examples:
        files = image_files(images)
        table = json_lines(image=list(files), label=names)
        data = {"corpus": "image-files", "image": "image", "label": "label"}
        return Examples(data, "", {**files, "labels.jsonl": table}, len(images), table="labels.jsonl")

    def predict(self, images: Images) -> list[Any]:
        """Return the label of each image."""
        return self._best(self.predict_proba(images))

    def predict_proba(self, images: Images) -> NDArray[np.float64]:
        """Return the probability of each class for each image (N, C)."""
        predictions = self.predictor.classify(check_images(images), stream=True)
        return self._probabilities(prediction.candidates for prediction in predictions)

    def score(self, images: Images, labels: Iterable[Hashable]) -> float:
        """Return the accuracy."""
        handles, labels = self._check(images, labels)
        return self._accuracy(self.predict(handles), labels)

    def evaluate(self, images: Images, labels: Iterable[Hashable]) -> Metrics:
        """Return all metrics of `seqloom evaluate`."""
        handles, labels = self._check(images, labels)
        return self._measure_labels(lambda names: self._examples(handles, names), labels)
