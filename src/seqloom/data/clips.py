"""Clips: sequences of frames from animated images or from folders of images, and examples with clips.

A clip is an array of bytes (T, H, W, C). Its frames are decoded like images; see `seqloom.data.images`. If a clip has
more frames than `images.frames`, evenly spaced frames are selected. The durations of frames are ignored.
"""

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import Ge, Le
from seqloom.core.errors import DataError
from seqloom.core.limits import MAX_CLIP_PIXELS, MAX_FRAMES
from seqloom.core.progress import check_cancelled
from seqloom.data.corpus import Corpus, frame
from seqloom.data.files import IMAGE_EXTENSIONS
from seqloom.data.image_folders import check_inside, list_folder
from seqloom.data.image_texts import DescribedExample
from seqloom.data.images import (
    Decoded,
    ImageOptions,
    ImageShape,
    ImageTable,
    Pixels,
    PixelSource,
    as_pillow,
    decode,
    is_animated,
    open_image,
    read_image_file,
    to_pixels,
)

DEFAULT_FRAMES = 64


@config
class ClipOptions(ImageOptions):
    """The size to which frames are converted, and the number of frames."""

    # maximum number of frames of a clip; evenly spaced frames are selected from longer clips
    frames: Annotated[int, Ge(1), Le(MAX_FRAMES)] = DEFAULT_FRAMES


# --- clips of a corpus ------------------------------------------------------------------------------------------------


class Clip(PixelSource):
    """The handle of a clip."""

    @abstractmethod
    def frame_count(self) -> int:
        """Return the number of frames; raise `DataError` if the clip cannot be read."""

    @abstractmethod
    def decode_frames(self, chosen: Sequence[int], shape: ImageShape | None) -> Pixels:
        """Return the chosen frames (T, H, W, C), whose indices are increasing, converted to `shape` if it is given."""

    def decode(self, shape: ImageShape | None = None, frames: int = DEFAULT_FRAMES) -> Decoded:
        """Return at most `frames` frames (T, H, W, C), converted to `shape` if it is given."""
        count = self.frame_count()
        chosen = choose_frames(count, frames)
        note = f"longer than {frames} frames: evenly spaced frames are used"
        return Decoded(self.decode_frames(chosen, shape), (note,) if len(chosen) < count else ())


def choose_frames(count: int, most: int) -> list[int]:
    """Return the indices of at most `most` evenly spaced frames, with the first and the last frame."""
    if count <= most:
        return list(range(count))
    chosen: list[int] = np.linspace(0, count - 1, most).round().astype(int).tolist()
    return chosen


@dataclass(frozen=True, eq=False)
class PixelClip(Clip):
    """A clip whose pixels (T, H, W, C) are in memory."""

    name: str
    pixels: Pixels

    def frame_count(self) -> int:
        return len(self.pixels)

    def decode_frames(self, chosen: Sequence[int], shape: ImageShape | None) -> Pixels:
        frames = self.pixels if len(chosen) == len(self.pixels) else self.pixels[list(chosen)]
        if shape is None or frames.shape[1:] == shape[:3]:
            return frames
        return np.stack([to_pixels(as_pillow(pixels), shape) for pixels in frames])

    def content(self) -> bytes:
        return b"%d %d %d %d\n" % self.pixels.shape + self.pixels.tobytes()


@dataclass(frozen=True, eq=False)
class EncodedClip(Clip):
    """An animated image file whose bytes are in memory."""

    name: str
    file: bytes

    def frame_count(self) -> int:
        with open_image(self.file, self.name) as image:
            return check_frames(count_frames(image), self.name)

    def decode_frames(self, chosen: Sequence[int], shape: ImageShape | None) -> Pixels:
        with open_image(self.file, self.name) as image:
            check_clip_size(len(chosen), image.size[::-1] if shape is None else shape[:2], self.name)
            frames: list[Pixels] = []
            for index in chosen:
                check_cancelled()
                image.seek(index)
                frames.append(to_pixels(image.copy(), shape or frame_shape(frames)))
            return np.stack(frames)

    def content(self) -> bytes:
        return self.file


@dataclass(frozen=True, eq=False)
class StoredClip(Clip):
    """An animated image file, such as a GIF, or a folder of images, which are read in the order of their names."""

    path: Path

    @property
    def name(self) -> str:  # type: ignore[override]
        return str(self.path)

    @cached_property
    def _files(self) -> list[Path] | None:
        """The images of a folder, or None for a file."""
        if not self.path.is_dir():
            return None
        files = [path for path in list_folder(self.path) if path.name.lower().endswith(IMAGE_EXTENSIONS)]
        for path in files:
            check_inside(path, self.path)
        return sorted(files, key=lambda path: natural_key(path.name))

    def _encoded(self) -> EncodedClip:
        return EncodedClip(self.name, read_image_file(self.path))

    def frame_count(self) -> int:
        if self._files is None:
            return self._encoded().frame_count()
        return check_frames(len(self._files), self.name)

    def decode_frames(self, chosen: Sequence[int], shape: ImageShape | None) -> Pixels:
        if self._files is None:
            return self._encoded().decode_frames(chosen, shape)
        return self._decode_folder(self._files, chosen, shape)

    def _decode_folder(self, files: Sequence[Path], chosen: Sequence[int], shape: ImageShape | None) -> Pixels:
        frames: list[Pixels] = []
        for index in chosen:
            check_cancelled()
            path = files[index]
            pixels = decode(read_image_file(path), str(path), shape).pixels
            if frames and pixels.shape != frames[0].shape:
                sizes = (" × ".join(map(str, each.shape)) for each in (frames[0], pixels))
                raise DataError(f"The frames of {self.path} must have the same size; got {' and '.join(sizes)}.")
            check_clip_size(len(chosen), pixels.shape[:2], self.name)
            frames.append(pixels)
        return np.stack(frames)

    def content(self) -> bytes:
        files = [self.path] if self._files is None else self._files
        return b"".join(frame(path.name) + read_image_file(path) for path in files)


