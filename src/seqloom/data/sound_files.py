"""Read sound files and streams. WAV needs no additional package; FLAC and OGG need soundfile.

`open_sound` reads the header and returns a `SoundReader`, whose `blocks` yields the samples without reading the file as
a whole. All channels are mixed to one. The header of a file is checked before its samples are read:

    WAV          integers of 8, 16, 24 and 32 bits, floating-point numbers of 32 and 64 bits
    channels     at most `MAX_CHANNELS`
    rate         between `MIN_RATE` and `MAX_RATE` samples per second
"""

import io
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import DataError, ResourceError
from seqloom.core.limits import MAX_SOUND_BYTES, format_bytes
from seqloom.data.files import convert_read_errors

Samples = NDArray[np.float32]  # (N,) between −1 and 1
SOUND_EXTENSIONS = (".wav", ".flac", ".ogg", ".oga")
BLOCK_SECONDS = 10.0  # length of the blocks in which a file is read
MAX_CHANNELS = 32
MIN_RATE, MAX_RATE = 1_000, 384_000
MAX_HEADER = 1 << 20  # maximum number of bytes before the samples of a WAV file
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE  # format codes of WAV files
KINDS = "WAV, FLAC or OGG"
UNKNOWN_LENGTH = 0x7FFF0000  # programs that write to a pipe state a size of at least this number, or 0


class Encoding(NamedTuple):
    """How the samples of a WAV file are stored."""

    code: int  # PCM or FLOAT
    bits: int
    channels: int
    rate: int

    @property
    def frame_bytes(self) -> int:
        """The number of bytes of the samples of all channels at one time."""
        return self.channels * self.bits // 8

    def decode(self, content: bytes) -> Samples:
        """Convert bytes of complete frames to samples, as the mean of all channels."""
        if self.code == FLOAT:
            numbers = np.frombuffer(content, dtype=f"<f{self.bits // 8}")
            values = np.nan_to_num(numbers, nan=0.0, posinf=1.0, neginf=-1.0).clip(-1, 1).astype(np.float32)
        elif self.bits == 8:
            values = (np.frombuffer(content, dtype=np.uint8).astype(np.float32) - 128) / 128
        elif self.bits == 24:
            parts = np.zeros((len(content) // 3, 4), dtype=np.uint8)
            parts[:, 1:] = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3)
            values = (parts.view("<i4")[:, 0] / 2.0**31).astype(np.float32)
        else:
            integers = np.frombuffer(content, dtype=f"<i{self.bits // 8}")
            values = (integers / 2.0 ** (self.bits - 1)).astype(np.float32)
        return mix(values.reshape(-1, self.channels))


def mix(values: NDArray[np.float32]) -> Samples:
    """Return the mean (N,) of the channels (N, C)."""
    mean: Samples = values[:, 0] if values.shape[1] == 1 else values.mean(axis=1, dtype=np.float32)
    return mean


class SoundReader(Protocol):
    """An open sound file or stream."""

    name: str

    @property
    def rate(self) -> int: ...

    def blocks(self, seconds: float = BLOCK_SECONDS) -> Iterator[Samples]:
        """Yield the samples in blocks of this length; raise `DataError` if a file ends early."""
        ...


@dataclass
class WavReader:
    """A WAV file after its header. The size in the header of a `stream` is ignored, since its writer cannot know it."""

    name: str
    file: IO[bytes]
    encoding: Encoding
    size: int
    stream: bool

    @property
    def rate(self) -> int:
        return self.encoding.rate

    def blocks(self, seconds: float = BLOCK_SECONDS) -> Iterator[Samples]:
        width, done = self.encoding.frame_bytes, 0
        is_open = self.stream and (self.size == 0 or self.size >= UNKNOWN_LENGTH)
        while is_open or done < self.size:
            wanted = max(1, int(seconds * self.rate)) * width
            content = read_fully(self.file, wanted if is_open else min(wanted, self.size - done))
            done += len(content)
            if complete := len(content) // width * width:
                yield self.encoding.decode(content[:complete])
            if len(content) < wanted:
                break
        if done < self.size and not self.stream:
            raise DataError(
                f"{self.name} is truncated: its header states {self.size:,} bytes of sound, but it has {done:,}. Copy "
                "it again."
            )


@dataclass
class LibraryReader:
    """A file that the library soundfile decodes."""

    name: str
    rate: int
    library: ModuleType
    file: IO[bytes]

    def blocks(self, seconds: float = BLOCK_SECONDS) -> Iterator[Samples]:
        try:
            with self.library.SoundFile(self.file) as decoder:
                stated, done = len(decoder), 0
                for block in decoder.blocks(max(1, int(seconds * self.rate)), dtype="float32", always_2d=True):
                    done += len(block)
                    yield mix(np.nan_to_num(block))
        except self.library.LibsndfileError as error:
            raise damaged(self.name, error) from None
        if done < stated:
            raise DataError(f"{self.name} is truncated: it has {done:,} of {stated:,} samples. Copy it again.")


def damaged(name: str, error: Exception) -> DataError:
    reason = str(error).splitlines()[-1].strip().rstrip(".")
    return DataError(f"{name} is a damaged or truncated sound file ({reason}). Copy it again.")


# --- opening ----------------------------------------------------------------------------------------------------------


@contextmanager
def open_sound_file(path: Path) -> Iterator[SoundReader]:
    """Open a sound file; raise `DataError` if it is missing, not a regular file, too large, or not a sound file."""
    with convert_read_errors(path), open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{path} must be a sound file; it is not a regular file.")
        check_sound_bytes(status.st_size, str(path))
        yield open_sound(file, str(path))


def open_sound(file: IO[bytes], name: str, *, stream: bool = False) -> SoundReader:
    """Read the header of a sound. A `stream` is read once from its start, and may have any length."""
    start = read_fully(file, 12)
    if start[:4] == b"RIFF" and start[8:] == b"WAVE":
        return open_wav(file, name, stream)
    if not start:
        raise DataError(f"{name} must be a sound file ({KINDS}), but it is empty.")
    if start[:4] not in (b"fLaC", b"OggS"):
        raise DataError(
            f"{name} must be a sound file ({KINDS}), but its content has none of these formats{hint(start)}."
        )
    if stream:  # soundfile needs a file in which it can move
        content = start + read_fully(file, MAX_SOUND_BYTES)
        check_sound_bytes(len(content), name)
        return open_with_library(io.BytesIO(content), name)
    file.seek(0)
    return open_with_library(file, name)


def hint(start: bytes) -> str:
    """Return a remark on the content of a file that is not a sound file."""
    if start.startswith((b"ID3", b"\xff\xfb", b"\xff\xf3")):
        return ": it is an MP3 file. Convert it to WAV"
    return ": it is text" if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in start) else ""


