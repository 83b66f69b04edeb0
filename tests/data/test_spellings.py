"""Words as rows of characters, and batches that have them."""

import numpy as np
import torch

from seqloom.data.batching import Ragged
from seqloom.data.collate import TextBatches
from seqloom.data.readers import MAX_SPELLING, SPELLING_STEP, Spellings


def test_a_word_is_its_characters() -> None:
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
        [1] + [0] * 7,  # a character that training did not have
    ]


def test_words_may_come_later_and_rows_are_as_long_as_the_longest_asked_for() -> None:
    spellings = Spellings.of_words(["a"])
    first = spellings.characters(torch.tensor(spellings.numbers(["a" * 20])))
    assert first.shape == (1, 24)
    assert spellings.characters(torch.tensor(spellings.numbers(["aa"]))).shape == (1, 8)
    assert spellings.characters(torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0, SPELLING_STEP)


def test_of_a_long_word_both_ends_are_read() -> None:
    spellings = Spellings.of_words(["ab"])
    word = "a" * 30 + "b" * 5
    row = spellings.characters(torch.tensor(spellings.numbers([word])))[0].tolist()
    assert len(row) == MAX_SPELLING
    assert row == [2] * 16 + [2] * 11 + [3] * 5


def test_batches_spell_every_token_and_end_is_no_word() -> None:
    spellings = Spellings.of_words(["ab", "c"])
    texts = Ragged.of([[5, 6], [7]])
    spelled = Ragged.of([spellings.numbers(["ab", "c"]), spellings.numbers(["c"])])
    batches = TextBatches(texts, spellings=spellings, spelled=spelled, tokens=100)
    batch = batches.collate(np.array([1, 0]), (3, 4, 4))
    assert batch["characters"].shape == (3, 4, SPELLING_STEP)
    lengths = (batch["characters"] != 0).sum(dim=2).tolist()
    assert lengths == [[1, 0, 0, 0], [2, 1, 0, 0], [0, 0, 0, 0]]


def test_what_is_cut_is_not_spelled() -> None:
    spellings = Spellings.of_words(["ab", "c"])
    texts = Ragged.of([[5, 6, 7], [7]])
    spelled = Ragged.of([spellings.numbers(["ab", "c", "ab"]), spellings.numbers(["c"])])
    batches = TextBatches(texts, spellings=spellings, spelled=spelled, tokens=100, max_length=2)
    assert batches.was_cut.tolist() == [True, False]
    assert (batches.collate(np.array([0]))["characters"] != 0).sum(dim=2).tolist() == [[2, 0]]
