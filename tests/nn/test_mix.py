"""The mixture of layers: softmax weights and scale."""

import torch
from torch.autograd import gradcheck

from seqloom.nn.pooling import LayerMix


def layers(count: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 4, 5, dtype=torch.float64) for _ in range(count)]


def test_initial_weights_are_equal() -> None:
    result = LayerMix(3).double()(layers())
    torch.testing.assert_close(result, sum(layers()) / 3)


def test_weights_are_a_softmax_times_a_scale() -> None:
    mix, (a, b, c) = LayerMix(3).double(), layers()
    mix.weights.data = torch.tensor([0.0, 100.0, 0.0], dtype=torch.float64)
    mix.scale.data = torch.tensor([2.5], dtype=torch.float64)
    torch.testing.assert_close(mix([a, b, c]), 2.5 * b)
    assert torch.isclose(mix.layer_weights.sum(), torch.tensor(1.0, dtype=torch.float64))


def test_gradients_match_finite_differences() -> None:
    mix, read = LayerMix(3).double(), [layer.requires_grad_() for layer in layers()]

    def mixed(weights: torch.Tensor, scale: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(mix, {"weights": weights, "scale": scale}, (given,))

    assert gradcheck(mixed, (mix.weights, mix.scale, *read))
