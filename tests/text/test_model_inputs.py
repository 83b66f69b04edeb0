"""Special tokens, input formats of one and two texts, truncation, and mask positions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.core.tokens import EXTRA, MASK_TEXT, Specials
from seqloom.text import CharactersConfig, WordsConfig, train_tokenizer
from seqloom.text.model_inputs import frame_length, frame_texts, read_gaps, truncated_lengths

SPECIALS = Specials.after(100)


def test_special_tokens_follow_the_vocabulary() -> None:
    assert SPECIALS.names == {100: "[CLS]", 101: "[SEP]", 102: "[MASK]"}
    assert len(SPECIALS.names) == EXTRA


def test_no_text_is_encoded_to_special_tokens() -> None:
    tokenizer = train_tokenizer(WordsConfig(), ["the [MASK] and the [CLS]"])
    assert max(tokenizer.encode("[MASK] [CLS] [SEP]")) < len(tokenizer) == Specials.after(len(tokenizer)).classify


@pytest.mark.parametrize(
    ("form", "second", "tokens", "segments", "starts", "cls_position"),
    [
        ("bert", None, [100, 7, 8, 101], [0, 0, 0, 0], (1,), 0),
        ("bert", [9], [100, 7, 8, 101, 9, 101], [0, 0, 0, 0, 1, 1], (1, 4), 0),
        ("causal", None, [0, 7, 8, 100], [0, 0, 0, 0], (1,), 3),
        ("causal", [9], [0, 7, 8, 101, 9, 100], [0, 0, 0, 0, 1, 1], (1, 4), 5),
        ("ends", None, [0, 7, 8, 0], [0, 0, 0, 0], (1,), 0),
        ("ends", [9], [0, 7, 8, 0, 9, 0], [0, 0, 0, 0, 1, 1], (1, 4), 0),
    ],
)
def test_texts_are_framed_by_special_tokens(form, second, tokens, segments, starts, cls_position) -> None:
    row = frame_texts(SPECIALS, form, [7, 8], second)
    assert (row.tokens, row.segments, row.starts, row.cls_position) == (tokens, segments, starts, cls_position)
    assert len(row.tokens) == 2 + len(second or []) + frame_length(1 + (second is not None))
    assert row.tokens[row.cls_position] == (0 if form == "ends" else SPECIALS.classify)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=3), st.integers(0, 60))
def test_longest_text_is_truncated_first(lengths, room) -> None:
    truncated = truncated_lengths(lengths, room)
    assert sum(truncated) == min(sum(lengths), room)
    for truncated_length, length in zip(truncated, lengths, strict=True):
        assert truncated_length <= length
        assert (
            truncated_length == length or truncated_length >= max(truncated) - 1
        )  # only the longest texts are truncated


@pytest.mark.parametrize("kind", [CharactersConfig(), WordsConfig()])
def test_masks_have_correct_positions(kind) -> None:
    text = "the cat [MASK] on the [MASK]"
    tokenizer = train_tokenizer(kind, ["the cat sat on the mat"])
    specials = Specials.after(len(tokenizer))
    gaps = read_gaps(tokenizer, specials, text)
    assert [gaps.ids[position] for position in gaps.masks] == [specials.mask] * 2 and gaps.ids.count(specials.mask) == 2
    assert [text[slice(*gaps.spans[position])].strip() for position in gaps.masks] == [MASK_TEXT] * 2
    without = [token for token in gaps.ids if token != specials.mask]
    assert without == [token for part in text.split(MASK_TEXT) for token in tokenizer.encode(part)]
    assert gaps.unknown == ()
