"""ARPA files: round trips, comparison with KenLM, and malformed files."""

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqloom.classical.ngram import NGram, NGramConfig
from seqloom.classical.ngram.arpa import escape, read_arpa, unescape, write_arpa
from seqloom.classical.ngram.kneser_ney import kneser_ney
from seqloom.core.errors import DataError, UsageError

WORDS = ["</s>", "<unk>", "a", "bb", "ç", "日本", "d\\e", "-1.5", "<b>", "zzz"]


def train_model(order: int, words: list[str], min_count: int = 1, seed: int = 0) -> NGram:
    random = np.random.default_rng(seed)
    stream = np.minimum(random.geometric(0.3, 500) - 1, len(words) - 2)  # the last word never occurs
    return kneser_ney(np.append(stream, 0), NGramConfig(order=order, min_count=min_count), len(words))


def all_log_probs(model: NGram) -> torch.Tensor:
    tokens = torch.randint(0, model.vocabulary, (200, 6), generator=torch.Generator().manual_seed(3))
    return model.step(tokens, model.start(rows=200)).log_probs


@pytest.mark.parametrize("name", ["model.arpa", "model.arpa.gz"])
@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_round_trip_preserves_probabilities(order: int, name: str, tmp_path: Path) -> None:
    model = train_model(order, WORDS)
    write_arpa(model, WORDS, tmp_path / name)
    again, words = read_arpa(tmp_path / name)
    assert words == WORDS
    assert again.size() == model.size()
    torch.testing.assert_close(all_log_probs(again), all_log_probs(model), atol=1e-10, rtol=0)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_tokens_with_separators_survive_a_round_trip(tmp_path: Path) -> None:
    words = ["</s>", " ", "\n", "\t", "", "<s>", "<unk>", "a b", "\u241b", "\u241b0020", "\u3000x", "\0", "\ud83d", "q"]
    model = train_model(3, words)
    write_arpa(model, words, tmp_path / "model.arpa")
    again, read = read_arpa(tmp_path / "model.arpa")
    assert read == words
    torch.testing.assert_close(all_log_probs(again), all_log_probs(model), atol=1e-10, rtol=0)


@given(st.text(st.characters(exclude_categories=())))
def test_escaping_is_reversible_and_gives_one_word(token: str) -> None:
    word = escape(token)
    assert unescape(word) == token
    assert word.split() == [word]
    assert word not in ("<s>", "</s>", "<unk>")
    word.encode()


def test_ordinary_words_are_not_escaped() -> None:
    for word in ["plain", "C:\\new", "100%", "<b>", "▁the", "日本"]:
        assert escape(word) == word


@pytest.mark.parametrize("min_count", [1, 2])
@pytest.mark.parametrize("order", [2, 3, 4, 5])
def test_scores_match_kenlm(order: int, min_count: int, tmp_path: Path) -> None:
    kenlm = pytest.importorskip("kenlm")
    model = train_model(order, WORDS, min_count)
    write_arpa(model, WORDS, tmp_path / "model.arpa")
    other = kenlm.Model(str(tmp_path / "model.arpa"))
    assert other.order == order
    random = np.random.default_rng(order)
    for _ in range(60):
        ids = random.integers(1, len(WORDS), random.integers(0, 12)).tolist()
        spelled = ["never-heard" if number == 1 and random.random() < 0.5 else WORDS[number] for number in ids]
        expected = [score for score, _, _ in other.full_scores(" ".join(spelled))]
        scores, _ = model.score(torch.tensor([[0, *ids]]), torch.tensor([[*ids, 0]]), model.start())
        assert (scores[0] / math.log(10)).tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_kenlm_reads_escaped_characters(tmp_path: Path) -> None:
    kenlm = pytest.importorskip("kenlm")
    text = "the cat sat\non the mat\n\nthat sat on the hat. " * 3
    words = ["</s>", "<unk>", *sorted(set(text))]
    ids = [words.index(character) for character in text]
    model = kneser_ney(np.array([*ids, 0]), NGramConfig(order=4), len(words))
    write_arpa(model, words, tmp_path / "model.arpa")
    expected = kenlm.Model(str(tmp_path / "model.arpa")).score(" ".join(escape(character) for character in text))
    scores, _ = model.score(torch.tensor([[0, *ids]]), torch.tensor([[*ids, 0]]), model.start())
    assert scores.sum().item() / math.log(10) == pytest.approx(expected, rel=1e-5)


FOREIGN = """made by another toolkit

\\data\\
ngram 1=4
ngram 2=3

\\1-grams:
-99 <s> -0.5
-0.3\tx\t-0.25
-1.0\t<unk>
-0.5\t</s>

\\2-grams:
-0.1\t<s> x
-0.2\tx x
-0.4\tx </s>

\\end\\
"""


