"""Reading text strictly, UTF-8 or a clear message about which file, line and byte is not; and where data sets lie.

A byte order mark at the beginning is dropped and Windows line ends become "\\n", and so do those of old Macs, "\\r", in
a text that has no others; nothing else is changed. Lines end at "\\n" alone: U+2028 and the like, which
`str.splitlines` would cut at, are ordinary characters.
"""

import gzip
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import IO, NoReturn

from seqloom.core.errors import DataError, ResourceError
from seqloom.core.limits import (
    GZIP_GRACE,
    MAX_GZIP_RATIO,
    MEMORY_PER_TEXT,
    available_memory,
    format_bytes,
    refuse_device,
)

CHUNK = 1 << 20  # bytes read at a time
ENDINGS = (".txt", ".txt.gz")
MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"  # at the beginning of a file: the byte order mark
STRAY = 100  # bytes for each NUL, at least, of what is a text all the same
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_GZIP = b"\x1f\x8b"
DATA_VARIABLE = "SEQLOOM_DATA"
_data_folder: ContextVar[Path | None] = ContextVar("data_folder", default=None)


def read_files(path: Path) -> list[tuple[Path, str]]:
    """The texts of a file, or of every .txt and .txt.gz file below a folder, sorted by name.

    Blank files and hidden ones are left out. A folder that cannot be listed is an error, not empty.
    """
    if not path.is_dir():
        return [(path, read_filled(path))]
    found: list[Path] = []
    for parent, folders, files in os.walk(path, onerror=_refuse_folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        names = [name for name in files if name.endswith(ENDINGS) and not name.startswith(".")]
        found += [file for name in names if (file := Path(parent, name)).is_file()]
    found.sort(key=lambda file: file.relative_to(path).as_posix())
    if not found:
        raise DataError(f"The folder {path} must hold files whose names end in .txt or .txt.gz; it has none.")
    texts = [(file, text) for file in found if (text := read_text(file)).strip()]
    if not texts:
        raise DataError(f"Every text file in the folder {path} is empty ({len(found)} files, first {found[0].name}).")
    return texts


def _refuse_folder(error: OSError) -> NoReturn:
    raise DataError(f"The folder {error.filename} cannot be read ({error.strerror}).") from error


def read_lines(path: Path) -> list[str]:
    """The lines of a file without their ends, blank ones too."""
    return lines(read_filled(path))


def read_parallel(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """The lines of two files that say the same, line by line: there must be as many in one as in the other."""
    sides = read_lines(source), read_lines(target)
    if len(sides[0]) != len(sides[1]):
        raise DataError(
            f"Parallel files must have as many lines, but {source} has {len(sides[0]):,} and {target} has "
            f"{len(sides[1]):,}.\nLine n of one must be the translation of line n of the other."
        )
    return sides


def read_filled(path: Path) -> str:
    """The text of one file, which must hold some."""
    text = read_text(path)
    if not text.strip():
        raise DataError(f"{path} is empty: a text file must hold text.")
    return text


def lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")


def read_text(path: Path) -> str:
    """The text of one file, decompressed if its name ends in .gz."""
    with readable(path), open(path, "rb") as file:
        refuse_device(path, file.fileno())
        if not path.name.endswith(".gz"):
            return decode_text(read_all(file, path), path)
        with gzip.GzipFile(fileobj=file) as unpacked:
            return decode_text(read_all(unpacked, path, packed=file), path)


def decode_text(content: bytes | bytearray, path: Path | str) -> str:
    """The text these bytes spell; `path` is where they are from."""
    if content.startswith(_UTF16):
        raise DataError(f"{path} must be UTF-8 but begins like UTF-16. Convert it: iconv -f UTF-16 -t UTF-8.")
    if content.startswith(_GZIP):
        raise DataError(f"{path} is compressed with gzip. Its name must end in .gz (if it does, it is so twice).")
    if (place := content.find(b"\0")) >= 0:  # a text may have a stray one, a binary file has many
        line, count = content.count(b"\n", 0, place) + 1, content.count(0)
        problem = f"{path} must be text, but line {line} holds a NUL byte"
        if count > max(1, len(content) // STRAY) or "\ufffd" in content.decode(errors="replace"):
            raise DataError(f"{problem}: it is a binary file.")
        where = f"byte {place + 1:,} of the text" + ("" if count == 1 else f", and {count:,} in all")
        raise DataError(f"{problem} ({where}). Take it out, for example: tr -d '\\000' < OLD > NEW.")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path} must be UTF-8, but line {line} holds the byte 0x{content[error.start]:02X} "
            f"(byte {error.start + 1} of the text). Convert it, for example: iconv -f LATIN1 -t UTF-8."
        ) from None
    text = text.removeprefix(MARK)
    return text.replace("\r\n", "\n") if "\n" in text else text.replace("\r", "\n")


def read_all(file: IO[bytes] | gzip.GzipFile, path: Path | str, packed: IO[bytes] | None = None) -> bytearray:
    """All bytes of a file, as many as memory has room for; `packed` is the compressed file that they come from.

    What has no text in it is not read to its end.
    """
    content, free = bytearray(), available_memory()
    most = math.inf if free is None else free // MEMORY_PER_TEXT
    while chunk := file.read(CHUNK):
        content += chunk
        if chunk.count(0) > len(chunk) // 2:
            break  # no text: `decode_text` says so
        if packed is not None and len(content) > max(GZIP_GRACE, MAX_GZIP_RATIO * packed.tell()):
            raise DataError(
                f"{path} unpacks to more than {MAX_GZIP_RATIO} times its size, which no text does: "
                f"{format_bytes(len(content))} so far. If it is right, unpack it and name the unpacked file."
            )
        if len(content) > most:
            raise ResourceError(
                f"{path} is too large for the memory of this machine: it holds more than {format_bytes(most)}, a text "
                f"takes {MEMORY_PER_TEXT} times its size, and {format_bytes(free or 0)} are free. Take a part of it, "
                "or set SEQLOOM_MEMORY, say to 64G, if there is more memory than the system reports."
            )
    return content


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """What keeps a file from being read, or unpacked, as one clear line."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path} does not exist. Check the name, and from which folder the command is run.") from None
    except gzip.BadGzipFile as error:
        raise DataError(f"{path} must be gzip-compressed, as its name says, but is not ({error}).") from None
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path} is cut short or damaged and cannot be unpacked ({error}). Copy it again.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from error


def expand_home(path: Path) -> Path:
    """`~/text.txt` is in one's home; a file that is really called ~something is itself."""
    return path if path.exists() or not str(path).startswith("~/") else path.expanduser()


def locate_file(name: str, recipe_folder: Path) -> str:
    """The whole path of a file. What is not in the current folder may lie beside the recipe that names it."""
    path, beside = expand_home(Path(name)), recipe_folder / name
    return str((beside if beside.exists() and not path.exists() else path).absolute())


# --- data sets outside the package, and files inside it ---------------------------------------------------------------


@contextmanager
def use_data_folder(path: Path | str | None) -> Iterator[None]:
    """Within this block `path` stands before SEQLOOM_DATA; None changes nothing."""
    token = _data_folder.set(_data_folder.get() if path is None else Path(path))
    try:
        yield
    finally:
        _data_folder.reset(token)


def data_folder() -> Path | None:
    """The folder in force, or None if neither `--data-dir` nor SEQLOOM_DATA names one."""
    chosen = _data_folder.get() or os.environ.get(DATA_VARIABLE)
    return Path(chosen).expanduser() if chosen else None


@dataclass(frozen=True)
class DataSet:
    """A set that is had elsewhere: its title, and where from."""

    title: str
    source: str

    def file(self, name: str) -> Path:
        """The file `name` of the data folder, or the same without .gz; DataError if neither is there."""
        folder = data_folder()
        if folder is None:
            raise DataError(
                f"{self.title} is not inside seqloom and {DATA_VARIABLE} is not set. Set {DATA_VARIABLE} "
                f"(or give --data-dir) to a folder that holds {name}.\nDownload it from {self.source}."
            )
        for path in (folder / name, folder / name.removesuffix(".gz")):
            if path.is_file():
                return path
        raise DataError(
            f"{self.title} needs {folder / name}, which is not there. Put it there, or point {DATA_VARIABLE} "
            f"(or --data-dir) at the folder above it.\nDownload it from {self.source}."
        )


def read_asset(name: str) -> dict[str, tuple[str, ...]]:
    """Return the sections of a text file in `data/assets`: the lines below each `[title]`, in their order."""
    sections: dict[str, list[str]] = {}
    for line in resources.files("seqloom.data").joinpath("assets", name).read_text("utf-8").split("\n"):
        if line.startswith("[") and line.endswith("]"):
            sections[line[1:-1]] = []
        elif line and not line.startswith("#"):
            sections[next(reversed(sections))].append(line)
    return {title: tuple(lines) for title, lines in sections.items()}
