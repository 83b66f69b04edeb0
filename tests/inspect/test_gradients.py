"""Gradients through time equal autograd on an unrolled reference, and do not exceed the bound."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.standard import STANDARD_CELLS

from seqloom.accel.recurrence import torch_kernels
from seqloom.core.errors import UsageError
from seqloom.inspect.views.gradients import Clipping, clipping, flows, gradient_trace, recurrent_matrices, slope
from seqloom.nn.cells import CELLS
from seqloom.nn.recurrent import run_cell
from seqloom.nn.softmax import AdaptiveSoftmaxConfig

EXACT: dict[str, Any] = {"rtol": 0, "atol": 1e-10}


def reference(unrolled: Any, of: str) -> list[dict[str, np.ndarray[Any, Any]]]:
    loss = -unrolled.log_probs[-1] if of == "last" else -unrolled.log_probs.sum()
    loss.backward()
    layers = range(len(unrolled.added[0]))
    return [
        {
            name: np.array([float(step[depth][name].grad.norm()) for step in unrolled.added])
            for name in unrolled.added[0][depth]
        }
        for depth in layers
    ]


@pytest.mark.parametrize("of", ["last", "total"])
@pytest.mark.parametrize("cell", STANDARD_CELLS)
def test_trace_matches_autograd_on_unrolled_reference(
    cell: str, of: Any, make: Any, by_hand: Any, ids: list[int]
) -> None:
    model = make(cell)
    trace = gradient_trace(model, ids, of=of)
    assert all(parameter.grad is None for parameter in model.parameters())  # the model is unchanged
    unrolled = by_hand(model, ids)
    expected = reference(unrolled, of)
    losses = -unrolled.log_probs.detach()
    assert trace.loss == pytest.approx(float(losses[-1] if of == "last" else losses.sum()), abs=1e-10)
    assert len(trace.layers) == 2
    for norms_by_state, layer in zip(trace.layers, expected, strict=True):
        assert set(norms_by_state) == set(CELLS[cell].state_names)
        for name, norms in norms_by_state.items():
            assert norms.shape == (len(ids),) and norms.min() > 0
            np.testing.assert_allclose(norms, layer[name], **EXACT)


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_each_activation_matches_reference(activation: str, make: Any, by_hand: Any, ids: list[int]) -> None:
    model = make("elman", activation=activation)
    expected = reference(by_hand(model, ids), "last")
    for norms_by_state, layer in zip(gradient_trace(model, ids).layers, expected, strict=True):
        np.testing.assert_allclose(norms_by_state["h"], layer["h"], **EXACT)


def test_residual_connections_carry_gradients(make: Any, by_hand: Any, ids: list[int]) -> None:
    model = make("lstm", connections="residual", embedding=5)
    expected = reference(by_hand(model, ids), "last")
    trace = gradient_trace(model, ids)
    assert len(trace.layers) == 2
    for layer, states in zip(trace.layers, expected, strict=True):
        for name in ("h", "c"):
            np.testing.assert_allclose(layer[name], states[name], **EXACT)


def test_loss_is_exact_with_adaptive_softmax(make: Any, ids: list[int]) -> None:
    model = make("gru", softmax=AdaptiveSoftmaxConfig(cutoffs=(4,))).eval()
    log_probs, _ = model.score(torch.tensor([[0, *ids[:-1]]]), torch.tensor([ids]), model.start(rows=1))
    assert gradient_trace(model, ids, of="total").loss == pytest.approx(-log_probs.sum().item(), abs=1e-10)


def test_fused_kernel_captures_no_states(make: Any, ids: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a fused kernel does not call the cell, so no states are captured."""
    monkeypatch.setattr(run_cell, "definition", torch_kernels.run)
    with pytest.raises(RuntimeError):
        gradient_trace(make("lstm"), ids, of="total")


def test_trace_does_not_depend_on_precision_and_training_mode(make: Any, ids: list[int]) -> None:
    model = make("gru").float().train()
    exact = gradient_trace(make("gru").float().double().eval(), ids)
    np.testing.assert_array_equal(gradient_trace(model, ids).layers[0]["h"], exact.layers[0]["h"])
    assert model.training and model.embed.weight.dtype == torch.float32


