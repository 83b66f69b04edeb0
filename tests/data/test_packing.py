"""Packing of documents into rows: every token occurs once, pieces have [CLS] and [SEP], and there is little padding."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from seqloom.core.tokens import Specials
from seqloom.data.masking import pack, pack_by_best_fit

SPECIALS = Specials.after(1000)


def unpack(packed) -> list[list[int]]:
    """Return the pieces in the order of the rows."""
    pieces = []
    for tokens, documents in zip(packed.tokens.tolist(), packed.documents.tolist(), strict=True):
        for number in range(1, max(documents) + 1):
            piece = [token for token, document in zip(tokens, documents, strict=True) if document == number]
            assert piece[0] == SPECIALS.classify and piece[-1] == SPECIALS.separate
            pieces.append(piece[1:-1])
        real = [number > 0 for number in documents]
        assert real == sorted(real, reverse=True)  # padding comes last
        assert [number for number in documents if number] == sorted(number for number in documents if number)
    return pieces


@settings(max_examples=40)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=30).filter(any), st.integers(8, 24))
def test_every_token_occurs_once(sizes, length) -> None:
    numbers = iter(range(1, 10_000))
    texts = [[next(numbers) % 1000 or 1 for _ in range(size)] for size in sizes]
    packed = pack(texts, SPECIALS, length)
    assert packed.tokens.shape == packed.documents.shape and packed.tokens.shape[1] == length
    pieces = unpack(packed)
    assert sorted(token for piece in pieces for token in piece) == sorted(token for text in texts for token in text)
    expected = [text[start : start + length - 2] for text in texts for start in range(0, len(text), length - 2)]
    assert sorted(pieces) == sorted(expected)  # each piece is a run of tokens of one document


def test_rows_are_nearly_full() -> None:
    draws = np.random.default_rng(0)
    sizes = draws.integers(3, 65, 3000).tolist()
    rows = pack_by_best_fit(sizes, 64)
    assert sorted(piece for row in rows for piece in row) == list(range(3000))
    assert all(sum(sizes[piece] for piece in row) <= 64 for row in rows)
    assert sum(sizes) / (64 * len(rows)) > 0.97
