"""Numba kernels of a decoder step compared with PyTorch, in double precision if possible."""

import functools
import importlib
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.accel.test_decoder_step import KINDS, build_model, run_steps
from torch import Tensor, nn

from seqloom.accel.decoding import decoder_numba
from seqloom.accel.decoding.packed import PackedWeights
from seqloom.core.device import has_numba
from seqloom.core.protocols import DecodeState, select
from seqloom.core.tokens import best_tokens
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.models.transformer import Transformer

pytestmark = pytest.mark.skipif(find_spec("numba") is None, reason="needs numba")
WIDE = {name: replace(config, d_model=48, heads=3) for name, config in KINDS.items()}  # heads of size 16


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the kernels for small batches."""
    monkeypatch.setattr(decoder_numba, "MIN_SOURCES", 1)
    monkeypatch.setattr(decoder_numba, "MIN_LOGIT_ROWS", 1)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def find_best_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Call `best_tokens` on chunks of logits."""
    return decoder_numba.best_tokens(logits.clone().split(4), len(logits), min(count, logits.shape[1]))


def test_kernels_compile() -> None:
    """Control: the kernels are used. Otherwise the tests below would compare PyTorch with itself."""
    assert decoder_numba.is_available()


# --- the vocabulary ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", [1, 2, 15, 63, 64, 65, 128, 1000, 3001])
@pytest.mark.parametrize("count", [1, 6, 70])
@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0, 60.0])
def test_best_tokens_match_log_softmax(vocabulary: int, count: int, scale: float) -> None:
    logits = scale * torch.randn(9, vocabulary, generator=generator(vocabulary))
    expected, expected_ids = best_tokens(logits.double().log_softmax(-1), count)
    values, ids = find_best_tokens(logits, count)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(values, expected.float(), rtol=1e-6, atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300), st.integers(1, 12), st.integers(1, 4), st.integers(0, 999))
