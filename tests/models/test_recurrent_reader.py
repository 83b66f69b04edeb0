"""The unidirectional recurrent reader with every cell."""

from typing import Any

import pytest
import torch
from torch import nn

from seqloom.config import build
from seqloom.core.errors import UsageError
from seqloom.core.protocols import CausalLanguageModel, Steppable
from seqloom.models.recurrent_reader import RecurrentReader, RecurrentReaderConfig
from seqloom.nn.cells import CELLS

B, T, D, OUT = 3, 7, 4, 2


def reader(**options: object) -> RecurrentReader:
    torch.manual_seed(0)
    config = build(RecurrentReaderConfig, {"hidden": 6, **options})
    return config.build(inputs=D, outputs=OUT).double().eval()


@pytest.fixture(params=CELLS)
def model(request: pytest.FixtureRequest) -> RecurrentReader:
    return reader(cell=request.param, layers=2)


def vectors(steps: int = T) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(B, steps, D, dtype=torch.float64)


def test_output_is_computed_from_the_last_state(model: RecurrentReader) -> None:
    """Compare with a loop over layers and steps."""
    x = vectors()
    cells: Any = model.stack.cells
    states = [cell.initial_state(B) for cell in cells]
    for t in range(T):
        below = x[:, t]
        for depth, cell in enumerate(cells):
            states[depth] = cell(below, states[depth])
            below = states[depth]["h"]
    expected = below @ model.output.weight.T + model.output.bias
    assert expected.shape == (B, OUT)
    torch.testing.assert_close(model(x), expected, atol=1e-10, rtol=0)


def test_first_step_has_a_gradient(model: RecurrentReader) -> None:
    x = vectors().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x)
    assert gradient.abs().sum(dim=2).all(), "the output must depend on every step of every row"
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in _after_backward(model))


def _after_backward(model: nn.Module) -> list[nn.Parameter]:
    model(vectors()).square().sum().backward()
    return list(model.parameters())


def test_rows_are_independent(model: RecurrentReader) -> None:
    x = vectors()
    for row in range(B):
        torch.testing.assert_close(model(x[row : row + 1])[0], model(x)[row], atol=1e-12, rtol=0)


def test_reading_in_chunks_is_equivalent_to_reading_in_one_call(model: RecurrentReader) -> None:
    x = vectors()
    _, state = model.stack(x[:, :3])
    torch.testing.assert_close(model(x[:, 3:], state), model(x), atol=1e-10, rtol=0)


def test_output_depends_on_the_order(model: RecurrentReader) -> None:
    """Negative control: a model that ignores the order fails every memory test."""
    assert not torch.allclose(model(vectors()), model(vectors().flip(1)))


def test_trace_ends_with_the_input_of_the_output_layer(model: RecurrentReader) -> None:
    last = model.trace(vectors())[-1]["h"][:, -1]
    torch.testing.assert_close(model.output(last), model(vectors()), atol=1e-10, rtol=0)


def test_reader_cannot_be_used_as_a_language_model(model: RecurrentReader) -> None:
    assert not isinstance(model, CausalLanguageModel | Steppable)


def test_dropout_is_active_only_in_training() -> None:
    model, x = reader(dropout=0.5), vectors()
    assert torch.equal(model(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))


def test_empty_and_wrong_inputs_are_rejected() -> None:
    with pytest.raises(ValueError, match="at least one vector"):
        reader()(vectors(steps=0))
    with pytest.raises(ValueError, match=rf"\(B, T, {D}\)"):
        reader()(vectors()[:, :, :1])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"cell": "lsmt"}, "did you mean lstm"),
        ({"cell": "gru", "activation": "relu"}, "only to the elman cell"),
        ({"cell": "gru", "forget_bias": 2.0}, "only to the lstm cell"),
        ({"layers": 0}, "layers: must be at least 1"),
        ({"hidden": 0}, "hidden: must be at least 1"),
        ({"dropout": 1.0}, "dropout: must be less than 1"),
        ({"outputs": 3}, "no such key"),
    ],
)
def test_invalid_settings_are_rejected(values: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        build(RecurrentReaderConfig, values)
