"""Long texts are encoded in pieces. The ids equal those of the complete text, and memory is bounded."""

import random
import subprocess
import sys
import textwrap

import pytest

from seqloom.core.progress import report_progress
from seqloom.text import (
    BytePairConfig,
    CharactersConfig,
    TokenizerConfig,
    WordsConfig,
    encode_documents,
    train_tokenizer,
)
from seqloom.text.base import PIECE_LENGTH, batch_texts, cut_at_spaces, mark_last

# Texts of all kinds of white space, apostrophes, marks, digits, and separators that only Python treats as white space.
PARTS = [
    "word",
    "naïve",
    "e\u0301",
    "Σας",
    "l'été",
    "'",
    "’s",
    "12",
    "3.5",
    "…",
    "漢字",
    "a_b",
    "\x1c",
    "\u00a0",
    "\u2028",
]
GAPS = [" ", "  ", "\n", "\n\n", " \n ", "\t", "\r\n", "   ", ""]


def random_text(count: int, seed: int = 0) -> str:
    draw = random.Random(seed)
    return "".join(draw.choice(PARTS) + draw.choice(GAPS) for _ in range(count))


@pytest.mark.parametrize("size", [1, 2, 7, 50])
def test_pieces_concatenate_to_text(size: int) -> None:
    text = random_text(400)
    for line_breaks in (True, False):
        pieces = list(cut_at_spaces(text, size, line_breaks))
        assert "".join(pieces) == text
        assert len(pieces) > 5
        assert all(piece[0] in " \n" for piece in pieces[1:])
        assert not any(piece[-1].isspace() for piece in pieces[:-1])


def test_short_and_unbroken_texts_are_one_piece() -> None:
    assert list(cut_at_spaces("")) == [""]
    assert list(cut_at_spaces("a b", 3)) == ["a b"]
    assert list(cut_at_spaces("x" * 100, 3)) == ["x" * 100]


def test_mark_last_marks_only_the_last_item() -> None:
    assert list(mark_last(["a", "b"])) == [("a", False), ("b", True)]
    assert list(mark_last([])) == [("", True)]


def test_batches_are_bounded_by_number_and_by_characters() -> None:
    assert list(batch_texts(["aa", "b", "cccc", "d", "e"], size=2, characters=4)) == [["aa", "b"], ["cccc"], ["d", "e"]]


CONFIGS = [
    BytePairConfig(size=400),
    WordsConfig(split="punctuation", lowercase=True),
    WordsConfig(),
    CharactersConfig(),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.kind}-{getattr(config, 'split', '')}")
def test_ids_of_pieces_match_ids_of_text(config: TokenizerConfig) -> None:
    """`encode_pieces` divides only texts longer than PIECE_LENGTH. This test divides texts every few characters."""
    tokenizer = train_tokenizer(config, [random_text(2000, seed=1)])
    for seed in range(30):
        text = random_text(60, seed)
        pieces = list(cut_at_spaces(text, 3))
        assert len(pieces) > 3
        assert [id for piece in pieces for id in tokenizer.encode(piece)] == tokenizer.encode(text)


def test_training_on_pieces_is_equivalent_to_training_on_text() -> None:
    text = random_text(3000)
    complete = train_tokenizer(BytePairConfig(size=400), [text])
    pieces = train_tokenizer(BytePairConfig(size=400), list(cut_at_spaces(text, 5)))
    assert complete.content() == pieces.content()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.kind}-{getattr(config, 'split', '')}")
def test_long_documents_are_encoded_in_pieces(config: TokenizerConfig) -> None:
    text = random_text(PIECE_LENGTH // 2)
    assert len(text) > 2 * PIECE_LENGTH
    tokenizer = train_tokenizer(config, [text[:PIECE_LENGTH]])
    documents = [text, "", "word 12", text[PIECE_LENGTH:]]
    encoded = list(tokenizer.encode_pieces(documents))
    assert sum(is_last for _, is_last in encoded) == len(documents)
    assert len(encoded) > len(documents)
    expected = [id for document in documents for id in [*tokenizer.encode(document), tokenizer.end]]
    assert encode_documents(tokenizer, documents).tolist() == expected
    assert list(tokenizer.encode_batch(documents)) == [tokenizer.encode(document) for document in documents]


def test_progress_is_reported() -> None:
    text = random_text(PIECE_LENGTH // 4)
    reports: list[tuple[str, int, int | None]] = []
    with report_progress(lambda *progress: reports.append(progress)):
        tokenizer = train_tokenizer(BytePairConfig(size=300), [text])
        encode_documents(tokenizer, [text])
    assert {label for label, _, _ in reports} == {"training the tokenizer", "tokenizing"}
    assert reports[-1] == ("tokenizing", len(text), len(text))
    count = len(reports)
    encode_documents(tokenizer, [text])
    assert len(reports) == count


def test_long_document_needs_little_memory() -> None:
    """Without pieces, encoding this text needs more than half a gigabyte of additional memory."""
    program = """
        import resource
        from seqloom.text import BytePairConfig, encode_documents, train_tokenizer
        encode_documents(train_tokenizer(BytePairConfig(size=300), ["a b"]), ["a b"])
        text = " ".join(f"word{number % 977} and more" for number in range(230_000))
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 450_000_000,) * 2)
        tokenizer = train_tokenizer(BytePairConfig(size=300), [text])
        print(len(encode_documents(tokenizer, [text])))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 500_000
