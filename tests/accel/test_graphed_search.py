"""Beam search with fixed shapes equals the plain search, and its steps do not synchronize."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from seqloom.accel.decoding import decoder_gpu
from seqloom.accel.decoding.fixed_steps import fixed_steps
from seqloom.accel.search import graphed_search
from seqloom.accel.search.graphed_search import FixedSearch, can_fix_shapes, search_fixed
from seqloom.core.tokens import best_tokens, rank_tokens
from seqloom.core.tree import leaves
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.decoding.rules import BeamRules
from seqloom.models.recurrent_seq2seq import AttentionConfig, RecurrentSeq2SeqConfig
from seqloom.models.transformer import TransformerConfig
from seqloom.nn.positions import PositionsConfig

V = 23
MODELS: dict[str, Any] = {
    "transformer": TransformerConfig(d_model=16, heads=2, encoder_layers=2, decoder_layers=2, tied="all"),
    "untied": TransformerConfig(d_model=16, heads=2, encoder_layers=2, decoder_layers=2),
    "norm-first": TransformerConfig(
        d_model=16, heads=4, encoder_layers=1, decoder_layers=3, norm_first=True, activation="gelu", bias=False
    ),
    "learned": TransformerConfig(
        d_model=16,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        positions=PositionsConfig(kind="learned", max_length=30),
    ),
    "luong": RecurrentSeq2SeqConfig(hidden=12, decoder_layers=2),
    "bahdanau": RecurrentSeq2SeqConfig(
        hidden=12, cell="lstm", attention=AttentionConfig(order="bahdanau", score="additive", coverage=True)
    ),
    "no-attention": RecurrentSeq2SeqConfig(hidden=12, attention=None, context="every"),
}
OPTIONS = {
    "usual": BeamConfig(beam=4, n_best=2, max_length=40),
    "one": BeamConfig(beam=1, max_length=12),
    "exact": BeamConfig(beam=3, n_best=3, max_length=18, stopping="exact", length_penalty=0.6),
    "long": BeamConfig(beam=2, n_best=2, min_length=35, max_length=70, length_penalty=0.0),
    "by-source": BeamConfig(beam=5, n_best=1),
}


def build_model(name: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = MODELS[name].build(V).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)  # sharpens the distributions
        model.output.bias[0] = 3.0 if model.output.bias is not None else 0
    return model


def sources(count: int, max_length: int = 9, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, max_length + 1, (count, 1), generator=generator)
    tokens = torch.randint(1, V, (count, int(lengths.max())), generator=generator)
    mask = torch.arange(tokens.shape[1]) < lengths
    return {"tokens": tokens.masked_fill(~mask, 0), "mask": mask}


def weights_key(model: Any) -> Any:
    with torch.no_grad():
        steps = fixed_steps(model)
    assert steps is not None
    return steps.weights_key()


def fixed_search(model: Any, source: Any, options: BeamConfig, end: int, banned: Any = (), capture: bool = True) -> Any:
    """Search with fixed shapes. Return None if this is not supported."""
    if not can_fix_shapes(model, source, options):
        return None
    return search_fixed(model, source, BeamRules(options, end, tuple(sorted(banned))), capture)


def assert_same(actual: Any, expected: Any, other_kernels: bool = False) -> None:
    """Compare hypotheses. Other kernels round differently, which may exchange equally probable hypotheses."""
    pairs = [pair for row, other in zip(actual, expected, strict=True) for pair in zip(row, other, strict=True)]
    equal = [first.tokens == second.tokens for first, second in pairs]
    assert sum(equal) >= 0.9 * len(equal) if other_kernels else all(equal)
    for (first, second), is_equal in zip(pairs, equal, strict=True):
        assert first.finished == second.finished
        assert first.score == pytest.approx(
            second.score, rel=1e-4 if is_equal else 1e-3, abs=1e-4 if other_kernels else 1e-5
        )
        if is_equal:
            assert first.token_log_probs == pytest.approx(second.token_log_probs, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_fixed_shape_search_matches_plain_search(name: str, options: str) -> None:
    if name == "learned" and options == "long":
        pytest.skip("longer than the learned positions")
    model, source, chosen = build_model(name), sources(11), OPTIONS[options]
    with torch.no_grad():
        actual = fixed_search(model, source, chosen, 0, banned=[5], capture=False)
    assert actual is not None
    assert_same(actual, beam_search(model, source=source, options=chosen, end=0, banned=[5]))


@pytest.mark.parametrize("name", ["transformer", "luong"])
def test_fixed_shapes_need_no_enclosing_no_grad(name: str) -> None:
    assert torch.is_grad_enabled()
    assert can_fix_shapes(build_model(name), sources(11), BeamConfig(beam=3))
    with torch.autocast("cpu", torch.bfloat16):
        assert can_fix_shapes(build_model(name), sources(11), BeamConfig(beam=3)) == (name == "luong")


@pytest.mark.parametrize("count", [1, 7, 33])
def test_finished_sources_leave_the_batch(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    original = graphed_search.keep_sources

    def wrapper(tree: Any, remaining: Tensor, k: int) -> Any:
        sizes.append(len(remaining))
        return original(tree, remaining, k)

    monkeypatch.setattr(graphed_search, "keep_sources", wrapper)
    model, source, options = build_model("transformer"), sources(count, max_length=16), BeamConfig(beam=3, n_best=3)
    with torch.no_grad():
        actual = fixed_search(model, source, options, 0, capture=False)
    assert_same(actual, beam_search(model, source=source, options=options, end=0))
    assert sizes == sorted(sizes, reverse=True)
    assert bool(sizes) == (count > graphed_search.MIN_SOURCES)


class NoSynchronization(TorchDispatchMode):
    """A dispatch mode that rejects operations with device synchronization or data-dependent shapes."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique", "item", "lift_fresh")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split("::")[1].split(".")[0]
        assert name not in self.NAMES, f"{name} synchronizes with the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", MODELS)
