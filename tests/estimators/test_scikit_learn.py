"""Estimators in scikit-learn: clone, pipelines, cross-validation and grid search."""

from typing import Any

import numpy as np
import pytest
from tests.estimators.examples import Case, reviews

from seqloom import Classifier, SeriesClassifier, WordVectors

base = pytest.importorskip("sklearn.base")

FAST = ("train.epochs=12",)


@pytest.fixture
def model() -> Classifier:
    return Classifier("bag", overrides=FAST)


def test_clone_copies_parameters_but_not_the_fitted_model(case_of: dict[str, Case]) -> None:
    for case in case_of.values():
        estimator = case.make(overrides=case.overrides, seed=3, **case.options)
        estimator.predictor_ = None
        copied = base.clone(estimator)
        assert copied is not estimator and copied.get_params() == estimator.get_params()
        assert not hasattr(copied, "predictor_")


def test_parameters_are_set_by_name(model: Classifier) -> None:
    assert model.set_params(seed=2, model="bilstm") is model and (model.seed, model.model) == (2, "bilstm")
    with pytest.raises(ValueError, match="Classifier has no parameter 'sede': did you mean seed"):
        model.set_params(sede=2)
    assert repr(Classifier()) == "Classifier(): not trained"
    assert repr(model).startswith("Classifier(model='bilstm', overrides=('train.epochs=12',), seed=2): not trained")


@pytest.mark.parametrize("kind", ["list", "array", "pandas"])
def test_cross_validation_accepts_lists_and_arrays(model: Classifier, kind: str) -> None:
    from sklearn.model_selection import cross_val_predict, cross_val_score

    texts, labels = reviews(160)
    inputs: Any = {"list": (texts, labels), "array": (np.array(texts), np.array(labels))}.get(kind)
    if kind == "pandas":
        pandas = pytest.importorskip("pandas")
        inputs = pandas.Series(texts), pandas.Series(labels)
    scores = cross_val_score(model, *inputs, cv=2)
    assert scores.shape == (2,) and scores.mean() > 0.9
    if kind == "list":
        assert (cross_val_score(model, *inputs, cv=2, scoring="f1") > 0.9).all()
        assert (cross_val_score(model, *inputs, cv=2, scoring="roc_auc") > 0.9).all()
        assert (cross_val_score(model, *inputs, cv=2, scoring="neg_log_loss") < 0).all()
        probabilities = cross_val_predict(model, *inputs, cv=2, method="predict_proba")
        assert probabilities.shape == (160, 2)
        assert (cross_val_predict(model, *inputs, cv=2) == np.array(labels)).mean() > 0.9


def test_cross_validation_supports_three_classes() -> None:
    from sklearn.model_selection import cross_val_score

    texts, _ = reviews(150)
    words = ["red", "green", "blue"]
    texts, labels = [f"{text} {words[i % 3]}" for i, text in enumerate(texts)], [words[i % 3] for i in range(150)]
    scores = cross_val_score(Classifier("bag", overrides=FAST), texts, labels, cv=2, scoring="neg_log_loss")
    assert (scores > -1).all()  # the columns of predict_proba are in the order that scikit-learn expects


def test_grid_search_compares_models_and_settings(model: Classifier) -> None:
    from sklearn.model_selection import GridSearchCV

    texts, labels = reviews(120)
    grid = {"overrides": [("train.epochs=1", "train.lr=1.0e-6"), FAST], "model": ["bag"]}
    search = GridSearchCV(model, grid, cv=2).fit(texts, labels)
    assert search.best_params_ == {"overrides": FAST, "model": "bag"} and search.best_score_ > 0.9
    assert search.predict(texts[:2]) == search.best_estimator_.predict(texts[:2])


def test_estimators_work_in_pipelines(model: Classifier) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    texts, labels = reviews(160)
    lower = FunctionTransformer(lambda values: [value.lower() for value in values])
    pipeline = make_pipeline(lower, model).fit(texts, labels)
    assert pipeline.score([text.upper() for text in texts], labels) > 0.9
    assert "Classifier" in repr(pipeline) and "Classifier" in pipeline._repr_html_()
    vectors = WordVectors(overrides=["train.epochs=20", "model.vector_size=16"])
    assert make_pipeline(vectors, LogisticRegression()).fit(texts, labels).score(texts, labels) > 0.8


def test_scikit_learn_recognizes_classifiers_and_fitted_models(fitted: dict[str, Any]) -> None:
    from sklearn.utils.validation import check_is_fitted

    assert base.is_classifier(Classifier()) and base.is_classifier(SeriesClassifier())
    check_is_fitted(fitted["Classifier"])
    with pytest.raises(ValueError, match="not fitted"):  # NotFittedError
        check_is_fitted(Classifier())


def test_classifiers_can_be_combined_by_voting(fitted: dict[str, Any]) -> None:
    from sklearn.ensemble import VotingClassifier

    texts, labels = reviews(120)
    models = [(str(seed), Classifier("bag", overrides=FAST, seed=seed)) for seed in (1, 2)]
    vote = VotingClassifier(models, voting="soft").fit(np.array(texts), labels)
    assert vote.score(np.array(texts), labels) > 0.9
