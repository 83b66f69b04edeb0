"""Classifiers with several labels per text from Python."""

from pathlib import Path

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
