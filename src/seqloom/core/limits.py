"""Limits on what is read and built, so that no input takes all memory or time. docs/limits.md lists them for users.

Limits on memory follow what is free on this machine. `SEQLOOM_MEMORY` replaces that number; `SEQLOOM_MAX_LINE` and
`SEQLOOM_MAX_SOURCE` replace the constants of that name.
"""

import os
import re
import resource
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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
    """Bytes of memory that this process may still take; None where the system does not tell."""
    if "SEQLOOM_MEMORY" in os.environ:
        return _from_environment("SEQLOOM_MEMORY", 0)
    found = [*_free_on_machine(), *_free_in_container(), *_free_by_ulimit()]
    return max(0, min(found)) if found else None


def limit_problems(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each setting beyond `MAX_SETTINGS`."""
    for name, most in MAX_SETTINGS.items():
        value = settings.get(name)
        if isinstance(value, int) and value > most:
            yield f"{name} must be at most {most:,}, got {value:,}"


def largest_settings(settings: Any, path: str = "", count: int = 3) -> str:
    """The largest whole numbers among nested settings, as `model.hidden=4096, model.layers=2`."""
    found = sorted(_whole_numbers(settings, path), key=lambda entry: -entry[1])[:count]
    return ", ".join(f"{name}={value}" for name, value in found)


def _whole_numbers(settings: Any, path: str) -> Iterator[tuple[str, int]]:
    if isinstance(settings, Mapping):
        for name, value in settings.items():
            yield from _whole_numbers(value, f"{path}.{name}" if path else name)
    elif type(settings) is int:
        yield path, settings


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


def _free_on_machine() -> Iterator[int]:
    file = Path("/proc/meminfo")
    for line in file.read_text().splitlines() if file.exists() else []:
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _free_in_container() -> Iterator[int]:
    """The limit of a container less what it uses, where this process runs in one with a limit."""
    for limit, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", None)):
        most = _number_in(Path("/sys/fs/cgroup", limit))
        if most is not None:
            yield most - ((_number_in(Path("/sys/fs/cgroup", used)) or 0) if used else 0)


def _number_in(file: Path) -> int | None:
    text = file.read_text().strip() if file.is_file() else ""
    return int(text) if text.isdigit() else None


def _free_by_ulimit() -> Iterator[int]:
    most, file = resource.getrlimit(resource.RLIMIT_AS)[0], Path("/proc/self/statm")
    if most != resource.RLIM_INFINITY and file.exists():
        yield most - int(file.read_text().split()[0]) * resource.getpagesize()
