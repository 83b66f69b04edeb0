"""Readers of classifiers and taggers: tokens, words, and pieces of long sentences."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.data.text_inputs import SentenceReader, Spellings, TextReader, cut_sentence
from seqloom.text import BytePairConfig, Tokenizer, WordsConfig, train_tokenizer
from seqloom.text.word_spans import split_words

TEXTS = [
    "Pankaj lives in Munich.",
    "नमस्ते दुनिया, शर्मा दिल्ली में है।",
    "أحمد يعيش في القاهرة.",
    "민수는 서울에 산다.",
    "so 👩‍👩‍👧 funny 🇫🇷!",
]
BYTES, WORDS = (
    train_tokenizer(config, [" ".join(split_words(text)) for text in TEXTS])
    for config in (BytePairConfig(size=300), WordsConfig(split="punctuation"))
)


@pytest.mark.parametrize("tokenizer", [BYTES, WORDS], ids=["byte-pair", "words"])
@pytest.mark.parametrize("text", TEXTS)
def test_first_tokens_start_words(tokenizer: Tokenizer, text: str) -> None:
    words = split_words(text)
    (piece,) = SentenceReader(tokenizer, None, None).pieces([words])
    assert len(piece.first) == len(words)
    assert piece.first == sorted(set(piece.first))  # words do not share a token
    borders = [*piece.first, len(piece.tokens)]
    spelled = [tokenizer.decode(piece.tokens[a:b]).replace(" ", "") for a, b in pairwise(borders)]
    assert spelled == words


def test_long_sentence_is_divided() -> None:
    words = [f"w{n}" for n in range(50)]
    tokenizer = train_tokenizer(WordsConfig(), [" ".join(words)])
    reader = SentenceReader(tokenizer, Spellings.of_words(words), 8)
    pieces = reader.pieces([["w1"], [], words])
    assert [(p.sentence, p.start, p.end) for p in pieces][:3] == [(0, 0, 1), (2, 0, 7), (2, 7, 14)]
    assert all(len(p.tokens) <= 7 for p in pieces)
    assert all(p.first == list(range(len(p.first))) for p in pieces)
    assert [token for p in pieces[1:] for token in p.tokens] == tokenizer.encode(" ".join(words))
    batch = reader.batches([["w1"], [], words], pieces, tokens=100).collate(np.array([1, 0]))
    assert batch["tokens"].shape == (2, 8)  # seven words and END
    assert batch["words"].tolist() == [[True] * 7, [True] + [False] * 6]
    assert (batch["characters"] != 0).sum(dim=2).tolist() == [[2] * 7, [2] + [0] * 6]


def test_pieces_end_with_sentences_if_possible() -> None:
    words = ["a", "b", ".", "c", "d", "e", "f", "g", "h"]
    assert list(cut_sentence(words, list(range(10)), 5)) == [(0, 3), (3, 8), (8, 9)]
    assert list(cut_sentence(words, list(range(10)), 9)) == [(0, 9)]
    early = [".", "b", "c", "d", "e", "f"]  # a piece that ends after the full stop would be almost empty
    assert list(cut_sentence(early, list(range(7)), 4)) == [(0, 4), (4, 6)]


def test_overlong_word_is_separate_truncated_piece() -> None:
    reader = SentenceReader(BYTES, None, 6)
    pieces = reader.pieces([["a", "x" * 40, "b"]])
    assert [(p.start, p.end) for p in pieces] == [(0, 1), (1, 2), (2, 3)]
    assert len(pieces[1].tokens) == 5


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    limit=st.integers(1, 12),
    ends=st.sets(st.integers(0, 39)),
)
def test_pieces_cover_every_word_once(lengths: list[int], limit: int, ends: set[int]) -> None:
    words = ["." if n in ends else "w" for n in range(len(lengths))]
    borders = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    pieces = list(cut_sentence(words, borders, limit))
    assert [number for a, b in pieces for number in range(a, b)] == list(range(len(words)))
    assert all(borders[b] - borders[a] <= limit or b == a + 1 for a, b in pieces)


def test_classifier_truncates_long_texts() -> None:
    tokenizer = train_tokenizer(WordsConfig(), ["a b c d"])
    batches = TextReader(tokenizer, None, 3).batches(["a b c d", "b"], tokens=100)
    assert batches.cut == 1
    assert batches.was_cut.tolist() == [True, False]
    assert batches.collate(np.array([0, 1]))["tokens"].tolist() == [
        [*tokenizer.encode("a b"), 0],
        [*tokenizer.encode("b"), 0, 0],
    ]


def test_unknown_token_keeps_its_text() -> None:
    tokenizer = train_tokenizer(WordsConfig(lowercase=True), ["ab cd"])
    reader = TextReader(tokenizer, Spellings.of_words(["abcdX"]), None)
    assert reader.pieces("AB Xd") == ["AB", "Xd"]
    batch = reader.batches(["Xd"], tokens=10).collate(np.array([0]))
    assert batch["tokens"].tolist() == [[1, 0]]
    assert batch["characters"][0, 0, :3].tolist() == [2, 6, 0]


def test_punctuation_is_split_if_vocabulary_is_split() -> None:
    tokenizer = train_tokenizer(WordsConfig(), ["an old-fashioned film , is n't it ? it 's"])
    reader = TextReader(tokenizer, None, None)
    text = "It's  an old-fashioned,\nnew-fangled film?"
    split_text, spans = reader.read(text)
    assert split_text == "It 's an old-fashioned , new - fangled film ?"
    assert [text[a:b] for a, b in spans] == split_text.split()
    assert tokenizer.encode(split_text).count(1) == 4
    plain = "an old-fashioned film , is n't it ?"
    assert reader.read(plain)[0] == plain
    assert reader.unknown(text) == ["It", "new", "-", "fangled"]
    glued = TextReader(train_tokenizer(WordsConfig(split="punctuation"), ["a film, it's"]), None, None)
    assert glued.read("a film, it's")[0] == "a film, it's"  # this tokenizer splits punctuation


def test_punctuation_of_long_text_is_split() -> None:
    tokenizer = train_tokenizer(WordsConfig(), ["a , b"])
    split_text, spans = TextReader(tokenizer, None, None).read("a," * 50_000)
    assert len(spans) == 100_000 and split_text.startswith("a , a ,")
