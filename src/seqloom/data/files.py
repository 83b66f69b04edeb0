"""Strict reading of text files, and the location of data sets.

Errors name the file, the line and the byte. Files are UTF-8 unless `use_encoding` sets another encoding; a file
that is valid UTF-8 is always read as UTF-8, so that the files of a folder may have different encodings. A byte
order mark is dropped, and Windows line endings become "\\n". The line endings of old Macs, "\\r", are converted if
the text has no other line endings. Lines end only at "\\n"; U+2028 and other separators of `str.splitlines` are
ordinary characters.
"""

import codecs
import gzip
import math
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import IO, Any, NoReturn

from seqloom.core.errors import DataError, ResourceError
from seqloom.core.limits import (
    GZIP_GRACE,
    MAX_GZIP_RATIO,
    MEMORY_PER_TEXT,
    available_memory,
    format_bytes,
    refuse_device,
)

CHUNK_BYTES = 1 << 20  # number of bytes read at a time
COMPRESSED = (".gz", ".zst")
EXTENSIONS = (".txt", *(f".txt{ending}" for ending in COMPRESSED))
IMAGE_EXTENSIONS = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
BYTE_ORDER_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"  # the first character of some UTF-8 files
BYTES_PER_NUL = 100  # a file with fewer bytes per NUL byte is treated as binary
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
# The most common encoding comes first, because the first encoding is preferred if several give the same text.
ENCODINGS = ("cp1252", "cp1250", "cp1251", "shift_jis", "gb18030", "big5", "euc-kr", "euc-jp", "koi8-r", "iso8859-2")
MORE_ENCODINGS = ("cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp874", "koi8-u", "utf-16", "utf-32")
SAMPLE_BYTES = 50_000  # number of bytes of a text from which its encoding is guessed
DATA_VARIABLE = "SEQLOOM_DATA"
_data_folder: ContextVar[Path | None] = ContextVar("data_folder", default=None)
_moved_data: ContextVar[Path | None] = ContextVar("moved_data", default=None)
_encoding: ContextVar[str] = ContextVar("encoding", default="utf-8")


