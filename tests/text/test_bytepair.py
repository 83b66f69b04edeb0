import re
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seqloom.core.errors import DataError
from seqloom.text import BytePair, BytePairConfig, Tokenizer, train_tokenizer

LECTURE = ["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3
SAMPLE = ["The brown fox — naïve café, don't! 12345\n\n\tdef f(x): return x\r\n", "नमस्ते 你好 مرحبا 👩\u200d👧"] * 4


def train(texts: list[str], size: int = 300) -> BytePair:
    tokenizer = train_tokenizer(BytePairConfig(size=size), texts)
    assert isinstance(tokenizer, BytePair)
    return tokenizer


TOKENIZER = train(SAMPLE)


def reference_merges(words: list[str], count: int) -> list[tuple[bytes, bytes]]:
    """Return the merges of byte-pair encoding. All pairs are counted again before each merge.

    The most frequent pair is merged. Among equally frequent pairs, the left id decides, and then the right id. The ids
    of bytes follow the order of the library's byte characters, which is alphabetical for ASCII letters.
    """
    corpus = Counter(tuple(bytes([byte]) for byte in word.encode()) for word in words)
    ids = {bytes([byte]): byte for byte in range(256)}
    merges: list[tuple[bytes, bytes]] = []
    while len(merges) < count:
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for word, times in corpus.items():
            for pair in pairwise(word):
                pairs[pair] += times
        frequent = {pair: times for pair, times in pairs.items() if times >= 2}
        if not frequent:
            break
        best = min(frequent, key=lambda pair: (-frequent[pair], ids[pair[0]], ids[pair[1]]))
        merges.append(best)
        ids.setdefault(best[0] + best[1], len(ids))
        merged: Counter[tuple[bytes, ...]] = Counter()
        for word, times in corpus.items():
            merged[merge(word, best)] += times
        corpus = merged
    return merges


def merge(word: tuple[bytes, ...], pair: tuple[bytes, bytes]) -> tuple[bytes, ...]:
    result: list[bytes] = []
    position = 0
    while position < len(word):
        if word[position : position + 2] == pair:
            result.append(pair[0] + pair[1])
            position += 2
        else:
            result.append(word[position])
            position += 1
    return tuple(result)


def test_merges_match_worked_example() -> None:
    """The text is low×5, lower×2, newest×6 and widest×3. The first merges are es, est and lo."""
    learned = [(left + right).decode() for left, right in train(LECTURE, 257 + 8).merges()]
    assert learned == ["es", "est", "lo", "low", "ew", "new", "newest", "dest"]


def test_encoding_matches_worked_example() -> None:
    tokenizer = train(LECTURE, 257 + 4)
    assert [tokenizer.token(id) for id in tokenizer.encode("lowest")] == ["low", "est"]
    assert [tokenizer.token(id) for id in tokenizer.encode("slow")] == ["s", "low"]


@given(st.lists(st.text(alphabet="abcde", min_size=1, max_size=8), min_size=1, max_size=40))
@example(["aaa"])
@example(["aaaa", "aaaaa", "aa"])
@example(["abab", "baba", "abab"])
def test_merges_match_reference(words: list[str]) -> None:
    learned = train(words, 257 + 20).merges()
    assert learned == reference_merges(words, 20)


def test_merges_are_within_words() -> None:
    tokenizer = train(["to be or not to be, that's it: 42 (or 43) "] * 50, 400)
    learned = [(left + right).decode() for left, right in tokenizer.merges()]
    assert {" be", "'s", " 42"} <= set(learned)
    assert all(re.fullmatch(r"[ ']?[a-z]+| ?[0-9]+| ?[^\w\s]+", text) for text in learned)


@given(st.text())
@example("\0")
@example("a\r\nb\r")
@example("e\u0301 é")
@example("हिन्दी में लिखा")
@example("مرحبا بالعالم")
@example("👩\u200d👩\u200d👧\U0001f1ee\U0001f1f3")
@example("</s><unk><0x41><|endoftext|> Ġ Ċ")
@example(" leading, trailing  \n\n ")
@example("\ufeff\u2028\u0085")
def test_any_text_round_trips(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert TOKENIZER.unknown_pieces(text) == []
    assert b"".join(TOKENIZER._bytes[id] for id in ids) == text.encode()


def test_unseen_characters_fall_back_to_bytes() -> None:
    tokenizer = train(["abc abc"])
    assert [tokenizer.token(id) for id in tokenizer.encode("aé")] == ["a", "<0xC3>", "<0xA9>"]
    assert tokenizer.unknown is None


def test_streaming_waits_for_complete_characters() -> None:
    tokenizer = train(["abc abc"])
    stream = tokenizer.stream()
    assert [stream.push(id) for id in tokenizer.encode("é€")] == ["", "é", "", "", "€"]
    first_bytes = tokenizer.encode("€")[:2]
    assert tokenizer.stream().read(first_bytes) == ""
    assert tokenizer.decode(first_bytes) == "\ufffd"
    last_byte = tokenizer.encode("€")[2:]
    assert tokenizer.decode([*first_bytes, *last_byte]) == "€"
    assert (
        tokenizer.decode([*first_bytes, tokenizer.end, *last_byte]) == "\ufffd\ufffd"
    )  # no character spans two documents


def test_vocabulary_size_includes_bytes_and_the_end_token() -> None:
    assert len(train(LECTURE, 260)) == 260
    assert len(train(["xyz"], 400)) == 257  # no pair occurs twice


def test_lone_surrogate_is_rejected() -> None:
    with pytest.raises(DataError, match=r"character 3 is the lone surrogate U\+DCFF"):
        TOKENIZER.encode("ab\udcff")


def test_byte_pair_implements_the_tokenizer_protocol() -> None:
    assert isinstance(TOKENIZER, Tokenizer)