def test_trace_has_input_tokens_distances_and_target(make: Any, ids: list[int]) -> None:
    trace = gradient_trace(make("gru"), ids)
    assert trace.tokens == ["0", "3", "7", "7", "2", "10", "5", "1", "4"]  # the input tokens
    assert trace.target == "9"
    assert trace.distances == [8, 7, 6, 5, 4, 3, 2, 1, 0]
    alone = gradient_trace(make("gru"), [4])
    assert (alone.tokens, alone.target, alone.steps_per_tenth()) == (["0"], "4", None)


def test_number_of_steps_per_factor_of_ten_is_correct_for_known_decays() -> None:
    from seqloom.inspect.views.gradients import GradientTrace

    def trace(norms: list[float]) -> GradientTrace:
        return GradientTrace(["x"] * len(norms), "y", "last", 1.0, ({"h": np.array(norms)},))

    assert trace([1e-3, 1e-2, 1e-1, 1.0]).steps_per_tenth() == pytest.approx(1)
    assert trace([10 ** (-n / 4) for n in (3, 2, 1, 0)]).steps_per_tenth() == pytest.approx(4)
    assert trace([0.0, 0.0, 1e-1, 1.0]).steps_per_tenth() == pytest.approx(1)
    assert trace([9.0, 3.0, 1.0]).steps_per_tenth() is None
    assert trace([0.0, 1.0]).steps_per_tenth() is None


# --- matrices and the bound -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", CELLS)
def test_singular_values_match_those_of_the_named_blocks(cell: str, make: Any) -> None:
    model = make(cell)
    matrices = recurrent_matrices(model)
    names = list(model.stack.cells[0].recurrent_matrices())
    assert [(m.layer, m.name) for m in matrices] == [(layer, name) for layer in (0, 1) for name in names]
    for matrix in matrices:
        block = names.index(matrix.name) * 5
        weight = model.stack.cells[matrix.layer].weight_h.detach().numpy()[block : block + 5]
        squares = np.linalg.eigvalsh(weight @ weight.T)[::-1]
        np.testing.assert_allclose(matrix.singular_values**2, squares, **EXACT)
        assert matrix.spectral_radius == pytest.approx(np.abs(np.linalg.eigvals(weight)).max(), abs=1e-10)
        assert matrix.spectral_radius <= matrix.singular_values[0] + 1e-12


@pytest.mark.parametrize("activation", ["tanh", "relu", "sigmoid"])
def test_jacobian_norms_match_autograd(activation: str, make: Any, by_hand: Any, ids: list[int]) -> None:
    model = make("elman", activation=activation)
    below = [step[0]["h"].detach() for step in by_hand(model, ids).values]
    inputs = [[model.embed.weight[token] for token in [0, *ids[:-1]]], below]
    for flow in flows(model, ids):
        cell = model.stack.cells[flow.layer]
        g = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid}[activation]
        states = [torch.zeros(5, dtype=torch.float64)]
        for x in inputs[flow.layer]:
            states.append(g(cell.weight_x @ x + cell.bias_x + cell.weight_h @ states[-1] + cell.bias_h).detach())

        def last(h: torch.Tensor, steps: int, flow: Any = flow, cell: Any = cell, g: Any = g) -> torch.Tensor:
            for x in inputs[flow.layer][len(ids) - steps :]:
                h = g(cell.weight_x @ x + cell.bias_x + cell.weight_h @ h + cell.bias_h)
            return h

        for steps, measured in enumerate(flow.measured):
            start = states[len(ids) - steps]
            jacobian = torch.autograd.functional.jacobian(lambda h, steps=steps: last(h, steps), start)
            assert measured == pytest.approx(float(np.linalg.norm(jacobian.numpy(), 2)), abs=1e-10)


@pytest.mark.parametrize("scale", [0.2, 0.6, 1.5])
@pytest.mark.parametrize("activation", ["tanh", "relu", "sigmoid"])
def test_jacobian_norms_do_not_exceed_bound(activation: str, scale: float, make: Any, ids: list[int]) -> None:
    model = make("elman", activation=activation, init=scale, hidden=16)
    for flow in flows(model, ids * 3):
        assert flow.gamma_g == {"tanh": 1, "relu": 1, "sigmoid": 0.25}[activation]
        assert flow.measured[0] == flow.bound[0] == 1
        assert len(flow.measured) == 3 * len(ids)
        assert (flow.measured <= flow.bound * (1 + 1e-12)).all()


