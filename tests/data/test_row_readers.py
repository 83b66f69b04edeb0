"""Rows of several texts: what stands in them, what is cut, windows that leave nothing out, and batches of rows."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqloom.core.errors import DataError
from seqloom.core.tokens import Specials
from seqloom.data.collate import IGNORE, ExampleRows, RowBatches
from seqloom.data.readers import RowReader, TextFrame, Window, tokens_covering
from seqloom.text import BytePairConfig, Tokenizer, WordsConfig, train_tokenizer
from seqloom.text.model_inputs import Form

TEXT = "Ann lives in Bonn, near the Rhine. Bob doesn't: he lives in Oslo (Norway)!"
WORDS = train_tokenizer(WordsConfig(split="punctuation"), [TEXT])
BYTES = train_tokenizer(BytePairConfig(size=280), [TEXT])


def reader(
    tokenizer: Tokenizer = WORDS, form: Form = "bert", most: int | None = None, split_punctuation: bool = False
) -> RowReader:
    return RowReader(tokenizer, TextFrame(Specials.after(len(tokenizer)), form), most, split_punctuation)


def shown(row: list[int], tokenizer: Tokenizer = WORDS) -> str:
    names = Specials.after(len(tokenizer)).names
    return " ".join(names.get(token) or tokenizer.token(token) for token in row)


def test_pairs_in_both_forms_and_orders() -> None:
    (row,) = reader().pair("Ann lives", "in Bonn").rows
    assert shown(row.tokens) == "[CLS] Ann lives [SEP] in Bonn [SEP]"
    assert row.segments == [0, 0, 0, 0, 1, 1, 1]
    one, other = reader(form="causal").pair("Ann lives", "in Bonn", symmetric=True).rows
    assert shown(one.tokens) == "</s> Ann lives [SEP] in Bonn [CLS]"
    assert shown(other.tokens) == "</s> in Bonn [SEP] Ann lives [CLS]"


def test_longer_text_is_truncated() -> None:
    found = reader(most=8).pair("Ann lives in Bonn near", "in Oslo")
    assert shown(found.rows[0].tokens) == "[CLS] Ann lives in [SEP] in Oslo [SEP]"
    assert found.cut and not reader(most=10).pair("Ann lives in Bonn near", "in Oslo").cut


def test_choice_keeps_end_of_text() -> None:
    found = reader(most=8).choice("Ann lives in Bonn near the", ["Rhine", "in Oslo"])
    assert [shown(row.tokens) for row in found.rows] == [
        "[CLS] in Bonn near the [SEP] Rhine [SEP]",
        "[CLS] Bonn near the [SEP] in Oslo [SEP]",
    ]
    assert found.cut


def test_rows_fit_and_truncate_minimally() -> None:
    for most in range(5, 20):
        for form in ("bert", "causal"):
            (row,) = reader(form=form, most=most).pair(TEXT, TEXT).rows
            assert len(row.tokens) == most == len(row.segments)


# --- words apart --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", [WORDS, BYTES], ids=["words", "byte-pair"])
@pytest.mark.parametrize("split_punctuation", [False, True])
def test_spans_match_text(tokenizer: Tokenizer, split_punctuation: bool) -> None:
    own = reader(tokenizer, split_punctuation=split_punctuation)
    spans = own.spans(TEXT)
    assert len(spans) == len(own.encode(TEXT))
    for answer in ("Bonn", "the Rhine", "Oslo (Norway)", "Ann", "!", "doesn't"):
        start = TEXT.index(answer)
        first, last = tokens_covering(spans, start, start + len(answer)) or (0, 0)
        assert TEXT[spans[first][0] : spans[last][1]].strip().startswith(answer)
        assert answer in TEXT[spans[first][0] : spans[last][1]]
    assert tokens_covering(spans, len(TEXT) + 3, len(TEXT) + 9) is None


def test_split_punctuation_inserts_spaces() -> None:
    assert reader(BYTES, split_punctuation=True).encode("near the Rhine.") == BYTES.encode("near the Rhine .")
    assert reader(BYTES).encode("near the Rhine.") != BYTES.encode("near the Rhine .")


@given(st.text("ab, .é—🙂\n", max_size=25))
def test_spans_with_split_punctuation_are_monotonic(text: str) -> None:
    own = reader(BYTES, split_punctuation=True)
    spans = own.spans(text)
    assert len(spans) == len(own.encode(text))
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    assert all(one[0] <= other[0] and one[1] <= other[1] for one, other in pairwise(spans))
    said = "".join(text[start:end] for start, end in spans)
    assert all(letter in said for letter in text if not letter.isspace())
    assert not text.isascii() or said == "".join(text.split())  # there no token is a part of a character


def test_unknown_words_are_listed_once() -> None:
    assert reader().unknown("Ann sings", "Cy sings") == ["sings", "Cy"]


# --- windows ------------------------------------------------------------------------------------------------------


def windows(question: str, context: str, most: int | None, stride: int | None, room: int = 64) -> list[Window]:
    return list(reader(most=most).windows(0, question, context, room, stride))


@given(st.integers(0, 30), st.integers(8, 20), st.none() | st.integers(1, 9))
def test_windows_cover_context_and_fit(length: int, most: int, stride: int | None) -> None:
    context = " ".join(["Ann", "lives", "in", "Bonn"][n % 4] for n in range(length))
    found = windows("near Oslo", context, most, stride)
    seen = {place for window in found for place in range(window.start, window.end)}
    assert seen == set(range(length))
    assert found[0].start == 0 and found[-1].end == length
    assert all(len(window.row.tokens) <= most for window in found)
    size = most - 3 - 2
    assert all(window.end - window.start == size for window in found[:-1])
    step = min(stride or max(size // 2, 1), size)
    assert all(two.start - one.start == step for one, two in pairwise(found))


def test_window_marks_answerable_positions() -> None:
    one, *rest = windows("near Oslo", "Ann lives in Bonn near the Rhine", 9, 2)
    assert shown(one.row.tokens) == "[CLS] near Oslo [SEP] Ann lives in Bonn [SEP]"
    (places,) = one.rows().answerable or [[]]
    assert [int(place) for place in places] == [1, 0, 0, 0, 1, 1, 1, 1, 0]
    assert one.targets((2, 3)) == (6, 7)
    assert one.targets((3, 4)) == one.targets(None) == (0, 0)  # not all of it is here: [CLS]
    assert rest[0].targets((3, 4)) == (5, 6)


def test_causal_window_has_summary_at_end() -> None:
    (window,) = reader(form="causal").windows(3, "near Oslo", "Ann lives", 64, None)
    assert shown(window.row.tokens) == "</s> near Oslo [SEP] Ann lives [CLS]"
    assert window.row.summary == 6 == window.targets(None)[0] and window.number == 3
    (places,) = window.rows().answerable or [[]]
    assert [int(place) for place in places] == [0, 0, 0, 0, 1, 1, 1]


def test_long_question_is_truncated() -> None:
    (window,) = windows("near Oslo in Bonn", "Ann", None, None, room=2)
    assert window.cut and shown(window.row.tokens) == "[CLS] near Oslo [SEP] Ann [SEP]"


# --- batches ------------------------------------------------------------------------------------------------------


def examples(counts: list[int]) -> list[ExampleRows]:
    own = reader()
    texts = ["Ann", "Ann lives", "Ann lives in", "Ann lives in Bonn"]
    return [own.choice(texts[n % 4], [texts[k % 4] for k in range(count)]) for n, count in enumerate(counts)]


@pytest.mark.parametrize("shapes", [None, 2])
def test_rows_belong_to_their_documents(shapes: int | None) -> None:
    given_rows = examples([2, 3, 2, 4, 3, 2, 2, 3])
    batches = RowBatches(given_rows, tokens=120, shapes=shapes, values={"answers": list(range(8)), "scores": [0.5] * 8})
    seen = []
    for members, batch in batches.every():
        B, R, S = batch["tokens"].shape
        assert (R, batch["mask"].shape, batch["segments"].shape) == (4, (B, R, S), (B, R, S))
        assert B * R * S <= 120 or B == 1
        for place, number in enumerate(members.tolist()):
            rows = given_rows[number].rows
            for r in range(R):
                mask = batch["mask"][place, r]
                real = rows[r] if r < len(rows) else None
                assert batch["tokens"][place, r][mask].tolist() == (real.tokens if real else [])
                assert batch["segments"][place, r][mask].tolist() == (real.segments if real else [])
        assert batch["answers"][: len(members)].tolist() == members.tolist()
        assert batch["answers"][len(members) :].tolist() == [IGNORE] * (B - len(members))
        assert batch["scores"].dtype == torch.float32 and batch["answers"].dtype == torch.int64
        seen += members.tolist()
    assert sorted(seen) == list(range(8)) and len(batches) == 8


def test_batches_are_a_function_of_seed_and_step() -> None:
    one, two = (RowBatches(examples([2] * 30), tokens=60) for _ in range(2))
    for step in (5, 0, 3):
        assert torch.equal(one.batch(7, step)["tokens"], two.batch(7, step)["tokens"])
    orders = [[one.members(seed, step).tolist() for step in range(4)] for seed in (1, 2)]
    assert orders[0] != orders[1]


def test_empty_split_is_refused() -> None:
    with pytest.raises(DataError, match="it is empty"):
        RowBatches([], tokens=10)


def test_batch_is_padded_to_longest_example() -> None:
    batches = RowBatches(examples([2, 2, 2, 2]), tokens=1)
    assert batches.collate(np.array([0]))["tokens"].shape == (1, 2, int(batches.lengths[0]))
