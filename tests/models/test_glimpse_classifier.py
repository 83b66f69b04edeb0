"""The glimpse classifier: its policy gradient compared with the gradient of the expected reward, and its evaluation."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seqloom.inspect.views.images import explain_image
from seqloom.models.glimpse_classifier import GlimpseClassifier, GlimpseClassifierConfig

H, W, C, LABELS = 6, 5, 1, 3
DEVIATION = 0.4
SEED = 3


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def build(**settings: Any) -> GlimpseClassifier:
    sizes = {"patch": 2, "scales": 2, "features": 6, "hidden": 8, "deviation": DEVIATION, "cell": "gru"}
    torch.manual_seed(SEED)
    model = GlimpseClassifierConfig(**{**sizes, "glimpses": 2, **settings}).build(H, W, C, LABELS)
    for parameter in model.parameters():  # larger weights, so that the prediction depends on the location
        nn.init.normal_(parameter, std=0.9)
    nn.init.normal_(model.locate.weight, std=0.1)
    return model


def images(count: int = 1) -> Tensor:
    return torch.randint(256, (count, H, W, C), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))


# --- REINFORCE --------------------------------------------------------------------------------------------------------


def reward_map(model: GlimpseClassifier, image: Tensor, label: int, cells: int = 161) -> tuple[Tensor, Tensor, Tensor]:
    """Return locations (N, 2) on a grid, the reward of each (N,), and the mean of the policy (2,) for one image."""
    x = image.double() / 255
    state = model.cell(model.look(x, torch.zeros(1, 2)), model.cell.initial_state(1))
    places = torch.linspace(-3, 3, cells)
    grid = torch.cartesian_prod(places, places)
    states = {name: value.expand(len(grid), -1) for name, value in state.items()}
    after = model.cell(model.look(x.expand(len(grid), -1, -1, -1), grid.clamp(-1, 1)), states)
    reward = (model.output(after["h"]).argmax(dim=1) == label).double()
    return grid, reward, torch.tanh(model.locate(state["h"]))[0]


def expected_reward_gradient(model: GlimpseClassifier, image: Tensor, label: int) -> Tensor:
    """Return ∂E[R] / ∂b_μ (2,) by integrating the density of the policy over the grid of locations."""
    grid, reward, mean = reward_map(model, image, label)
    cell = (6 / 160) ** 2
    density = torch.exp(-((grid - mean) ** 2).sum(dim=1) / (2 * DEVIATION**2)) / (2 * np.pi * DEVIATION**2)
    (gradient,) = torch.autograd.grad((density * reward * cell).sum(), model.locate.bias)
    return gradient


def policy_gradients(model: GlimpseClassifier, image: Tensor, label: int, parts: int = 24) -> Tensor:
    """Return −∂loss / ∂b_μ (parts, 2) of random episodes."""
    gradients = []
    for part in range(parts):
        torch.manual_seed(part)
        model.zero_grad()
        model.loss({"images": image, "labels": torch.tensor([label])})[0].backward()
        assert model.locate.bias.grad is not None
        gradients.append(-model.locate.bias.grad)
    return torch.stack(gradients)


def chosen_label(model: GlimpseClassifier, image: Tensor) -> int:
    """Return the label whose reward varies the most over the locations."""
    return max(range(LABELS), key=lambda label: reward_map(model, image, label)[1].var().item())


@pytest.mark.parametrize("baseline", [0.0, 2.0])
def test_policy_gradient_is_the_gradient_of_the_expected_reward(baseline: float) -> None:
    """The mean of the estimates is within 4 standard errors of the integral, and a constant baseline has no effect."""
    model, image = build(samples=3000), images()
    nn.init.zeros_(model.baseline.weight)
    nn.init.constant_(model.baseline.bias, baseline)
    label = chosen_label(model, image)
    expected = expected_reward_gradient(model, image, label)
    estimates = policy_gradients(model, image, label)
    error = estimates.std(dim=0) / len(estimates) ** 0.5
    assert ((estimates.mean(dim=0) - expected).abs() < 4 * error).all()
    strongest = int(expected.abs().argmax())
    assert expected.abs()[strongest] > 12 * error[strongest]  # a gradient of 0, or of the opposite sign, would fail


def test_policy_gradient_is_zero_if_the_reward_is_constant() -> None:
    model, image = build(samples=2000), images()
    nn.init.zeros_(model.output.weight)
    model.output.bias.data = torch.tensor([0.0, 5.0, 0.0])
    estimates = policy_gradients(model, image, 1, 12)
    assert (estimates.mean(dim=0).abs() < 4 * estimates.std(dim=0) / 12**0.5).all()


def test_location_network_and_baseline_do_not_change_the_core() -> None:
    """The other parameters get only the gradient of −log p(y), and locations have no gradient of −log p(y)."""
    gradients = {}
    for weight in (0.0, 3.0):
        model = build(reinforce=weight, glimpses=3, samples=5)
        torch.manual_seed(1)
        model.loss({"images": images(4), "labels": torch.tensor([0, 1, 2, 1])})[0].backward()
        grads = {name: parameter.grad for name, parameter in model.named_parameters()}
        gradients[weight] = {name: grad for name, grad in grads.items() if grad is not None}
        assert len(gradients[weight]) == len(grads)
    for name, gradient in gradients[0.0].items():
        if name.startswith("locate"):
            assert not gradient.any() and gradients[3.0][name].any()
        else:
            assert gradient.any() and torch.equal(gradient, gradients[3.0][name])


def test_loss_matches_its_equation() -> None:
    model, labels = build(glimpses=4, reinforce=0.7, samples=2), torch.tensor([2, 0, 1])
    torch.manual_seed(9)
    value, count = model.loss({"images": images(3), "labels": labels})
    torch.manual_seed(9)
    noise = torch.randn(6, 3, 2)
    expected = 0.0
    for row in range(6):
        x, label = images(3)[row // 2][None].double() / 255, int(labels[row // 2])
        state, location, terms = model.cell.initial_state(1), torch.zeros(1, 2), []
        for t in range(4):
            if t > 0:
                mean = torch.tanh(model.locate(state["h"]))
                sample = mean + DEVIATION * noise[row, t - 1]
                log_density = torch.distributions.Normal(mean, DEVIATION).log_prob(sample).sum()
                log_density = log_density + np.log(2 * np.pi * DEVIATION**2)  # the loss omits this constant
                terms.append((log_density, model.baseline(state["h"])[0, 0]))
                location = sample.clamp(-1, 1)
            state = model.cell(model.look(x, location), state)
        log_probs = model.output(state["h"]).log_softmax(dim=1)[0]
        reward = int(log_probs.argmax() == label)
        policy = sum(-(reward - baseline) * log_density for log_density, baseline in terms)
        square = sum((reward - baseline) ** 2 for _, baseline in terms) / 3
        expected += (-log_probs[label] + 0.7 * policy + square).item() / 6
    assert value.item() == pytest.approx(expected, abs=1e-10) and int(count) == 3


# --- evaluation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [0, 3])
def test_prediction_is_independent_of_the_batch(samples: int) -> None:
    model, batch = build(glimpses=4, eval_samples=samples).eval(), images(5)
    together = model.log_probs({"images": batch})
    torch.manual_seed(123)  # the state of the global generator has no effect
    apart = torch.cat([model.log_probs({"images": batch[n : n + 1]}) for n in range(5)])
    torch.testing.assert_close(together, apart, atol=1e-12, rtol=0)
    torch.testing.assert_close(together.exp().sum(dim=1), torch.ones(5))


def test_evaluation_averages_probabilities_over_episodes() -> None:
    model, batch = build(glimpses=3, eval_samples=4).eval(), images(3)
    generator = torch.Generator().manual_seed(0)
    single = build(glimpses=3).eval()
    assert not torch.allclose(single.probabilities({"images": batch}), model.probabilities({"images": batch}))
    episodes = model.episode(batch.double() / 255, torch.randn(3, 2, 2, generator=generator))
    assert episodes.locations.abs().max() <= 1 and episodes.log_policy.shape == (3, 2)


def test_explanation_contains_the_path_of_glimpses() -> None:
    model, image = build(glimpses=3).eval(), images()
    reasons = explain_image(model, image[0].numpy(), 1, "one")
    assert [glimpse.sides for glimpse in reasons.glimpses] == [(2, 4)] * 3
    assert (reasons.glimpses[0].row, reasons.glimpses[0].column) == (H / 2, W / 2)
    last = model.probabilities({"images": image})[0, 1].item()
    assert reasons.glimpses[-1].probability == pytest.approx(last)
    location = model.episode(image.double() / 255).locations[0, 2].tolist()
    assert reasons.glimpses[2].row == pytest.approx((location[0] + 1) / 2 * H)
    assert set(reasons.maps) == {"occlusion", "gradient"}
