"""The autoregressive model compared with statsmodels, the joint Gaussian and sampled paths."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from seqloom.classical.autoregressive import Autoregressive, AutoregressiveConfig
from seqloom.core.errors import CheckpointError, DataError
from seqloom.core.protocols import Forecastable
from seqloom.decoding.forecast import forecast


def draw_series(length: int = 200, variables: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draw an autocorrelated series."""
    draws = torch.randn(length, variables, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values = torch.zeros(length, variables, dtype=torch.float64)
    mix = 0.5 * torch.eye(variables, dtype=torch.float64) + 0.2
    for t in range(1, length):
        values[t] = 3 + values[t - 1] @ mix.T - 0.3 * values[max(0, t - 2)] + draws[t]
    return values, torch.ones(length, variables, dtype=torch.bool)


def fit_model(taps: int, lag: int = 0, variables: int = 1, ridge: float = 0.0) -> tuple[Autoregressive, Tensor, Tensor]:
    values, mask = draw_series(variables=variables)
    model = Autoregressive(taps, lag, variables)
    model.solve([(values, mask)], ridge)
    return model, values, mask


def test_fit_and_forecast_match_statsmodels() -> None:
    module: Any = pytest.importorskip("statsmodels.tsa.ar_model")
    model, values, mask = fit_model(4)
    theirs = module.AutoReg(values[:, 0].numpy(), 4, trend="c").fit()
    assert np.allclose([*model.bias.tolist(), *model.weights.flatten().tolist()], theirs.params, atol=1e-9)
    assert model.covariance.item() == pytest.approx(theirs.sigma2, rel=1e-9)
    mean, covariance = model.exact_forecast(values[None], mask[None], 12)
    prediction = theirs.get_prediction(start=len(values), end=len(values) + 11)
    assert np.allclose(mean.flatten(), prediction.predicted_mean, atol=1e-8)
    assert np.allclose(covariance.flatten().sqrt(), prediction.se_mean, atol=1e-8)
    assert model.score(values[None], mask[None])[0, 4:].sum().item() == pytest.approx(theirs.llf, rel=1e-9)


def test_fit_and_forecast_of_several_variables_match_statsmodels() -> None:
    module: Any = pytest.importorskip("statsmodels.tsa.api")
    model, values, mask = fit_model(2, variables=3)
    theirs = module.VAR(values.numpy()).fit(2, trend="c")
    assert np.allclose(model.weights.numpy(), theirs.coefs, atol=1e-9)
    assert np.allclose(model.covariance.numpy(), theirs.sigma_u_mle, atol=1e-9)
    mean, covariance = model.exact_forecast(values[None], mask[None], 6)
    assert np.allclose(mean[0], theirs.forecast(values.numpy()[-2:], 6), atol=1e-8)
    fewer = theirs.sigma_u_mle[0, 0] / theirs.sigma_u[0, 0]  # statsmodels divides by N minus the number of parameters
    assert np.allclose(covariance[0].numpy(), theirs.mse(6) * fewer, atol=1e-8)


@pytest.mark.parametrize("lag", [1, 4])
def test_forecast_of_differences_matches_expanded_equation(lag: int) -> None:
    """Cumulative sums of forecast differences equal the forecast of the expanded equation."""
    model, values, mask = fit_model(3, lag)
    plain = Autoregressive(3, 0, 1)
    changes = values[lag:] - values[:-lag]
    plain.solve([(changes, mask[lag:])])
    assert torch.allclose(plain.weights, model.weights)
    ahead, _ = plain.exact_forecast(changes[None], mask[None, lag:], 9)
    path = values[:, 0].tolist()
    for change in ahead.flatten().tolist():
        path.append(path[-lag] + change)
    mean, _ = model.exact_forecast(values[None], mask[None], 9)
    assert torch.allclose(mean.flatten(), torch.tensor(path[-9:], dtype=torch.float64), atol=1e-8)


def joint_gaussian(model: Autoregressive, steps: int) -> tuple[Tensor, Tensor]:
    """Return the prior mean and covariance of the first steps of all variables (steps · C)."""
    order, C, A = model.order, model.variables, model.coefficients()
    size = (order + steps) * C  # the initial state, then the noise of each step
    mean = torch.cat([model.level.repeat(order), model.bias.repeat(steps)])
    noise = torch.block_diag(*[model.spread.diag()] * order, *[model.covariance] * steps)
    coefficients = torch.eye(size, dtype=torch.float64)  # coefficients of each value in the initial state and the noise
    for t in range(order, order + steps):
        for k in range(order):
            coefficients[t * C : (t + 1) * C] += A[k] @ coefficients[(t - 1 - k) * C : (t - k) * C]
    return (coefficients @ mean)[order * C :], (coefficients @ noise @ coefficients.T)[order * C :, order * C :]


@pytest.mark.parametrize(("variables", "lag"), [(1, 0), (1, 2), (2, 0), (2, 3)])
def test_forecast_with_gaps_matches_the_conditional_gaussian(variables: int, lag: int) -> None:
    """With missing values, the forecast is the conditional of the joint Gaussian given the observed values."""
    model, values, mask = fit_model(2, lag, variables)
    values, mask = values[:9].clone(), mask[:9].clone()
    mask[3] = mask[7, 0] = mask[8, -1] = False
    values[~mask] = 1e6  # must not be read
    actual, covariance = model.exact_forecast(values[None], mask[None], 3)
    centre, joint = joint_gaussian(model, 12)
    observed = mask.flatten().nonzero().squeeze(1)
    ahead = torch.arange(9 * variables, 12 * variables)
    gain = joint[ahead][:, observed] @ torch.linalg.inv(joint[observed][:, observed])
    expected = centre[ahead] + gain @ (values.flatten()[observed] - centre[observed])
    assert torch.allclose(actual.flatten(), expected, atol=1e-6)
    left = joint[ahead][:, ahead] - gain @ joint[observed][:, ahead]
    assert torch.allclose(covariance.diagonal(dim1=-2, dim2=-1).flatten(), left.diagonal(), atol=1e-6)
    density = torch.distributions.MultivariateNormal(centre[observed], joint[observed][:, observed])
    assert model.score(values[None], mask[None]).sum().item() == pytest.approx(
        density.log_prob(values.flatten()[observed]).item(), abs=1e-6
    )


def test_exact_intervals_match_intervals_of_sampled_paths() -> None:
    model, values, mask = fit_model(3)
    exact = forecast(model, values[None], mask[None], 6)
    assert exact.exact

    class Drawn:
        """A version of the model without exact forecasts."""

        start, step = staticmethod(model.start), staticmethod(model.step)

    drawn = forecast(Drawn(), values[None], mask[None], 6, paths=20_000, generator=torch.Generator().manual_seed(1))
    assert not drawn.exact and torch.allclose(exact.mean, drawn.mean, atol=0.06)
    assert torch.allclose(exact.deviation, drawn.deviation, rtol=0.03)
    for level in (0.8, 0.95):
        for one, other in zip(exact.interval(level), drawn.interval(level), strict=True):
            assert torch.allclose(one, other, atol=0.12)


def test_ridge_shrinks_weights_but_not_the_intercept() -> None:
    plain, values, _ = fit_model(4)
    little, much = fit_model(4, ridge=1e-9)[0], fit_model(4, ridge=1e6)[0]
    assert torch.allclose(little.weights, plain.weights, atol=1e-6) and much.weights.abs().max() < 1e-3
    assert torch.allclose(much.bias, values[4:].mean(dim=0), atol=0.02)


def test_steps_with_gaps_are_excluded_from_least_squares() -> None:
    values, mask = draw_series()
    broken, holes = values.clone(), mask.clone()
    holes[100], broken[100] = False, 1e9
    model = Autoregressive(2, 0, 1)
    model.solve([(broken, holes)])
    halves = Autoregressive(2, 0, 1)
    halves.solve([(values[:100], mask[:100]), (values[101:], mask[101:])])
    assert torch.allclose(model.weights, halves.weights) and torch.allclose(model.covariance, halves.covariance)


def test_state_survives_a_round_trip_and_invalid_inputs_are_rejected() -> None:
    model, values, mask = fit_model(3, variables=2)
    assert isinstance(model, Forecastable)
    other = Autoregressive(3, 0, 2)
    other.load_state_dict(model.state_dict())
    assert torch.equal(
        other.exact_forecast(values[None], mask[None], 3)[0], model.exact_forecast(values[None], mask[None], 3)[0]
    )
    with pytest.raises(CheckpointError, match="weights must have the shape"):
        Autoregressive(4, 0, 2).load_state_dict(model.state_dict())
    with pytest.raises(DataError, match=r"more than 61 training steps .* got 20\. Lower model.taps"):
        Autoregressive(60, 0, 1).solve([(values[:80, :1], mask[:80, :1])])
    assert AutoregressiveConfig().order(12) == 13 and AutoregressiveConfig().order(1) == 8


@pytest.mark.parametrize(("variables", "lag"), [(1, 0), (2, 3)])
def test_shortcut_for_complete_data_matches_the_full_computation(variables: int, lag: int) -> None:
    """A single row without gaps uses the shortcut. A batch that also contains a row with gaps does not."""
    model, values, mask = fit_model(2, lag, variables)
    gaps = mask.clone()
    gaps[::3] = False
    both, masks = torch.stack([values, values]), torch.stack([mask, gaps])
    assert torch.allclose(model.score(values[None], mask[None])[0], model.score(both, masks)[0], atol=1e-8)
    alone, together = (model.exact_forecast(v, m, 7) for v, m in ((values[None], mask[None]), (both, masks)))
    assert all(torch.allclose(a[0], b[0], atol=1e-8) for a, b in zip(alone, together, strict=True))
    state, more = model.read(values[None, :50], model.start(1), None)[0], values[None, 50:]
    assert torch.allclose(model.read(more, state, None)[1], model.score(values[None])[:, 50:], atol=1e-8), "in parts"
