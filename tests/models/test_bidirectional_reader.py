"""The bidirectional recurrent reader."""

import pytest
import torch

from seqloom.core.errors import UsageError
from seqloom.models.recurrent_reader import RecurrentReaderConfig
from seqloom.nn.cells import CELLS


def reader(**options):
    torch.manual_seed(0)
    return RecurrentReaderConfig(hidden=8, **options).build(2, 3).double().eval()


@pytest.mark.parametrize("combine", ["concat", "sum", "mix"])
@pytest.mark.parametrize("depth", ["each", "apart"])
@pytest.mark.parametrize("cell", CELLS)
def test_output_reads_the_final_states_of_both_directions(cell, depth, combine) -> None:
    model, x = (
        reader(cell=cell, layers=2, bidirectional=True, depth=depth, combine=combine),
        torch.randn(4, 6, 2).double(),
    )
    _, state = model.stack(x)
    torch.testing.assert_close(model(x), model.output(model.stack.ends(state)), atol=1e-12, rtol=0)
    assert model.output.in_features == (16 if combine == "concat" else 8)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x)
    assert gradient.abs().sum(dim=2).all()


def test_reversed_input_with_swapped_directions_gives_the_same_output() -> None:
    """If the weights of the directions are exchanged, a sequence and its reverse have equal outputs."""
    model, other = (reader(bidirectional=True, combine="sum") for _ in range(2))
    there, back = model.stack.layers[0], other.stack.layers[0]
    back.forwards.load_state_dict(there.backwards.state_dict())
    back.backwards.load_state_dict(there.forwards.state_dict())
    x = torch.randn(4, 6, 2).double()
    torch.testing.assert_close(model(x), other(x.flip(1)), atol=1e-12, rtol=0)
    assert not torch.allclose(model(x), model(x.flip(1)))


def test_direction_options_need_a_bidirectional_model() -> None:
    with pytest.raises(ValueError, match="need bidirectional=true"):
        RecurrentReaderConfig(combine="sum")
    with pytest.raises(ValueError, match="need bidirectional=true"):
        RecurrentReaderConfig(depth="apart")


def test_trace_of_both_directions_is_rejected() -> None:
    with pytest.raises(UsageError, match="needs a unidirectional model"):
        reader(bidirectional=True).trace(torch.randn(1, 3, 2).double())
    assert len(reader().trace(torch.randn(1, 3, 2).double())) == 1