def read_files(path: Path) -> list[tuple[Path, str]]:
    """Read a file, or every .txt, .txt.gz and .txt.zst file below a folder, sorted by name.

    Blank and hidden files are left out. A folder that cannot be listed raises an error.
    """
    if not path.is_dir():
        return [(path, read_nonblank(path))]
    paths = sorted(text_files(path), key=lambda file: file.relative_to(path).as_posix())
    if not paths:
        kinds = Counter(file.suffix.lower() for file in files_below(path) if file.suffix)
        listed = ", ".join(f"{count:,} {suffix}" for suffix, count in kinds.most_common(3))
        hint = f" {listed}. Rename texts to .txt, or name a single file." if listed else " none."
        raise DataError(f"The folder {path} must contain .txt or .txt.gz files, but has{hint}")
    texts = [(file, text) for file in paths if (text := read_text(file)).strip()]
    if not texts:
        raise DataError(f"Every text file in the folder {path} is empty ({len(paths)} files, first {paths[0].name}).")
    return texts


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, without hidden files and folders."""
    for parent, folders, files in os.walk(folder, onerror=_refuse_folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names = sorted(name for name in files if not name.startswith("."))
        yield from (file for name in names if (file := Path(parent, name)).is_file())


def text_files(folder: Path) -> Iterator[Path]:
    """Yield the .txt, .txt.gz and .txt.zst files below a folder."""
    return filter(is_text, files_below(folder))


def is_text(path: Path) -> bool:
    """Return whether a file has the name of a text."""
    return path.name.lower().endswith(EXTENSIONS)


def _refuse_folder(error: OSError) -> NoReturn:
    raise DataError(f"The folder {error.filename} cannot be read ({error.strerror}).") from error


def read_lines(path: Path) -> list[str]:
    """Read the lines of a file without their ends, including blank lines."""
    return split_lines(read_nonblank(path))


def read_parallel(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """Read the lines of two files that are aligned by line; raise DataError if their numbers differ."""
    sides = read_lines(source), read_lines(target)
    if len(sides[0]) != len(sides[1]):
        raise DataError(
            f"Parallel files must have the same number of lines, but {source} has {len(sides[0]):,} and {target} has "
            f"{len(sides[1]):,}.\nLine n of one must be the translation of line n of the other."
        )
    return sides


def read_nonblank(path: Path) -> str:
    """Read a file; raise DataError if it contains only white space."""
    text = read_text(path)
    if not text.strip():
        raise DataError(f"{path} must contain text, but it is empty.")
    return text


def split_lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")


def read_text(path: Path) -> str:
    """Read a file, decompressed if its name ends in .gz or .zst."""
    return decode_text(read_bytes(path), path)


def read_bytes(path: Path, binary: bool = False) -> bytearray:
    """Read the bytes of a text file, or of a `binary` file, decompressed if its name ends in .gz or .zst."""
    with convert_read_errors(path), open(path, "rb") as file:
        refuse_device(path, file.fileno())
        if path.name.endswith(".gz"):
            with gzip.GzipFile(fileobj=file) as unpacked:
                return read_all(unpacked, path, packed=file, binary=binary)
        if path.name.endswith(".zst"):
            return read_all(ZstdReader(path, file), path, packed=file, binary=binary)
        return read_all(file, path, binary=binary)


class ZstdReader:
    """The decompressed content of a Zstandard file; a truncated file raises an error."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        try:
            import zstandard
        except ImportError:
            advice = "To read it: pip install 'seqloom[formats]'"
            raise DataError(f"{path} is compressed with Zstandard. {advice}.") from None
        self.file, self.error = file, zstandard.ZstdError
        self.new_frame = zstandard.ZstdDecompressor().decompressobj
        self.frame: Any = None  # the decompressor of the current frame, or None between frames

    def read(self, size: int) -> bytes:
        """Read `size` compressed bytes at a time and return the next decompressed bytes, or b"" at the end."""
        content = b""
        try:
            while not content and (chunk := self.file.read(size)):
                while chunk:
                    self.frame = self.frame or self.new_frame()
                    content += self.frame.decompress(chunk)
                    chunk = self.frame.unused_data
                    if self.frame.eof:
                        self.frame = None
        except self.error as error:
            raise EOFError(str(error)) from None
        if not content and self.frame is not None:
            raise EOFError("the end is missing")
        return content


def without_compression(path: Path) -> str:
    """Return the name of a file without .gz or .zst."""
    return path.stem if path.suffix in COMPRESSED else path.name


def decode_text(content: bytes | bytearray, path: Path | str) -> str:
    """Decode a text and normalize line endings; error messages name `path`."""
    encoding = _encoding.get()
    if content.startswith(_UTF16) and not encoding.startswith(("utf-16", "utf-32")):
        raise DataError(f"{path} must be {encoding.upper()} but starts like UTF-16: set data.encoding=utf-16.")
    for start, name, ending in ((_GZIP, "gzip", ".gz"), (_ZSTD, "Zstandard", ".zst")):
        if content.startswith(start):
            problem = f"{path} is compressed with {name}"
            raise DataError(f"{problem}. Its name must end in {ending} (if it does, the file is compressed twice).")
    if encoding.startswith(("utf-16", "utf-32")):
        content, encoding = content.decode(encoding, errors="replace").encode(), "utf-8"
    if (index := content.find(b"\0")) >= 0:  # a text may contain a stray NUL byte; a binary file contains many
        line, count = content.count(b"\n", 0, index) + 1, content.count(0)
        problem = f"{path} must be text, but line {line} contains a NUL byte"
        if count > max(1, len(content) // BYTES_PER_NUL) or "\ufffd" in content.decode(errors="replace"):
            raise DataError(f"{problem}: it is a binary file.")
        where = f"byte {index + 1:,} of the text" + ("" if count == 1 else f", {count:,} in total")
        raise DataError(f"{problem} ({where}). Remove it, for example: tr -d '\\000' < OLD > NEW.")
    try:
        text = content.decode("utf-8" if is_utf8(content) else encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path} must be {encoding.upper()}, but line {line} contains the byte 0x{content[error.start]:02X} "
            f"(byte {error.start + 1} of the text). {_advise_encoding(content, error.start)}"
        ) from None
    text = text.removeprefix(BYTE_ORDER_MARK)
    return text.replace("\r\n", "\n") if "\n" in text else text.replace("\r", "\n")