def test_steps_do_not_synchronize(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    step = FixedSearch._step

    def wrapper(self: Any, buffers: Any) -> None:
        shapes = [leaf.shape for leaf in leaves(buffers.tree)]
        pointers = [leaf.data_ptr() for leaf in leaves(buffers.tree)]
        with NoSynchronization():
            step(self, buffers)
        assert shapes == [leaf.shape for leaf in leaves(buffers.tree)]
        assert pointers == [leaf.data_ptr() for leaf in leaves(buffers.tree)]
        steps.append(1)

    monkeypatch.setattr(FixedSearch, "_step", wrapper)
    with torch.no_grad():
        fixed_search(build_model(name), sources(4), BeamConfig(beam=3, max_length=12), 0, banned=[3], capture=False)
    assert steps


@pytest.mark.parametrize("levels", [1, 3, 10**6])  # number of different probabilities: many ties, or almost no ties
@pytest.mark.parametrize("vocabulary", [3, 5, 12, 400, 1037])
def test_tokens_are_ranked_by_probability_then_id(vocabulary: int, levels: int) -> None:
    generator = torch.Generator().manual_seed(0)
    log_probs = torch.randint(-levels, 0, (30, vocabulary), generator=generator).float()
    log_probs[::3, vocabulary // 2] = -torch.inf
    values, ids = rank_tokens(log_probs, 4)
    for row, row_values, row_ids in zip(log_probs.tolist(), values.tolist(), ids.tolist(), strict=True):
        expected = sorted((-log_prob, token) for token, log_prob in enumerate(row))[:4]
        assert [(-log_prob, token) for log_prob, token in zip(row_values, row_ids, strict=True)] == expected
    expected_values, expected_ids = best_tokens(log_probs, 4)
    possible = ~expected_values.isneginf()
    order = ids.argsort(dim=1)
    assert torch.equal(ids.gather(1, order)[possible], expected_ids[possible])


def test_ties_at_the_beam_edge_are_broken_as_in_plain_search() -> None:
    model, source, options = build_model("luong"), sources(3), BeamConfig(beam=2, n_best=2, max_length=6)
    with torch.no_grad():
        model.output.weight.zero_()
        model.output.bias.zero_()
        actual = fixed_search(model, source, options, 0, capture=False)
    assert_same(actual, beam_search(model, source=source, options=options, end=0))


def test_unsupported_searches_return_none() -> None:
    model = MODELS["transformer"].build(V).eval()
    with torch.no_grad():
        assert fixed_search(model, sources(3), BeamConfig(beam=2, coverage_penalty=0.2), 0, capture=False) is None
        rotary = TransformerConfig(d_model=16, heads=2, positions=PositionsConfig(kind="rotary")).build(V).eval()
        assert fixed_search(rotary, sources(3), BeamConfig(beam=2), 0, capture=False) is None


@pytest.mark.parametrize("name", MODELS)
def test_changed_weights_change_the_key(name: str) -> None:
    model = build_model(name)
    key = weights_key(model)
    assert key == weights_key(model)
    with torch.no_grad():
        model.output.bias.add_(1.0) if model.output.bias is not None else model.output.weight.add_(1.0)
    assert key != weights_key(model)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("chosen", ["usual", "one", "exact", "by-source"])
@pytest.mark.parametrize("name", ["untied", "norm-first", "luong", "bahdanau"])
def test_replayed_search_matches_plain_search(name: str, chosen: str) -> None:
    model, options = build_model(name).cuda(), OPTIONS[chosen]
    for seed, scale in ((1, 1.0), (2, 1.0), (3, 1.1)):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(scale)
        source = {key: value.cuda() for key, value in sources(20, max_length=14, seed=seed).items()}
        plain = beam_search.definition(model, source=source, options=options, end=0)
        assert_same(beam_search(model, source=source, options=options, end=0), plain, other_kernels=True)
        assert any(buffers.graph is not None for buffers in graphed_search._graphs[model].buffers.values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("predicate", ["supports_weight", "supports_ranking"])
@pytest.mark.parametrize("name", ["untied", "luong"])
def test_replayed_search_without_triton_kernels_matches_plain_search(
    name: str, predicate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch ranks the tokens of large vocabularies and of other dtypes."""
    monkeypatch.setattr(decoder_gpu, predicate, lambda tensor: False)
    model, options = build_model(name).cuda(), OPTIONS["usual"]
    source = {key: value.cuda() for key, value in sources(20, max_length=14).items()}
    plain = beam_search.definition(model, source=source, options=options, end=0)
    assert_same(beam_search(model, source=source, options=options, end=0), plain, other_kernels=True)
