import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.config import build
from seqloom.core.errors import DataError, UsageError
from seqloom.data import corpora
from seqloom.data.corpora.text import Config, _cut_end
from seqloom.data.corpus import TextCorpus


def load(**settings: Any) -> TextCorpus:
    plain: dict[str, Any] = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    return corpora.load(Config(**plain))


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text("\n".join(f"line {number:03}" for number in range(100)) + "\n")
    return path


def test_dev_and_test_are_last_lines(book: Path) -> None:
    corpus = load(train=book)
    (train,), (dev,), (test,) = (corpus.split(name) for name in ("train", "dev", "test"))
    assert train + dev + test == book.read_text().strip("\n")
    assert (train[:8], dev[:8], test[:8]) == ("line 000", "line 090", "line 095")
    assert train.endswith("line 089\n")


def test_documents_are_lines_or_paragraphs(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a\nb\n\n  \n c\n\n\nd\u2028e\n")
    none = {"dev_fraction": 0.0, "test_fraction": 0.0}
    assert load(train=path, documents="line", **none).split("train") == ["a", "b", " c", "d\u2028e"]
    assert load(train=path, documents="paragraph", **none).split("train") == ["a\nb", " c", "d\u2028e"]
    assert load(train=path, documents="paragraph").split("dev") == [" c"]
    assert load(train=path, documents="line").split("test") == ["d\u2028e"]


def test_folder_with_compressed_file_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "b.txt").write_text("b1\nb2\n")
    (folder / "a.txt.gz").write_bytes(gzip.compress(b"a1\na2\n"))
    corpus = load(train=folder, dev_fraction=0.25, test_fraction=0.25)
    assert corpus.splits == {"train": ["a1\na2"], "dev": ["b1\n"], "test": ["b2"]}


def test_given_splits_are_kept(book: Path, tmp_path: Path) -> None:
    dev = tmp_path / "dev.txt"
    dev.write_text("only one line")
    corpus = load(train=book, dev=dev, test_fraction=0.0)
    assert corpus.split("dev") == ["only one line"]
    assert corpus.split("train") == [book.read_text().strip("\n")]
    with pytest.raises(DataError, match=r"no test split: data.test_fraction is 0"):
        corpus.split("test")


def test_single_line_is_enough_without_held_out_fractions(book: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("everything in a single line")
    assert load(train=path, dev=book, test_fraction=0.0).split("train") == ["everything in a single line"]


@pytest.mark.parametrize(("content", "count"), [("just one line\n", 1), ("one\ntwo\n", 2), ("\n\none\n\n", 1)])
@pytest.mark.parametrize("documents", ["file", "line"])
def test_too_few_lines_are_rejected(tmp_path: Path, content: str, count: int, documents: str) -> None:
    path = tmp_path / "short.txt"
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        load(train=path, documents=documents)
    message = str(caught.value)
    assert f"{path} is too short" in message
    assert f"it has only {count} line" in message
    assert "data.dev, data.test" in message
    assert message.endswith("data.reuse_train=true evaluates on the training text.")


def test_short_text_can_serve_as_every_split(book: Path, tmp_path: Path) -> None:
    path = tmp_path / "hello.txt"
    path.write_text("hello\n")
    corpus = load(train=path, reuse_train=True)
    assert corpus.splits == {"train": ["hello"], "dev": ["hello"], "test": ["hello"]}
    assert corpus.notes == ("dev and test repeat the training text, so their metrics measure memorization",)
    own_dev = load(train=path, dev=book, reuse_train=True)
    assert own_dev.split("dev") == [book.read_text().strip("\n")] and own_dev.split("test") == ["hello"]
    assert own_dev.notes == ("test repeats the training text, so its metrics measure memorization",)


def test_text_of_three_lines_can_be_split(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("one\ntwo\nthree\n")
    assert load(train=path).splits == {"train": ["one\n"], "dev": ["two\n"], "test": ["three"]}


def test_overlapping_splits_are_rejected(book: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.train and data.dev must not overlap, but both read .*book\.txt"):
        load(train=tmp_path, dev=book)
    copy = tmp_path / "copy.md"
    copy.write_text(book.read_text())
    with pytest.raises(DataError, match="contain the same text"):
        load(train=book, test=copy)


def test_version_depends_on_content(book: Path) -> None:
    before = load(train=book)
    assert load(train=book).version == before.version
    book.write_text(book.read_text().replace("line 000", "line zero"))
    after = load(train=book)
    assert after.version != before.version
    assert after.fingerprint()["train"] != before.fingerprint()["train"]


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(UsageError, match="must be less than 1"):
        build(
            corpora.CorpusConfig[str], {"corpus": "text", "train": "a.txt", "dev_fraction": 0.6, "test_fraction": 0.5}
        )
    with pytest.raises(UsageError, match="train"):
        build(corpora.CorpusConfig[str], {"corpus": "text"})


@given(
    st.lists(st.text(alphabet="ab\n", min_size=1, max_size=12), min_size=1, max_size=6),
    st.integers(1, 40),
    st.booleans(),
)
def test_cutting_preserves_text_and_lines(documents: list[str], size: int, inside: bool) -> None:
    train, held_out = _cut_end(documents, size, inside)
    assert "".join(train + held_out) == "".join(documents)
    assert all(train) and all(held_out)
    if not inside:
        assert train + held_out == documents
    assert held_out
    if train and len(train) + len(held_out) != len(documents):
        assert train[-1].endswith("\n")
