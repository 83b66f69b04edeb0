"""Labels of any hashable type are returned as they were given, also by a saved model."""

import random
from collections.abc import Hashable
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.estimators.examples import reviews

from seqloom import Classifier
from seqloom.core.errors import CheckpointError
from seqloom.core.files import parse_json, to_json
from seqloom.estimators.labels import LabelNames, check_labels


class Mood(Enum):
    GOOD, BAD = 1, 2


scalars = st.one_of(
    st.text(),
    st.integers(),
    st.booleans(),
    st.floats(allow_nan=False),
    st.binary(),
    st.dates(),
    st.datetimes(timezones=st.sampled_from([None, UTC])),
    st.decimals(allow_nan=False),
    st.uuids(),
)
labels_of_any_type = st.recursive(
    scalars, lambda inner: st.one_of(st.lists(inner).map(tuple), st.frozensets(inner)), max_leaves=5
)


@settings(max_examples=50, deadline=None)
@given(st.lists(labels_of_any_type, min_size=1, max_size=8))
def test_labels_are_unchanged_after_writing_and_reading_a_file(labels: list[Hashable]) -> None:
    names = LabelNames.of(labels)
    stored = LabelNames.from_json(parse_json(to_json(names.to_json()).encode()))
    assert stored.names == names.names
    for label, again in zip(names.names, stored.names, strict=True):
        assert label == again and type(label) is type(again)
    assert len(set(names.names.values())) == len(names.names) == len(set(labels))
    for name in names.names.values():  # a reader of rows stores these names
        assert name and name == name.strip() and "\n" not in name and "\t" not in name


@pytest.mark.parametrize(
    "pair",
    [
        (True, False),
        (10, 9),
        ("1", 1),
        (1.5, -2.0),
        ((1, 2), ("a",)),
        (frozenset({1}), frozenset()),
        (b"x", b"\xff"),
        (date(2020, 1, 1), datetime(2021, 1, 1)),
        (Decimal("1.10"), UUID(int=5)),
        ("a b\nc", " "),
    ],
    ids=repr,
)
def test_labels_keep_their_type(pair: tuple[Any, Any], tmp_path: Path) -> None:
    texts, classes = reviews(60)
    model = Classifier("bag", overrides=["train.epochs=1"]).fit(texts, [pair[i] for i in classes])
    predicted = model.predict(texts)
    assert set(predicted) <= set(pair) and {type(label) for label in predicted} <= {type(label) for label in pair}
    model.save(tmp_path / "saved")
    loaded = Classifier.load(tmp_path / "saved")
    assert loaded.predict(texts) == predicted
    assert [type(label) for label in loaded.predict(texts)] == [type(label) for label in predicted]
    assert loaded.classes_.tolist() == model.classes_.tolist()
    assert loaded.score(texts, [pair[i] for i in classes]) == pytest.approx(
        loaded.evaluate(texts, [pair[i] for i in classes])["accuracy"]
    )


def test_numpy_numbers_are_converted_to_python_numbers() -> None:
    assert check_labels(np.array([3, 4])) == [3, 4]
    assert [type(label) for label in check_labels([np.int64(3), np.float32(1.5), np.str_("a")])] == [int, float, str]


def test_classes_are_sorted_and_probabilities_follow_them() -> None:
    """As text, 10 sorts before 9. scikit-learn needs the order of the numbers."""
    texts, classes = reviews(120)
    model = Classifier("bag", overrides=["train.epochs=4"]).fit(texts, [9 + i for i in classes])
    assert model.classes_.tolist() == [9, 10]
    best = model.predict_proba(texts).argmax(axis=1)
    assert [int(model.classes_[index]) for index in best] == model.predict(texts)
    assert model.score(texts, [9 + i for i in classes]) > 0.9


def test_blank_text_has_the_most_frequent_label() -> None:
    texts, _ = reviews(60)
    model = Classifier("bag", overrides=["train.epochs=1"]).fit(texts, ["rare"] * 15 + ["frequent"] * 45)
    assert model.predict(["", " \n"]) == ["frequent", "frequent"]
    np.testing.assert_allclose(model.predict_proba([""]), [[0.75, 0.25]])


def test_labels_that_cannot_be_stored_are_accepted_until_the_model_is_saved(tmp_path: Path) -> None:
    texts, classes = reviews(60)
    labels = [Mood(i + 1) for i in classes]
    model = Classifier("bag", overrides=["train.epochs=1"]).fit(texts, labels)
    assert set(model.predict(texts)) <= set(Mood)
    message = "labels of type Mood cannot be stored in a run"
    with pytest.raises(TypeError, match=message):
        model.save(tmp_path / "saved")
    with pytest.raises(TypeError, match=message):
        Classifier(out=tmp_path / "run").fit(texts, labels)
    with pytest.raises(TypeError, match="labels of type str cannot be stored"):
        Classifier(out=tmp_path / "run").fit(texts, ["\ud800" if i else "a" for i in classes])
    assert list(tmp_path.iterdir()) == []


def test_equal_labels_are_one_class_and_names_differ() -> None:
    names = LabelNames.of([1, 1.0, True, "1", "1 (str)", None if False else "x", " x "])
    assert len(names.rows) == 5 and names.rows[0][2] == 3
    assert sorted(names.labels) == sorted({"1", "1 (str)", "1 (str) (str)", "x", "x (str)"})


def test_damaged_labels_are_reported(tmp_path: Path) -> None:
    texts, classes = reviews(60)
    Classifier("bag", out=tmp_path / "run", overrides=["train.epochs=1"]).fit(texts, classes)
    random.seed(0)
    for content in ("[", "3", '{"labels": 3}', '{"labels": [[{"wrong": 1}, "a", 1]]}', '{"labels": [["a"]]}'):
        (tmp_path / "run" / "estimator.json").write_text(content)
        with pytest.raises(CheckpointError, match=r"estimator.json is damaged"):
            Classifier.load(tmp_path / "run").predict(["a film"])
    (tmp_path / "run" / "estimator.json").unlink()
    assert set(Classifier.load(tmp_path / "run").classes_) == {"0", "1"}  # the labels are named in this way in the run