def is_utf8(content: bytes | bytearray) -> bool:
    """Return whether a text is valid UTF-8 with at least one character that is not ASCII.

    A text in another encoding is almost never valid UTF-8. An ASCII text is valid in UTF-8, too, but encodings such as
    ISO-2022-JP consist of ASCII bytes.
    """
    if content.isascii():
        return False
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def guess_encoding(content: bytes | bytearray) -> str | None:
    """Return the probable encoding of a text, or None if no encoding is plausible.

    Windows-1252 is preferred to Latin-1. The encodings differ only in bytes that are quotation marks and dashes in
    Windows-1252, but control characters in Latin-1.
    """
    try:
        content.decode()
        return "utf-8"
    except UnicodeDecodeError as error:
        start = max(0, error.start - SAMPLE_BYTES // 2)
    import charset_normalizer

    sample = bytes(content[start : start + SAMPLE_BYTES])
    matches = charset_normalizer.from_bytes(sample, cp_isolation=[*ENCODINGS, *MORE_ENCODINGS])
    if not matches:
        return None
    quality = {codecs.lookup(match.encoding).name: (match.chaos, -match.coherence) for match in matches}
    best = min(quality, key=lambda name: quality[name])
    decoded = content.decode(best, errors="replace")
    for name in ENCODINGS:
        if quality.get(name) == quality[best] or content.decode(name, errors="replace") == decoded:
            return name
    return best


def _advise_encoding(content: bytes | bytearray, position: int) -> str:
    """Return advice on a text that is not UTF-8; the advice quotes the line at `position` in the probable encoding."""
    encoding = guess_encoding(content)
    if encoding is None or encoding == _encoding.get():
        return "Set data.encoding to the encoding of the file, for example cp1252 or shift_jis."
    start = content.rfind(b"\n", 0, position) + 1
    end = content.find(b"\n", position)
    line = bytes(content[max(start, position - 20) : min(end if end >= 0 else len(content), position + 20)])
    sample = line.decode(encoding, errors="replace").strip()
    return f"If it should read “{sample}”, it is {encoding}: set data.encoding={encoding}."


def read_all(
    file: IO[bytes] | gzip.GzipFile | ZstdReader,
    path: Path | str,
    packed: IO[bytes] | None = None,
    binary: bool = False,
) -> bytearray:
    """Read all bytes of a file within the limits of memory; `packed` is the compressed file, if any.

    If `binary` is False, reading stops early if the content is clearly binary.
    """
    content, free = bytearray(), available_memory()
    limit = math.inf if free is None else free // MEMORY_PER_TEXT
    while chunk := file.read(CHUNK_BYTES):
        content += chunk
        if not binary and chunk.count(0) > len(chunk) // 2:
            break  # the content is binary, which `decode_text` reports
        if packed is not None and len(content) > max(GZIP_GRACE, MAX_GZIP_RATIO * packed.tell()):
            raise DataError(
                f"{path} unpacks to more than {MAX_GZIP_RATIO} times its size ({format_bytes(len(content))} so far), "
                "which is unusual for text. If this is intended, unpack it and use the unpacked file."
            )
        if len(content) > limit:
            raise ResourceError(
                f"{path} must fit into memory: a text file needs {MEMORY_PER_TEXT} times its size, this file is "
                f"larger than {format_bytes(limit)}, and only {format_bytes(free or 0)} is free. Use a part of it, "
                f"or set "
                "SEQLOOM_MEMORY, for example to 64G, if the machine has more memory than the system reports."
            )
    return content


@contextmanager
def convert_read_errors(path: Path) -> Iterator[None]:
    """Convert errors in reading or unpacking a file to DataError."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path} does not exist. Check the name and the current folder.") from None
    except gzip.BadGzipFile as error:
        raise DataError(f"{path} must be gzip-compressed, as its name says, but is not ({error}).") from None
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path} is truncated or damaged and cannot be unpacked ({error}). Copy it again.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from error


def expand_home(path: Path) -> Path:
    """Expand `~/` to the home directory, unless a file with the unexpanded name exists."""
    return path if path.exists() or not str(path).startswith("~/") else path.expanduser()


def locate_file(name: str, recipe_folder: Path) -> str:
    """Return the absolute path of a file, looked up in the current folder, then in the folder of the recipe."""
    path, beside = expand_home(Path(name)), recipe_folder / name
    return str((beside if beside.exists() and not path.exists() else path).absolute())


@contextmanager
def use_encoding(encoding: str) -> Iterator[None]:
    """Read text files in this encoding within this block."""
    token = _encoding.set(codecs.lookup(encoding).name)
    try:
        yield
    finally:
        _encoding.reset(token)


# --- data sets outside the package, and files inside it ---------------------------------------------------------------


@contextmanager
def use_data_folder(path: Path | str | None, moved: Path | None = None) -> Iterator[None]:
    """Use `path` instead of SEQLOOM_DATA within this block; a `path` of None has no effect.

    `moved` is the new location of the user's files on which a run was trained.
    """
    if moved is not None and not moved.exists():
        raise DataError(f"{moved} does not exist. --data must name the file or the folder of the data.")
    token = _data_folder.set(_data_folder.get() if path is None else Path(path))
    moved_token = _moved_data.set(None if moved is None else moved.absolute())
    try:
        yield
    finally:
        _data_folder.reset(token)
        _moved_data.reset(moved_token)


def moved_data() -> Path | None:
    """Return the new location of the files of a run, as set by `use_data_folder`."""
    return _moved_data.get()


def data_folder() -> Path | None:
    """Return the data folder, or None if neither `--data-dir` nor SEQLOOM_DATA is set."""
    chosen = _data_folder.get() or os.environ.get(DATA_VARIABLE)
    return Path(chosen).expanduser() if chosen else None


@dataclass(frozen=True)
class DataSet:
    """A data set outside the package: its title and where to download it."""

    title: str
    source: str

    def file(self, name: str) -> Path:
        """Return the path of a file in the data folder, with or without .gz; raise DataError if it is missing."""
        folder = data_folder()
        if folder is None:
            raise DataError(
                f"{self.title} is not part of seqloom, and {DATA_VARIABLE} is not set. Set {DATA_VARIABLE} "
                f"(or --data-dir) to a folder that contains {name}.\nDownload it from {self.source}."
            )
        for path in (folder / name, folder / name.removesuffix(".gz")):
            if path.is_file():
                return path
        raise DataError(
            f"{self.title} needs {folder / name}, which does not exist. Put it there, or set {DATA_VARIABLE} "
            f"(or --data-dir) to a folder that contains {name}.\nDownload it from {self.source}."
        )


def read_asset(name: str) -> dict[str, tuple[str, ...]]:
    """Read the sections of a text file in `data/assets`: the lines below each `[title]`."""
    sections: dict[str, list[str]] = {}
    for line in resources.files("seqloom.data").joinpath("assets", name).read_text("utf-8").split("\n"):
        if line.startswith("[") and line.endswith("]"):
            sections[line[1:-1]] = []
        elif line and not line.startswith("#"):
            sections[next(reversed(sections))].append(line)
    return {title: tuple(lines) for title, lines in sections.items()}
