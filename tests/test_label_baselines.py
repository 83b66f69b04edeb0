"""The baselines of benchmarks/label_baselines.py. Naive Bayes equals that of scikit-learn."""

import random

import pytest
from benchmarks.label_baselines import NaiveBayes, accuracy, character_ngrams

from seqloom.data.examples import TextClassificationExample


def examples(count: int, seed: int) -> list[TextClassificationExample]:
    """Return words from two overlapping alphabets with three unbalanced labels."""
    dice = random.Random(seed)
    letters = {"a": "abcde", "b": "cdefg", "c": "aceg"}
    labels = dice.choices("abc", weights=(3, 2, 1), k=count)
    return [
        TextClassificationExample("".join(dice.choices(letters[label], k=dice.randint(1, 6))), label)
        for label in labels
    ]


@pytest.mark.parametrize("alpha", [0.01, 1.0])
def test_naive_bayes_matches_scikit_learn(alpha: float) -> None:
    feature_extraction = pytest.importorskip("sklearn.feature_extraction")
    naive_bayes = pytest.importorskip("sklearn.naive_bayes")
    train, test = examples(200, 1), examples(100, 2)
    vectorizer = feature_extraction.DictVectorizer()
    counts = vectorizer.fit_transform([character_ngrams(example.text, 3) for example in train])
    expected = naive_bayes.MultinomialNB(alpha=alpha).fit(counts, [example.label for example in train])
    features = vectorizer.transform([character_ngrams(example.text, 3) for example in test])
    actual = NaiveBayes(train, 3).predict([example.text for example in test], alpha)
    assert actual == list(expected.predict(features))
    assert len(set(actual)) == 3


def test_text_without_known_ngrams_has_most_frequent_label() -> None:
    train = [
        TextClassificationExample("aa", "x"),
        TextClassificationExample("ab", "x"),
        TextClassificationExample("bb", "y"),
    ]
    model = NaiveBayes(train, 1)
    model.indices.pop("\n")
    assert model.predict(["zz"], 1.0) == ["x"]


def test_accuracy_counts_equal_labels() -> None:
    assert accuracy(["x", "y"], [TextClassificationExample("a", "x"), TextClassificationExample("b", "x")]) == 0.5