def write_file(tmp_path: Path, content: str | bytes, name: str = "foreign.arpa") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_files_of_other_toolkits_are_read(newline: str, tmp_path: Path) -> None:
    model, words = read_arpa(write_file(tmp_path, FOREIGN.replace("\n", newline)))
    assert words == ["</s>", "<unk>", "x"]
    scores, _ = model.score(torch.tensor([[0, 2, 1, 2]]), torch.tensor([[2, 1, 2, 0]]), model.start())
    assert (scores[0] / math.log(10)).tolist() == pytest.approx([-0.1, -0.25 - 1.0, -0.3, -0.4])


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        ("\\data\\", "data", 19, r"ends where \\data\\ is expected"),
        ("ngram 1=4\nngram 2=3\n", "", 5, "followed by lines like"),
        ("ngram 2=3", "ngram 3=3", 5, "expected the count of the 2-grams"),
        ("ngram 2=3", "ngram two", 5, r"\\1-grams: must follow the counts"),
        ("\\2-grams:", "\\3-grams:", 13, r"\\2-grams: must follow.*3-grams"),
        ("ngram 1=4", "ngram 1=3", 11, r"\\2-grams: must follow the 3 1-grams"),
        ("ngram 1=4", "ngram 1=5", 13, "the header declares 5 1-grams"),
        ("ngram 2=3", "ngram 2=4", 18, "the header declares 4 2-grams"),
        ("ngram 2=3", "ngram 2=2", 16, r"\\end\\ must follow the 2 2-grams"),
        ("ngram 2=3", "ngram 2=3\nngram 3=1", 19, r"\\3-grams: must follow the 3 2-grams"),
        ("-0.3\tx", "high\tx", 9, "must be numbers"),
        ("-0.3\tx\t-0.25", "-0.3\tx\tlow", 9, "must be numbers"),
        ("-0.3\tx", "0.3\tx", 9, "must be 0 or less"),
        ("-0.3\tx", "nan\tx", 9, "must be 0 or less"),
        ("-0.3\tx\t-0.25", "-0.3\tx\tinf", 9, "must be finite"),
        ("-0.2\tx x", "-0.2\tx", 15, "must be a log10 probability, 2 words"),
        ("-0.2\tx x", "-0.2\tx x -1", 15, "must be a log10 probability, 2 words"),
        ("-0.2\tx x", "-0.2\tx y", 15, "listed as a 1-gram; got 'y'"),
        ("-0.2\tx x", "-0.2\t<s> x", 15, "listed twice"),
        ("-0.2\tx x", "-0.2\tx <s>", 15, "only the first word may be <s>"),
        ("-1.0\t<unk>", "-1.0\tx", 10, "listed twice"),
        ("-0.5\t</s>", "-0.5\ty", 13, "must include </s>"),
        ("-99 <s> -0.5", "-0.5\ty", 13, "must include <s>"),
        ("-0.4\tx </s>\n\n\\end\\\n", "", 16, "the file ends where one of the 3 2-grams"),
        ("\\end\\\n", "", 18, r"the file ends where \\end\\ is expected"),
    ],
)
def test_malformed_file_is_reported_with_its_line(old: str, new: str, line: int, problem: str, tmp_path: Path) -> None:
    assert old in FOREIGN
    with pytest.raises(DataError, match=rf"foreign\.arpa, line {line}: .*{problem}"):
        read_arpa(write_file(tmp_path, FOREIGN.replace(old, new)))


def test_ngram_without_its_prefix_is_rejected(tmp_path: Path) -> None:
    content = FOREIGN.replace("ngram 2=3", "ngram 2=3\nngram 3=1")
    content = content.replace("\\end", "\\3-grams:\n-0.1\t</s> x x\n\n\\end")
    with pytest.raises(DataError, match=r"line 20: the first 2 words of a 3-gram must be listed as a 2-gram"):
        read_arpa(write_file(tmp_path, content))


def test_unreadable_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="UTF-8"):
        read_arpa(write_file(tmp_path, FOREIGN.encode().replace(b"x", b"\xff")))
    with pytest.raises(DataError, match="cannot be read"):
        read_arpa(tmp_path / "absent.arpa")
    with pytest.raises(DataError, match="cannot be read"):
        read_arpa(write_file(tmp_path, FOREIGN, "plain.arpa.gz"))
    with pytest.raises(DataError, match="cannot be read"):
        read_arpa(write_file(tmp_path, gzip.compress(FOREIGN.encode())[:-12], "cut.arpa.gz"))


def test_invalid_words_and_folders_are_rejected(tmp_path: Path) -> None:
    model = train_model(2, WORDS)
    with pytest.raises(UsageError, match="has 10 tokens"):
        write_arpa(model, WORDS[:-1], tmp_path / "model.arpa")
    with pytest.raises(UsageError, match="tokens 2 and 9 are both 'a'"):
        write_arpa(model, [*WORDS[:-1], "a"], tmp_path / "model.arpa")
    with pytest.raises(UsageError, match="does not exist"):
        write_arpa(model, WORDS, tmp_path / "nowhere" / "model.arpa")
    assert list(tmp_path.iterdir()) == []
