"""Classifiers with several labels per text from Python."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.understanding import tickets

import seqloom


def test_classifier_of_label_lists_returns_lists(tmp_path: Path) -> None:
    texts, labels = zip(*tickets(), strict=True)
    topics = {"billing": 3, "login": 1, "urgent": 2}  # labels can have types other than text
    lists = [[topics[label] for label in label_list] for label_list in labels]
    model = seqloom.Classifier("bag", overrides=["train.epochs=30"], device="cpu").fit(texts, lists, validation=0.2)
    assert model.classes_.tolist() == [1, 2, 3]
    predicted = model.predict(["hello invoice now", "hello", ""])
    assert set(predicted[0]) == {2, 3} and predicted[1:] == [[], []]
    p = model.predict_proba(["hello invoice now", "hello"])
    assert p.shape == (2, 3)
    expected = {each.label: each.probability for each in model.predictor.classify(["hello invoice now"])[0].candidates}
    assert p[0].tolist() == pytest.approx([expected[str(label)] for label in (1, 2, 3)])
    right = sum(set(a) == set(b) for a, b in zip(model.predict(texts), lists, strict=True))
    assert model.score(texts, lists) == right / len(texts)
    assert model.evaluate(texts, lists)["subset_accuracy"] == pytest.approx(right / len(texts))
    model.save(tmp_path / "run")
    assert seqloom.Classifier.load(tmp_path / "run").predict(["hello password"]) == [[1]]
    with pytest.raises(ValueError, match=r"labels\[1\]\[0\] must be a label; got None"):
        seqloom.Classifier().fit(["a", "b"], [["x"], [None]])


TOPICS = ("urgent", "billing", "login")


def indicators() -> tuple[list[str], np.ndarray]:
    """Return texts and the matrix of their labels, with the columns in an order that is not alphabetical."""
    texts, labels = zip(*tickets(), strict=True)
    return list(texts), np.array([[topic in each for topic in TOPICS] for each in labels]).astype(int)


@pytest.mark.parametrize("kind", ["array", "booleans", "sparse", "pandas"])
def test_indicator_matrix_gives_the_predictions_of_lists(kind: str, tmp_path: Path) -> None:
    texts, matrix = indicators()
    values: Any = matrix
    if kind == "booleans":
        values = matrix.astype(bool)
    elif kind == "sparse":
        values = pytest.importorskip("scipy.sparse").csr_matrix(matrix)
    elif kind == "pandas":
        values = pytest.importorskip("pandas").DataFrame(matrix, columns=list(TOPICS))
    columns: list[Any] = list(TOPICS) if kind == "pandas" else [0, 1, 2]
    model = seqloom.Classifier("bag", overrides=["train.epochs=20"]).fit(texts, values, validation=0.2)
    assert model.classes_.tolist() == columns
    predicted = model.predict(texts)
    assert isinstance(predicted, np.ndarray) and predicted.shape == matrix.shape
    lists = [[column for column, flag in zip(columns, row, strict=True) if flag] for row in matrix]
    other = seqloom.Classifier("bag", overrides=["train.epochs=20"]).fit(texts, lists, validation=0.2)
    assert [{columns[i] for i in np.flatnonzero(row)} for row in predicted] == list(map(set, other.predict(texts)))
    assert model.score(texts, values) == (predicted == matrix).all(axis=1).mean() == other.score(texts, lists)
    assert model.evaluate(texts, values)["subset_accuracy"] == pytest.approx(model.score(texts, lists))
    model.save(tmp_path / "run")
    loaded = seqloom.Classifier.load(tmp_path / "run")
    assert loaded.classes_.tolist() == columns and np.array_equal(loaded.predict(texts), predicted)
    assert np.array_equal(loaded.predict_proba(texts[:3]), model.predict_proba(texts[:3]))


def test_scikit_learn_reads_indicator_matrices() -> None:
    selection = pytest.importorskip("sklearn.model_selection")
    texts, matrix = indicators()
    model = seqloom.Classifier("bag", overrides=["train.epochs=3"], progress=False)
    scores = selection.cross_val_score(model, texts, matrix, cv=2, scoring="f1_micro")
    assert scores.shape == (2,) and all(0 <= score <= 1 for score in scores)
    assert selection.cross_val_predict(model, texts, matrix, cv=2).shape == matrix.shape


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([[0, 1], [2, 0]]), r"labels must be one label for each text, or a matrix of 0 and 1 .*\(2, 2\) with"),
        (np.array([["a"], ["b"]]), r"labels must be one label for each text, .* got an array of shape \(2, 1\)"),
        (np.zeros((2, 1)), r"got an array of shape \(2, 1\)"),
        (np.zeros((3, 2)), r"texts \(2\) and labels \(3\) differ in length"),
        (np.zeros((2, 2)), "labels must have at least two classes"),
    ],
)
def test_other_arrays_are_explained(labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        seqloom.Classifier().fit(["a", "b"], labels)
