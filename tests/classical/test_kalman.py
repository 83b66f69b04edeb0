"""Filter and smoother against the joint Gaussian and statsmodels; and where covariances themselves would fail."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.classical.dynamical import Joint, drawn_system, drawn_values
from torch import Tensor

from seqloom.classical.kalman.filter import Belief, System, covariance, kalman_filter, kalman_smoother, triangular
from seqloom.core.errors import DataError

CLOSE = 1e-9


def close(ours: Tensor, theirs: Any) -> None:
    np.testing.assert_allclose(ours.numpy(), theirs, atol=CLOSE, rtol=CLOSE)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 7), st.integers(0, 2), st.integers(0, 1000))
def test_they_condition_the_joint_gaussian(hidden: int, columns: int, steps: int, inputs: int, seed: int) -> None:
    system = drawn_system(hidden, columns, seed, inputs, rank=1 + seed % hidden)
    values, mask = drawn_values(2, steps, columns, seed)
    driven = torch.randn(2, steps, inputs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    given_inputs = driven if inputs else None
    filtered = kalman_filter(system, values, mask, given_inputs)
    smoothed = kalman_smoother(system, filtered)
    for row in range(2):
        joint = Joint(system, steps, driven[row].numpy() if inputs else None)
        seen, marked = values[row].numpy(), mask[row].numpy()
        assert filtered.log_likelihood[row].item() == pytest.approx(joint.log_density(seen, marked), abs=1e-9)
        means, covariances = joint.states_given(seen, marked)
        close(smoothed.means[row], means)
        close(covariance(smoothed.factors[row]), covariances)
        for t in range(steps):
            until = marked & (np.arange(steps)[:, None] <= t)
            means, covariances = joint.states_given(seen, until)
            close(filtered.means[row, t], means[t])
            close(covariance(filtered.factors[row, t]), covariances[t])


def test_a_batch_with_other_gaps_in_each_row_is_its_rows() -> None:
    system = drawn_system(3, 2)
    values, mask = drawn_values(5, 9, 2)
    whole = kalman_smoother(system, kalman_filter(system, values, mask))
    for row in range(5):
        alone = kalman_smoother(system, kalman_filter(system, values[row : row + 1], mask[row : row + 1]))
        close(alone.means[0], whole.means[row])
        close(covariance(alone.factors[0]), covariance(whole.factors[row]))
        close(alone.log_likelihood[0], whole.log_likelihood[row])


def test_the_same_gaps_are_worked_out_once() -> None:
    system = drawn_system(3, 2)
    values, _ = drawn_values(6, 9, 2, missing=0.0)
    mask = torch.ones_like(values, dtype=torch.bool)
    mask[3:, 4] = False
    filtered = kalman_filter(system, values, mask)
    assert len(filtered.patterns) == 2 and filtered.factors.shape == (6, 9, 3, 3)


def test_in_two_pieces_as_in_one() -> None:
    system = drawn_system(3, 2)
    values, mask = drawn_values(4, 10, 2)
    whole = kalman_filter(system, values, mask)
    first = kalman_filter(system, values[:, :6], mask[:, :6])
    belief = Belief(whole.expected_means[:, 6], whole.expected_patterns[whole.rows][:, 6])
    second = kalman_filter(system, values[:, 6:], mask[:, 6:], belief=belief)
    close(torch.cat([first.means, second.means], dim=1), whole.means)
    close(torch.cat([first.log_densities, second.log_densities], dim=1), whole.log_densities)


def test_a_later_value_changes_nothing_before_it() -> None:
    system = drawn_system(3, 2)
    values, mask = drawn_values(1, 10, 2, missing=0.0)
    changed = values.clone()
    changed[:, 7] += 5
    before, after = kalman_filter(system, values, mask), kalman_filter(system, changed, mask)
    assert torch.equal(before.means[:, :7], after.means[:, :7])
    assert not torch.equal(before.means[:, 7], after.means[:, 7])
    smooth = [kalman_smoother(system, one).means[:, 6] for one in (before, after)]
    assert not torch.equal(*smooth)  # the control: the smoother does look ahead


# --- statsmodels ------------------------------------------------------------------------------------------------------


def their_results(system: System, values: Tensor) -> Any:
    statespace = pytest.importorskip("statsmodels.tsa.statespace.mlemodel")
    model = statespace.MLEModel(values.numpy(), k_states=len(system.mean), k_posdef=system.process.shape[1])
    model["design"], model["transition"] = system.emission.numpy(), system.transition.numpy()
    model["obs_intercept"] = system.offset.numpy()[:, None]
    model["obs_cov"] = covariance(system.observation).numpy()
    model["selection"] = system.process.numpy()
    model["state_cov"] = np.eye(system.process.shape[1])
    model.ssm.initialize_known(system.mean.numpy(), covariance(system.factor).numpy())
    model.ssm.tolerance = 0  # else it takes covariances that hardly change as settled
    return model.ssm.smooth()


@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize("rank", [1, 3])
def test_as_statsmodels_says(missing: float, rank: int) -> None:
    system = drawn_system(3, 2, seed=5, rank=rank)
    values, mask = drawn_values(1, 60, 2, seed=5, missing=missing)
    theirs = their_results(system, values[0])
    filtered = kalman_filter(system, values, mask)
    smoothed = kalman_smoother(system, filtered)
    close(filtered.log_densities[0], theirs.llf_obs)
    close(filtered.means[0], theirs.filtered_state.T)
    close(covariance(filtered.factors[0]), theirs.filtered_state_cov.transpose(2, 0, 1))
    close(smoothed.means[0], theirs.smoothed_state.T)
    close(covariance(smoothed.factors[0]), theirs.smoothed_state_cov.transpose(2, 0, 1))


# --- numbers that lie far apart ---------------------------------------------------------------------------------------


def plain_filter(system: System, values: Tensor) -> list[Tensor]:
    """The control: the equations of most books, on the covariances themselves."""
    mean, spread, found = system.mean, covariance(system.factor), []
    for value in values:
        innovation = system.emission @ spread @ system.emission.mT + covariance(system.observation)
        gain = spread @ system.emission.mT @ torch.linalg.inv(innovation)
        mean = mean + gain @ (value - system.offset - system.emission @ mean)
        spread = spread - gain @ system.emission @ spread
        found.append(spread)
        mean = system.transition @ mean
        spread = system.transition @ spread @ system.transition.mT + covariance(system.process)
    return found


def hard_system() -> System:
    """Two places and their velocities, of which nothing is known at first, and then almost everything."""
    easy = drawn_system(4, 2)
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


def test_covariances_stay_what_they_are_where_plain_equations_fail() -> None:
    system = hard_system()
    values = torch.zeros(1, 40, 2, dtype=torch.float64)
    mask = torch.ones_like(values, dtype=torch.bool)
    smoothed = kalman_smoother(system, filtered := kalman_filter(system, values, mask))
    plain = plain_filter(system, values[0])
    lowest = min(torch.linalg.eigvalsh((one + one.mT) / 2).min() / one.abs().max() for one in plain)
    assert lowest < -1e-6  # the control: a negative variance, well beyond rounding
    for factors in (filtered.factors[0], smoothed.factors[0]):
        assert torch.isfinite(factors).all()
        assert (covariance(factors).diagonal(dim1=1, dim2=2) >= 0).all()
    assert torch.isfinite(filtered.log_likelihood).all()


def test_the_variance_of_the_hard_system_is_right() -> None:
    """Against the same sums in rational numbers."""
    from fractions import Fraction

    system = hard_system()
    exact = [[[Fraction(x) for x in row] for row in matrix.tolist()] for matrix in (system.transition, system.emission)]
    move, see = exact
    noise, drift = Fraction(float(system.observation[0, 0])) ** 2, Fraction(float(system.process[0, 0])) ** 2
    spread = [[Fraction(float(system.factor[i, j])) ** 2 for j in range(4)] for i in range(4)]

    def times(a: list[list[Fraction]], b: list[list[Fraction]]) -> list[list[Fraction]]:
        return [
            [sum((x * y for x, y in zip(row, column, strict=True)), Fraction(0)) for column in zip(*b, strict=True)]
            for row in a
        ]

    values = torch.zeros(1, 6, 2, dtype=torch.float64)
    ours = covariance(kalman_filter(system, values, torch.ones_like(values, dtype=torch.bool)).factors[0])
    for t in range(6):
        for row in see:  # one value after the other: no matrix to invert
            cross = [sum((p * c for p, c in zip(line, row, strict=True)), Fraction(0)) for line in spread]
            size = sum((c * x for c, x in zip(row, cross, strict=True)), noise)
            spread = [[spread[i][j] - cross[i] * cross[j] / size for j in range(4)] for i in range(4)]
        for place in range(4):
            assert ours[t, place, place].item() == pytest.approx(float(spread[place][place]), rel=1e-3)
        spread = times(times(move, spread), [list(column) for column in zip(*move, strict=True)])
        spread = [[spread[i][j] + (drift if i == j else 0) for j in range(4)] for i in range(4)]


@pytest.mark.parametrize("known", [True, False])
def test_a_state_that_cannot_vary_in_some_direction_is_smoothed(known: bool) -> None:
    """Part of the state never gets any noise, and the first may be known: what comes next has a singular covariance."""
    system = drawn_system(3, 2, seed=2, rank=1)
    transition = system.transition.clone()
    transition[2] = 0  # the last part of the state is noise alone, or nothing
    process = system.process.clone()
    process[2] = 0
    system = replace(system, transition=transition, process=process, factor=(0.0 if known else 1.0) * system.factor)
    values, mask = drawn_values(1, 6, 2, seed=2)
    joint = Joint(system, 6)
    smoothed = kalman_smoother(system, kalman_filter(system, values, mask))
    means, covariances = joint.states_given(values[0].numpy(), mask[0].numpy())
    close(smoothed.means[0], means)
    close(covariance(smoothed.factors[0]), covariances)


def test_a_singular_covariance_is_refused() -> None:
    system = drawn_system(2, 2)
    twice = system.emission[[0, 0]]  # the same value twice, without noise
    system = replace(system, emission=twice, observation=torch.zeros(2, 2, dtype=torch.float64))
    values, mask = drawn_values(1, 4, 2, missing=0.0)
    with pytest.raises(DataError, match=r"step 1 is singular.*Leave out the value that repeats others"):
        kalman_filter(system, values, mask)


def test_a_state_that_grows_without_bound_is_refused() -> None:
    system = drawn_system(2, 1)
    system = replace(system, transition=1e200 * system.transition)
    values, mask = drawn_values(1, 9, 1, missing=1.0)
    with pytest.raises(DataError, match="no longer finite"):
        kalman_filter(system, values, mask)


def test_triangular() -> None:
    array = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lower = triangular(array)
    assert torch.equal(lower, lower.tril())
    close(covariance(lower), (array @ array.mT).numpy())
