"""Gradients with respect to the states of any model equal finite differences and the trace of language models."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.inspect.recurrent_kinds import LINES, SOURCE, TARGET, TRANSLATORS, readers

from seqloom.core.errors import UsageError
from seqloom.core.operations import definitions_only
from seqloom.inspect.capture import cells_of
from seqloom.inspect.views.cells import cell_positions
from seqloom.inspect.views.gradients import (
    clipping,
    exact_copy,
    flows,
    gradient_parts,
    gradient_trace,
    part_matrices,
    recurrent_matrices,
)
from seqloom.inspect.views.texts import read_text
from seqloom.nn.cells import CELLS

KINDS = [*TRANSLATORS, *LINES]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, tuple[str, ...]]]:
    models: dict[str, Any] = {name: (make(), (SOURCE, TARGET)) for name, make in TRANSLATORS.items()}
    reader_models = readers(tmp_path_factory.mktemp("kinds"))
    return {**models, **{name: (source, (LINES[name],)) for name, source in reader_models.items()}}


def moved_loss(model: Any, read: Any, of: str, name: str, state: str, step: int, move: Any) -> float:
    """Return the loss if the state after one step is changed."""
    taken = [0]

    def hook(cell: Any, given: Any, after: dict[str, Any]) -> Any:
        taken[0] += 1
        if taken[0] - 1 != step:
            return None
        changed = {**after, state: after[state] + move}
        if state == "c":  # a change of c also changes h
            changed["h"] = cell.equations(*given)["o"] * torch.tanh(changed["c"])
        return changed

    handle = model.get_submodule(name).register_forward_hook(hook)
    with torch.no_grad(), definitions_only():
        log_probs = read.log_probs(model)
    handle.remove()
    return -float(log_probs.total if of == "total" else log_probs.each[-1])


def by_moving(model: Any, read: Any, of: str, name: str, state: str, step: int, hidden: int) -> float:
    """Return ‖∂L/∂state‖ by central differences."""
    slopes = []
    for move in 1e-5 * torch.eye(hidden, dtype=torch.float64):
        up, down = (moved_loss(model, read, of, name, state, step, way * move) for way in (1, -1))
        slopes.append((up - down) / 2e-5)
    return float(np.linalg.norm(slopes))


@pytest.mark.parametrize("of", ["last", "total"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_match_finite_differences(kind: str, of: Any, sources: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source, texts = sources[kind]
    gradients = gradient_parts(source, *texts, of=of)
    assert all(parameter.grad is None for parameter in source.model.parameters())
    model, read = exact_copy(source.model), read_text(source, *texts)
    largest = 0.0
    for name, position in cell_positions(cells_of(model)).items():
        part, cell = gradients.parts[position.part], model.get_submodule(name)
        for state, norms in part.layers[position.layer].items():
            step = len(norms) // 2
            expected = by_moving(model, read, of, name, state, step, cell.hidden)
            assert norms[part.order[step]] == pytest.approx(expected, abs=1e-7)
            largest = max(largest, expected)
    assert largest > 1e-4  # not all gradients are zero


@pytest.mark.parametrize("of", ["last", "total"])
@pytest.mark.parametrize("cell", CELLS)
def test_language_model_gradients_match_the_trace(cell: str, of: Any, make: Any, ids: list[int]) -> None:
    model = make(cell)
    gradients, expected = gradient_parts(model, ids, of=of), gradient_trace(model, ids, of=of)
    assert list(gradients.parts) == ["reader"]
    part = gradients.parts["reader"]
    assert gradients.loss == pytest.approx(expected.loss, abs=1e-12)
    assert part.tokens == expected.tokens and gradients.predictions[-1] == expected.target
    for layer, expected_layer in zip(part.layers, expected.layers, strict=True):
        for name, norms in expected_layer.items():
            np.testing.assert_allclose(layer[name], norms, rtol=0, atol=1e-12)
    assert gradients.norm == pytest.approx(clipping(model, ids, None).norm, rel=1e-12)
    for flow, own_flow in zip(part.flows, flows(model, ids), strict=True):
        np.testing.assert_allclose(flow.measured, own_flow.measured, atol=1e-12)


def test_loss_of_a_token_ignores_later_tokens(make: Any, ids: list[int]) -> None:
    """The loss of a token does not depend on later tokens, and earlier gradients equal those of the shorter text."""
    model = make("lstm")
    full, short = gradient_parts(model, ids, at=4), gradient_parts(model, ids[:5])
    norms = full.parts["reader"].layers[1]["h"]
    np.testing.assert_allclose(norms[:5], short.parts["reader"].layers[1]["h"], atol=1e-12)
    assert norms[5:].max() == 0
    assert full.at == 4 and full.loss == pytest.approx(short.loss)
    with pytest.raises(UsageError, match="`at` must be from 0 to 8, the index of a token; got 9"):
        gradient_parts(model, ids, at=9)


def test_attention_shortens_gradient_path(sources: Any) -> None:
    """The last token depends directly on the first source words, and not only through all states."""
    shares = []
    for kind in ("no attention", "luong"):
        parts = gradient_parts(sources[kind][0], SOURCE, TARGET * 3).parts
        norms = next(iter(parts.values())).layers[0]["h"]
        shares.append(norms[0] / norms.max())
    assert shares[1] > 10 * shares[0]


def test_matrices_are_grouped_by_part(sources: Any, make: Any) -> None:
    matrices = part_matrices(sources["luong"][0])
    assert list(matrices) == ["encoder-forwards", "encoder-backwards", "decoder"]
    assert [(m.layer, m.name) for m in matrices["decoder"]] == [(layer, name) for layer in (0, 1) for name in "ifgo"]
    weight = sources["luong"][0].model.decoder.cells[1].weight_h.detach().double().numpy()[6:12]
    np.testing.assert_allclose(matrices["decoder"][5].singular_values, np.linalg.svd(weight)[1], atol=1e-10)
    model = make("gru")
    for matrix, expected in zip(part_matrices(model)["reader"], recurrent_matrices(model), strict=True):
        np.testing.assert_array_equal(matrix.singular_values, expected.singular_values)
