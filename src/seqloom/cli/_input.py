"""What commands read line by line: UTF-8 and nothing else, or a word about which line is not."""

from collections.abc import Iterator
from itertools import count
from typing import IO

from seqloom.core.errors import DataError
from seqloom.core.limits import max_line

MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"  # before the first line: the byte order mark


def arguments(texts: list[str]) -> list[str]:
    """Texts given on the command line."""
    for number, text in enumerate(texts, start=1):
        if not text.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise DataError(f"The texts must be UTF-8, but text {number} is not: {text!r}.")
    return texts


def lines_of(stream: IO[bytes]) -> Iterator[str]:
    """The lines of the input without their ends, each as soon as it is there; one that is too long is refused."""
    most = max_line()
    for number in count(1):
        line = stream.readline(most + 1)
        if not line:
            return
        if len(line) > most and not line.endswith(b"\n"):
            raise DataError(
                f"Line {number:,} of the input is longer than {most:,} bytes. Break it into lines, or allow more: "
                f"SEQLOOM_MAX_LINE={10 * most}."
            )
        try:
            text = line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise DataError(
                f"The input must be UTF-8, but line {number} holds the byte 0x{line[error.start]:02X}. "
                "Convert it, for example: iconv -f LATIN1 -t UTF-8."
            ) from None
        yield text.removeprefix(MARK) if number == 1 else text
