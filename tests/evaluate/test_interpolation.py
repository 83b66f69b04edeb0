"""The weights of a mixture: expectation–maximisation against a grid, and against what is known in advance."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seqloom.core.errors import DataError
from seqloom.decoding.mixture import mix
from seqloom.evaluate.perplexity import best_weights


def likelihood(log_probs: list[Tensor], weights: list[float]) -> float:
    return float(mix(log_probs, weights).mean())


def thoughts(models: int, tokens: int, seed: int) -> list[Tensor]:
    """Probabilities of one token of ten under models that are each sure of other things."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(models, tokens, 10, generator=generator, dtype=torch.float64)
    return list(logits.log_softmax(-1)[:, :, 0])


@settings(max_examples=30, deadline=None)
@given(tokens=st.integers(1, 60), seed=st.integers(0, 1000))
def test_no_weights_on_a_grid_are_better(tokens: int, seed: int) -> None:
    log_probs = thoughts(2, tokens, seed)
    found = best_weights(log_probs)
    assert sum(found) == pytest.approx(1, abs=1e-12) and min(found) >= 0
    best = max(likelihood(log_probs, [n / 200, 1 - n / 200]) for n in range(201))
    assert likelihood(log_probs, found) >= best - 1e-6


def test_three_models_against_a_grid() -> None:
    log_probs = thoughts(3, 200, 1)
    found = best_weights(log_probs)
    grid = [[a / 40, b / 40, (40 - a - b) / 40] for a in range(41) for b in range(41 - a)]
    assert likelihood(log_probs, found) >= max(likelihood(log_probs, weights) for weights in grid) - 1e-7
    assert likelihood(log_probs, found) > likelihood(log_probs, [1 / 3] * 3) + 1e-4  # the control: it did climb


def test_a_model_that_is_always_better_gets_it_all() -> None:
    better, worse = torch.full((50,), -1.0), torch.full((50,), -2.0)
    assert best_weights([better, worse])[0] > 0.99999
    assert best_weights([worse, better])[1] > 0.99999


def test_the_share_of_tokens_that_only_one_model_knows() -> None:
    sure, never = torch.zeros(1), torch.full((1,), -torch.inf)
    first = torch.cat([sure] * 3 + [never])
    second = torch.cat([never] * 3 + [sure])
    assert best_weights([first, second]) == pytest.approx([0.75, 0.25], abs=1e-6)


def test_equal_models_stay_equal() -> None:
    same = thoughts(1, 20, 3)[0]
    assert best_weights([same, same.float()]) == pytest.approx([0.5, 0.5], abs=1e-3)


def test_a_text_impossible_to_all_is_refused() -> None:
    with pytest.raises(DataError, match="no chance"):
        best_weights([torch.tensor([-1.0, -torch.inf]), torch.tensor([-2.0, -torch.inf])])
