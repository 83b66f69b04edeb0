"""Images: safe decoding, IDX files, ZIP archives, and a cache of decoded images.

An image is an array of bytes (H, W, C) with C = 1 (grey) or 3 (RGB). A file is decoded as follows:

    size            checked before the pixels are decompressed: at most `MAX_PIXELS` pixels
    animation       the first frame
    EXIF            the orientation is applied; colour profiles are ignored
    16 bits         divided by 257
    CMYK, palette   converted to RGB
    transparency    composited on white

`Image` is the handle of an image in a corpus: it is decoded when its pixels are read. `ImageTable` holds the images of
a split at one size as a single array, which it fills on demand, so that every image is decoded once.
"""

import io
import os
import stat
import threading
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError, ResourceError, SeqloomError
from seqloom.core.files import sha256
from seqloom.core.limits import MAX_IMAGE_BYTES, MAX_PIXELS, available_memory, format_bytes
from seqloom.core.progress import check_cancelled
from seqloom.data.files import IMAGE_EXTENSIONS, convert_read_errors, read_bytes

Pixels = NDArray[np.uint8]  # (H, W, C)
Channels = Literal[1, 3]
Fit = Literal["stretch", "crop", "pad"]
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")  # Pillow starts external programs for some other formats
MAX_LISTED = 10  # maximum number of images that an error message lists
MAX_CACHE_FRACTION = 0.5  # maximum fraction of the available memory for the decoded images of a split
IDX_BYTES = 0x08  # the type code of unsigned bytes


