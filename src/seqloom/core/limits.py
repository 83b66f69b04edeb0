"""Limits on inputs and models, so that no input exhausts memory or time.

docs/reference/limits.md lists the limits. Memory limits depend on the free memory of the machine. The environment
variable `SEQLOOM_MEMORY` overrides the free memory; `SEQLOOM_MAX_LINE` and `SEQLOOM_MAX_SOURCE` override the constants
MAX_LINE and MAX_SOURCE.
"""

import os
import re
import resource
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from seqloom.core import Json
from seqloom.core.errors import DataError, UsageError

MAX_LINE = 1_000_000  # maximum number of bytes of an input line, about one novel
MAX_SOURCE = 16_384  # maximum number of tokens of an encoder–decoder's source text
MEMORY_PER_TEXT = 4  # minimum number of bytes of memory per byte of text read
MAX_GZIP_RATIO = 200  # maximum ratio of unpacked to packed size; text rarely exceeds 20
GZIP_GRACE = 1 << 28  # number of unpacked bytes up to which the ratio is not checked
MAX_GROWTH = 1_000  # maximum factor by which the normalizer or decoder of an imported tokenizer may lengthen a text
MAX_VOCABULARY = 2_000_000  # tokens of byte-pair encoding; the library reserves memory for all of them in advance
MAX_PIXELS = 1 << 26  # pixels of an image (8,192 × 8,192), checked before the pixels are decompressed
MAX_IMAGE_BYTES = 1 << 28  # maximum size of an image file
MAX_FRAMES = 10_000  # frames of a clip
MAX_CLIP_PIXELS = 1 << 28  # pixels of the frames of a clip that are used
MAX_SOUND_BYTES = 1 << 31  # maximum size of a sound file; streams of WAV have no limit
MAX_SOUND_SECONDS = 600  # longest sound of a corpus; `seqloom transcribe` reads longer sounds in windows
MAX_RECIPE = 10_000_000  # maximum size of a recipe file in bytes
MAX_SETTINGS = {  # largest values of settings that cost time or memory before other checks apply
    "layers": 10_000,
    "encoder_layers": 10_000,
    "decoder_layers": 10_000,
    "beam": 1_000,
    "order": 100,
    "states": 10_000,
}
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def max_line() -> int:
    return _from_environment("SEQLOOM_MAX_LINE", MAX_LINE)


def max_source() -> int:
    return _from_environment("SEQLOOM_MAX_SOURCE", MAX_SOURCE)


def available_memory() -> int | None:
    """Return the number of bytes that this process can still allocate, or None if unknown.

    The number is the minimum of the free memory of the machine, the free memory of its container, and the limit of
    `ulimit -v`.
    """
    if "SEQLOOM_MEMORY" in os.environ:
        return _from_environment("SEQLOOM_MEMORY", 0)

    def read(path: str) -> str:
        return Path(path).read_text() if os.path.isfile(path) else ""

    lines = read("/proc/meminfo").splitlines()
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    limit, used = read("/sys/fs/cgroup/memory.max").strip(), read("/sys/fs/cgroup/memory.current").strip()
    if limit.isdigit():
        free.append(int(limit) - (int(used) if used.isdigit() else 0))
    if (limit := read("/sys/fs/cgroup/memory/memory.limit_in_bytes").strip()).isdigit():
        free.append(int(limit))
    address_space, pages = resource.getrlimit(resource.RLIMIT_AS)[0], read("/proc/self/statm").split()
    if address_space != resource.RLIM_INFINITY and pages:
        free.append(address_space - int(pages[0]) * resource.getpagesize())
    return max(0, min(free)) if free else None


def limit_problems(settings: Mapping[str, Json]) -> Iterator[str]:
    """Yield a message for each setting above `MAX_SETTINGS`."""
    for name, maximum in MAX_SETTINGS.items():
        value = settings.get(name)
        if isinstance(value, int) and value > maximum:
            yield f"{name} must be at most {maximum:,}; got {value:,}"


def list_largest_settings(settings: Json, count: int = 3) -> str:
    """Format the largest integers among nested settings: `model.hidden=4096, model.layers=2`."""

    def integers(value: Json, path: str) -> Iterator[tuple[str, int]]:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                yield from integers(inner, f"{path}.{name}" if path else name)
        elif type(value) is int:
            yield path, value

    largest = sorted(integers(settings, ""), key=lambda entry: -entry[1])[:count]
    return ", ".join(f"{name}={value}" for name, value in largest)


def refuse_device(path: Path | str, handle: int) -> None:
    """Raise `DataError` if an open file is a device, which has no end or no content."""
    mode = os.fstat(handle).st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise DataError(f"{path} is a device, not a file. Pass a file with data.")


def format_bytes(count: float) -> str:
    """Format a number of bytes with a unit."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"


def _from_environment(name: str, default: int) -> int:
    text = os.environ.get(name)
    if text is None:
        return default
    number = re.fullmatch(r"(\d+)([KMGT]?)B?", text.strip().upper())
    if number is None or int(number[1]) < 1:
        raise UsageError(f"{name} must be a whole number above 0, such as 500000 or 8G; got {text!r}.")
    return int(number[1]) * UNITS[number[2]]
