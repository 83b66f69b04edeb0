"""Graphs of searches on any machine: reuse, release, and unsupported cases.

A fake graph runs the captured operations again.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.accel.test_graphed_search import assert_same, build_model, fixed_search, sources, weights_key

from seqloom.accel.decoding import decoder_gpu
from seqloom.accel.search import graphed_search
from seqloom.core.tree import leaves
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.models.transformer import TransformerConfig
from seqloom.nn.positions import PositionsConfig

OPTIONS = BeamConfig(beam=2, max_length=12)


class FakeGraph:
    def __init__(self, work: Callable[[], Any]) -> None:
        self.replay = work


@pytest.fixture(autouse=True)
def graphed_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_search, "capture", lambda work, pool=None, stream=None: FakeGraph(work))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: 1)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: 1)


def run_search(model: Any, seed: int = 1, **options: Any) -> Any:
    with torch.no_grad():
        return fixed_search(model, sources(9, seed=seed), BeamConfig(**{"beam": 2, "max_length": 12, **options}), 0)


@pytest.mark.parametrize("name", ["transformer", "luong"])
def test_replayed_search_follows_changed_shapes_and_weights(name: str) -> None:
    model = build_model(name)
    for seed in range(4):
        if seed == 2:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.05)
        for max_length in (12, 40):
            plain = beam_search(
                model, source=sources(9, seed=seed), options=BeamConfig(beam=2, max_length=max_length), end=0
            )
            assert_same(run_search(model, seed, max_length=max_length), plain)
    assert any(buffers.graph is not None for buffers in graphed_search._graphs[model].buffers.values())


def test_least_recently_used_graphs_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_search, "MAX_CPU_BYTES", 1 << 19)
    model = build_model("transformer")
    for beam in range(1, 12):
        run_search(model, beam=beam, max_length=30)
        buffers_by_key = graphed_search._graphs[model].buffers
        older_bytes = sum(
            leaf.nbytes for buffers in list(buffers_by_key.values())[:-1] for leaf in leaves(buffers.tree)
        )
        assert older_bytes <= graphed_search.MAX_CPU_BYTES
    assert {key[0].options.beam for key in buffers_by_key if isinstance(key, tuple)} == set(
        range(12 - len(buffers_by_key), 12)
    )
    graphed_search.release_graphs(model)
    assert model not in graphed_search._graphs
    graphed_search.release_graphs(model)


def test_search_after_inference_mode_gives_the_same_results() -> None:
    model = build_model("transformer")
    with torch.inference_mode():
        expected = run_search(model)
    assert_same(run_search(model), expected)


def test_running_out_of_memory_releases_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model("transformer")
    run_search(model)

    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(graphed_search.FixedSearch, "_step", fail)
    assert run_search(model, beam=3) is None
    assert model not in graphed_search._graphs


def test_unsupported_model_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TransformerConfig(d_model=16, heads=2, positions=PositionsConfig(kind="rotary"))
    model = config.build(23).eval()
    monkeypatch.setattr(type(model), "encode", lambda *_: pytest.fail("the source was encoded"))
    assert run_search(model) is None


def test_endless_search_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_search, "capture", lambda work, pool=None, stream=None: FakeGraph(lambda: None))
    with pytest.raises(RuntimeError, match="did not stop at its maximum length"):
        run_search(build_model("transformer"))


@pytest.mark.parametrize(
    ("width", "hypotheses", "is_supported"), [(64, 5, True), (24, 5, False), (256, 5, False), (64, 33, False)]
)
def test_attention_kernel_supports_only_some_sizes(width: int, hypotheses: int, is_supported: bool) -> None:
    assert decoder_gpu.supports_attention(width, hypotheses) == is_supported


def test_graphs_are_tied_to_packed_weights() -> None:
    """Restored weights keep their addresses, but the packed weights do not."""
    model = build_model("untied")
    run_search(model)
    graphs, original = graphed_search._graphs[model], [parameter.data for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.1
    beam_search(model, source=sources(2), options=OPTIONS, end=0)
    for parameter, data in zip(model.parameters(), original, strict=True):
        parameter.data = data
    assert graphs.weights != weights_key(model)


def test_source_without_mask_is_unsupported() -> None:
    with torch.no_grad():
        assert fixed_search(build_model("transformer"), {**sources(9), "mask": None}, OPTIONS, 0) is None
