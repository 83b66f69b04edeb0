"""EM: M-steps are optimal, the likelihood never decreases, and learned models predict like the true model."""

from dataclasses import replace
from itertools import islice, pairwise
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.classical.dynamical import Array, Joint, random_system, random_values, sample
from torch import Tensor

from seqloom.classical.kalman import KalmanConfig, LinearDynamical
from seqloom.classical.kalman.em import (
    LEARNED,
    Data,
    Rules,
    check_data,
    expectation_maximization,
    extrapolate,
    maximize,
    noise_factor,
    regress,
)
from seqloom.classical.kalman.filter import System, covariance, kalman_filter, kalman_smoother
from seqloom.core.errors import DataError

STRUCTURES = ("free", "level", "trend", "seasonal", "constant-velocity")


def draw_walks(batch: int, steps: int, columns: int, seed: int, missing: float = 0.2) -> Data:
    """Draw noisy random walks with a season of 4 and missing values. The last sequence is shorter."""
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randn(2, batch, steps, columns, generator=draw, dtype=torch.float64)
    values = noise[0].cumsum(dim=1) + noise[1] + 3 * torch.sin(torch.arange(steps) * torch.pi / 2)[:, None] + 50
    mask = torch.rand(batch, steps, columns, generator=draw) >= missing
    mask[-1, -4:] = False
    mask[:, :2] = True
    return Data(values.masked_fill(~mask, torch.nan), mask)


