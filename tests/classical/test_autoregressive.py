"""The autoregressive model: equal to statsmodels, to the joint Gaussian, to its own paths."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from seqloom.classical.autoregressive import Autoregressive, AutoregressiveConfig
from seqloom.core.errors import CheckpointError, DataError
from seqloom.core.protocols import Forecastable
from seqloom.decoding.forecast import forecast


def walk(length: int = 200, variables: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A series that remembers itself."""
    draws = torch.randn(length, variables, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values = torch.zeros(length, variables, dtype=torch.float64)
    mix = 0.5 * torch.eye(variables, dtype=torch.float64) + 0.2
    for t in range(1, length):
        values[t] = 3 + values[t - 1] @ mix.T - 0.3 * values[max(0, t - 2)] + draws[t]
    return values, torch.ones(length, variables, dtype=torch.bool)


def solved(taps: int, lag: int = 0, variables: int = 1, ridge: float = 0.0) -> tuple[Autoregressive, Tensor, Tensor]:
    values, mask = walk(variables=variables)
    model = Autoregressive(taps, lag, variables)
    model.solve([(values, mask)], ridge)
    return model, values, mask


def test_equal_to_statsmodels() -> None:
    module: Any = pytest.importorskip("statsmodels.tsa.ar_model")
    model, values, mask = solved(4)
    theirs = module.AutoReg(values[:, 0].numpy(), 4, trend="c").fit()
    assert np.allclose([*model.bias.tolist(), *model.weights.flatten().tolist()], theirs.params, atol=1e-9)
    assert model.covariance.item() == pytest.approx(theirs.sigma2, rel=1e-9)
    mean, covariance = model.exact_forecast(values[None], mask[None], 12)
    said = theirs.get_prediction(start=len(values), end=len(values) + 11)
    assert np.allclose(mean.flatten(), said.predicted_mean, atol=1e-8)
    assert np.allclose(covariance.flatten().sqrt(), said.se_mean, atol=1e-8)
    assert model.score(values[None], mask[None])[0, 4:].sum().item() == pytest.approx(theirs.llf, rel=1e-9)


def test_several_variables_equal_statsmodels_var() -> None:
    module: Any = pytest.importorskip("statsmodels.tsa.api")
    model, values, mask = solved(2, variables=3)
    theirs = module.VAR(values.numpy()).fit(2, trend="c")
    assert np.allclose(model.weights.numpy(), theirs.coefs, atol=1e-9)
    assert np.allclose(model.covariance.numpy(), theirs.sigma_u_mle, atol=1e-9)
    mean, covariance = model.exact_forecast(values[None], mask[None], 6)
    assert np.allclose(mean[0], theirs.forecast(values.numpy()[-2:], 6), atol=1e-8)
    fewer = theirs.sigma_u_mle[0, 0] / theirs.sigma_u[0, 0]  # they divide by N less the unknowns
    assert np.allclose(covariance[0].numpy(), theirs.mse(6) * fewer, atol=1e-8)


@pytest.mark.parametrize("lag", [1, 4])
def test_a_difference_is_more_taps(lag: int) -> None:
    """The mean of the model of differences, added up, is what the written-out equation says."""
    model, values, mask = solved(3, lag)
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
    """Mean and covariance of the first steps of all variables together, before any is known: (steps · C)."""
    order, C, A = model.order, model.variables, model.coefficients()
    size = (order + steps) * C  # what is thought of the time before, then the noise of each step
    mean = torch.cat([model.level.repeat(order), model.bias.repeat(steps)])
    noise = torch.block_diag(*[model.spread.diag()] * order, *[model.covariance] * steps)
    made = torch.eye(size, dtype=torch.float64)  # each value as a sum of these
    for t in range(order, order + steps):
        for k in range(order):
            made[t * C : (t + 1) * C] += A[k] @ made[(t - 1 - k) * C : (t - k) * C]
    return (made @ mean)[order * C :], (made @ noise @ made.T)[order * C :, order * C :]


@pytest.mark.parametrize(("variables", "lag"), [(1, 0), (1, 2), (2, 0), (2, 3)])
def test_gaps_are_conditioned_on(variables: int, lag: int) -> None:
    """With values missing, the forecast is that of the joint Gaussian of all values, given those that are known."""
    model, values, mask = solved(2, lag, variables)
    values, mask = values[:9].clone(), mask[:9].clone()
    mask[3] = mask[7, 0] = mask[8, -1] = False
    values[~mask] = 1e6  # must not be looked at
    found, covariance = model.exact_forecast(values[None], mask[None], 3)
    centre, joint = joint_gaussian(model, 12)
    known = mask.flatten().nonzero().squeeze(1)
    ahead = torch.arange(9 * variables, 12 * variables)
    gain = joint[ahead][:, known] @ torch.linalg.inv(joint[known][:, known])
    wanted = centre[ahead] + gain @ (values.flatten()[known] - centre[known])
    assert torch.allclose(found.flatten(), wanted, atol=1e-6)
    left = joint[ahead][:, ahead] - gain @ joint[known][:, ahead]
    assert torch.allclose(covariance.diagonal(dim1=-2, dim2=-1).flatten(), left.diagonal(), atol=1e-6)
    density = torch.distributions.MultivariateNormal(centre[known], joint[known][:, known])
    assert model.score(values[None], mask[None]).sum().item() == pytest.approx(
        density.log_prob(values.flatten()[known]).item(), abs=1e-6
    )


def test_exact_intervals_are_those_of_paths() -> None:
    model, values, mask = solved(3)
    exact = forecast(model, values[None], mask[None], 6)
    assert exact.exact

    class Drawn:
        """The same model, without its exact answer."""

        start, step = staticmethod(model.start), staticmethod(model.step)

    drawn = forecast(Drawn(), values[None], mask[None], 6, paths=20_000, generator=torch.Generator().manual_seed(1))
    assert not drawn.exact and torch.allclose(exact.mean, drawn.mean, atol=0.06)
    assert torch.allclose(exact.deviation, drawn.deviation, rtol=0.03)
    for share in (0.8, 0.95):
        for one, other in zip(exact.interval(share), drawn.interval(share), strict=True):
            assert torch.allclose(one, other, atol=0.12)


def test_ridge_shrinks_and_the_constant_is_free() -> None:
    plain, values, _ = solved(4)
    little, much = solved(4, ridge=1e-9)[0], solved(4, ridge=1e6)[0]
    assert torch.allclose(little.weights, plain.weights, atol=1e-6) and much.weights.abs().max() < 1e-3
    assert torch.allclose(much.bias, values[4:].mean(dim=0), atol=0.02)


def test_gaps_are_left_out_of_the_squares() -> None:
    values, mask = walk()
    broken, holes = values.clone(), mask.clone()
    holes[100], broken[100] = False, 1e9
    model = Autoregressive(2, 0, 1)
    model.solve([(broken, holes)])
    halves = Autoregressive(2, 0, 1)
    halves.solve([(values[:100], mask[:100]), (values[101:], mask[101:])])
    assert torch.allclose(model.weights, halves.weights) and torch.allclose(model.covariance, halves.covariance)


def test_what_is_kept_and_refused() -> None:
    model, values, mask = solved(3, variables=2)
    assert isinstance(model, Forecastable)
    other = Autoregressive(3, 0, 2)
    other.load_state_dict(model.state_dict())
    assert torch.equal(
        other.exact_forecast(values[None], mask[None], 3)[0], model.exact_forecast(values[None], mask[None], 3)[0]
    )
    with pytest.raises(CheckpointError, match="weights must have the shape"):
        Autoregressive(4, 0, 2).load_state_dict(model.state_dict())
    with pytest.raises(DataError, match=r"61 unknowns .* only 20 steps .* Lower model.taps"):
        Autoregressive(60, 0, 1).solve([(values[:80, :1], mask[:80, :1])])
    assert AutoregressiveConfig().order(12) == 13 and AutoregressiveConfig().order(1) == 8


@pytest.mark.parametrize(("variables", "lag"), [(1, 0), (2, 3)])
def test_shortcuts_change_nothing(variables: int, lag: int) -> None:
    """Beside a row with gaps every step is computed in full; alone, what is certain is not."""
    model, values, mask = solved(2, lag, variables)
    gaps = mask.clone()
    gaps[::3] = False
    both, masks = torch.stack([values, values]), torch.stack([mask, gaps])
    assert torch.allclose(model.score(values[None], mask[None])[0], model.score(both, masks)[0], atol=1e-8)
    alone, together = (model.exact_forecast(v, m, 7) for v, m in ((values[None], mask[None]), (both, masks)))
    assert all(torch.allclose(a[0], b[0], atol=1e-8) for a, b in zip(alone, together, strict=True))
    state, more = model.read(values[None, :50], model.start(1), None)[0], values[None, 50:]
    assert torch.allclose(model.read(more, state, None)[1], model.score(values[None])[:, 50:], atol=1e-8), "in parts"
