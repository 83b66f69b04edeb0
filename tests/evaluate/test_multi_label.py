"""Metrics of multi-label classifiers compared with scikit-learn and with counts by brute force."""

import math
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
import torch

from seqloom.core.errors import DataError
from seqloom.evaluate.confidence import fit_temperature
from seqloom.evaluate.multi_label import (
    average_precision,
    baselines,
    choose_thresholds,
    f1_thresholds,
    label_matrix,
    report,
    sigmoid,
)

LABELS = ["a", "b", "c", "d"]


def draw(seed: int, texts: int = 60, labels: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Draw logits with ties and correct labels (N, L). Some texts have no label."""
    generator = np.random.default_rng(seed)
    correct = generator.random((texts, labels)) < generator.uniform(0.05, 0.6, labels)
    logits = np.round(generator.normal(size=(texts, labels)) + 1.5 * correct - 0.7, 1)
    return logits, correct


def label_sets(correct: np.ndarray) -> list[list[str]]:
    return [[LABELS[k] for k in np.flatnonzero(row)] for row in correct]


@pytest.mark.parametrize("seed", range(8))
def test_metrics_match_scikit_learn(seed: int) -> None:
    metrics: Any = pytest.importorskip("sklearn.metrics")
    logits, correct = draw(seed)
    thresholds = np.random.default_rng(seed).uniform(0.2, 0.8, 4)
    result = report(label_sets(correct), logits, LABELS, thresholds.tolist())
    p = 1 / (1 + np.exp(-logits))
    predicted = p >= thresholds
    f1 = {
        average: metrics.f1_score(
            correct, predicted, average=average, zero_division=1.0 if average == "samples" else np.nan
        )
        for average in ("micro", "macro", "weighted", "samples")
    }
    expected = {
        "loss": np.mean([metrics.log_loss(correct[:, k], p[:, k], labels=[False, True]) for k in range(4)]),
        **{f"{name}_f1": value for name, value in f1.items()},
        "subset_accuracy": metrics.accuracy_score(correct, predicted),
        "hamming_loss": metrics.hamming_loss(correct, predicted),
        "average_precision": metrics.average_precision_score(correct, p, average="macro"),
        "micro_average_precision": metrics.average_precision_score(correct, p, average="micro"),
    }
    assert {name: result.metrics[name] for name in expected} == pytest.approx(expected, abs=1e-10)
    by_label = metrics.precision_recall_fscore_support(correct, predicted, zero_division=0)
    for k, label in enumerate(LABELS):
        hits = result.by_class[label]
        assert (hits.precision, hits.recall, hits.f1, hits.expected) == pytest.approx([row[k] for row in by_label])
        assert result.average_precision[label] == pytest.approx(
            metrics.average_precision_score(correct[:, k], p[:, k]), abs=1e-10
        )
        assert result.thresholds[label] == thresholds[k]


def test_average_precision_matches_its_definition() -> None:
    """Σ_n (R_n − R_{n−1}) P_n, with precision and recall counted at each distinct score."""
    generator = np.random.default_rng(3)
    for _ in range(50):
        scores, correct = generator.integers(0, 6, 12) / 5, generator.random(12) < 0.4
        if not correct.any():
            assert math.isnan(average_precision(scores, correct))
            continue
        total, last = 0.0, 0.0
        for limit in sorted(set(scores.tolist()), reverse=True):
            above = scores >= limit
            recall = (above & correct).sum() / correct.sum()
            total, last = total + (recall - last) * (above & correct).sum() / above.sum(), recall
        assert average_precision(scores, correct) == pytest.approx(total, abs=1e-12)


def test_baselines_match_the_best_constant_predictions() -> None:
    """Try all label sets as the constant prediction."""
    for seed in range(10):
        _, correct = draw(seed, texts=15)
        found = baselines(correct)
        subsets = chain.from_iterable(combinations(range(4), size) for size in range(5))
        constants = [np.isin(np.arange(4), subset) for subset in subsets]
        predictions = [np.tile(constant, (15, 1)) for constant in constants]
        f1 = [2 * (correct & each).sum() / max(1, correct.sum() + each.sum()) for each in predictions]
        assert found == pytest.approx(
            {
                "constant_f1": max(f1),
                "majority_set": max((correct == each).all(axis=1).mean() for each in predictions),
                "majority_hamming_loss": min((correct != each).mean() for each in predictions),
            }
        )


def test_labels_absent_from_training_count_as_missed() -> None:
    logits = np.array([[4.0, -4.0], [4.0, 4.0], [-4.0, -4.0]])
    result = report([["a", "x"], ["a", "b"], ["x"]], logits, ["a", "b"])
    assert result.unseen == {"x": 2}
    assert result.by_class["x"].expected == 2 and result.by_class["x"].predicted == 0
    assert result.metrics["micro_f1"] == pytest.approx(2 * 3 / (3 + 5))
    assert result.metrics["subset_accuracy"] == pytest.approx(1 / 3)
    assert result.metrics["hamming_loss"] == pytest.approx(2 / 9)
    assert result.metrics["average_precision"] == 1.0  # average over the labels that the model knows
    with pytest.raises(DataError, match=r"must have the shape \(3, 3\)"):
        report([["a"], ["a"], ["b"]], logits, ["a", "b", "c"])


def test_empty_label_sets_can_be_correct() -> None:
    result = report([[], ["a"], []], np.array([[-3.0, -3.0], [3.0, -3.0], [-3.0, 3.0]]), ["a", "b"])
    assert result.metrics["samples_f1"] == pytest.approx(2 / 3)
    assert result.metrics["subset_accuracy"] == pytest.approx(2 / 3)
    assert math.isnan(result.average_precision["b"])


@pytest.mark.parametrize("precision", [None, 0.6, 0.9])
def test_thresholds_are_the_best_of_all(precision: float | None) -> None:
    """Try all thresholds between two scores."""
    for seed in range(15):
        logits, correct = draw(seed, texts=25)
        p = sigmoid(logits)
        for k, threshold in enumerate(choose_thresholds(p, correct, precision)):
            scores, truth = p[:, k], correct[:, k]
            if not truth.any():
                assert threshold == 0.5
                continue

            def hits(limit: float, scores: np.ndarray = scores, truth: np.ndarray = truth) -> tuple[int, int]:
                return int((truth & (scores >= limit)).sum()), int((scores >= limit).sum())

            if precision is None:
                assert threshold is not None
                right, predicted = hits(threshold)
                f1 = [2 * a / (b + truth.sum()) for a, b in map(hits, scores)]
                assert 2 * right / (predicted + truth.sum()) == pytest.approx(max(f1))
                continue
            reached = [limit for limit in scores if hits(limit)[0] >= precision * hits(limit)[1]]
            if threshold is None:
                assert not reached
            else:
                assert hits(threshold) == hits(min(reached))
    assert f1_thresholds(np.array([[-2.0], [1.0], [3.0]]), np.array([[0], [1], [1]])) == pytest.approx(
        [(sigmoid(np.array(-2.0)) + sigmoid(np.array(1.0))) / 2]
    )


def test_temperature_minimizes_binary_cross_entropy() -> None:
    """Compare the temperature of pairs of logits (0, z) with the minimum of the loss on a fine grid."""
    logits, correct = draw(5, texts=200)
    pairs = np.stack([np.zeros(logits.size), 3 * logits.ravel()], axis=1)
    temperature = fit_temperature(pairs, correct.ravel().astype(np.int64))
    z, y = torch.tensor(3 * logits), torch.tensor(correct.astype(float))
    grid = torch.linspace(0.5, 20, 3901, dtype=torch.float64)
    losses = [torch.nn.functional.binary_cross_entropy_with_logits(z / t, y).item() for t in grid]
    assert temperature == pytest.approx(grid[int(np.argmin(losses))].item(), abs=0.01)


def test_label_matrix_ignores_other_labels() -> None:
    assert label_matrix([["b"], [], ["a", "x"]], ["a", "b"]).tolist() == [[0, 1], [0, 0], [1, 0]]
    assert sigmoid(np.array([-1000.0, 0.0, 1000.0])).tolist() == [0.0, 0.5, 1.0]
