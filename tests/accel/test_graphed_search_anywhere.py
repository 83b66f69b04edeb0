"""What is recorded of searches, when it is let go, and when it is not tried: on any machine. Instead of a graph being
played, what was recorded is computed again."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.accel.test_graphed_search import fixed_search, made, same, sources, weights_key

from seqloom.accel.decoding import decoder_gpu
from seqloom.accel.search import graphed_search
from seqloom.core.tree import leaves
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.models.transformer import TransformerConfig
from seqloom.nn.positions import PositionsConfig

OPTIONS = BeamConfig(beam=2, max_length=12)


class Again:
    def __init__(self, work: Callable[[], Any]) -> None:
        self.replay = work


@pytest.fixture(autouse=True)
def graphed_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_search, "capture", lambda work, pool=None, stream=None: Again(work))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: 1)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: 1)


def found(model: Any, seed: int = 1, **options: Any) -> Any:
    with torch.no_grad():
        return fixed_search(model, sources(9, seed=seed), BeamConfig(**{"beam": 2, "max_length": 12, **options}), 0)


@pytest.mark.parametrize("name", ["transformer", "luong"])
def test_recorded_steps_find_the_same_with_other_shapes_and_weights(name: str) -> None:
    model = made(name)
    for seed in range(4):
        if seed == 2:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.05)
        for longest in (12, 40):
            plain = beam_search(
                model, source=sources(9, seed=seed), options=BeamConfig(beam=2, max_length=longest), end=0
            )
            same(found(model, seed, max_length=longest), plain)
    assert any(buffers.graph is not None for buffers in graphed_search._graphs[model].buffers.values())


def test_what_was_not_used_for_longest_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_search, "MAX_BYTES", 1 << 19)
    model = made("transformer")
    for beam in range(1, 12):
        found(model, beam=beam, max_length=30)
        known = graphed_search._graphs[model].buffers
        before = sum(leaf.nbytes for buffers in list(known.values())[:-1] for leaf in leaves(buffers.tree))
        assert before <= graphed_search.MAX_BYTES
    assert {key[0].options.beam for key in known if isinstance(key, tuple)} == set(range(12 - len(known), 12))
    graphed_search.release_graphs(model)
    assert model not in graphed_search._graphs
    graphed_search.release_graphs(model)


def test_a_search_in_inference_mode_may_come_before_one_without() -> None:
    model = made("transformer")
    with torch.inference_mode():
        wanted = found(model)
    same(found(model), wanted)


def test_without_memory_the_plain_search_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("transformer")
    found(model)

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(graphed_search.FixedSearch, "_step", full)
    assert found(model, beam=3) is None
    assert model not in graphed_search._graphs


def test_a_model_that_cannot_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TransformerConfig(d_model=16, heads=2, positions=PositionsConfig(kind="rotary"))
    model = config.build(23).eval()
    monkeypatch.setattr(type(model), "encode", lambda *_: pytest.fail("it reads the source for nothing"))
    assert found(model) is None


def test_a_search_that_does_not_end_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_search, "capture", lambda work, pool=None, stream=None: Again(lambda: None))
    with pytest.raises(RuntimeError, match="beyond its longest"):
        found(made("transformer"))


@pytest.mark.parametrize(
    ("width", "hypotheses", "suits"), [(64, 5, True), (24, 5, False), (256, 5, False), (64, 33, False)]
)
def test_the_kernel_of_attention_is_for_what_every_gpu_has_room_for(width: int, hypotheses: int, suits: bool) -> None:
    assert decoder_gpu.suits_attention(width, hypotheses) == suits


def test_what_is_recorded_does_not_outlive_what_it_reads() -> None:
    """Weights that come back lie where they lay; what was packed of them does not."""
    model = made("untied")
    found(model)
    known, kept = graphed_search._graphs[model], [parameter.data for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.1
    beam_search(model, source=sources(2), options=OPTIONS, end=0)
    for parameter, data in zip(model.parameters(), kept, strict=True):
        parameter.data = data
    assert known.weights != weights_key(model)


def test_a_source_without_a_mask_is_for_the_plain_search() -> None:
    with torch.no_grad():
        assert fixed_search(made("transformer"), {**sources(9), "mask": None}, OPTIONS, 0) is None
