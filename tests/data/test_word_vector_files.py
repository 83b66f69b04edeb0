"""Word-vector files in both formats of word2vec: round trips, compatibility with gensim, and errors."""

import struct

import numpy as np
import pytest

from seqloom.core.errors import DataError, UsageError
from seqloom.data.files import use_data_folder
from seqloom.data.word_vectors import read_all_vectors, read_vectors, read_word_sets, write_vectors

WORDS = ["the", "बाज़ार", "naïve", "1.5", "</s>"]
VECTORS = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32) * np.array(
    [[1e-8], [1], [1e6], [1], [1]], np.float32
)


@pytest.mark.parametrize("form", ["text", "binary"])
@pytest.mark.parametrize("name", ["v", "v.gz"])
def test_vectors_round_trip_exactly(tmp_path, form, name):
    write_vectors(tmp_path / name, WORDS, VECTORS, form)
    words, vectors = read_all_vectors(tmp_path / name)
    assert words == WORDS and np.array_equal(vectors, VECTORS)
    selected = read_vectors(tmp_path / name, ["naïve", "nothing", "The"], 4)  # classifiers read vectors in this way
    assert np.array_equal(selected.rows[0], VECTORS[2]) and np.array_equal(selected.rows[2], VECTORS[0])
    assert selected.has_vector.tolist() == [True, False, True]


@pytest.mark.parametrize("binary", [True, False])
def test_files_are_exchanged_with_gensim(tmp_path, binary):
    models = pytest.importorskip("gensim.models")
    write_vectors(tmp_path / "ours", WORDS, VECTORS, "binary" if binary else "text")
    gensim_vectors = models.KeyedVectors.load_word2vec_format(str(tmp_path / "ours"), binary=binary)
    assert gensim_vectors.index_to_key == WORDS and np.array_equal(gensim_vectors.vectors, VECTORS)
    gensim_vectors.save_word2vec_format(str(tmp_path / "theirs"), binary=binary)
    words, vectors = read_all_vectors(tmp_path / "theirs")
    assert words == WORDS
    np.testing.assert_allclose(vectors, VECTORS, rtol=1e-6)


def numbers(*values):
    return struct.pack(f"<{len(values)}f", *values)


@pytest.mark.parametrize("between", [b"", b"\n"])
def test_line_breaks_after_binary_vectors_are_optional(tmp_path, between):
    content = b"2 2\n" + b"a " + numbers(1, 2) + between + b"b " + numbers(3, 4) + between
    (tmp_path / "v.bin").write_bytes(content)
    words, vectors = read_all_vectors(tmp_path / "v.bin")
    assert words == ["a", "b"] and vectors.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"2 2\na " + numbers(1, 2) + b"b " + numbers(3, 4)[:5], "announces 2 vectors, but it ends within vector 2"),
        (b"2 2\na " + numbers(1, 2), "ends within vector 2"),
        (b"2 999999999999\na " + numbers(1, 2), "declares vectors of 999,999,999,999 numbers"),
        (b"a 1 2\n<unk> 1 2\n", "vectors of at least two words, but has 1 word"),
        (b"1 2\na " + numbers(1, float("nan")), "Vector 1 of .*, that of 'a', must have finite numbers"),
        (b"1 2\n " + numbers(1, 2), "Vector 1 .* must start with a word, but starts with a space"),
        (b"1 2\n" + b"x" * 5000 + b"\0", "has no space within 4,096 bytes"),
        (b"2 2\na 1 2\nb 1 x\n", "Line 3 .* finite numbers after its word, but has 'x'"),
        (b"a 1 2\nb 1\n", "Line 2 .* must have a word and 2 numbers, but has 1"),
        (b"a 1 2\n 1 2\n", "Line 2 .* must start with a word"),
    ],
)
def test_errors_name_line_or_vector(tmp_path, content, message):
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_all_vectors(tmp_path / "v")


def test_first_vector_of_repeated_word_is_used(tmp_path):
    (tmp_path / "v").write_text("a 1 2\nb 3 4\na 5 6\n")
    words, vectors = read_all_vectors(tmp_path / "v")
    assert words == ["a", "b"] and vectors.tolist() == [[1, 2], [3, 4]]


def test_unknown_word_is_skipped(tmp_path):
    (tmp_path / "v").write_text("3 2\n<unk> 1 2\nNew York 3 4\n a 5 6\n")
    words, vectors = read_all_vectors(tmp_path / "v")
    assert words == ["New York", "a"] and vectors.tolist() == [[3, 4], [5, 6]]


def test_word_with_space_is_rejected(tmp_path):
    with pytest.raises(UsageError, match="not contain spaces; got 'a b'"):
        write_vectors(tmp_path / "v", ["a b"], VECTORS[:1], "text")
    assert not (tmp_path / "v").exists()


# --- evaluation sets --------------------------------------------------------------------------------------------------


@pytest.fixture
def sets(tmp_path):
    folder = tmp_path / "word_vectors_eval"
    folder.mkdir()
    (folder / "wordsim353_combined.csv").write_text("Word 1,Word 2,Human (mean)\nlove,sex,6.77\ntiger,cat,7.35\n")
    (folder / "SimLex-999.txt").write_text("word1\tword2\tPOS\tSimLex999\told\nold\tnew\tA\t1.58\t2\n")
    (folder / "questions-words.txt").write_text(
        ": capital\nAthens Greece Oslo Norway\n: gram1\ncalm calmly free freely\n"
    )
    return tmp_path


def test_evaluation_sets_are_read(sets):
    with use_data_folder(sets):
        word_sets = read_word_sets()
    assert word_sets.rated == {
        "wordsim353": [("love", "sex", 6.77), ("tiger", "cat", 7.35)],
        "simlex999": [("old", "new", 1.58)],
    }
    assert word_sets.analogies[1] == ("gram1", ("calm", "calmly", "free", "freely")) and not word_sets.missing


def test_missing_evaluation_sets_are_listed(sets, monkeypatch):
    monkeypatch.delenv("SEQLOOM_DATA", raising=False)
    assert read_word_sets().missing == ["WordSim-353", "SimLex-999", "Google's analogies"]
    (sets / "word_vectors_eval" / "SimLex-999.txt").unlink()
    with use_data_folder(sets):
        assert read_word_sets().missing == ["SimLex-999"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "wordsim353_combined.csv",
            "head\nlove,sex,much\n",
            "Line 2 .* two words and, in column 3, a number; got 'love",
        ),
        ("wordsim353_combined.csv", "head\nlove,sex\n", "Line 2"),
        ("SimLex-999.txt", "head\na\tb\tA\tnan\n", "Line 2"),
        ("questions-words.txt", "Athens Greece Oslo Norway\n", "Line 1 .* four words, after a line with"),
        ("questions-words.txt", ": one\na b c\n", "Line 2"),
    ],
)
def test_invalid_line_of_evaluation_set_is_reported(sets, name, text, message):
    (sets / "word_vectors_eval" / name).write_text(text)
    with use_data_folder(sets), pytest.raises(DataError, match=message):
        read_word_sets()
