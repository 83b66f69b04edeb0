"""Values of cells in models of every kind equal those of the fast forward pass and of single cells."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.inspect.recurrent_kinds import LINES, SOURCE, TARGET, TRANSLATORS, readers

from seqloom.core.errors import UsageError
from seqloom.inspect.capture import cells_of
from seqloom.inspect.equations import arithmetic
from seqloom.inspect.views.cells import CellPosition, cell_positions, cell_traces, gate_trace
from seqloom.nn.recurrent import Recurrent


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, tuple[str, ...]]]:
    """Models with their inputs."""
    models: dict[str, Any] = {name: (make(), (SOURCE, TARGET)) for name, make in TRANSLATORS.items()}
    reader_models = readers(tmp_path_factory.mktemp("kinds"))
    return {**models, **{name: (source, (LINES[name],)) for name, source in reader_models.items()}}


KINDS = [*TRANSLATORS, *LINES]
PARTS = {
    "no attention": ["encoder", "decoder"],
    "no attention, reversed": ["encoder", "decoder"],
    **{kind: ["reader-forwards", "reader-backwards"] for kind in LINES},
}


def fast_outputs(model: Any, read: Any) -> dict[str, Any]:
    """Return the outputs of all layers without capture."""
    outputs: dict[str, Any] = {}
    hooks = [
        part.register_forward_hook(lambda _, __, out, name=name: outputs.__setitem__(f"{name}.cell", out[0][0]))
        for name, part in model.named_modules()
        if isinstance(part, Recurrent)
    ]
    with torch.no_grad():
        read(model)
    for hook in hooks:
        hook.remove()
    return outputs


@pytest.mark.parametrize("kind", KINDS)
def test_trace_matches_the_fast_forward_pass(kind: str, sources: Any) -> None:
    source, texts = sources[kind]
    source.model.eval()
    traces = cell_traces(source, *texts)
    outputs = fast_outputs(source.model, traces.read.run)
    where = cell_positions(cells_of(source.model))  # without the cells of the character encoder
    for name in where.keys() & outputs.keys():
        layer = traces.parts[where[name].part].steps[where[name].layer]
        torch.testing.assert_close(layer.after["h"], outputs[name], rtol=0, atol=2e-6)
    assert {part for part in traces.parts if part != "decoder"} <= {
        where[name].part for name in outputs if name in where
    }
    assert list(traces.parts) == PARTS.get(kind, ["encoder-forwards", "encoder-backwards", "decoder"])


@pytest.mark.parametrize("kind", KINDS)
def test_steps_chain_states_and_follow_equations(kind: str, sources: Any) -> None:
    source, texts = sources[kind]
    for part in cell_traces(source, *texts).parts.values():
        assert sorted(part.order) == list(range(len(part.tokens)))
        for layer, shown in zip(part.steps, part.layers, strict=True):
            for name in layer.cell.state_names:
                torch.testing.assert_close(layer.before[name][1:], layer.after[name][:-1])
            for step, position in enumerate(part.order):
                before = {name: value[step : step + 1] for name, value in layer.before.items()}
                with torch.no_grad():
                    expected = layer.cell.equations(layer.x[step : step + 1], before)
                for name, value in expected.items():
                    np.testing.assert_allclose(shown.values[name][position], value[0].numpy(), atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_unit_matches_manual_computation(kind: str, sources: Any) -> None:
    source, texts = sources[kind]
    for part in cell_traces(source, *texts).parts.values():
        layer, shown, position = part.steps[-1], part.layers[-1], len(part.tokens) // 2
        step = part.step_of(position)
        result = arithmetic(layer.cell, layer.x[step], {k: v[step] for k, v in layer.before.items()}, 2)
        for name, values in shown.values.items():
            assert result[name] == pytest.approx(values[position, 2], abs=5e-6)


def test_backward_cells_read_text_from_end(sources: Any) -> None:
    source, texts = sources["tagger"]
    part = cell_traces(source, *texts)["reader-backwards"]
    layer, state = part.steps[0], part.steps[0].cell.initial_state(1)
    assert part.order == list(range(len(part.tokens)))[::-1]
    assert part.title == "right to left ←"
    for position in part.order:
        with torch.no_grad():
            state = layer.cell(layer.x[part.step_of(position)][None], state)
        np.testing.assert_allclose(part.layers[0].values["h"][position], state["h"][0].numpy(), atol=1e-6)


def test_reversed_source_keeps_the_end_token_last(sources: Any) -> None:
    source, texts = sources["no attention, reversed"]
    part = cell_traces(source, *texts)["encoder"]
    last = len(SOURCE)
    assert part.order == [*range(last - 1, -1, -1), last]
    tokens = source.model.source_embed.weight[source.tokenizer.encode(SOURCE)]
    torch.testing.assert_close(part.steps[0].x[:-1], tokens.flip(0).detach())


def test_each_part_is_labelled_with_the_tokens_it_reads_and_predicts(sources: Any) -> None:
    source, texts = sources["luong"]
    traces = cell_traces(source, *texts)
    assert traces["encoder-forwards"].tokens == [*SOURCE, "</s>"]
    assert traces["decoder"].tokens == ["</s>", *TARGET]
    assert traces["decoder"].targets == [*TARGET, "</s>"]
    assert traces[None] is traces["encoder-forwards"]
    tagger, line = sources["tagger"]
    assert cell_traces(tagger, *line)["reader-forwards"].tokens[:2] == ["Ann", "lives"]
    bilm, text = sources["bilm"]
    assert cell_traces(bilm, *text)["reader-forwards"].tokens == ["</s>", *text[0].split(), "</s>"]


def test_gate_trace_follows_the_selected_part(sources: Any) -> None:
    source, (line,) = sources["classifier, kept apart"]
    trace = gate_trace(source, line, part="reader-backwards")
    assert trace.cell == "lstm" and len(trace.layers) == 2
    assert trace.location(trace.layers[0]) == "reader-backwards, layer 1 of 2"
    assert set(trace.layers[0].values) == {"i", "f", "o", "g", "c", "h"}
    with pytest.raises(UsageError, match=r"no part 'reader-backward'.*reader-backwards"):
        gate_trace(source, line, part="reader-backward")


def test_plot_titles_name_part_and_layer(sources: Any) -> None:
    pytest.importorskip("matplotlib")
    from seqloom.inspect.plots.cells import draw_gates, draw_unit

    source, texts = sources["no attention"]
    for part in ("encoder", "decoder"):
        trace = cell_traces(source, *texts)[part]
        for figure in (draw_gates(trace), draw_unit(trace, 1)):
            count = len(trace.layers)
            assert figure.get_suptitle().endswith(f" ({part}, layer {count} of {count})")


def test_invalid_requests_are_rejected(sources: Any) -> None:
    source, (line,) = sources["classifier"]
    with pytest.raises(UsageError, match="Only translators accept a translation"):
        cell_traces(source, line, "something")
    with pytest.raises(UsageError, match="at most 3 can be shown"):
        cell_traces(source, line, max_tokens=3)
    with pytest.raises(UsageError, match="Only recurrent language models accept token ids"):
        cell_traces(source, [1, 2])
    with pytest.raises(UsageError, match="The text is empty"):
        cell_traces(source, "  ")
    with pytest.raises(UsageError, match=r"The token position must be from 0 to 5; got 99"):
        cell_traces(source, line)[None].step_of(99)


def test_capture_removes_hooks(sources: Any) -> None:
    source, texts = sources["tagger"]
    before = [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in source.model.modules()]
    source.model.train()
    cell_traces(source, *texts)
    assert source.model.training
    assert [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in source.model.modules()] == before


@pytest.mark.parametrize(
    ("name", "position"),
    [
        ("stack.layers.1.cell", CellPosition("reader", "", 1)),
        ("encoder.stack.layers.0.backwards.cell", CellPosition("reader", "backwards", 0)),
        ("encoder.stack.directions.1.layers.2.cell", CellPosition("reader", "backwards", 2)),
        ("backbone.ways.forwards.layers.1.cell", CellPosition("reader", "forwards", 1)),
    ],
)
def test_module_name_gives_part_direction_and_layer(name: str, position: CellPosition) -> None:
    assert cell_positions([name]) == {name: position}


def test_encoder_and_decoder_cells_are_distinguished() -> None:
    positions = cell_positions(["encoder.layers.0.forwards.cell", "decoder.layers.1.cell"])
    assert list(positions.values()) == [CellPosition("encoder", "forwards", 0), CellPosition("decoder", "", 1)]
