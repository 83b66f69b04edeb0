"""The linear dynamical system as a model: structures, forecasts, checkpoints, resuming, and invalid input."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.classical.dynamical import Joint, random_system, random_values, sample
from tests.classical.test_kalman_em import STRUCTURES, draw_walks

from seqloom.classical.kalman import KalmanConfig, LinearDynamical
from seqloom.classical.kalman.em import Data
from seqloom.classical.kalman.filter import covariance, kalman_filter
from seqloom.config import build
from seqloom.core.errors import CheckpointError, UsageError
from seqloom.core.protocols import Forecastable
from seqloom.decoding.forecast import forecast


def random_model(hidden: int = 3, variables: int = 2, inputs: int = 0, seed: int = 0) -> LinearDynamical:
    model = KalmanConfig(structure="free", hidden=hidden).build(variables, inputs=inputs)
    model.system = random_system(hidden, variables, seed, inputs)
    return model


# --- structures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", STRUCTURES)
def test_each_structure_learns_two_variables_with_gaps(structure: str) -> None:
    data = draw_walks(2, 24, 2, seed=1)
    model = KalmanConfig(structure=structure, hidden=3, rounds=8, tolerance=0).build(2, 4)  # type: ignore[arg-type]
    losses = [one.values["loss"] for one in model.estimates(data)]
    assert len(losses) == 8 and losses[-1] < losses[0]
    mean, spread = model.exact_forecast(data.values, None, 6)
    assert torch.isfinite(mean).all()
    assert (torch.linalg.eigvalsh(spread) > 0).all()


@pytest.mark.parametrize("scale", [1e12, 1e-12])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_loss_is_independent_of_the_unit(structure: Any, scale: float) -> None:
    data = draw_walks(1, 20, 2, seed=5)
    found = []
    for values in (data.values, data.values * scale):
        model = KalmanConfig(structure=structure, hidden=2, rounds=6, tolerance=0).build(2, 4)
        *_, last = model.estimates(Data(values, data.mask))
        found.append(last.values["loss"])
    assert found[1] - found[0] == pytest.approx(np.log(scale), abs=1e-3)


def test_default_structure_depends_on_the_season() -> None:
    assert KalmanConfig().build(1, 12).structure == "seasonal"
    assert KalmanConfig(season=4).build(1, 12).hidden == 5
    assert KalmanConfig().build(1, 1).structure == "trend"


@pytest.mark.parametrize("season", [2, 4, 12])
def test_seasonal_structure_matches_statsmodels(season: int) -> None:
    structural = pytest.importorskip("statsmodels.tsa.statespace.structural")
    data = draw_walks(1, 40, 1, seed=2)
    model = KalmanConfig(structure="seasonal").build(1, season)
    model.begin(data)
    system = model.system
    theirs = structural.UnobservedComponents(data.values[0].numpy(), "lltrend", seasonal=season)
    variances = system.process[:3].diagonal().square().tolist()
    theirs.update([float(system.observation.square()), *variances])
    np.testing.assert_array_equal(theirs["transition"], system.transition.numpy())
    np.testing.assert_array_equal(theirs["design"].ravel(), system.emission.numpy().ravel())
    theirs.ssm.initialize_known(system.mean.numpy(), covariance(system.factor).numpy())
    theirs.ssm.tolerance, theirs.ssm.loglikelihood_burn = 0, 0
    ours = float(kalman_filter(system, data.values, data.mask).log_likelihood.sum())
    assert ours == pytest.approx(theirs.ssm.loglike(), rel=1e-7)


def test_season_and_trend_are_forecast() -> None:
    steps = torch.arange(60, dtype=torch.float64)
    truth = 10 + 0.5 * steps + 4 * torch.sin(2 * torch.pi * steps / 6)
    draw = torch.Generator().manual_seed(0)
    values = (truth + 0.1 * torch.randn(60, generator=draw, dtype=torch.float64)).view(1, -1, 1)
    model = KalmanConfig(rounds=30).build(1, 6)
    *_, _ = model.estimates(Data(values[:, :48], torch.ones(1, 48, 1, dtype=torch.bool)))
    mean, spread = model.exact_forecast(values[:, :48], None, 12)
    assert (mean[0, :, 0] - truth[48:]).abs().max() < 0.5
    assert (spread[0, 1:, 0, 0] >= spread[0, :-1, 0, 0] * 0.9).all()  # the uncertainty grows


# --- forecasts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", [0, 2])
def test_forecast_matches_the_conditional_gaussian(inputs: int) -> None:
    model = random_model(inputs=inputs)
    values, mask = random_values(2, 6, 2)
    driven = torch.randn(2, 10, inputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    known, future = (driven[:, :6], driven[:, 6:]) if inputs else (None, None)
    mean, spread = model.exact_forecast(values, mask, 4, known, future)
    for row in range(2):
        joint = Joint(model.system, 10, driven[row].numpy() if inputs else None)
        seen = np.concatenate([mask[row].numpy(), np.zeros((4, 2), dtype=bool)])
        padded = np.concatenate([values[row].nan_to_num().numpy(), np.zeros((4, 2))])
        means, covariances = joint.values_given(padded, seen)
        np.testing.assert_allclose(mean[row].numpy(), means[6:], atol=1e-9)
        np.testing.assert_allclose(spread[row].numpy(), covariances[6:], atol=1e-9)


def test_chunked_steps_match_the_forecast() -> None:
    model = random_model(inputs=1)
    assert isinstance(model, Forecastable)
    values, mask = random_values(3, 8, 2)
    inputs = torch.randn(3, 9, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    state, scores = model.start(3), []
    for part in (slice(0, 1), slice(1, 5), slice(5, 8)):
        after = model.step(values[:, part], state, mask[:, part], inputs[:, part.start + 1 : part.stop + 1])
        state = after.state
        scores.append(after.mean)
    mean, spread = model.exact_forecast(values, mask, 1, inputs[:, :8], inputs[:, 8:])
    assert after.covariance is not None
    torch.testing.assert_close(after.mean, mean[:, 0], atol=1e-10, rtol=0)
    torch.testing.assert_close(after.covariance, spread[:, 0], atol=1e-10, rtol=0)
    assert not torch.allclose(scores[0], scores[1])


def test_sampled_paths_match_the_exact_forecast() -> None:
    model = random_model()
    values, mask = random_values(2, 8, 2)

    class Stepped:
        """A version of the model without exact forecasts."""

        start, step, score = model.start, model.step, model.score

    exact = forecast(model, values, mask, 5)
    drawn = forecast(Stepped(), values.nan_to_num(), mask, 5, paths=4000, generator=torch.Generator().manual_seed(0))
    assert exact.exact and not drawn.exact
    torch.testing.assert_close(drawn.mean, exact.mean, atol=0.12, rtol=0)
    torch.testing.assert_close(drawn.deviation, exact.deviation, atol=0, rtol=0.06)


def test_scores_sum_to_the_likelihood() -> None:
    model = random_model()
    values, mask = random_values(2, 6, 2)
    joint = Joint(model.system, 6)
    scores = model.score(values, mask)
    for row in range(2):
        expected = joint.log_density(values[row].numpy(), mask[row].numpy())
        assert float(scores[row].sum()) == pytest.approx(expected, abs=1e-9)
    assert (scores[~mask.any(dim=2)] == 0).all()


def test_mean_likelihood_of_samples_matches_the_entropy() -> None:
    """The mean −log p of samples of a Gaussian is its entropy."""
    model = random_model()
    values = sample(model, 4000, 3, torch.Generator().manual_seed(0))
    spread = Joint(model.system, 3).values
    entropy = (np.linalg.slogdet(spread)[1] + len(spread) * np.log(2 * np.pi * np.e)) / 2
    assert -float(model.filter(values).log_likelihood.mean()) == pytest.approx(entropy, abs=0.08)


# --- checkpoints ----------------------------------------------------------------------------------------------------


def copy_state(model: LinearDynamical) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("structure", ["free", "trend"])
@pytest.mark.parametrize("stopped", [2, 5])
def test_resumed_estimation_matches_uninterrupted_estimation(structure: str, stopped: int) -> None:
    data, config = draw_walks(2, 16, 1, seed=4), KalmanConfig(structure=structure, hidden=2, rounds=9, tolerance=0)  # type: ignore[arg-type]
    whole = config.build(1)
    parts = {stage.step: copy_state(whole) for stage in whole.estimates(data)}
    again = config.build(1)
    again.load_state_dict(parts[stopped])
    *_, last = again.estimates(data, stopped)
    assert last.step == 9
    for name, value in copy_state(whole).items():
        assert torch.equal(again.state_dict()[name], value), name
    assert not torch.equal(parts[8]["process"], parts[9]["process"])  # negative control: a round changes the parameters


def test_converged_model_is_not_trained_further() -> None:
    data, config = draw_walks(2, 16, 1, seed=4), KalmanConfig(structure="level", tolerance=1e-3)
    model = config.build(1)
    *_, last = model.estimates(data)
    assert last.step < config.rounds and last.model is model
    again = config.build(1)
    again.load_state_dict(copy_state(model))
    assert list(again.estimates(data, last.step)) == []


def test_checkpoints_are_saved_every_n_steps_and_at_the_end() -> None:
    data, config = draw_walks(1, 12, 1, seed=0), KalmanConfig(structure="level", rounds=7, tolerance=0, save_every=3)
    model = config.build(1)
    assert [one.step for one in model.estimates(data) if one.model is not None] == [3, 6, 7]
    none = KalmanConfig(structure="level", rounds=0).build(1)
    assert [(one.step, one.model) for one in none.estimates(data)] == [(0, none)]


def test_tensors_of_another_model_are_rejected() -> None:
    with pytest.raises(CheckpointError, match=r"transition must have the shape \(2, 2\); got \(3, 3\)"):
        KalmanConfig(structure="trend").build(1).load_state_dict(random_model().state_dict())


def test_model_remains_on_the_cpu() -> None:
    model = random_model()
    assert model.to("cuda") is model and model.device.type == "cpu" and model.eval() is model.train() is model
    assert model.system.mean.device.type == "cpu"


# --- invalid input --------------------------------------------------------------------------------------------------


def test_damping_of_other_structures_is_rejected() -> None:
    for structure in ("free", "constant-velocity"):
        with pytest.raises(
            UsageError, match=f"damped applies only to structures level, trend and seasonal, not to {structure}"
        ):
            build(KalmanConfig, {"kind": "kalman", "structure": structure, "damped": True})


def test_all_problems_of_a_config_are_reported() -> None:
    wrong = {"hidden": 0, "season": 1, "rounds": -1, "tolerance": -1.0, "save_every": 0}
    with pytest.raises(UsageError) as raised:
        build(KalmanConfig, {"kind": "kalman", "structure": "level", "fixed": ["mean", "mean"], **wrong})
    for name in wrong:
        assert f"{name}: must be" in str(raised.value)
    assert "season applies only to" in str(raised.value) and "fixed must" in str(raised.value)
    with pytest.raises(UsageError, match=r"must be one of.*constant-velocity"):
        build(KalmanConfig, {"kind": "kalman", "structure": "velocity"})


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda m: m.filter(torch.zeros(2, 3)), r"must have shape \(sequences, steps, 2\)"),
        (lambda m: m.filter(torch.zeros(1, 0, 2)), "at least one step"),
        (lambda m: m.filter(torch.zeros(1, 4, 3)), r"got \(1, 4, 3\)"),
        (lambda m: m.filter(torch.zeros(1, 4, 2)), r"needs inputs of shape \(1, 4, 1\) without gaps; got none"),
        (lambda m: m.filter(torch.zeros(1, 4, 2), None, torch.full((1, 4, 1), torch.nan)), "with gaps"),
        (lambda m: m.exact_forecast(torch.zeros(1, 4, 2), None, 0, torch.zeros(1, 4, 1)), "at least 1 step; got 0"),
        (lambda m: m.exact_forecast(torch.zeros(1, 4, 2), None, 3, torch.zeros(1, 4, 1)), r"\(1, 3, 1\).*got none"),
        (lambda m: KalmanConfig(structure="seasonal").build(1, 1), "needs a season of at least 2 steps"),
    ],
)
def test_invalid_values_are_rejected(attempt: Callable[[LinearDynamical], object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        attempt(random_model(inputs=1))


def test_forecast_after_one_step_is_finite() -> None:
    mean, spread = random_model().exact_forecast(torch.zeros(1, 1, 2), None, 2)
    assert mean.shape == (1, 2, 2) and torch.isfinite(spread).all()


def test_prior_is_unchanged_by_missing_values() -> None:
    model = random_model()
    filtered = model.filter(torch.full((1, 3, 2), torch.nan))
    torch.testing.assert_close(filtered.means[0, 0], model.system.mean)
    assert float(filtered.log_likelihood) == 0
