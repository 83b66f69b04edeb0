"""Decoding of images: hostile and unusual files, the cache, IDX files, and ZIP archives."""

import gzip
import io
import os
import struct
import subprocess
import sys
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from seqloom.core.errors import DataError, ResourceError
from seqloom.data import images
from seqloom.data.images import (
    EncodedImage,
    ImageOptions,
    ImageShape,
    ImageTable,
    PixelImage,
    StoredImage,
    decode,
    encode_png,
    read_idx,
    read_zip,
)

RNG = np.random.default_rng(1)
SHAPE = ImageShape(8, 6, 3)


def encode(image: Pillow.Image, form: str = "PNG", **options: Any) -> bytes:
    output = io.BytesIO()
    image.save(output, format=form, **options)
    return output.getvalue()


def noise(height: int = 20, width: int = 30, channels: int = 3) -> Pillow.Image:
    return Pillow.fromarray(RNG.integers(256, size=(height, width, channels), dtype=np.uint8))


def flat(colour: Any, mode: str = "RGB", size: tuple[int, int] = (4, 3)) -> Pillow.Image:
    return Pillow.new(mode, size, colour)


def png_header(width: int, height: int) -> bytes:
    """Return a PNG file that declares this size, but whose data has only a few bytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b"")


def test_lossless_formats_give_the_original_pixels() -> None:
    picture = noise()
    for form in ("PNG", "BMP", "TIFF", "PPM"):
        assert np.array_equal(decode(encode(picture, form), "x").pixels, np.asarray(picture))
    grey = decode(encode(picture.convert("L")), "x").pixels
    assert np.array_equal(grey, np.asarray(picture.convert("L"))[:, :, None])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (encode(flat((0, 255, 255, 0), "CMYK"), "TIFF"), (255, 0, 0)),
        (encode(flat((255, 0, 0, 0), "RGBA")), (255, 255, 255)),
        (encode(flat((255, 0, 0, 128), "RGBA")), (255, 127, 127)),
        (encode(flat((100, 0), "LA")), (255, 255, 255)),
        (encode(flat((10, 200, 30)).quantize(4)), (10, 200, 30)),
        (encode(flat((10, 200, 30)).quantize(4), transparency=0), (255, 255, 255)),
        (encode(flat(1, "1")), (255,)),
        (encode(Pillow.fromarray(np.full((3, 4), 128 * 257, dtype=np.uint16))), (128,)),
        (encode(Pillow.fromarray(np.full((3, 4), 65535, dtype=np.uint16))), (255,)),
        (encode(flat(7, "L", (1, 1))), (7,)),
    ],
    ids=["cmyk", "transparent", "half", "grey-alpha", "palette", "palette-alpha", "1-bit", "16-bit", "white16", "1×1"],
)
def test_modes_are_converted(content: bytes, expected: tuple[int, ...]) -> None:
    pixels = decode(content, "x").pixels
    assert pixels.dtype == np.uint8
    assert pixels.shape[2] == len(expected)
    assert set(map(tuple, pixels.reshape(-1, len(expected)).tolist())) == {expected}
    assert decode(content, "x", SHAPE).pixels.shape == SHAPE[:3]


def test_jpeg_in_cmyk_is_decoded() -> None:
    pixels = decode(encode(flat((0, 255, 255, 0), "CMYK", (16, 16)), "JPEG"), "x").pixels
    assert np.abs(pixels.astype(int) - [255, 0, 0]).max() < 12


def test_exif_orientation_is_applied() -> None:
    """With orientation 6, the stored image must be rotated by 90° clockwise."""
    stored, exif = flat("red", size=(40, 20)), Pillow.Exif()
    stored.paste("blue", (0, 0, 20, 20))
    exif[0x0112] = 6
    pixels = decode(encode(stored, "JPEG", exif=exif, quality=95), "x").pixels
    assert pixels.shape == (40, 20, 3)
    assert pixels[5, 10, 2] > 200 and pixels[35, 10, 0] > 200
    small = decode(encode(stored, "JPEG", exif=exif, quality=95), "x", ImageShape(8, 4)).pixels
    assert small[1, 2, 2] > 200 and small[6, 2, 0] > 200


def test_first_frame_of_an_animation_is_used_with_a_note() -> None:
    frames = [flat("red"), flat("blue")]
    decoded = decode(encode(frames[0], "GIF", save_all=True, append_images=frames[1:]), "x")
    assert decoded.pixels[0, 0].tolist() == [255, 0, 0]
    assert decoded.notes == ("animated: only the first frame is used",)
    assert decode(encode(frames[0], "GIF"), "x").notes == ()


def test_huge_image_is_refused_before_decompression() -> None:
    for width, height in ((30_000, 30_000), (9_000, 8_000), (1, 2**31 - 1)):
        with pytest.raises(DataError, match=r"big.png must have at most 67,108,864 pixels"):
            decode(png_header(width, height), "big.png")
    code = (
        "import resource, sys; from seqloom.data.images import decode; import PIL.Image, PIL.ImageOps\n"
        "content = sys.stdin.buffer.read(); before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: decode(content, 'x')\n"
        "except Exception as error: print(type(error).__name__)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], input=png_header(30_000, 30_000), capture_output=True, check=True
    )
    name, kilobytes = run.stdout.split()
    assert name == b"DataError" and int(kilobytes) < 50_000  # the decompressed image would have 2.7 GB


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello, this is a text\n" * 20, "x must be an image .*but its content has none of these formats"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "x must be an image .*none of these"),
        (encode(noise())[:-400], "x is a damaged or truncated image .*Copy it again"),
        (encode(noise(), "JPEG")[:-300], "x is a damaged or truncated image"),
        (encode(noise())[:20], "x must be an image|x is a damaged or truncated image"),
        (encode(Pillow.fromarray(np.full((3, 4), 0.5, dtype=np.float32)), "TIFF"), "neither bytes nor 16-bit numbers"),
    ],
    ids=["text", "postscript", "png", "jpeg", "header", "float"],
)
def test_unusable_file_is_reported(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        decode(content, "x")
    assert len(str(caught.value).splitlines()) == 1


def test_damaged_files_raise_only_data_errors() -> None:
    originals = [encode(noise(9, 9), form) for form in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")]
    decoded = 0
    for original in originals:
        for _ in range(60):
            damaged = bytearray(original)
            for position in RNG.integers(len(damaged), size=4):
                damaged[position] = RNG.integers(256)
            with suppress(DataError):
                decoded += decode(bytes(damaged), "x", SHAPE).pixels.shape == SHAPE[:3]
    assert 0 < decoded < 60 * len(originals)


@pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
def test_wide_image_is_stretched_cropped_or_padded(fit: Any) -> None:
    """A wide image that is red at its left and right ends is stretched, cropped or padded to a square."""
    wide = flat("blue", size=(80, 40))
    for left in (0, 70):
        wide.paste("red", (left, 0, left + 10, 40))
    pixels = decode(encode(wide), "x", ImageShape(20, 20, 3, fit)).pixels.astype(int)
    assert pixels.shape == (20, 20, 3)
    middle, corner = pixels[10], pixels[0, 10]
    assert (middle[0, 0] > 200) == (fit != "crop")
    assert (corner.min() > 200) == (fit == "pad")


def test_missing_pillow_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ResourceError, match=r"Images need Pillow: pip install 'seqloom\[images\]'"):
        decode(b"", "x")


# --- files ------------------------------------------------------------------------------------------------------------


def test_stored_image_must_be_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.png")
    (tmp_path / "empty.png").touch()
    (tmp_path / "good.png").write_bytes(encode(noise()))
    for name, message in (("fifo.png", "not a regular file"), ("empty.png", "is empty"), ("no.png", "does not exist")):
        with pytest.raises(DataError, match=message):
            StoredImage(tmp_path / name).decode()
    assert StoredImage(tmp_path / "good.png").decode(SHAPE).pixels.shape == SHAPE[:3]


def test_zip_archive_is_read_without_its_paths(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("../../evil.png", encode(flat("red")))
        archive.writestr("folder/b.jpg", encode(flat("blue"), "JPEG"))
        archive.writestr("__MACOSX/._b.jpg", b"x")
        archive.writestr("notes.txt", b"x")
    found = read_zip(tmp_path / "a.zip")
    assert sorted(found) == ["b.jpg", "evil.png"]
    assert found["evil.png"].decode().pixels[0, 0].tolist() == [255, 0, 0]
    assert os.listdir(tmp_path) == ["a.zip"]


def test_damaged_zip_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.png", encode(noise()))
        archive.writestr("b/a.png", encode(noise()))
    with pytest.raises(DataError, match=r"two images with the same name: a\.png"):
        read_zip(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match="must be a readable ZIP archive of images"):
        read_zip(path)


def write_idx(path: Path, values: np.ndarray, header: bytes = b"\0\0\x08") -> Path:
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    content = header + bytes([values.ndim]) + sizes + values.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["x.idx", "x.gz"])
def test_idx_file_round_trips(tmp_path: Path, name: str) -> None:
    values = np.zeros((5, 4, 3), dtype=np.uint8)  # mostly zeros, like images of digits
    values[1, 2] = 9
    assert np.array_equal(read_idx(write_idx(tmp_path / name, values)), values)
    labels = np.arange(7, dtype=np.uint8)
    assert np.array_equal(read_idx(write_idx(tmp_path / name, labels)), labels)


def test_damaged_idx_is_reported(tmp_path: Path) -> None:
    values = np.ones((5, 4), dtype=np.uint8)
    with pytest.raises(DataError, match="must be an IDX file of bytes"):
        read_idx(write_idx(tmp_path / "x", values, b"\0\0\x0d"))
    path = write_idx(tmp_path / "x", values)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match=r"must have 5 × 4 values according to its header, but it has 17"):
        read_idx(path)
    (tmp_path / "y").write_bytes(b"\0\0\x08\x09\xff")
    with pytest.raises(DataError, match="Download it again"):
        read_idx(tmp_path / "y")


# --- the table --------------------------------------------------------------------------------------------------------


class Counted(EncodedImage):
    decodings = 0

    def decode(self, shape: ImageShape | None = None) -> images.Decoded:
        type(self).decodings += 1
        return super().decode(shape)


@pytest.mark.parametrize("memory", ["1G", "100"])
def test_table_decodes_each_image_once_if_memory_allows(monkeypatch: pytest.MonkeyPatch, memory: str) -> None:
    monkeypatch.setenv("SEQLOOM_MEMORY", memory)
    monkeypatch.setattr(Counted, "decodings", 0)
    pictures = [noise() for _ in range(5)]
    table = ImageTable([Counted("x", encode(picture)) for picture in pictures], ImageShape(20, 30))
    taken = table.take([3, 1, 3])
    assert np.array_equal(taken, np.stack([np.asarray(pictures[index]) for index in (3, 1, 3)]))
    table.take([1, 3])
    assert Counted.decodings == (2 if memory == "1G" else 5)


def test_pixels_in_memory_are_converted_like_files() -> None:
    pixels = np.asarray(noise(16, 16, 3))
    for shape in (ImageShape(8, 8, 1), ImageShape(16, 16, 3), ImageShape(5, 9, 3, "pad")):
        converted = PixelImage("x", pixels).decode(shape).pixels
        assert np.array_equal(converted, decode(encode_png(pixels), "x", shape).pixels)


def test_options_give_the_shape() -> None:
    example = [PixelImage("x", np.zeros((5, 7, 1), dtype=np.uint8))]
    assert ImageOptions().shape(example) == (5, 7, 1, "stretch")
    assert ImageOptions(size=9, channels=3, fit="pad").shape(example) == (9, 9, 3, "pad")
    assert ImageOptions(size=(9, 4)).shape(example) == (9, 4, 1, "stretch")
    with pytest.raises(ValueError, match="size must have at most"):
        ImageOptions(size=30_000)