@config
class ImageOptions:
    """The size to which images are converted."""

    # side in pixels, or [height, width]; null: no change
    size: PositiveInt | tuple[PositiveInt, PositiveInt] | None = None
    channels: Channels | None = None  # 1 for grey images, 3 for colour images; null: no change
    fit: Fit = "stretch"  # how an image is fitted to the size: stretch, crop to the middle, or pad with white

    def problems(self) -> Iterator[str]:
        if self.sides is not None and self.sides[0] * self.sides[1] > MAX_PIXELS:
            yield f"size must have at most {MAX_PIXELS:,} pixels; got {self.size}"

    @property
    def sides(self) -> tuple[int, int] | None:
        """The height and the width, if they are set."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    def shape(self, images: "Sequence[PixelSource]") -> "ImageShape":
        """Return the shape to which images are converted; if no size is set, all images must have the same size.

        Images that cannot be read are ignored; `ImageTable.fill` reports them.
        """
        if self.sides is not None and self.channels is not None:
            return ImageShape(*self.sides, self.channels, self.fit)
        sizes = decoded_sizes(images)
        first, (height, width, channels) = next(sizes)
        for name, size in sizes if self.sides is None else ():
            if size[:2] != (height, width):
                raise DataError(
                    f"The images must have the same size, but {first} has {height} × {width} pixels and {name} has "
                    f"{size[0]} × {size[1]}. Set images.size, for example images.size=64."
                )
        height, width = self.sides or (height, width)
        return ImageShape(height, width, self.channels or (1 if channels == 1 else 3), self.fit)


class ImageShape(NamedTuple):
    """The shape to which images are converted."""

    height: int
    width: int
    channels: int = 3
    fit: Fit = "stretch"


# --- decoding ---------------------------------------------------------------------------------------------------------


class Decoded(NamedTuple):
    """The pixels of an image (H, W, C) or of a clip (T, H, W, C), and notes on parts that were left out."""

    pixels: Pixels
    notes: tuple[str, ...] = ()


def import_pillow() -> Any:
    """Import the module PIL.Image; raise `ResourceError` if Pillow is not installed."""
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError as error:
        raise ResourceError("Images need Pillow: pip install 'seqloom[images]'.") from error
    return PIL.Image


def decode(content: bytes, name: str, shape: ImageShape | None = None) -> Decoded:
    """Decode a file and convert it to `shape`; if this fails, raise `DataError` with the `name` of the image.

    Without `shape`, the image keeps its size, with 1 channel if it is grey and 3 channels otherwise.
    """
    with open_image(content, name) as image:
        notes = ("animated: only the first frame is used",) if is_animated(image) else ()
        if shape is not None:
            image.draft(None, (2 * shape.width, 2 * shape.height))  # JPEG: decode at a fraction of the size
        image.load()
        return Decoded(to_pixels(image, shape), notes)


@contextmanager
def open_image(content: bytes, name: str) -> Iterator[Any]:
    """Open a file with Pillow; convert all errors, including decoding errors, to `DataError` with the `name`."""
    pillow = import_pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # large or unusual files are checked below
            with pillow.open(io.BytesIO(content), formats=FORMATS) as image:
                check_pixels(image.size, name)
                yield image
    except pillow.UnidentifiedImageError:
        kinds = ", ".join(FORMATS)
        raise DataError(f"{name} must be an image ({kinds}), but its content has none of these formats.") from None
    except pillow.DecompressionBombError:  # raised by `open` before the pixels are decompressed
        raise DataError(f"{name} must have at most {MAX_PIXELS:,} pixels. Scale it down.") from None
    except (SeqloomError, MemoryError):
        raise
    except Exception as error:  # Pillow raises errors of many kinds for damaged files
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{name} is a damaged or truncated image ({reason}). Copy it again.") from None


def check_pixels(size: tuple[int, int], name: str) -> None:
    width, height = size
    if width * height > MAX_PIXELS:
        raise DataError(
            f"{name} must have at most {MAX_PIXELS:,} pixels, but it has {width:,} × {height:,}. Scale it down."
        )


def is_animated(image: Any) -> bool:
    """Return whether an image is animated. An MPO file contains several images, but is not an animation."""
    return getattr(image, "is_animated", False) and image.format != "MPO"  # an MPO file is a photo with a preview


def to_pixels(image: Any, shape: ImageShape | None) -> Pixels:
    """Convert a loaded Pillow image to an array of bytes."""
    from PIL import Image, ImageOps

    with suppress(Exception):  # damaged EXIF data do not affect the pixels
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        image = to_8_bits(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    is_grey = image.mode in ("1", "L") if shape is None else shape.channels == 1
    image = image.convert("L" if is_grey else "RGB")
    if shape is not None and image.size != (size := (shape.width, shape.height)):
        resize = Image.Resampling.LANCZOS if image.width > shape.width else Image.Resampling.BICUBIC
        if shape.fit == "crop":
            image = ImageOps.fit(image, size, resize)
        elif shape.fit == "pad":
            image = ImageOps.pad(image, size, resize, color="white")
        else:
            image = image.resize(size, resize, reducing_gap=3.0)
    pixels: Pixels = np.array(image, dtype=np.uint8)
    return pixels.reshape(*pixels.shape[:2], -1)


def to_8_bits(image: Any) -> Any:
    """Convert a grey image of 16 bits; raise `ValueError` for other number formats, whose range is unknown."""
    from PIL import Image

    values = np.asarray(image)
    if values.dtype.kind == "f" or values.min() < 0 or values.max() > 0xFFFF:
        raise ValueError("its pixels are neither bytes nor 16-bit numbers")
    return Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))


def as_pillow(pixels: Pixels) -> Any:
    """Return a Pillow image with these pixels (H, W, C)."""
    return import_pillow().fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)


def encode_png(pixels: Pixels) -> bytes:
    """Encode pixels (H, W, C) as a PNG file."""
    output = io.BytesIO()
    as_pillow(pixels).save(output, format="PNG")
    return output.getvalue()


def read_image_file(path: Path) -> bytes:
    """Read the bytes of an image file; raise `DataError` if it is missing, not a regular file, or too large."""
    with convert_read_errors(path), open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{path} must be an image file; it is not a regular file.")
        check_bytes(status.st_size, str(path))
        return file.read()


def check_bytes(size: int, name: str) -> None:
    if size > MAX_IMAGE_BYTES:
        limit = format_bytes(MAX_IMAGE_BYTES)
        raise DataError(f"{name} must be an image of at most {limit}, but it has {format_bytes(size)}.")
    if size == 0:
        raise DataError(f"{name} must be an image, but it is empty.")


# --- images of a corpus -----------------------------------------------------------------------------------------------


class PixelSource(ABC):
    """The handle of an image or a clip, whose pixels are decoded when they are read."""

    name: str

    @abstractmethod
    def decode(self, shape: ImageShape | None = None) -> Decoded:
        """Return the pixels, converted to `shape` if it is given; raise `DataError` if they cannot be read."""

    @abstractmethod
    def content(self) -> bytes:
        """Return bytes that identify the content."""

    @cached_property
    def sha256(self) -> str:
        """The hash of the content."""
        return sha256(self.content())


class Image(PixelSource):
    """The handle of an image."""


@dataclass(frozen=True, eq=False)
class PixelImage(Image):
    """An image whose pixels are in memory."""

    name: str
    pixels: Pixels

    def decode(self, shape: ImageShape | None = None) -> Decoded:
        if shape is None or self.pixels.shape == shape[:3]:
            return Decoded(self.pixels)
        return Decoded(to_pixels(as_pillow(self.pixels), shape))

    def content(self) -> bytes:
        return b"%d %d %d\n" % self.pixels.shape + self.pixels.tobytes()


@dataclass(frozen=True, eq=False)
class EncodedImage(Image):
    """An image file whose bytes are in memory, such as an entry of an archive."""

    name: str
    file: bytes

    def decode(self, shape: ImageShape | None = None) -> Decoded:
        return decode(self.file, self.name, shape)

    def content(self) -> bytes:
        return self.file


@dataclass(frozen=True, eq=False)
class StoredImage(Image):
    """An image file on disk."""

    path: Path

    @property
    def name(self) -> str:  # type: ignore[override]
        return str(self.path)

    def decode(self, shape: ImageShape | None = None) -> Decoded:
        return decode(read_image_file(self.path), self.name, shape)

    def content(self) -> bytes:
        return read_image_file(self.path)


def decoded_sizes(images: "Sequence[PixelSource]") -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and (H, W, C) of each image that can be decoded; raise `DataError` if there is no such image."""
    count, problem = 0, None
    for image in images:
        try:
            yield image.name, image.decode().pixels.shape[-3:]
            count += 1
        except DataError as error:
            problem = error
    if problem is not None and not count:
        raise problem


