import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from seqloom.core.errors import DataError
from seqloom.data.files import read_files, read_lines, read_text, split_lines, use_encoding
from seqloom.data.tables import find_encoding


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.md"])
def test_plain_and_compressed_files_are_read(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, "grüße\nworld\n".encode())
    assert read_files(path) == [(path, "grüße\nworld\n")]


def test_byte_order_mark_and_crlf_are_removed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo\rthree\r\n")
    assert read_text(path) == "one\ntwo\rthree\n"
    assert read_text(write(tmp_path / "b.txt", "x\ufeffy".encode())) == "x\ufeffy"


def test_only_newlines_end_lines(tmp_path: Path) -> None:
    text = "a\u2028b\x0bc\x85d\x1ce\n\nf\n"
    assert split_lines(text) == ["a\u2028b\x0bc\x85d\x1ce", "", "f"]
    assert read_lines(write(tmp_path / "a.txt.gz", text.encode())) == split_lines(text)
    assert split_lines("a\n\n") == ["a", ""]
    assert split_lines("a") == ["a"]


def test_files_of_folder_are_sorted_by_name(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt.gz", "sub/c.txt", "notes.md", ".hidden.txt", ".git/x.txt", "empty.txt"):
        write(tmp_path / name, b"" if name == "empty.txt" else name.encode())
    contents = [(path.relative_to(tmp_path).as_posix(), text) for path, text in read_files(tmp_path)]
    assert contents == [("a.txt.gz", "a.txt.gz"), ("b.txt", "b.txt"), ("sub/c.txt", "sub/c.txt")]


def error_message(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_files(path)
    message = str(caught.value)
    assert str(path) in message
    assert message.count("\n") <= 1
    return message


def test_missing_file_is_reported(tmp_path: Path) -> None:
    assert "does not exist" in error_message(tmp_path / "none.txt")


@pytest.mark.parametrize("content", [b"", b" \n\t\n", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_empty_file_is_rejected(tmp_path: Path, name: str, content: bytes) -> None:
    assert "is empty" in error_message(write(tmp_path / name, content))


def test_folder_without_text_is_rejected(tmp_path: Path) -> None:
    write(tmp_path / "a.pdf", b"x")
    assert "must contain .txt or .txt.gz files, but has 1 .pdf. Rename texts to .txt" in error_message(tmp_path)
    write(tmp_path / "a.txt", b"\n")
    assert "is empty" in error_message(tmp_path)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_encoding_error_names_line_and_byte(tmp_path: Path, mark: bytes) -> None:
    content = mark + "erste\nzweite ä\n".encode() + "dritte ä".encode("latin1")
    message = error_message(write(tmp_path / "a.txt", content))
    assert "line 3 contains the byte 0xE4" in message
    assert f"(byte {len(content)} of the text)" in message


def test_files_that_are_utf8_are_read_as_utf8_in_any_folder(tmp_path: Path) -> None:
    quotes = "„Größe“ – naïve"
    write(tmp_path / "a.txt", quotes.encode())
    write(tmp_path / "b.TXT", quotes.encode("cp1252"))
    write(tmp_path / "c.txt", b"plain")
    assert find_encoding(tmp_path) == "cp1252"
    with use_encoding("cp1252"):
        assert [text for _, text in read_files(tmp_path)] == [quotes, quotes, "plain"]
    with use_encoding("iso2022_jp"):  # its texts consist of ASCII bytes
        assert read_text(write(tmp_path / "d.txt", "日本".encode("iso2022_jp"))) == "日本"
    japanese = "これは日本語の文章です。文字コードはシフトJISです。" * 20
    write(tmp_path / "e.txt", japanese.encode("shift_jis"))
    with pytest.raises(DataError, match=r"must have the same encoding, but .*b.TXT is cp1252 and .*e.txt is shift_jis"):
        find_encoding(tmp_path)


def test_error_names_invalid_file_of_folder(tmp_path: Path) -> None:
    write(tmp_path / "good.txt", b"fine")
    write(tmp_path / "odd.txt", b"a\n\xff")
    with pytest.raises(DataError, match=r"odd\.txt must be UTF-8, but line 2"):
        read_files(tmp_path)


def test_binary_file_is_rejected(tmp_path: Path) -> None:
    assert "line 2 contains a NUL byte" in error_message(write(tmp_path / "a.txt", b"GIF\n\0\0"))


def test_utf16_file_is_rejected(tmp_path: Path) -> None:
    assert "UTF-16" in error_message(write(tmp_path / "a.txt", "hello".encode("utf-16")))


def test_compressed_file_without_extension_is_rejected(tmp_path: Path) -> None:
    assert "compressed with gzip" in error_message(write(tmp_path / "a.txt", gzip.compress(b"hello")))


def test_uncompressed_gz_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(b"plain text")
    assert "must be gzip-compressed" in error_message(path)


def test_truncated_and_damaged_files_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    compressed = gzip.compress(os.urandom(2000).hex().encode())
    for size in (5, 15, len(compressed) // 2, len(compressed) - 1):
        path.write_bytes(compressed[:size])
        assert "truncated or damaged" in error_message(path)
    damaged = bytearray(compressed)
    damaged[len(compressed) // 2] ^= 0xFF
    path.write_bytes(damaged)
    assert "gzip" in (message := error_message(path)) or "damaged" in message


def test_folder_is_rejected_as_file(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        read_text(tmp_path / "d")


def test_stray_nul_byte_is_reported(tmp_path: Path) -> None:
    content = b"one\ntw\0o\n" + b"three\n" * 99
    message = error_message(write(tmp_path / "a.txt", content))
    assert "line 2 contains a NUL byte (byte 7 of the text). Remove it" in message and "tr -d '\\000'" in message
    assert "binary" not in message
    assert "(byte 7 of the text, 2 in total)" in error_message(write(tmp_path / "b.txt", content + b"\0\n"))
    assert "it is a binary file" in error_message(write(tmp_path / "c.txt", b"a\0b\0" * 99))
    assert "it is a binary file" in error_message(write(tmp_path / "d.txt", content + b"\xff\xfe"))


def test_carriage_returns_end_lines_without_newlines(tmp_path: Path) -> None:
    assert read_lines(write(tmp_path / "a.txt", b"one\rtwo\r\rthree\r")) == ["one", "two", "", "three"]
    assert read_lines(write(tmp_path / "b.txt", b"one\rtwo\n")) == ["one\rtwo"]


def test_vanished_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.txt", b"a")
    (tmp_path / "below").mkdir()
    list_folder = os.scandir

    def vanish(path: Any) -> Any:
        if Path(path) == tmp_path / "below":
            (tmp_path / "below").rmdir()
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", vanish)
    with pytest.raises(DataError, match=r"The folder .*below cannot be read \(No such file or directory\)"):
        read_files(tmp_path)


def test_vanished_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.txt", "b.txt"):
        write(tmp_path / name, b"text")
    read = Path.open

    def vanish(path: Path, *arguments: Any, **named: Any) -> Any:
        (tmp_path / "b.txt").unlink(missing_ok=True)
        return read(path, *arguments, **named)

    monkeypatch.setattr(Path, "open", vanish)
    with pytest.raises(DataError, match=r"b\.txt does not exist"):
        read_files(tmp_path)
