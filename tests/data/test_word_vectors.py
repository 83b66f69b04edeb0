"""Word vectors for a vocabulary: known words, fallbacks, and errors in files."""

import gzip
from pathlib import Path

import pytest
import torch

from seqloom import recipes
from seqloom.core.errors import DataError, UsageError
from seqloom.data import word_vectors
from seqloom.data.word_vectors import read_vectors, vector_words
from seqloom.recipes import read_recipe
from seqloom.text.bytepair import BytePair, BytePairConfig
from seqloom.text.vocabularies import Characters, Words, WordsConfig

PLAIN = "the 1 2 3\nmarket -0.5 0.25 1e-3\nबाज़ार 7 8 9\nbear 4 5 6\nThe 9 9 9\nbear 0 0 0\n"


def write(folder: Path, text: str | bytes, name: str = "vectors.txt") -> Path:
    content = text.encode() if isinstance(text, str) else text
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder / name


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.vec.gz"])
@pytest.mark.parametrize("head", ["", "6 3\n", "\N{ZERO WIDTH NO-BREAK SPACE}6 3\n"])
@pytest.mark.parametrize("ends", ["\n", "\r\n", " \n"])
def test_only_vectors_of_words_in_the_vocabulary_are_read(tmp_path, name, head, ends) -> None:
    path = write(tmp_path, (head + PLAIN).replace("\n", ends), name)
    vectors = read_vectors(path, ["bear", "falls", "बाज़ार", "market", "the"], 3)
    assert vectors.rows.tolist() == [[4, 5, 6], [0, 0, 0], [7, 8, 9], [-0.5, 0.25, pytest.approx(1e-3)], [1, 2, 3]]
    assert vectors.has_vector.tolist() == [True, False, True, True, True]
    assert vectors.coverage() == f"4 of 5 words have a vector in {name} (80.0%)"
    assert vectors.coverage(torch.tensor([1, 5, 0, 2, 12])).endswith("; they cover 75.0% of the training text")


def test_lowercase_form_is_used_if_the_word_is_missing(tmp_path) -> None:
    path = write(tmp_path, PLAIN)
    words = ["The", "THE", "Bear", "the"]
    vectors = read_vectors(path, words, 3)
    assert vectors.rows.tolist() == [[9, 9, 9], [1, 2, 3], [4, 5, 6], [1, 2, 3]]
    assert "including 2 with the vector of their lowercase form" in vectors.coverage()
    assert read_vectors(path, words, 3, lowercase=False).has_vector.tolist() == [True, False, False, True]


def test_words_with_spaces_are_read(tmp_path) -> None:
    """Some published files contain such words."""
    vectors = read_vectors(write(tmp_path, "the 1 2\n. . . 3 4\nat name@example.org 5 6\n"), [". . .", "the"], 2)
    assert vectors.rows.tolist() == [[3, 4], [1, 2]]


def test_unrequested_words_may_be_invalid_utf8(tmp_path) -> None:
    vectors = read_vectors(write(tmp_path, b"\xff\xfe\x80 1 2\nthe 3 4\n"), ["the"], 2)
    assert vectors.rows.tolist() == [[3, 4]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the 1 2\n", r"vectors of 2 numbers.*have 3.*model\.embedding=2"),
        ("1 2\nthe 1 2\n", r"vectors of 2 numbers"),
        ("6 3\nthe 1 2 3\n", "truncated: its first line announces 6 vectors, but it has 1"),
        ("the 1 2 3\nbear 1 2\n", "Line 2 .* must have a word and 3 numbers, but has 2: 'bear 1 2'"),
        ("the 1 2 3\nbear 1 2 3 4\n", "Line 2 .* must have a word and 3 numbers, but has 4"),
        ("the 1 2 3\nbear 1 2 x\n", "Line 2 .* finite numbers after its word, but has 'x'"),
        ("the 1 2 3\nbear 1 nan 3\n", "Line 2 .* but has 'nan'"),
        ("the 1 2 3\nbear 1 inf 3\n", "Line 2 .* but has 'inf'"),
        ("the 1 2 3\nbear 1 1e39 3\n", "Line 2 .* but has '1e39'"),
        ("the 1 2 3\nbear 1  3\n", "Line 2 .* but has ''"),
        ("the\t1\t2\t3\n", "separated by spaces; line 1 has none"),
        ("", "is empty"),
        ("0 3\n", "is empty"),
        ("dog 1 2 3\n", "contains none of the 2 words"),
        ("2 3\nthe \0\1\2\n", "announces 2 vectors, but it ends within vector 1"),
        ("the \0\1\2\n", "line 1 is not. A file in the binary format of word2vec starts with"),
        (gzip.compress(PLAIN.encode(), mtime=0), r"must end in \.gz"),
    ],
)
def test_invalid_vector_files_are_rejected(tmp_path, text, message) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_vectors(write(tmp_path, text), ["the", "bear"], 3)
    assert caught.value.exit_code == 3 and str(tmp_path) in str(caught.value)


def test_unreadable_files_are_rejected(tmp_path, monkeypatch) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read_vectors(tmp_path / "no.txt", ["the"], 3)
    with pytest.raises(DataError, match="cannot be read"):
        read_vectors(tmp_path, ["the"], 3)
    damaged = write(tmp_path, PLAIN, "cut.gz")
    damaged.write_bytes(damaged.read_bytes()[:-12])
    with pytest.raises(DataError, match="truncated or damaged"):
        read_vectors(damaged, ["the"], 3)
    (tmp_path / "not.gz").write_text(PLAIN)
    with pytest.raises(DataError, match="must be gzip-compressed"):
        read_vectors(tmp_path / "not.gz", ["the"], 3)
    monkeypatch.setattr(word_vectors, "MAX_LINE_BYTES", 32)
    with pytest.raises(DataError, match="line 1 is not"):  # an endless line would fill the memory
        read_vectors(write(tmp_path, "the" + " 1" * 100), ["the"], 100)


def test_vector_words_match_vocabulary() -> None:
    tokenizer = Words.train(WordsConfig(split="punctuation"), ["no, No ! bear"])
    assert sorted(vector_words(tokenizer)) == sorted(["</s>", "<unk>", "no", "No", ",", "!", "bear"])
    assert (
        len(vector_words(tokenizer)) == len(tokenizer)
        and tokenizer.token(vector_words(tokenizer).index("bear")) == "bear"
    )
    assert vector_words(Characters.from_content({"alphabet": ["a", "b"]})) == ["</s>", "<unk>", "a", "b"]
    with pytest.raises(UsageError, match=r"tokenizer\.kind=words"):
        vector_words(BytePair.train(BytePairConfig(size=300), ["some text to learn from"]))


def test_vector_file_is_located_relative_to_recipe(tmp_path) -> None:
    write(tmp_path, PLAIN)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text((recipes.RECIPES / "classify-sst2-bilstm.yaml").read_text())
    assert read_recipe(recipe)[1].model.vectors is None
    config = read_recipe(recipe, ["model.vectors.file=vectors.txt"])[1].model.vectors
    assert Path(config.file) == tmp_path / "vectors.txt"