class ImageTable:
    """The images of a split at one shape, decoded on demand and kept in one array of bytes (N, H, W, C).

    A handle that occurs several times, such as the image of several questions, is stored once. If the array would take
    more than `MAX_CACHE_FRACTION` of the available memory, images are decoded at every access.
    """

    def __init__(self, images: Sequence[PixelSource], shape: ImageShape) -> None:
        rows = {image: row for row, image in enumerate(dict.fromkeys(images))}
        self.images, self.shape = list(rows), shape
        self._rows = np.array([rows[image] for image in images], dtype=np.int64)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def _item_shape(self) -> tuple[int, ...]:
        return self.shape[:3]

    @cached_property
    def _cache(self) -> tuple[Pixels, NDArray[np.bool_]] | None:
        """The array of all images, which is initially empty, and a mask of the rows that are filled."""
        shape = (len(self.images), *self._item_shape)
        free = available_memory()
        if free is not None and np.prod(shape, dtype=np.int64) > MAX_CACHE_FRACTION * free:
            return None
        return np.empty(shape, dtype=np.uint8), np.zeros(len(self.images), dtype=bool)

    def take(self, members: Sequence[int] | NDArray[np.int64]) -> Pixels:
        """Return the images (B, H, W, C) with these indices."""
        members = self._rows[np.asarray(members, dtype=np.int64)]
        if self._cache is None:
            return np.stack([self._decode(index).pixels for index in members])
        array, filled = self._cache
        with self._lock:
            for index in np.unique(members[~filled[members]]):
                array[index] = self._decode(index).pixels
                filled[index] = True
        taken: Pixels = array[members]
        return taken

    def _decode(self, index: int) -> Decoded:
        return self.images[index].decode(self.shape)

    def fill(self) -> list[str]:
        """Decode all images and return notes on them; raise `DataError` that names images that cannot be decoded."""
        failures, notes = list[str](), Counter[str]()
        array, filled = self._cache or (None, None)
        for index in range(len(self.images)):
            check_cancelled()
            try:
                decoded = self._decode(index)
            except DataError as error:
                failures.append(str(error))
                continue
            notes.update(decoded.notes)
            if array is not None and filled is not None:
                array[index], filled[index] = decoded.pixels, True
        if failures:
            more = f"\n… and {len(failures) - MAX_LISTED:,} more" if len(failures) > MAX_LISTED else ""
            listed = "\n".join(f"  {failure}" for failure in failures[:MAX_LISTED])
            raise DataError(f"{len(failures):,} of {len(self.images):,} images cannot be read:\n{listed}{more}")
        return [f"{count:,} of {len(self.images):,} images: {note}" for note, count in notes.items()]


# --- files with several images ----------------------------------------------------------------------------------------


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of bytes, such as the files of MNIST, and decompress it if its name ends in .gz.

    The file contains the header 0, 0, type, D, then D sizes of 4 bytes, most significant byte first, then the values.
    """
    content = read_bytes(path, binary=True)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != IDX_BYTES or content[3] == 0:
        raise DataError(f"{path} must be an IDX file of bytes, but it has another header. Download it again.")
    dimensions = content[3]
    sizes = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions)]
    start, count = 4 + 4 * dimensions, int(np.prod(sizes, dtype=object))
    if len(content) != start + count:
        shape = " × ".join(map(str, sizes))
        raise DataError(
            f"{path} must have {shape} values according to its header, but it has {max(0, len(content) - start):,}. "
            "Download it again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(sizes)


def read_zip(path: Path) -> dict[str, EncodedImage]:
    """Read the image files of a ZIP archive into memory, with their names without folders as keys.

    Names are never used as paths. Entries without the extension of an image format are left out.
    """
    images: dict[str, EncodedImage] = {}
    free, total = available_memory(), 0
    with convert_read_errors(path):
        try:
            with zipfile.ZipFile(path) as archive:
                for entry in archive.infolist():
                    name = entry.filename.replace("\\", "/").rsplit("/", 1)[-1]
                    if entry.is_dir() or name.startswith(".") or not name.lower().endswith(IMAGE_EXTENSIONS):
                        continue
                    if name in images:
                        raise DataError(f"{path} must not contain two images with the same name: {name}.")
                    check_bytes(entry.file_size, f"{name} in {path}")
                    total += entry.file_size
                    if free is not None and total > free:
                        raise ResourceError(
                            f"The images of {path} must fit into memory ({format_bytes(free)} is free)."
                        )
                    images[name] = EncodedImage(f"{path}:{name}", archive.read(entry))
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:  # RuntimeError: encrypted archive
            raise DataError(f"{path} must be a readable ZIP archive of images ({error}).") from None
    return images