def with_matrix(model: Any, weight: torch.Tensor, bias: float = 0.0) -> Any:
    cell = model.stack.cells[0]
    with torch.no_grad():
        cell.weight_h.copy_(weight)
        cell.bias_x.fill_(bias)
    return model


def orthogonal(size: int) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.linalg.qr(torch.randn(size, size, dtype=torch.float64))[0]


@pytest.mark.parametrize("gamma", [0.8, 1.0, 1.25])
def test_bound_is_exact_for_scaled_permutation_without_nonlinearity(gamma: float, make: Any, ids: list[int]) -> None:
    """A ReLU with positive inputs is linear. The bias makes states positive, and a permutation keeps them positive."""
    turn = torch.eye(5, dtype=torch.float64).roll(1, 0)
    model = with_matrix(make("elman", layers=1, activation="relu"), gamma * turn, bias=1e4)
    (flow,) = flows(model, ids * 2)
    assert flow.gamma_w == pytest.approx(gamma, abs=1e-12)
    np.testing.assert_allclose(flow.measured, gamma ** np.arange(18), rtol=1e-10)
    np.testing.assert_allclose(flow.measured, flow.bound, rtol=1e-10)


def test_bound_is_not_exact_with_tanh(make: Any, ids: list[int]) -> None:
    """Negative control for the test above; it also shows that gradients need not explode if γ_W > 1."""
    (flow,) = flows(with_matrix(make("elman", layers=1), 1.25 * orthogonal(5)), ids * 2)
    assert flow.bound[-1] > 40
    assert flow.measured[-1] < 1e-2 * flow.bound[-1]


def test_gradient_need_not_explode_with_a_large_singular_value(make: Any, ids: list[int]) -> None:
    """W shifts and doubles: each step doubles some vectors, but five steps map all vectors to zero."""
    model = with_matrix(make("elman", layers=1, activation="relu"), 2 * torch.diag(torch.ones(4).double(), 1), bias=1e4)
    (flow,) = flows(model, ids)
    np.testing.assert_allclose(flow.measured, [1, 2, 4, 8, 16, 0, 0, 0, 0], atol=1e-10)
    assert flow.bound[-1] == pytest.approx(2**8)
    assert recurrent_matrices(model)[0].spectral_radius == 0


def test_overflowing_bound_is_infinite(make: Any, ids: list[int]) -> None:
    (flow,) = flows(with_matrix(make("elman", layers=1), 1e150 * orthogonal(5)), ids)
    assert flow.bound[2] == pytest.approx(1e300) and math.isinf(flow.bound[3])


def test_only_elman_cells_have_flows(make: Any, ids: list[int]) -> None:
    assert all(bool(flows(make(cell), ids)) == (cell == "elman") for cell in CELLS)


@pytest.mark.parametrize("activation", ["tanh", "relu", "sigmoid"])
def test_slopes_match_autograd(activation: str) -> None:
    g: Any = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid}[activation]
    a = torch.linspace(-3, 3, 30, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(g(a).sum(), a)
    torch.testing.assert_close(slope(activation, g(a)), expected, rtol=0, atol=1e-14)


# --- clipping -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.25, 4.0, None])
def test_clipping_matches_torch(ratio: float | None, make: Any, ids: list[int]) -> None:
    model = make("lstm").eval()
    inputs, targets = torch.tensor([[0, *ids[:-1]]]), torch.tensor([ids])
    log_probs, _ = model.score(inputs, targets, model.start(rows=1))  # with the fused kernels
    (-log_probs.mean()).backward()
    norm = float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))
    result = clipping(model, ids, None if ratio is None else ratio * norm)
    assert result.norm == pytest.approx(norm, rel=1e-10)
    if ratio is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), ratio * norm)
    after = float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))
    assert result.clipped == pytest.approx(after, rel=1e-5)  # torch adds 1e-6 to the norm


def test_clipping_scales_only_norms_above_the_threshold() -> None:
    assert Clipping(4.0, 1.0).factor == 0.25
    assert Clipping(1.0, 1.0).factor == Clipping(0.5, 1.0).factor == Clipping(9.0, None).factor == 1
    assert Clipping(4.0, 1.0).clipped == 1
    assert Clipping(0.0, 1.0).clipped == 0


def test_invalid_threshold_is_rejected(make: Any, ids: list[int]) -> None:
    with pytest.raises(UsageError, match="above 0"):
        clipping(make("gru"), ids, 0.0)
