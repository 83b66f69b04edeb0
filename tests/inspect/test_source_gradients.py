"""Gradients by source position equal finite differences, and vanish where the model cannot use the source."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from tests.random_models import translator, writer

from seqloom.core.errors import UsageError
from seqloom.inspect.views.source_gradients import source_gradients
from seqloom.inspect.views.texts import translate_pair

SOURCE, TARGET = "abc d", "fed"


def numerical_norms(trained: Any, reverse: bool) -> np.ndarray[Any, Any]:
    """Return ‖∂L_t/∂x_j‖ (T, S) by central differences of the input of the encoder."""
    model = copy.deepcopy(trained.model).double().eval()
    batch = translate_pair(trained, SOURCE, TARGET).batch(model)
    S = batch["source"].shape[1]
    changes: list[torch.Tensor] = []
    widths: list[int] = []

    def add_change(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor | None:
        widths.append(output.shape[-1])
        return output + changes.pop() if changes else None  # only the first call reads the source

    model.source_embed.register_forward_hook(add_change)
    model.target_log_probs(batch)
    width, norms = widths[0], []
    for position in range(S):
        read = S - 2 - position if reverse and position < S - 1 else position
        slopes = []
        for dimension in range(width):
            losses = []
            for sign in (1, -1):
                change = torch.zeros(1, S, width, dtype=torch.float64)
                change[0, read, dimension] = sign * 1e-5
                changes.append(change)
                with torch.no_grad():
                    losses.append(-model.target_log_probs(batch)[0])
            slopes.append((losses[0] - losses[1]) / 2e-5)
        norms.append(torch.stack(slopes).norm(dim=0))
    return torch.stack(norms, dim=1).numpy()


@pytest.mark.parametrize("kind", ["gru", "transformer"])
def test_norms_equal_finite_differences(kind: str) -> None:
    trained = translator(kind)
    shown = source_gradients(trained, SOURCE, TARGET)
    np.testing.assert_allclose(shown.by_token, numerical_norms(trained, reverse=False), rtol=1e-4, atol=1e-8)
    assert shown.source == [*SOURCE, "</s>"] and shown.target == [*TARGET, "</s>"]
    assert shown.total.shape == (len(SOURCE) + 1,)
    assert (shown.total <= shown.by_token.sum(axis=0) + 1e-9).all()  # the triangle inequality
    assert shown.ratio == pytest.approx(shown.total[0] / shown.total[-2])


def test_reversed_source_keeps_the_order_of_the_text() -> None:
    trained = translator("gru")
    trained.model.config = type(trained.model.config)(**{**vars(trained.model.config), "reverse": True})
    shown = source_gradients(trained, SOURCE, TARGET)
    np.testing.assert_allclose(shown.by_token, numerical_norms(trained, reverse=True), rtol=1e-4, atol=1e-8)
    plain = source_gradients(translator("gru"), SOURCE, TARGET)
    assert not np.allclose(shown.total, plain.total)


def test_language_model_is_rejected() -> None:
    with pytest.raises(UsageError, match="only translators have gradients by source position"):
        source_gradients(writer("lstm"), SOURCE)
