"""Metrics of classifiers compared with scikit-learn and manual counts."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.core.errors import DataError
from seqloom.evaluate.classification import (
    Confusion,
    Hits,
    Mistake,
    accuracy,
    confusion_metrics,
    log_loss,
    macro,
    macro_f1,
    matrix_interval,
    matthews,
    micro,
    report,
    weighted,
)
from seqloom.evaluate.intervals import Interval, MetricReport

answers = st.lists(st.tuples(st.sampled_from("abcdé"), st.sampled_from("abcdé")), min_size=1, max_size=40)
ALONE = pytest.mark.filterwarnings("ignore:A single label was found")  # scikit-learn warns about a single class
Sides = tuple[list[str], list[str]]


def sides(pairs: list[tuple[str, str]]) -> Sides:
    return [first for first, _ in pairs], [second for _, second in pairs]


def sklearn_metrics() -> Any:
    return pytest.importorskip("sklearn.metrics")


def draw_predictions(classes: int, seed: int, texts: int = 2000) -> tuple[list[str], np.ndarray, list[str]]:
    """Draw labels of decreasing frequency, and log-probabilities that favour the correct label."""
    draw = np.random.default_rng(seed)
    classes_drawn = np.minimum(draw.geometric(min(2 / classes, 0.6), size=texts) - 1, classes - 1)
    logits = draw.normal(size=(texts, classes))
    logits[np.arange(texts), classes_drawn] += 1.5
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    labels = [f"class {number:02}" for number in range(classes)]
    return [labels[index] for index in classes_drawn], log_probs, labels


# --- comparison with scikit-learn -----------------------------------------------------------------------------------


@ALONE
@given(answers)
def test_counts_match_scikit_learn(pairs: list[tuple[str, str]]) -> None:
    metrics = sklearn_metrics()
    expected, predicted = sides(pairs)
    confusion = Confusion.of(expected, predicted)
    np.testing.assert_array_equal(
        confusion.counts, metrics.confusion_matrix(expected, predicted, labels=confusion.labels)
    )
    by_class = metrics.precision_recall_fscore_support(
        expected, predicted, labels=confusion.labels, average=None, zero_division=0
    )
    ours = [(hits.precision, hits.recall, hits.f1, hits.expected) for hits in confusion.hits.values()]
    np.testing.assert_allclose(np.transpose(ours), by_class, rtol=1e-12)
    for name, average in {"macro": macro, "micro": micro, "weighted": weighted}.items():
        theirs = metrics.precision_recall_fscore_support(expected, predicted, average=name, zero_division=0)
        np.testing.assert_allclose(average(confusion.hits.values()), theirs[:3], rtol=1e-12)


@pytest.mark.parametrize("classes", [2, 6, 40])
def test_report_matches_scikit_learn(classes: int) -> None:
    metrics = sklearn_metrics()
    expected, log_probs, labels = draw_predictions(classes, seed=classes)
    result = report(expected, log_probs, labels)
    predicted = [labels[index] for index in log_probs.argmax(axis=1)]
    assert result.metrics == {
        "accuracy": pytest.approx(metrics.accuracy_score(expected, predicted), abs=1e-12),
        "majority": pytest.approx(max(map(expected.count, labels)) / len(expected)),
        "macro_f1": pytest.approx(metrics.f1_score(expected, predicted, average="macro"), abs=1e-12),
        "micro_f1": pytest.approx(metrics.f1_score(expected, predicted, average="micro"), abs=1e-12),
        "weighted_f1": pytest.approx(metrics.f1_score(expected, predicted, average="weighted"), abs=1e-12),
        "matthews": pytest.approx(metrics.matthews_corrcoef(expected, predicted), abs=1e-12),
        "loss": pytest.approx(metrics.log_loss(expected, np.exp(log_probs), labels=labels), rel=1e-9),
        "calibration_error": result.calibration.error,
    }
    for name, interval in result.intervals.items():
        assert interval.low < result.metrics[name] < interval.high
    assert result.unseen == {} and result.by_class == result.confusion.hits


@ALONE
@given(answers)
def test_matthews_coefficient_matches_scikit_learn(pairs: list[tuple[str, str]]) -> None:
    expected, predicted = sides(pairs)
    theirs = sklearn_metrics().matthews_corrcoef(expected, predicted)
    assert float(matthews(Confusion.of(expected, predicted).counts)) == pytest.approx(theirs, abs=1e-12)


# --- manual counts --------------------------------------------------------------------------------------------------


@given(answers)
def test_metrics_match_manual_counts(pairs: list[tuple[str, str]]) -> None:
    expected, predicted = sides(pairs)
    confusion = Confusion.of(expected, predicted, labels=["b", "a"])
    assert confusion.labels[:2] == ("b", "a") and list(confusion.labels[2:]) == sorted(
        set("".join(expected + predicted)) - set("ab")
    )
    for label, hits in confusion.hits.items():
        right = sum(one == other == label for one, other in pairs)
        assert hits == Hits(right, predicted.count(label), expected.count(label))
        p, r = hits.precision, hits.recall
        assert hits.f1 == pytest.approx(2 * p * r / (p + r) if p + r else 0)
    right = sum(one == other for one, other in pairs)
    assert (
        confusion_metrics(confusion)["accuracy"]
        == right / len(pairs)
        == pytest.approx(confusion_metrics(confusion)["micro_f1"])
    )
    scores = [confusion.hits[label].f1 for label in {*expected, *predicted}]
    assert confusion_metrics(confusion)["macro_f1"] == pytest.approx(sum(scores) / len(scores))
    assert float(macro_f1(confusion.counts)) == pytest.approx(confusion_metrics(confusion)["macro_f1"])
    mistakes = confusion.mistakes()
    assert sum(one.count for one in mistakes) == len(pairs) - right
    assert all(one.count == pairs.count((one.expected, one.predicted)) for one in mistakes)
    assert [one.count for one in mistakes] == sorted((one.count for one in mistakes), reverse=True)


def test_metrics_of_two_classes_match_binary_definitions() -> None:
    """For two classes, the Matthews coefficient is the correlation of two binary variables."""
    pairs = [("yes", "yes")] * 6 + [("yes", "no")] * 2 + [("no", "yes")] * 1 + [("no", "no")] * 3
    expected, predicted = sides(pairs)
    result = confusion_metrics(Confusion.of(expected, predicted, ["no", "yes"]))
    ones = [[label == "yes" for label in side] for side in (expected, predicted)]
    assert result["matthews"] == pytest.approx(np.asarray(np.corrcoef(ones))[0, 1])
    assert result["accuracy"] == 9 / 12 and result["majority"] == 8 / 12
    assert result["macro_f1"] == pytest.approx((2 * 3 / (4 + 5) + 2 * 6 / (8 + 7)) / 2)
    assert Confusion.of(expected, predicted).mistakes(1) == [Mistake("yes", "no", 2, 0.25)]


# --- invariances ----------------------------------------------------------------------------------------------------


@given(answers, st.permutations("abcdé"))
def test_metrics_do_not_depend_on_class_names_and_order(pairs: list[tuple[str, str]], names: list[str]) -> None:
    expected, predicted = sides(pairs)
    renamed = dict(zip("abcdé", names, strict=True))
    first = confusion_metrics(Confusion.of(expected, predicted, "abcdé"))
    other = confusion_metrics(
        Confusion.of([renamed[label] for label in expected], [renamed[label] for label in predicted])
    )
    assert first == pytest.approx(other)


@given(answers)
def test_swapping_expected_and_predicted_swaps_precision_and_recall(pairs: list[tuple[str, str]]) -> None:
    confusion, swapped = Confusion.of(*sides(pairs)), Confusion.of(*sides(pairs)[::-1])
    assert {name: (hits.precision, hits.recall, hits.f1) for name, hits in confusion.hits.items()} == {
        name: (hits.recall, hits.precision, hits.f1) for name, hits in swapped.hits.items()
    }
    assert float(matthews(confusion.counts)) == pytest.approx(float(matthews(swapped.counts)))


@given(st.lists(st.sampled_from("abc"), min_size=2))
def test_perfect_predictions_score_one_and_constant_predictions_have_zero_matthews(expected: list[str]) -> None:
    result = confusion_metrics(Confusion.of(expected, expected))
    several = len(set(expected)) > 1
    assert result["accuracy"] == result["macro_f1"] == result["weighted_f1"] == 1
    assert result["matthews"] == pytest.approx(float(several))
    guess = confusion_metrics(Confusion.of(expected, ["a"] * len(expected)))
    assert guess["matthews"] == 0 and guess["accuracy"] <= guess["majority"]


def test_batched_metrics_match_metrics_of_single_matrices() -> None:
    matrices = np.random.default_rng(0).integers(0, 9, size=(5, 4, 4))
    matrices[0, 2] = matrices[0, :, 2] = 0  # absent classes are excluded from the mean
    figures_of: list[Any] = [accuracy, macro_f1, matthews]
    for metric in figures_of:
        batched = metric(matrices)
        assert batched.shape == (5,)
        np.testing.assert_allclose(batched, [float(metric(matrix)) for matrix in matrices])
    reduced = np.delete(np.delete(matrices[0], 2, axis=0), 2, axis=1)
    assert float(macro_f1(matrices[0])) == pytest.approx(float(macro_f1(reduced)))


# --- reports and errors ---------------------------------------------------------------------------------------------


def test_unseen_labels_are_wrong_and_reported() -> None:
    expected, log_probs, labels = draw_predictions(3, seed=1, texts=100)
    odd = ["new"] * 10 + ["another"] + expected[11:]
    result, without_unseen = report(odd, log_probs, labels), report(expected[11:], log_probs[11:], labels)
    assert result.unseen == {"another": 1, "new": 10} and result.confusion.labels == (*labels, "another", "new")
    assert result.metrics["accuracy"] == pytest.approx(without_unseen.metrics["accuracy"] * 89 / 100)
    assert result.metrics["loss"] == pytest.approx(without_unseen.metrics["loss"])
    assert result.by_class["new"] == Hits(0, 0, 10)
    assert math.isnan(log_loss(["new"], log_probs[:1], labels))


def test_rates_are_normalized_by_row() -> None:
    confusion = Confusion.of(["a", "a", "b"], ["a", "b", "b"], ["a", "b", "never"])
    assert confusion.rates().tolist() == [[0.5, 0.5, 0], [0, 1, 0], [0, 0, 0]]
    assert confusion.support == [2, 1, 0] and confusion.total == 3


def test_bootstrap_interval_of_accuracy_is_close_to_wilson() -> None:
    expected, log_probs, labels = draw_predictions(6, seed=3)
    result = report(expected, log_probs, labels)
    bootstrapped = matrix_interval(result.confusion.counts, accuracy)
    assert bootstrapped == pytest.approx(result.intervals["accuracy"], abs=0.004)
    assert report(expected, log_probs, labels).intervals == result.intervals


def test_interval_of_300_classes_contains_the_metric() -> None:
    draw = np.random.default_rng(0)
    labels = [str(number) for number in range(300)]
    expected = [labels[index] for index in draw.integers(0, 300, size=600)]
    predicted = [label if draw.random() < 0.6 else labels[int(draw.integers(300))] for label in expected]
    confusion = Confusion.of(expected, predicted, labels)
    interval = matrix_interval(confusion.counts, matthews)
    assert interval.low < float(matthews(confusion.counts)) < interval.high


def test_inconsistent_inputs_are_rejected() -> None:
    with pytest.raises(
        DataError, match=r"Pass one prediction for each of at least one text; got 1 predictions for 2 texts"
    ):
        Confusion.of(["a", "b"], ["a"])
    with pytest.raises(DataError, match="got 0 predictions for 0 texts"):
        Confusion.of([], [])
    with pytest.raises(DataError, match="distinct; got a, a"):
        Confusion.of(["a"], ["a"], ["a", "a"])
    with pytest.raises(DataError, match=r"the shape \(2, 3\), texts by labels; got \(2, 2\)"):
        report(["a", "b"], np.zeros((2, 2)), ["a", "b", "c"])


def test_notebooks_show_metrics_with_intervals_and_the_confusion_matrix() -> None:
    report = MetricReport({"accuracy": 0.75, "loss": 1.5}, {"accuracy": Interval(0.25, 0.875)})
    row = ">accuracy</td>" + "".join(f'<td style="text-align: right">{value}</td>' for value in (0.75, 0.25, 0.875))
    assert row in report._repr_html_() and ">loss</td>" in report._repr_html_()
    table = Confusion.of(["a", "a", "<b>"], ["a", "<b>", "<b>"])._repr_html_()
    assert table.count("<tr>") == 3 and "<b>" not in table and "&lt;b&gt;" in table
