"""Tests of the length limit of input lines."""

import io
from typing import IO

import pytest

from seqloom.cli._input import decode_lines
from seqloom.core.errors import DataError


def test_too_long_line_is_rejected_after_previous_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQLOOM_MAX_LINE", "10")
    lines = decode_lines(io.BytesIO(b"one\r\n0123456789\nlast\n0123456789a\nmore\n"))
    assert [next(lines), next(lines), next(lines)] == ["one", "0123456789", "last"]
    with pytest.raises(DataError, match=r"Line 4 of the input is longer than 10 bytes.*SEQLOOM_MAX_LINE=100"):
        next(lines)


def test_endless_line_is_rejected() -> None:
    zeros: IO[bytes]
    with open("/dev/zero", "rb") as zeros, pytest.raises(DataError, match="Line 1 of the input is longer"):
        next(decode_lines(zeros))


def test_last_line_needs_no_newline() -> None:
    assert list(decode_lines(io.BytesIO(b"\xef\xbb\xbfa\n\nb"))) == ["a", "", "b"]