def check_sound_bytes(size: int, name: str) -> None:
    if size > MAX_SOUND_BYTES:
        limit = format_bytes(MAX_SOUND_BYTES)
        raise DataError(f"{name} must be a sound file of at most {limit}, but it has {format_bytes(size)}. Divide it.")
    if size == 0:
        raise DataError(f"{name} must be a sound file ({KINDS}), but it is empty.")


def read_fully(file: IO[bytes], count: int) -> bytes:
    """Read `count` bytes, or all bytes up to the end; a pipe returns fewer bytes at a time."""
    parts, missing = list[bytes](), count
    while missing and (part := file.read(min(missing, 1 << 20))):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def open_wav(file: IO[bytes], name: str, stream: bool) -> WavReader:
    """Read the chunks of a WAV file up to its samples."""
    encoding, skipped = None, 0
    while len(head := read_fully(file, 8)) == 8:
        kind, size = struct.unpack("<4sI", head)
        if kind == b"data":
            if encoding is None:
                raise DataError(f"{name} is a damaged WAV file: its format must precede its samples.")
            return WavReader(name, file, encoding, size, stream)
        skipped += size + size % 2
        if skipped > MAX_HEADER:
            break
        chunk = read_fully(file, size + size % 2)
        if kind == b"fmt ":
            encoding = parse_format(chunk, name)
    raise DataError(f"{name} is a damaged or truncated WAV file: it has no samples. Copy it again.")


def parse_format(chunk: bytes, name: str) -> Encoding:
    """Parse the `fmt ` chunk of a WAV file."""
    if len(chunk) < 16:
        raise DataError(f"{name} is a damaged WAV file: its format has {len(chunk)} bytes instead of 16 or more.")
    code, channels, rate, _, _, bits = struct.unpack("<HHIIHH", chunk[:16])
    if code == EXTENSIBLE and len(chunk) >= 26:
        code = struct.unpack("<H", chunk[24:26])[0]
    supported = {PCM: (8, 16, 24, 32), FLOAT: (32, 64)}
    if bits not in supported.get(code, ()):
        raise DataError(
            f"{name} must have integers of 8, 16, 24 or 32 bits or floating-point numbers of 32 or 64 bits, but its "
            f"format is number {code} with {bits} bits. Convert it, for example to 16 bits."
        )
    check_shape(name, channels, rate)
    return Encoding(code, bits, channels, rate)


def check_shape(name: str, channels: int, rate: int) -> None:
    """Raise `DataError` if a file has too many channels or an unusual sampling rate."""
    if not 1 <= channels <= MAX_CHANNELS:
        raise DataError(f"{name} must have between 1 and {MAX_CHANNELS} channels, but it has {channels}.")
    if not MIN_RATE <= rate <= MAX_RATE:
        raise DataError(
            f"{name} must have between {MIN_RATE:,} and {MAX_RATE:,} samples per second, but it has {rate:,}."
        )


def open_with_library(file: IO[bytes], name: str) -> LibraryReader:
    """Open a FLAC or OGG file with soundfile."""
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: the library libsndfile is missing
        raise ResourceError(f"{name}: FLAC and OGG need soundfile: pip install 'seqloom[speech]'.") from error
    try:
        about = soundfile.info(file)
    except soundfile.LibsndfileError as error:
        raise damaged(name, error) from None
    check_shape(name, about.channels, about.samplerate)
    file.seek(0)
    return LibraryReader(name, about.samplerate, soundfile, file)
