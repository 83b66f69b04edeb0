"""Limits on what is read and built, so that no input takes all memory or time.

docs/reference/limits.md lists them for users.

Limits on memory follow what is free on this machine. `SEQLOOM_MEMORY` replaces that number;
`SEQLOOM_MAX_LINE` and `SEQLOOM_MAX_SOURCE` replace the constants of that name.
"""

import os
import re
import resource
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from seqloom.core import Json
from seqloom.core.errors import DataError, UsageError

MAX_LINE = 1_000_000  # bytes of one line of input: a novel
MAX_SOURCE = 16_384  # tokens of one text that an encoder–decoder reads to translate or restore it
MEMORY_PER_TEXT = 4  # bytes of memory that reading a text takes, for each byte of it, at least
MAX_GZIP_RATIO = 200  # a file that unpacks to more than this times its size …
GZIP_GRACE = 1 << 28  # … and to more bytes than this is refused; text rarely exceeds 20
MAX_GROWTH = 1_000  # times that the normalizer or decoder of an imported tokenizer may lengthen a text
MAX_VOCABULARY = 2_000_000  # tokens that byte pairs may learn; the library reserves memory for all of them at once
MAX_RECIPE = 10_000_000  # bytes of a recipe file
MAX_SETTINGS = {  # the largest value of settings that cost time or memory before anything else can refuse them
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
    """Bytes of memory that this process may still take; None where the system does not tell.

    The least of what is free on the machine, in a container with a limit, and by `ulimit -v`.
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
    most, pages = resource.getrlimit(resource.RLIMIT_AS)[0], read("/proc/self/statm").split()
    if most != resource.RLIM_INFINITY and pages:
        free.append(most - int(pages[0]) * resource.getpagesize())
    return max(0, min(free)) if free else None


def limit_problems(settings: Mapping[str, Json]) -> Iterator[str]:
    """Yield a sentence for each setting beyond `MAX_SETTINGS`."""
    for name, most in MAX_SETTINGS.items():
        value = settings.get(name)
        if isinstance(value, int) and value > most:
            yield f"{name} must be at most {most:,}, got {value:,}"


def list_largest_settings(settings: Json, count: int = 3) -> str:
    """The largest whole numbers among nested settings, as `model.hidden=4096, model.layers=2`."""

    def whole_numbers(value: Json, path: str) -> Iterator[tuple[str, int]]:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                yield from whole_numbers(inner, f"{path}.{name}" if path else name)
        elif type(value) is int:
            yield path, value

    largest = sorted(whole_numbers(settings, ""), key=lambda entry: -entry[1])[:count]
    return ", ".join(f"{name}={value}" for name, value in largest)


def refuse_device(path: Path | str, handle: int) -> None:
    """Refuse an open file that is a device: it has no end, or no content."""
    mode = os.fstat(handle).st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise DataError(f"{path} is a device, not a file. Name a file with data.")


def format_bytes(count: float) -> str:
    """Bytes for people."""
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