def check_frames(count: int, name: str) -> int:
    """Return the number of frames of a clip; raise `DataError` if the clip has no frame or too many frames."""
    if count == 0:
        raise DataError(f"{name} must contain the frames of a clip as images, but it has no image.")
    if count > MAX_FRAMES:
        raise DataError(f"{name} must have at most {MAX_FRAMES:,} frames, but it has {count:,}. Shorten it.")
    return count


def check_clip_size(frames: int, size: tuple[int, ...], name: str) -> None:
    """Raise `DataError` if the frames of a clip have too many pixels."""
    if frames * size[0] * size[1] > MAX_CLIP_PIXELS:
        raise DataError(
            f"{name} must have at most {MAX_CLIP_PIXELS:,} pixels in all frames, but it has {frames} frames of "
            f"{size[1]:,} × {size[0]:,}. Scale it down."
        )


def frame_shape(frames: Sequence[Pixels]) -> ImageShape | None:
    """Return the shape of the first frame, to which later frames are converted, or None before the first frame."""
    return ImageShape(*frames[0].shape) if frames else None


def count_frames(image: Any) -> int:
    """Return the number of frames of an open image; an image that is not animated has one frame."""
    return int(image.n_frames) if is_animated(image) else 1


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which numbers in names are compared by value: frame2 precedes frame10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.findall(r"[0-9]+|[^0-9]+", name)]


class ClipTable(ImageTable):
    """The clips of a split as one array (N, T, H, W, C). The last frame of shorter clips is repeated up to T frames.

    Repeated frames are real images, so that padding does not distort the statistics of batch norm.
    """

    def __init__(self, clips: Sequence[Clip], shape: ImageShape, frames: int) -> None:
        super().__init__(clips, shape)
        self.clips, self.frames = clips, frames
        self._distinct = list(dict.fromkeys(clips))  # in the order of `images`

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The number of frames of each clip (N,). Clips that cannot be read count as one frame; see `fill`."""
        lengths = np.ones(len(self.clips), dtype=np.int64)
        for index, clip in enumerate(self.clips):
            try:
                lengths[index] = min(self.frames, clip.frame_count())
            except DataError:
                continue
        return lengths

    @property
    def _item_shape(self) -> tuple[int, ...]:
        return (int(self.lengths.max(initial=1)), *self.shape[:3])

    def _decode(self, index: int) -> Decoded:
        pixels, notes = self._distinct[index].decode(self.shape, self.frames)
        return Decoded(pad_frames(pixels, self._item_shape[0]), notes)

    def batch(self, members: NDArray[np.int64]) -> dict[str, Tensor]:
        """Return `frames` (B, T, H, W, C) and their `mask` (B, T), which is False at repeated frames."""
        return collate_clips([self.take([index])[0] for index in members], self.lengths[members])


def collate_clips(clips: Sequence[Pixels], lengths: Sequence[int] | NDArray[np.int64]) -> dict[str, Tensor]:
    """Return the first `lengths` frames of clips as `frames` (B, T, H, W, C) and their `mask` (B, T)."""
    longest = int(max(lengths))
    frames = np.stack([pad_frames(clip[:longest], longest) for clip in clips])
    mask = torch.arange(longest) < torch.as_tensor(np.asarray(lengths)).unsqueeze(1)
    return {"frames": torch.from_numpy(frames), "mask": mask}


def pad_frames(pixels: Pixels, length: int) -> Pixels:
    """Repeat the last frame up to `length` frames."""
    return np.pad(pixels, ((0, length - len(pixels)), (0, 0), (0, 0), (0, 0)), mode="edge")


# --- examples ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClipExample(DescribedExample):
    """A clip with its label, a label for each frame, and captions."""

    form: ClassVar = "video"
    unit: ClassVar = "clips"
    label_field = "label"

    clip: Clip
    label: str
    frame_labels: tuple[str, ...]
    captions: tuple[str, ...]

    @property
    def target_texts(self) -> Sequence[str]:
        return self.captions

    @property
    def text(self) -> str:
        """The name of the clip, for display."""
        return self.clip.name

    def content(self) -> bytes:
        return b"".join(map(frame, (self.clip.sha256, self.label, *self.frame_labels, *self.captions)))

    @classmethod
    def sizes(cls, corpus: "Corpus[Any]", split: str) -> dict[str, int]:
        examples = corpus.split(split)
        frames = sum(example.clip.frame_count() for example in examples)
        return {"clips": len(examples), "frames": frames, "labels": len(corpus.label_counts(split))}


class FrameLabelledClip(ClipExample):
    """A clip whose frame labels are predicted."""

    def labels(self) -> Sequence[str]:
        return self.frame_labels