def run_rounds(model: LinearDynamical, data: Data, count: int) -> list[float]:
    model.begin(data)
    results = islice(expectation_maximization(model.system, data, model.rules), count)
    return [result.log_likelihood for result in results]


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(STRUCTURES),
    st.sampled_from(["diagonal", "full"]),
    st.integers(1, 2),
    st.integers(1, 3),
    st.sets(st.sampled_from(LEARNED), max_size=4),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["vague", "learned"]),
    st.integers(0, 100),
)
def test_likelihood_never_decreases(
    structure: Any,
    noise: Any,
    columns: int,
    batch: int,
    fixed: set[Any],
    driven: bool,
    damped: bool,
    start: Any,
    seed: int,
) -> None:
    data = draw_walks(batch, 14, columns, seed)
    if driven:
        inputs = torch.randn(batch, 14, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        data = replace(data, inputs=inputs)
    damped &= structure in ("level", "trend", "seasonal")
    config = KalmanConfig(
        structure=structure, hidden=2, noise=noise, fixed=tuple(sorted(fixed)), damped=damped, start=start
    )
    found = run_rounds(config.build(columns, 4, 2 if driven else 0), data, 8)
    assert all(after >= before - 1e-7 * abs(before) for before, after in pairwise(found))


def test_likelihood_decreases_with_a_wrong_m_step() -> None:
    """Negative control: scale the observation noise by 1.5 in every round."""
    data = draw_walks(2, 14, 1, 0)
    model = KalmanConfig(structure="level").build(1)
    model.begin(data)
    system, found = model.system, []
    for _ in range(30):
        smoothed = kalman_smoother(system, kalman_filter(system, data.values, data.mask))
        found.append(float(smoothed.log_likelihood.sum()))
        system = maximize(system, data, smoothed, model.rules)
        system = replace(system, observation=1.5 * system.observation)
    assert any(after < before for before, after in pairwise(found))


# --- the M-step against brute force ---------------------------------------------------------------------------------


def expected_log_p(system: System, joint: Joint, values: Array, mask: NDArray[np.bool_], inputs: Array) -> float:
    """Return E log p(h, y) of one sequence under `system`. `joint` defines the expectation.

    Steps without an observation do not contribute to the emission term.
    """
    size, wide = joint.hidden, joint.columns
    mean, spread = joint.all_given(values, mask)
    plain = {name: value.numpy() for name, value in vars(system).items()}
    eye = np.eye(len(mean))
    states = [eye[t * size : (t + 1) * size] for t in range(joint.steps)]
    seen = [eye[joint.steps * size + t * wide :][:wide] for t in range(joint.steps)]
    total = _log_normal(states[0] @ mean - plain["mean"], states[0] @ spread @ states[0].T, plain["factor"])
    for t in range(joint.steps):
        if mask[t].any():
            off = seen[t] - plain["emission"] @ states[t]
            total += _log_normal(off @ mean - plain["offset"], off @ spread @ off.T, plain["observation"])
        if t:
            off = states[t] - plain["transition"] @ states[t - 1]
            total += _log_normal(off @ mean - plain["drive"] @ inputs[t], off @ spread @ off.T, plain["process"])
    return total


def _log_normal(error: Array, spread: Array, factor: Array) -> float:
    """Return E log N(error + noise; 0, factor factorᵀ) for noise with covariance `spread`, up to a constant."""
    inverse = np.linalg.inv(factor @ factor.T)
    return float(-(error @ inverse @ error + np.trace(inverse @ spread)) / 2 - np.linalg.slogdet(factor)[1])


@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize("seed", range(3))
def test_m_step_is_a_local_maximum(seed: int, missing: float) -> None:
    system = random_system(2, 2, seed, inputs=1)
    values, mask = random_values(2, 5, 2, seed, missing)
    mask[:, -1, 0] = True  # transitions after the last observation are not used
    values = torch.where(mask, values.nan_to_num(nan=1.0), torch.nan)
    inputs = torch.randn(2, 5, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    data, joints = Data(values, mask, inputs), [Joint(system, 5, one.numpy()) for one in inputs]
    smoothed = kalman_smoother(system, kalman_filter(system, values, mask, inputs))
    best = maximize(system, data, smoothed, Rules(diagonal=False))

    def value(candidate: System) -> float:
        parts = zip(joints, values.numpy(), mask.numpy(), inputs.numpy(), strict=True)
        return sum(expected_log_p(candidate, *part) for part in parts)

    top, draw = value(best), torch.Generator().manual_seed(seed)
    assert value(system) < top
    for name, parameter in vars(best).items():
        for size in (1e-2, 1e-3):
            other = parameter + size * torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
            assert value(replace(best, **{name: other})) < top, name


def test_full_noise_covariance_is_learned_despite_gaps() -> None:
    """The values are correlated and have gaps. Diagonal noise is the negative control."""
    draw = torch.Generator().manual_seed(0)
    both = torch.randn(1, 160, 1, generator=draw, dtype=torch.float64)
    values = torch.cat([both, both + 0.3 * torch.randn(1, 160, 1, generator=draw, dtype=torch.float64)], dim=2)
    mask = torch.rand(1, 160, 2, generator=draw) >= 0.3
    learned = {}
    noises: tuple[Literal["full", "diagonal"], ...] = ("full", "diagonal")
    for noise in noises:
        model = KalmanConfig(structure="level", noise=noise, rounds=12).build(2)
        *_, _ = model.estimates(Data(values, mask))
        learned[noise] = covariance(model.system.observation)
    assert learned["full"][0, 1] == pytest.approx(1.0, abs=0.25)
    assert learned["diagonal"][0, 1] == 0


# --- learned models -------------------------------------------------------------------------------------------------


def test_learned_model_predicts_like_the_true_model() -> None:
    """Compare on held-out sequences, because parameters are identifiable only up to a change of basis."""
    truth = random_system(2, 3, seed=3)
    true = KalmanConfig(structure="free", hidden=2).build(3)
    true.system = truth
    train, held = (
        sample(true, 12, 150, torch.Generator().manual_seed(1)),
        sample(true, 40, 60, torch.Generator().manual_seed(2)),
    )
    model = KalmanConfig(structure="free", hidden=2, noise="full", rounds=60).build(3)
    data = Data(train, torch.ones_like(train, dtype=torch.bool))
    model.begin(data)
    first, best = (float(one.score(held)[:, 5:].mean()) for one in (model, true))
    *_, _ = model.estimates(data)
    learned = float(model.score(held)[:, 5:].mean())
    assert best - first > 0.3  # the initial model is much worse
    assert best - learned < 0.02
    ours, theirs = (
        one.filter(held).expected_means @ one.system.emission.mT + one.system.offset for one in (model, true)
    )
    assert float((ours - theirs)[:, 5:].square().mean()) < 0.02 * float(held.var())


def test_noise_variances_of_a_local_level_model_are_recovered() -> None:
    true = KalmanConfig(structure="level").build(1)
    one = torch.ones(1, 1, dtype=torch.float64)
    true.system = replace(
        true.system, transition=one, emission=one, process=0.5 * one, observation=2 * one, factor=one, mean=one[0]
    )
    values = sample(true, 20, 100, torch.Generator().manual_seed(0))
    model = KalmanConfig(structure="level").build(1)
    *_, last = model.estimates(Data(values, torch.ones_like(values, dtype=torch.bool)))
    assert last.step < 100  # EM converged
    assert model.system.process.item() == pytest.approx(0.5, rel=0.1)
    assert model.system.observation.item() == pytest.approx(2.0, rel=0.1)


def test_extrapolation_speeds_up_em() -> None:
    """Compare equal numbers of rounds with and without extrapolation."""
    data = draw_walks(1, 60, 1, 3)
    model = KalmanConfig(structure="trend").build(1)
    extrapolated = run_rounds(model, data, 15)
    system, plain = model.system, []
    for _ in range(15):
        smoothed = kalman_smoother(system, kalman_filter(system, data.values, data.mask))
        plain.append(float(smoothed.log_likelihood.sum()))
        system = maximize(system, data, smoothed, model.rules)
    assert extrapolated[-1] > plain[-1]
    assert extrapolate(model.system, system, Rules(), 1.0) is None


def test_fixed_parameters_do_not_change() -> None:
    data = draw_walks(2, 20, 2, 0)
    model = KalmanConfig(structure="free", hidden=2, fixed=("emission", "process", "mean"), rounds=10).build(2)
    model.begin(data)
    before = model.system
    *_, _ = model.estimates(data)
    for name in ("emission", "process", "mean"):
        assert torch.equal(getattr(model.system, name), getattr(before, name))
    for name in ("transition", "offset", "observation", "factor"):
        assert not torch.equal(getattr(model.system, name), getattr(before, name))


def test_named_structures_learn_only_the_noise_variances() -> None:
    data = draw_walks(2, 20, 2, 0)
    model = KalmanConfig(structure="constant-velocity", rounds=10).build(2)
    *_, _ = model.estimates(data)
    first = KalmanConfig(structure="constant-velocity").build(2)
    first.begin(data)
    for name in ("transition", "emission", "offset", "mean", "factor"):
        assert torch.equal(getattr(model.system, name), getattr(first.system, name))
    drift = covariance(model.system.process)  # each of the two axes has correlated position and velocity
    for axis in (0, 2):
        block = drift[axis : axis + 2, axis : axis + 2]
        expected = torch.tensor([[1 / 3, 1 / 2], [1 / 2, 1]], dtype=torch.float64) * block[1, 1]
        torch.testing.assert_close(block, expected)
    assert drift[0, 2] == 0 and drift[1, 1] != drift[3, 3]


def test_damped_level_decays_to_its_mean() -> None:
    """The level decays to 20 with ρ = 0.7 and without a trend. An undamped level stays constant."""
    draw, values = torch.Generator().manual_seed(0), [0.0]
    for noise in torch.randn(400, generator=draw).tolist():
        values.append(0.7 * values[-1] + noise)
    data = make_data([20 + value for value in values[201:]])
    model = KalmanConfig(structure="level", damped=True, rounds=25).build(1)
    *_, _ = model.estimates(data)
    assert model.system.transition.item() == pytest.approx(0.7, abs=0.15)
    assert model.system.offset.item() == pytest.approx(20, abs=0.8)
    above = torch.full((1, 30, 1), 24.0)
    mean, spread = model.exact_forecast(above, None, 60)
    assert float(mean[0, -1, 0]) == pytest.approx(model.system.offset.item(), abs=0.01)
    assert float(spread[0, -1, 0, 0]) == pytest.approx(1 / (1 - 0.7**2), rel=0.4)
    plain = KalmanConfig(structure="level", rounds=10).build(1)
    *_, _ = plain.estimates(data)
    assert float(plain.exact_forecast(above, None, 60)[0][0, -1, 0]) == pytest.approx(24, abs=0.1)


def test_first_state_is_learned_from_several_sequences() -> None:
    begins = torch.tensor([3.0, 5.0, 4.0, 4.0]).double()
    data = Data(begins.view(-1, 1, 1).expand(-1, 20, 1).clone(), torch.ones(4, 20, 1, dtype=torch.bool))
    model = KalmanConfig(structure="level", start="learned", rounds=30).build(1)
    *_, _ = model.estimates(data)
    assert model.system.mean.item() == pytest.approx(4, abs=0.05)
    assert covariance(model.system.factor).item() == pytest.approx(0.5, abs=0.1)


def test_noise_factors_respect_the_floor_and_shared_variances() -> None:
    moments = torch.tensor([[4.0, 1, 0], [1, 2, 0], [0, 0, 0]], dtype=torch.float64)
    floor = torch.tensor(1e-4, dtype=torch.float64)
    torch.testing.assert_close(
        covariance(noise_factor(moments, None, floor)), moments + torch.diag(floor * torch.tensor([0, 0, 1]))
    )
    torch.testing.assert_close(
        noise_factor(moments, (0, 0, 1), floor).diagonal().square(), torch.tensor([3, 3, 1e-4]).double()
    )


def test_regression_on_collinear_inputs_has_the_smallest_weights() -> None:
    square = torch.ones(2, 2, dtype=torch.float64)
    found = regress(torch.tensor([[2.0, 2.0]]).double(), square, torch.zeros(1, 2).double(), torch.tensor([True, True]))
    torch.testing.assert_close(found, torch.tensor([[1.0, 1.0]]).double())


# --- unusable data --------------------------------------------------------------------------------------------------


def make_data(values: list[float]) -> Data:
    tensor: Tensor = torch.tensor(values, dtype=torch.float64).view(1, -1, 1)
    return Data(tensor, ~tensor.isnan())


@pytest.mark.parametrize(
    ("values", "inputs", "words"),
    [
        ([torch.nan] * 4, 0, "All values are missing"),
        ([1.0], 0, "at least two observed steps"),
        ([1.0, torch.nan, torch.nan], 0, "at least two observed steps"),
        ([1.0, torch.inf, 2.0], 0, "must be finite"),
        ([1.0, 2.0], 3, "Some of the 3 inputs have missing values"),
    ],
)
def test_unusable_data_is_rejected(values: list[float], inputs: int, words: str) -> None:
    with pytest.raises(DataError, match=words):
        check_data(make_data(values), Rules(), inputs)


def test_constant_value_is_learned() -> None:
    model = KalmanConfig(structure="trend", rounds=20).build(1)
    *_, _ = model.estimates(make_data([5.0] * 12))
    mean, spread = model.exact_forecast(torch.full((1, 12, 1), 5.0), None, 3)
    torch.testing.assert_close(mean, torch.full((1, 3, 1), 5.0).double(), atol=1e-3, rtol=0)
    assert torch.isfinite(spread).all()
