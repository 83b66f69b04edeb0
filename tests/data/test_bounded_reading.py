"""Endless data files and decompression bombs are rejected quickly and with little memory."""

import gzip
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from seqloom.classical.ngram.arpa import read_arpa
from seqloom.config.yaml_text import load_yaml
from seqloom.core.errors import DataError, ResourceError, UsageError
from seqloom.data import files
from seqloom.data.files import decode_text, read_all, read_text
from seqloom.data.word_vectors import read_entries


@pytest.mark.parametrize("read", [read_text, read_arpa, lambda path: list(read_entries(path))])
def test_device_is_rejected_as_data_file(read: Callable[[Path], object]) -> None:
    with pytest.raises(DataError, match="/dev/zero is a device, not a file"):
        read(Path("/dev/zero"))


def test_endless_zeros_are_reported_as_binary() -> None:
    with open("/dev/zero", "rb") as zeros:
        content = read_all(zeros, "The input")
    assert len(content) <= files.CHUNK_BYTES
    with pytest.raises(DataError, match="contains a NUL byte: it is a binary file"):
        decode_text(content, "The input")


def test_gzip_bomb_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "GZIP_GRACE", 4 << 20)
    bomb = tmp_path / "bomb.txt.gz"
    bomb.write_bytes(gzip.compress(b"a" * (32 << 20), 9))
    with pytest.raises(DataError, match=r"unpacks to more than 200 times its size.*[45] MiB so far"):
        read_text(bomb)


def test_ordinary_compressed_text_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "GZIP_GRACE", 1 << 20)
    text = "".join(f"line {number} of a text\n" for number in range(100_000))
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(text.encode()))
    assert read_text(tmp_path / "text.txt.gz") == text


def test_text_larger_than_memory_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text("a line\n" * 300_000)
    monkeypatch.setenv("SEQLOOM_MEMORY", "4M")
    with pytest.raises(ResourceError, match=r"text\.txt must fit into memory.* larger than 1 MiB.*SEQLOOM_MEMORY"):
        read_text(tmp_path / "text.txt")
    monkeypatch.setenv("SEQLOOM_MEMORY", "16M")
    assert len(read_text(tmp_path / "text.txt")) == 2_100_000


def test_pipe_is_read(tmp_path: Path) -> None:
    """Check process substitution, as in data.train=<(zcat corpus.gz)."""
    read_end, write_end = os.pipe()
    os.write(write_end, b"a line\n")
    os.close(write_end)
    try:
        assert read_text(Path(f"/proc/self/fd/{read_end}")) == "a line\n"
    finally:
        os.close(read_end)


def test_endless_recipe_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "endless.yaml").symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="too large for a recipe; a recipe has at most 10,000,000 bytes"):
        load_yaml(tmp_path / "endless.yaml")


def test_read_all_returns_complete_content() -> None:
    content = bytes(range(1, 256)) * 20_000
    assert read_all(io.BytesIO(content), "The input") == content