def test_ties_are_broken_by_lower_id(vocabulary: int, count: int, levels: int, seed: int) -> None:
    """The logits have few different values, and some logits are −∞."""
    logits = torch.randint(levels, (5, vocabulary), generator=generator(seed)).float()
    logits[:, 1:][torch.rand(5, vocabulary - 1, generator=generator(seed)) < 0.3] = -torch.inf
    expected, expected_ids = best_tokens(logits.double().log_softmax(-1), count)
    values, ids = find_best_tokens(logits, count)
    possible = ~expected.isneginf()  # the order of impossible tokens does not matter
    assert torch.equal(ids[possible], expected_ids[possible])
    torch.testing.assert_close(values, expected.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_damaged_row_is_reported(broken: float) -> None:
    logits = torch.randn(3, 200, generator=generator(1))
    logits[1, 77] = broken
    logits[2] = -torch.inf
    values, ids = find_best_tokens(logits, 5)
    assert values[1:].isnan().all()
    assert not values[0].isnan().any()
    assert ((ids >= 0) & (ids < 200)).all()


# --- attention --------------------------------------------------------------------------------------------------------


def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Attend with queries (B, k, N, d), keys and values (B, N, P, d) and a mask (B, k, P), in double precision."""
    scores = torch.einsum("bknd,bnpd->bknp", q.double(), keys.double())
    weights = scores.masked_fill(~mask.unsqueeze(2), -torch.inf).softmax(-1).nan_to_num(0)
    return torch.einsum("bknp,bnpd->bknd", weights, values.double()), weights


@pytest.mark.parametrize("size", [1, 3, 4, 15, 16, 17, 40])
@pytest.mark.parametrize(("d", "k"), [(16, 1), (32, 5), (48, 2), (64, 3)])
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_attention_to_source_matches_its_reference_implementation(size: int, d: int, k: int, scale: float) -> None:
    """Masks are random, and empty for the last source. With a large scale, most weights are 0."""
    B, N, draw = 4, 3, generator(size)
    q, (keys, values) = scale * torch.randn(B * k, N, d, generator=draw), torch.randn(2, B, N, size, d, generator=draw)
    mask = torch.rand(B, size, generator=draw) < 0.7
    mask[-1] = False
    expected, expected_weights = attend(q.view(B, k, N, d), keys, values, mask.unsqueeze(1).expand(-1, k, -1))
    weights, out = torch.full((B * k, N, size), torch.nan), torch.full((B * k, N * d), torch.nan)
    actual = decoder_numba.attend_to_source(q, keys, values, mask, out, weights)
    torch.testing.assert_close(actual, expected.float().reshape(B * k, N * d), rtol=1e-4, atol=1e-5 * scale)
    torch.testing.assert_close(weights.view(B, k, N, size), expected_weights.float(), rtol=1e-4, atol=1e-6 * scale)
    assert actual.view(B, -1)[-1].abs().max() == 0
    assert torch.equal(decoder_numba.attend_to_source(q, keys, values, mask, torch.empty_like(out)), actual)


@pytest.mark.parametrize("size", [5, 16, 33])
@pytest.mark.parametrize(("d", "k"), [(16, 1), (32, 5), (64, 3)])
@pytest.mark.parametrize("room", [0, 7])
def test_attention_to_cache_matches_its_reference_implementation(size: int, d: int, k: int, room: int) -> None:
    B, N, draw = 4, 2, generator(size)
    qkv, cache = torch.randn(B * k, 3, N, d, generator=draw), torch.randn(B, N, 2, size + room, d, generator=draw)
    cache = cache[:, :, :, :size]
    owned = torch.rand(B * k, size, generator=draw) < 0.4
    owned.view(B, k, size)[:, :, size - k :] = False
    slots = decoder_numba.take_slots(owned, B)
    expected_cache = cache.clone()
    expected_cache[torch.arange(B).unsqueeze(1), :, :, slots] = qkv[:, 1:].view(B, k, 2, N, d).transpose(2, 3)
    actual = decoder_numba.attend_to_cache(qkv, cache, owned, slots, torch.full((B * k, N * d), torch.nan))
    assert torch.equal(cache, expected_cache)
    expected, _ = attend(qkv[:, 0].view(B, k, N, d), cache[:, :, 0], cache[:, :, 1], owned.view(B, k, size))
    torch.testing.assert_close(actual, expected.float().reshape(B * k, N * d), rtol=1e-4, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 20), st.integers(0, 999))
def test_hypotheses_take_free_slots(sources: int, k: int, size: int, seed: int) -> None:
    owned = torch.rand(sources * k, k + size, generator=generator(seed)) < 0.15
    before = owned.view(sources, k, -1)
    free = int((~before.any(dim=1)).sum(dim=1).min())
    assert decoder_numba.free_slots(owned, sources) == free
    if free < k:
        return
    before = before.clone()
    slots, after = decoder_numba.take_slots(owned, sources), owned.view(sources, k, -1)
    new = after & ~before
    assert torch.equal(after & before, before)
    assert torch.equal(new.sum(dim=2), torch.ones(sources, k, dtype=torch.long))
    assert torch.equal(new.int().argmax(dim=2), slots)
    assert not (new & before.any(dim=1, keepdim=True)).any()
    assert new.any(dim=1).sum() == sources * k  # the slots are all different


@pytest.mark.parametrize("width", [16, 48, 512])
def test_layer_norm_matches_pytorch(width: int) -> None:
    norm, x = nn.LayerNorm(width), torch.randn(7, width, generator=generator(1)) * 5 + 3
    x[3] = 2.0
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    with torch.no_grad():
        expected, before, out = norm(x), x.clone(), torch.empty_like(x)
        arguments = norm.weight, norm.bias, norm.eps
        torch.testing.assert_close(decoder_numba.layer_norm(x, *arguments, out), expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(x, before)
        assert torch.equal(decoder_numba.layer_norm(x, *arguments, x), out)
        assert torch.equal(x, out)


# --- steps and searches -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kind", WIDE)
def test_numba_step_matches_plain_step(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypotheses are reordered, and one source is empty."""
    model, calls, original = build_model(WIDE[kind]), [], decoder_numba.attend_to_cache

    def attend_to_cache(*arguments: Tensor) -> Tensor:
        calls.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(decoder_numba, "attend_to_cache", attend_to_cache)
    with torch.no_grad():
        fast = run_steps(model)
        assert calls
        monkeypatch.setattr(decoder_numba, "MIN_SOURCES", 10**9)
        plain = run_steps(model)
    for actual, expected in zip(fast, plain, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.usefixtures("small_batches")
def test_mixed_steps_match_plain_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps read single and several tokens, padding, finished sources and a wider beam."""
    model, V, empty = build_model(WIDE["plain"]), 37, Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *arguments, **extra: empty(*arguments, **extra).fill_(torch.nan))

    def run_mixed_steps() -> list[Tensor]:
        draw = generator(3)
        tokens, mask = torch.randint(1, V, (4, 6), generator=draw), torch.arange(6) < torch.tensor([[6], [2], [3], [5]])
        state, k, sources, log_probs = model.start({"tokens": tokens, "mask": mask}), 1, 4, []
        for T, padded, wider, leave in [
            (1, False, 3, False), (1, False, 3, False), (1, True, 3, False), (2, False, 3, False), (1, False, 3, True),
            (3, True, 3, False), *[(1, False, 3, False)] * 9, (1, False, 1, True), *[(1, False, 5, False)] * 9,
        ]:  # fmt: skip
            R = sources * k
            mask_row = torch.rand(R, T, generator=draw) < 0.6 if padded else None
            output = model.step(torch.randint(1, V, (R, T), generator=draw), state, mask_row)
            log_probs.append(output.log_probs)
            stay = torch.arange(sources - leave)
            rows = stay.unsqueeze(1) * k + torch.randint(k, (len(stay), wider), generator=draw)
            state, k, sources = select(output.state, rows.flatten(), stay), wider, len(stay)
        return log_probs

    fast = run_mixed_steps()
    monkeypatch.setattr(decoder_numba, "MIN_SOURCES", 10**9)
    for actual, expected in zip(fast, run_mixed_steps(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def run_search(model: Transformer, options: BeamConfig, sources: int = 12, **extra: Any) -> list[Any]:
    draw = generator(5)
    tokens = torch.randint(1, 37, (sources, 7), generator=draw)
    mask = torch.arange(7) < torch.randint(1, 8, (sources, 1), generator=draw)
    hypotheses = beam_search(model, source={"tokens": tokens, "mask": mask}, options=options, end=0, **extra)
    return [
        [(hypothesis.tokens, hypothesis.finished, hypothesis.log_prob, hypothesis.attention) for hypothesis in row]
        for row in hypotheses
    ]


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kind", WIDE)
@pytest.mark.parametrize(
    ("options", "extra"),
    [
        (BeamConfig(beam=1), {}),
        (BeamConfig(beam=4, n_best=4), {"attention": True}),
        (BeamConfig(beam=5, n_best=2, length_penalty=0.6, max_length=40, min_length=25), {"banned": [3, 9]}),
        (BeamConfig(beam=3, coverage_penalty=0.3), {"prompt": torch.arange(1, 13).view(12, 1)}),
    ],
    ids=["greedy", "attention", "long", "coverage"],
)
def test_numba_search_matches_plain_search(
    kind: str, options: BeamConfig, extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model(WIDE[kind])
    fast = run_search(model, options, **extra)
    monkeypatch.setattr(decoder_numba, "MIN_SOURCES", 10**9)
    monkeypatch.setattr(decoder_numba, "MIN_LOGIT_ROWS", 10**9)
    plain = run_search(model, options, **extra)
    for fast_row, plain_row in zip(fast, plain, strict=True):
        assert [actual[:2] for actual in fast_row] == [actual[:2] for actual in plain_row]
        for actual, expected in zip(fast_row, plain_row, strict=True):
            assert actual[2] == pytest.approx(expected[2], rel=1e-4, abs=1e-4)
            if actual[3] is not None:
                torch.testing.assert_close(actual[3], expected[3], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("small_batches")
def test_ties_go_to_the_better_hypothesis_then_to_the_lower_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tokens are equally probable."""
    model = build_model(WIDE["plain"])
    with torch.no_grad():
        model.output.weight.zero_()
        model.output.bias.zero_()
        model.output.bias[0] = -torch.inf
    options = BeamConfig(beam=3, n_best=3, max_length=3)
    results = run_search(model, options)
    assert [hypothesis[0] for hypothesis in results[0]] == [[1, 1, 1], [1, 1, 2], [1, 1, 3]]
    monkeypatch.setattr(decoder_numba, "MIN_SOURCES", 10**9)
    monkeypatch.setattr(decoder_numba, "MIN_LOGIT_ROWS", 10**9)
    assert [[hypothesis[0] for hypothesis in row] for row in results] == [
        [hypothesis[0] for hypothesis in row] for row in run_search(model, options)
    ]


@pytest.mark.usefixtures("small_batches")
def test_search_without_numba_gives_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    options = BeamConfig(beam=3, n_best=2)
    with_numba = run_search(build_model(WIDE["plain"]), options)
    monkeypatch.setattr(decoder_numba, "kernels", lambda: None)
    without_numba = run_search(build_model(WIDE["plain"]), options)
    assert [[hypothesis[:2] for hypothesis in row] for row in with_numba] == [
        [hypothesis[:2] for hypothesis in row] for row in without_numba
    ]


@pytest.mark.parametrize("error", [ImportError, OSError, SystemError])
def test_compiler_error_makes_kernels_unavailable(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise error(name)

    assert has_numba()  # numba works, but its compiler fails
    monkeypatch.setattr(decoder_numba, "kernels", functools.cache(decoder_numba.kernels.__wrapped__))
    monkeypatch.setattr(importlib, "import_module", fail)
    assert not decoder_numba.is_available()


def test_kernels_are_not_loaded_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_numba, "kernels", functools.cache(decoder_numba.kernels.__wrapped__))
    monkeypatch.setattr(decoder_numba, "has_numba", lambda: False)
    assert not decoder_numba.is_available()


@pytest.mark.usefixtures("small_batches")
def test_results_do_not_depend_on_default_dtype_and_device() -> None:
    model, options, default = build_model(WIDE["plain"]), BeamConfig(beam=3, n_best=2), torch.get_default_dtype()
    expected, logits = run_search(model, options), torch.randn(5, 90)
    best = find_best_tokens(logits, 4)
    torch.set_default_dtype(torch.float64)
    try:
        actual = run_search(model, options)
    finally:
        torch.set_default_dtype(default)
    assert [[hypothesis[:3] for hypothesis in row] for row in actual] == [
        [hypothesis[:3] for hypothesis in row] for row in expected
    ]
    owned = torch.zeros(3, 4, dtype=torch.bool)
    with torch.device("meta"):
        assert torch.equal(find_best_tokens(logits, 4)[1], best[1])
        assert decoder_numba.take_slots(owned, 3).tolist() == [[0], [0], [0]]


def test_other_dtypes_are_rejected() -> None:
    """Kernels read memory addresses, so a wrong dtype would read invalid memory."""
    x, mask = torch.ones(2, 16), torch.ones(2, 3, dtype=torch.bool)
    keys = torch.ones(2, 1, 3, 16)
    decoder_numba.attend_to_source(x, keys, keys, mask, torch.empty_like(x))
    with pytest.raises(AssertionError):
        decoder_numba.attend_to_source(x, keys.double(), keys, mask, torch.empty_like(x))
    with pytest.raises(AssertionError):
        decoder_numba.attend_to_source(x, keys, keys, mask.long(), torch.empty_like(x))
    with pytest.raises(AssertionError):
        decoder_numba.layer_norm(x, x[0].bfloat16(), x[0], 1e-5, torch.empty_like(x))


@pytest.mark.usefixtures("small_batches")
def test_sources_without_tokens_give_the_same_results_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    model, source = build_model(WIDE["plain"]), {"tokens": torch.zeros(3, 0, dtype=torch.long)}
    source["mask"] = source["tokens"].bool()

    def search() -> list[list[int]]:
        options = BeamConfig(beam=3, max_length=8)
        return [row[0].tokens for row in beam_search(model, source=source, options=options, end=0)]

    fast = search()
    monkeypatch.setattr(decoder_numba, "kernels", lambda: None)
    assert fast == search()


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("count", [3, decoder_numba.MAX_COUNT, decoder_numba.MAX_COUNT + 1, 400])
def test_large_counts_use_torch(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    original = decoder_numba.best_tokens

    def record_count(chunks: Any, rows: int, count: int) -> tuple[Tensor, Tensor]:
        counts.append(count)
        return original(chunks, rows, count)

    monkeypatch.setattr(decoder_numba, "best_tokens", record_count)
    torch.manual_seed(0)
    layer, x = nn.Linear(16, 300), torch.randn(4, 16)
    with torch.no_grad():
        values, ids = PackedWeights.of(layer).best_tokens(x, count)
        expected = best_tokens(layer(x).log_softmax(-1), count)
    assert counts == ([count] if count <= decoder_numba.MAX_COUNT else [])
    assert torch.equal(ids, expected[1])
    torch.testing.assert_close(values, expected[0])


@torch.no_grad()
@pytest.mark.usefixtures("small_batches")
def test_cloned_state_is_independent() -> None:
    from seqloom.core.tree import clone

    model = build_model(WIDE["plain"])
    source = {"tokens": torch.tensor([[3, 5, 7]]), "mask": torch.ones(1, 3, dtype=torch.bool)}
    state = model.step(torch.zeros(1, 1, dtype=torch.long), model.start(source)).state
    state = model.step(torch.tensor([[4]]), state).state
    cloned = DecodeState(clone(state.hidden), clone(state.memory))
    expected = model.step(torch.tensor([[8]]), state).log_probs
    torch.testing.assert_close(model.step(torch.tensor([[8]]), cloned).log_probs, expected)


def test_small_batch_does_not_load_numba() -> None:
    """The first line of a translation does not wait for numba."""
    code = (
        "import sys, torch\n"
        "from seqloom import accel\n"
        "from seqloom.decoding.beam import BeamConfig, beam_search\n"
        "from seqloom.models.transformer import TransformerConfig\n"
        "accel.install()\n"
        "torch.manual_seed(0)\n"
        "model = TransformerConfig(d_model=32, heads=2).build(50).eval()\n"
        "source = {'tokens': torch.ones(8, 4, dtype=torch.long), 'mask': torch.ones(8, 4, dtype=torch.bool)}\n"
        "beam_search(model, source=source, options=BeamConfig(min_length=3), end=0)\n"
        "assert 'numba' not in sys.modules\n"
        "source = {name: value.repeat(8, 1) for name, value in source.items()}\n"
        "beam_search(model, source=source, options=BeamConfig(min_length=3), end=0)\n"
        "assert 'numba' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
