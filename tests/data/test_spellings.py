"""Spellings of words as rows of character ids, and their batches."""

import numpy as np
import torch

from seqloom.data.batching import Ragged
from seqloom.data.collate import TextBatches
from seqloom.data.text_inputs import MAX_SPELLING, SPELLING_STEP, Spellings


def test_word_is_represented_by_characters() -> None:
    spellings = Spellings.of_words(["abba", "c"])
    numbers = spellings.numbers(["abba", "", "cab", "abba", "x"])
    assert numbers == [1, 0, 2, 1, 3]
    rows = spellings.characters(torch.tensor([numbers]))
    assert rows.shape == (1, 5, SPELLING_STEP)
    assert rows[0].tolist() == [
        [2, 3, 3, 2, 0, 0, 0, 0],
        [0] * 8,
        [4, 2, 3, 0, 0, 0, 0, 0],
        [2, 3, 3, 2, 0, 0, 0, 0],
        [1] + [0] * 7,  # a character that does not occur in training
    ]


def test_rows_are_padded_to_longest_word() -> None:
    spellings = Spellings.of_words(["a"])
    first = spellings.characters(torch.tensor(spellings.numbers(["a" * 20])))
    assert first.shape == (1, 24)
    assert spellings.characters(torch.tensor(spellings.numbers(["aa"]))).shape == (1, 8)
    assert spellings.characters(torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0, SPELLING_STEP)


def test_long_words_keep_both_ends() -> None:
    spellings = Spellings.of_words(["ab"])
    word = "a" * 30 + "b" * 5
    row = spellings.characters(torch.tensor(spellings.numbers([word])))[0].tolist()
    assert len(row) == MAX_SPELLING
    assert row == [2] * 16 + [2] * 11 + [3] * 5


def test_batches_contain_spellings_of_all_tokens_except_end() -> None:
    spellings = Spellings.of_words(["ab", "c"])
    texts = Ragged.of([[5, 6], [7]])
    spelled = Ragged.of([spellings.numbers(["ab", "c"]), spellings.numbers(["c"])])
    batches = TextBatches(texts, spellings=spellings, spelled=spelled, tokens=100)
    batch = batches.collate(np.array([1, 0]), (3, 4, 4))
    assert batch["characters"].shape == (3, 4, SPELLING_STEP)
    lengths = (batch["characters"] != 0).sum(dim=2).tolist()
    assert lengths == [[1, 0, 0, 0], [2, 1, 0, 0], [0, 0, 0, 0]]


def test_truncated_text_has_no_spelling() -> None:
    spellings = Spellings.of_words(["ab", "c"])
    texts = Ragged.of([[5, 6, 7], [7]])
    spelled = Ragged.of([spellings.numbers(["ab", "c", "ab"]), spellings.numbers(["c"])])
    batches = TextBatches(texts, spellings=spellings, spelled=spelled, tokens=100, max_length=2)
    assert batches.was_cut.tolist() == [True, False]
    assert (batches.collate(np.array([0]))["characters"] != 0).sum(dim=2).tolist() == [[2, 0]]
