"""Filter and smoother compared with the joint Gaussian and statsmodels, and on numerically difficult systems."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.classical.dynamical import Joint, random_system, random_values
from torch import Tensor

from seqloom.classical.kalman.filter import Belief, System, covariance, kalman_filter, kalman_smoother, triangular
from seqloom.core.errors import DataError

CLOSE = 1e-9


def assert_close(ours: Tensor, theirs: Any) -> None:
    np.testing.assert_allclose(ours.numpy(), theirs, atol=CLOSE, rtol=CLOSE)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 7), st.integers(0, 2), st.integers(0, 1000))
def test_filter_and_smoother_match_the_joint_gaussian(
    hidden: int, columns: int, steps: int, inputs: int, seed: int
) -> None:
    system = random_system(hidden, columns, seed, inputs, rank=1 + seed % hidden)
    values, mask = random_values(2, steps, columns, seed)
    driven = torch.randn(2, steps, inputs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    given_inputs = driven if inputs else None
    filtered = kalman_filter(system, values, mask, given_inputs)
    smoothed = kalman_smoother(system, filtered)
    for row in range(2):
        joint = Joint(system, steps, driven[row].numpy() if inputs else None)
        seen, marked = values[row].numpy(), mask[row].numpy()
        assert filtered.log_likelihood[row].item() == pytest.approx(joint.log_density(seen, marked), abs=1e-9)
        means, covariances = joint.states_given(seen, marked)
        assert_close(smoothed.means[row], means)
        assert_close(covariance(smoothed.factors[row]), covariances)
        for t in range(steps):
            until = marked & (np.arange(steps)[:, None] <= t)
            means, covariances = joint.states_given(seen, until)
            assert_close(filtered.means[row, t], means[t])
            assert_close(covariance(filtered.factors[row, t]), covariances[t])


def test_batch_with_different_gaps_gives_the_same_results_as_single_rows() -> None:
    system = random_system(3, 2)
    values, mask = random_values(5, 9, 2)
    whole = kalman_smoother(system, kalman_filter(system, values, mask))
    for row in range(5):
        alone = kalman_smoother(system, kalman_filter(system, values[row : row + 1], mask[row : row + 1]))
        assert_close(alone.means[0], whole.means[row])
        assert_close(covariance(alone.factors[0]), covariance(whole.factors[row]))
        assert_close(alone.log_likelihood[0], whole.log_likelihood[row])


def test_equal_gaps_are_computed_once() -> None:
    system = random_system(3, 2)
    values, _ = random_values(6, 9, 2, missing=0.0)
    mask = torch.ones_like(values, dtype=torch.bool)
    mask[3:, 4] = False
    filtered = kalman_filter(system, values, mask)
    assert len(filtered.patterns) == 2 and filtered.factors.shape == (6, 9, 3, 3)


def test_reading_in_chunks_is_equivalent_to_reading_in_one_call() -> None:
    system = random_system(3, 2)
    values, mask = random_values(4, 10, 2)
    whole = kalman_filter(system, values, mask)
    first = kalman_filter(system, values[:, :6], mask[:, :6])
    belief = Belief(whole.expected_means[:, 6], whole.expected_patterns[whole.rows][:, 6])
    second = kalman_filter(system, values[:, 6:], mask[:, 6:], belief=belief)
    assert_close(torch.cat([first.means, second.means], dim=1), whole.means)
    assert_close(torch.cat([first.log_densities, second.log_densities], dim=1), whole.log_densities)


def test_filter_is_causal() -> None:
    system = random_system(3, 2)
    values, mask = random_values(1, 10, 2, missing=0.0)
    changed = values.clone()
    changed[:, 7] += 5
    before, after = kalman_filter(system, values, mask), kalman_filter(system, changed, mask)
    assert torch.equal(before.means[:, :7], after.means[:, :7])
    assert not torch.equal(before.means[:, 7], after.means[:, 7])
    smooth = [kalman_smoother(system, one).means[:, 6] for one in (before, after)]
    assert not torch.equal(*smooth)  # negative control: the smoother uses later values


# --- statsmodels ------------------------------------------------------------------------------------------------------


def statsmodels_results(system: System, values: Tensor) -> Any:
    statespace = pytest.importorskip("statsmodels.tsa.statespace.mlemodel")
    model = statespace.MLEModel(values.numpy(), k_states=len(system.mean), k_posdef=system.process.shape[1])
    model["design"], model["transition"] = system.emission.numpy(), system.transition.numpy()
    model["obs_intercept"] = system.offset.numpy()[:, None]
    model["obs_cov"] = covariance(system.observation).numpy()
    model["selection"] = system.process.numpy()
    model["state_cov"] = np.eye(system.process.shape[1])
    model.ssm.initialize_known(system.mean.numpy(), covariance(system.factor).numpy())
    model.ssm.tolerance = 0  # otherwise, nearly constant covariances are treated as converged
    return model.ssm.smooth()


@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize("rank", [1, 3])
def test_results_match_statsmodels(missing: float, rank: int) -> None:
    system = random_system(3, 2, seed=5, rank=rank)
    values, mask = random_values(1, 60, 2, seed=5, missing=missing)
    theirs = statsmodels_results(system, values[0])
    filtered = kalman_filter(system, values, mask)
    smoothed = kalman_smoother(system, filtered)
    assert_close(filtered.log_densities[0], theirs.llf_obs)
    assert_close(filtered.means[0], theirs.filtered_state.T)
    assert_close(covariance(filtered.factors[0]), theirs.filtered_state_cov.transpose(2, 0, 1))
    assert_close(smoothed.means[0], theirs.smoothed_state.T)
    assert_close(covariance(smoothed.factors[0]), theirs.smoothed_state_cov.transpose(2, 0, 1))


# --- numerically hard systems -----------------------------------------------------------------------------------------


def plain_filter(system: System, values: Tensor) -> list[Tensor]:
    """Negative control: the textbook filter on covariances."""
    mean, spread, covariances = system.mean, covariance(system.factor), []
    for value in values:
        innovation = system.emission @ spread @ system.emission.mT + covariance(system.observation)
        gain = spread @ system.emission.mT @ torch.linalg.inv(innovation)
        mean = mean + gain @ (value - system.offset - system.emission @ mean)
        spread = spread - gain @ system.emission @ spread
        covariances.append(spread)
        mean = system.transition @ mean
        spread = system.transition @ spread @ system.transition.mT + covariance(system.process)
    return covariances


def hard_system() -> System:
    """Two positions and velocities with a vague prior and precise observations."""
    easy = random_system(4, 2)
    eye = torch.eye(4, dtype=torch.float64)
    move = eye + torch.diag(torch.ones(2, dtype=torch.float64), 2)
    return replace(
        easy,
        transition=move,
        process=1e-9 * eye,
        emission=torch.tensor([[1.0, 1, 0, 0], [1, 1 + 1e-6, 0, 0]], dtype=torch.float64),
        observation=1e-7 * torch.eye(2, dtype=torch.float64),
        factor=1e6 * eye,
    )


def test_covariances_remain_positive_where_the_textbook_filter_fails() -> None:
    system = hard_system()
    values = torch.zeros(1, 40, 2, dtype=torch.float64)
    mask = torch.ones_like(values, dtype=torch.bool)
    smoothed = kalman_smoother(system, filtered := kalman_filter(system, values, mask))
    plain = plain_filter(system, values[0])
    lowest = min(torch.linalg.eigvalsh((one + one.mT) / 2).min() / one.abs().max() for one in plain)
    assert lowest < -1e-6  # negative control: a negative variance, beyond rounding
    for factors in (filtered.factors[0], smoothed.factors[0]):
        assert torch.isfinite(factors).all()
        assert (covariance(factors).diagonal(dim1=1, dim2=2) >= 0).all()
    assert torch.isfinite(filtered.log_likelihood).all()


def test_variance_of_ill_conditioned_system_matches_exact_arithmetic() -> None:
    """Compare with exact computation in rational numbers."""
    from fractions import Fraction

    system = hard_system()
    exact = [[[Fraction(x) for x in row] for row in matrix.tolist()] for matrix in (system.transition, system.emission)]
    move, see = exact
    noise, drift = Fraction(float(system.observation[0, 0])) ** 2, Fraction(float(system.process[0, 0])) ** 2
    spread = [[Fraction(float(system.factor[i, j])) ** 2 for j in range(4)] for i in range(4)]

    def matmul(a: list[list[Fraction]], b: list[list[Fraction]]) -> list[list[Fraction]]:
        return [
            [sum((x * y for x, y in zip(row, column, strict=True)), Fraction(0)) for column in zip(*b, strict=True)]
            for row in a
        ]

    values = torch.zeros(1, 6, 2, dtype=torch.float64)
    ours = covariance(kalman_filter(system, values, torch.ones_like(values, dtype=torch.bool)).factors[0])
    for t in range(6):
        for row in see:  # sequential updates do not need a matrix inverse
            cross = [sum((p * c for p, c in zip(line, row, strict=True)), Fraction(0)) for line in spread]
            size = sum((c * x for c, x in zip(row, cross, strict=True)), noise)
            spread = [[spread[i][j] - cross[i] * cross[j] / size for j in range(4)] for i in range(4)]
        for i in range(4):
            assert ours[t, i, i].item() == pytest.approx(float(spread[i][i]), rel=1e-3)
        spread = matmul(matmul(move, spread), [list(column) for column in zip(*move, strict=True)])
        spread = [[spread[i][j] + (drift if i == j else 0) for j in range(4)] for i in range(4)]


@pytest.mark.parametrize("known", [True, False])
def test_singular_state_covariance_is_smoothed(known: bool) -> None:
    """One component of the state has no noise, so the predicted covariance is singular."""
    system = random_system(3, 2, seed=2, rank=1)
    transition = system.transition.clone()
    transition[2] = 0  # the last component does not depend on the previous state
    process = system.process.clone()
    process[2] = 0
    system = replace(system, transition=transition, process=process, factor=(0.0 if known else 1.0) * system.factor)
    values, mask = random_values(1, 6, 2, seed=2)
    joint = Joint(system, 6)
    smoothed = kalman_smoother(system, kalman_filter(system, values, mask))
    means, covariances = joint.states_given(values[0].numpy(), mask[0].numpy())
    assert_close(smoothed.means[0], means)
    assert_close(covariance(smoothed.factors[0]), covariances)


def test_singular_observation_covariance_is_rejected() -> None:
    system = random_system(2, 2)
    twice = system.emission[[0, 0]]  # the same value twice, without noise
    system = replace(system, emission=twice, observation=torch.zeros(2, 2, dtype=torch.float64))
    values, mask = random_values(1, 4, 2, missing=0.0)
    with pytest.raises(DataError, match=r"step 1 is singular.*Remove this variable, or add noise"):
        kalman_filter(system, values, mask)


def test_divergent_state_is_rejected() -> None:
    system = random_system(2, 1)
    system = replace(system, transition=1e200 * system.transition)
    values, mask = random_values(1, 9, 1, missing=1.0)
    with pytest.raises(DataError, match="covariance of the state is not finite"):
        kalman_filter(system, values, mask)


def test_triangular_factor_has_the_covariance_of_the_array() -> None:
    array = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lower = triangular(array)
    assert torch.equal(lower, lower.tril())
    assert_close(covariance(lower), (array @ array.mT).numpy())
