from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.standard import STANDARD_CELLS

from seqloom.core.errors import UsageError
from seqloom.inspect.views.cells import GateTrace, gate_trace
from seqloom.nn.cells import CELLS
from seqloom.text.vocabularies import Characters

TOLERANCE: dict[str, Any] = {"rtol": 0, "atol": 1e-10}


@pytest.mark.parametrize("cell", STANDARD_CELLS)
def test_trace_matches_equations(cell: str, make: Any, by_hand: Any, ids: list[int]) -> None:
    model = make(cell)
    trace = gate_trace(model, ids)
    expected = by_hand(model, [*ids, 0]).values  # the model reads END and then every id
    assert trace.cell == cell
    assert len(trace.tokens) == len(expected) == len(ids) + 1
    for depth, layer in enumerate(trace.layers):
        assert set(layer.values) == set(expected[0][depth])
        for name, values in layer.values.items():
            assert values.shape == (len(ids) + 1, 5)
            byhand = torch.stack([step[depth][name] for step in expected]).detach().numpy()
            np.testing.assert_allclose(values, byhand, **TOLERANCE)


@pytest.mark.parametrize("cell", CELLS)
def test_gates_are_described_and_between_0_and_1(cell: str, make: Any, ids: list[int]) -> None:
    for layer in gate_trace(make(cell), ids).layers:
        assert layer.gates == CELLS[cell].gates
        assert list(layer.values)[: len(layer.gates)] == list(layer.gates)
        for name in layer.values:
            words = layer.describe(name)
            assert words.startswith(name)
            assert (" near 1 " in words) == (name in layer.gates)
        for name in layer.gates:
            assert 0 < layer.values[name].min() < layer.values[name].max() < 1


def test_changed_bias_changes_trace(make: Any, by_hand: Any, ids: list[int]) -> None:
    """Control: a slightly more open forget gate is detected."""
    model = make("lstm", layers=1)
    expected = by_hand(model, [*ids, 0]).values
    with torch.no_grad():
        model.stack.cells[0].bias_x[5:10] += 1e-6
    values = gate_trace(model, ids).layers[0].values["f"]
    byhand = torch.stack([step[0]["f"] for step in expected]).detach().numpy()
    assert np.abs(values - byhand).max() > 1e-8


def test_dropout_is_disabled_and_the_mode_is_restored(make: Any, ids: list[int]) -> None:
    model = make("gru")
    model.train()
    first, second = gate_trace(model, ids), gate_trace(model, ids)
    assert model.training
    np.testing.assert_array_equal(first.layers[1].values["h"], second.layers[1].values["h"])
    model.eval()
    np.testing.assert_array_equal(first.layers[1].values["h"], gate_trace(model, ids).layers[1].values["h"])


def test_levels_saturation_and_varying_units_match_manual_values(make: Any, ids: list[int]) -> None:
    layer = gate_trace(make("lstm", layers=1), ids).layers[0]
    f, h = layer.values["f"], layer.values["h"]
    for position in range(len(ids) + 1):
        assert layer.level("f")[position] == pytest.approx(sum(f[position]) / 5)
        assert layer.level("h")[position] == pytest.approx(sum(abs(h[position])) / 5)
    assert layer.saturation("f") == pytest.approx(
        (sum(v > 0.9 for v in f.flat) / f.size, sum(v < 0.1 for v in f.flat) / f.size)
    )
    spreads = {unit: float(np.std(h[:, unit])) for unit in range(5)}
    assert layer.most_varying(3) == sorted(spreads, key=spreads.__getitem__, reverse=True)[:3]
    assert len(layer.most_varying(100)) == 5
    followed = layer.unit(4)
    assert list(followed) == list(layer.values)
    np.testing.assert_array_equal(followed["c"], layer.values["c"][:, 4])


def test_open_forget_gate_and_closed_input_gate_keep_cell_state(make: Any, ids: list[int]) -> None:
    model = make("lstm", layers=1)
    with torch.no_grad():
        model.stack.cells[0].bias_x[:10] = torch.tensor([-60.0] * 5 + [60.0] * 5)
    layer = gate_trace(model, ids).layers[0]
    assert layer.saturation("f") == (1.0, 0.0)
    assert layer.saturation("i") == (0.0, 1.0)
    assert np.ptp(layer.values["c"], axis=0).max() < 1e-20


def test_highway_gate_is_traced(make: Any, ids: list[int]) -> None:
    layer = gate_trace(make("gru", connections="highway"), ids).layers[0]
    assert list(layer.values) == ["r", "z", "T", "candidate", "h", "y"]
    assert layer.describe("T") == "T near 1, the output of the layer is passed on; near 0, its input"


def trained(model: Any, alphabet: str) -> Any:
    return SimpleNamespace(model=model, tokenizer=Characters(alphabet), run=SimpleNamespace(path="runs/x"))


def test_end_token_precedes_the_text(make: Any) -> None:
    model = make("gru")
    trace = gate_trace(trained(model, "abcdefghi"), "hide")
    assert trace.tokens == ["</s>", "h", "i", "d", "e"]
    by_id = gate_trace(model, [9, 10, 5, 6])
    np.testing.assert_array_equal(trace.layers[1].values["h"], by_id.layers[1].values["h"])


def test_unreadable_texts_are_rejected(make: Any) -> None:
    model = make("gru")
    source = trained(model, "abcdefghi")
    with pytest.raises(Exception, match=r"does not have 'x', 'y' in the text. .* in Python allow_unknown=True"):
        gate_trace(source, "axby")
    assert gate_trace(source, "axb", allow_unknown=True).tokens == ["</s>", "a", "<unk>", "b"]
    nothing: list[Any] = ["", []]
    for empty in nothing:
        with pytest.raises(UsageError, match="empty"):
            gate_trace(source, empty)
    for strange in ([3, 11], [-1]):
        with pytest.raises(UsageError, match=r"from 0 to 10; got (11|-1)"):
            gate_trace(model, strange)
    with pytest.raises(UsageError, match="Give token ids"):
        gate_trace(model, "abc")
    with pytest.raises(Exception, match="must be UTF-8"):
        gate_trace(source, "a\udcff", allow_unknown=True)
    with pytest.raises(UsageError, match="Only a model with recurrent cells"):
        gate_trace(torch.nn.Linear(2, 2), [1])


@pytest.mark.parametrize("number", [-1, 0, 3])
def test_invalid_layer_is_rejected(make: Any, ids: list[int], number: int) -> None:
    trace: GateTrace = gate_trace(make("gru"), ids)
    assert trace.layer() is trace.layer(2) is trace.layers[1]
    with pytest.raises(UsageError, match=f"The layer must be from 1, the lowest, to 2; got {number}"):
        trace.layer(number)


@pytest.mark.parametrize("number", [-1, 5])
def test_invalid_unit_is_rejected(make: Any, ids: list[int], number: int) -> None:
    with pytest.raises(UsageError, match=f"The unit must be from 0 to 4, the units of the layer; got {number}"):
        gate_trace(make("gru"), ids).layer(1).unit(number)
