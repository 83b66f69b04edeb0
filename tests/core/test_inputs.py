"""Checks of lists, arrays and columns from Python: the results, and the message for each wrong argument."""

import itertools
from typing import Any

import numpy as np
import pytest

from seqloom.core.inputs import (
    check_lengths,
    check_list,
    check_pairs,
    check_texts,
    check_words,
    is_missing,
    iterate_texts,
)

TEXTS = ["a b", "", "naïve 猫"]


class Table:
    """An object like a data frame of pandas or polars, which has columns and a shape."""

    shape, columns = (2, 3), ("a", "b", "c")

    def __iter__(self) -> Any:
        return iter(self.columns)


@pytest.mark.parametrize("convert", [list, tuple, iter, np.array])
def test_texts_are_read_from_lists_iterators_and_arrays(convert: Any) -> None:
    assert check_texts(convert(TEXTS)) == TEXTS


@pytest.mark.parametrize("package", ["pandas", "polars", "pyarrow"])
def test_columns_of_data_frames_are_converted_to_python_values(package: str) -> None:
    module = pytest.importorskip(package)
    make = module.array if package == "pyarrow" else module.Series
    assert check_texts(make(TEXTS)) == TEXTS
    numbers = check_list(make([3, 5]), "labels")
    assert numbers == [3, 5] and {type(number) for number in numbers} == {int}
    with pytest.raises(ValueError, match=r"texts\[1\] must be a string; got (None|nan)"):
        check_texts(make(["a", None]))


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ("a text", TypeError, r"texts must be a list of texts; got one string: write \[texts\]"),
        (b"a text", TypeError, r"texts must be a list of texts; got bytes: write \[texts\]"),
        (None, TypeError, "texts must be a list of texts; got NoneType"),
        (3, TypeError, "texts must be a list of texts; got int"),
        ({"a": 1}, TypeError, "texts must be a list of texts; got dict"),
        ({"a"}, TypeError, "texts must be a list of texts; got set, which has no order"),
        (Table(), TypeError, "texts must be one column; got a table with 3 columns: select a column"),
        (np.array([["a"], ["b"]]), ValueError, r"texts must have one dimension; got an array of shape \(2, 1\)"),
        (np.array("a"), ValueError, r"one dimension; got an array of shape \(\)"),
        (["a", None], ValueError, r"texts\[1\] must be a string; got None: drop or fill missing values first"),
        (["a", float("nan")], ValueError, r"texts\[1\] must be a string; got nan"),
        ([["a", "b"]], TypeError, r"texts\[0\] must be a string; got list; join its words with spaces"),
        (["a", 3], TypeError, r"texts\[1\] must be a string; got int"),
        (["a", b"b"], TypeError, r"texts\[1\] must be a string; got bytes; decode it first"),
        (["\ud83d"], ValueError, r"texts\[0\] must be valid Unicode; got an unpaired surrogate"),
    ],
)
def test_wrong_texts_are_explained(values: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_texts(values)


def test_texts_of_an_iterator_are_checked_when_they_are_read() -> None:
    texts = iterate_texts(itertools.chain(["a"], itertools.repeat(3)))
    assert next(texts) == "a"
    with pytest.raises(TypeError, match=r"texts\[1\] must be a string; got int"):
        next(texts)
    with pytest.raises(TypeError, match="got int"):
        iterate_texts(3)  # the container is checked immediately


def test_words_with_spaces_are_rejected() -> None:
    assert check_words(["New", "York"], "words") == ["New", "York"]
    for word in ("New York", " New", "", "\u00a0"):
        with pytest.raises(ValueError, match=r"words\[1\] must be a word without spaces"):
            check_words(["in", word], "words")
    with pytest.raises(TypeError, match="words must be a list of words; got one string: split it into words"):
        check_words("New York", "words")


def test_pairs_are_checked() -> None:
    assert list(check_pairs([("a", 1), ["b", 2]], "pairs", "a text and a number")) == [("a", 1), ("b", 2)]
    for pairs, message in (
        (["ab"], r"pairs\[0\] must be a text and a number; got str"),
        ([("a",)], r"pairs\[0\] must be a text and a number; got 1 items"),
        ([("a", 1), (2, "b")], r"pairs\[1\]\[0\] must be a string; got int"),
        ("ab", "pairs must be a list of pairs; got one string"),
    ):
        with pytest.raises(TypeError, match=message):
            list(check_pairs(pairs, "pairs", "a text and a number"))


def test_lengths_must_agree() -> None:
    check_lengths(texts=["a"], labels=[1])
    with pytest.raises(ValueError, match=r"texts \(2\) and labels \(1\) differ in length"):
        check_lengths(texts=["a", "b"], labels=[1])
    with pytest.raises(ValueError, match="texts must not be empty"):
        check_lengths(texts=[], labels=[])


def test_missing_values_are_recognized() -> None:
    assert all(map(is_missing, [None, float("nan"), np.float32("nan"), np.datetime64("NaT")]))
    assert not any(map(is_missing, [0, "", False, "nan", (), np.array([1.0, 2.0])]))
    pandas = pytest.importorskip("pandas")
    assert is_missing(pandas.NA) and is_missing(pandas.NaT)
