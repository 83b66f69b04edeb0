"""A decoder's step in machine code computes what PyTorch computes, in double precision where that can be."""

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
from tests.accel.test_decoder_step import KINDS, made, steps
from torch import Tensor, nn

from seqloom.accel.decoding import decoder_numba
from seqloom.accel.decoding.packed import PackedWeights
from seqloom.core.device import has_numba
from seqloom.core.protocols import DecodeState, select
from seqloom.core.tokens import best_tokens
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.models.transformer import Transformer

pytestmark = pytest.mark.skipif(find_spec("numba") is None, reason="needs numba")
WIDE = {name: replace(config, d_model=48, heads=3) for name, config in KINDS.items()}  # heads of 16


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches, too."""
    monkeypatch.setattr(decoder_numba, "SOURCES", 1)
    monkeypatch.setattr(decoder_numba, "ROWS", 1)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def best_of(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """In parts, as they come."""
    return decoder_numba.best_tokens(logits.clone().split(4), len(logits), min(count, logits.shape[1]))


def test_loops_can_be_compiled_here() -> None:
    """A control for all tests below: where the loops fail to compile, PyTorch computes the same without them."""
    assert decoder_numba.there()


# --- the vocabulary ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", [1, 2, 15, 63, 64, 65, 128, 1000, 3001])
@pytest.mark.parametrize("count", [1, 6, 70])
@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0, 60.0])
def test_the_best_tokens_are_those_of_log_softmax(vocabulary: int, count: int, scale: float) -> None:
    logits = scale * torch.randn(9, vocabulary, generator=generator(vocabulary))
    wanted, wanted_ids = best_tokens(logits.double().log_softmax(-1), count)
    values, ids = best_of(logits, count)
    assert torch.equal(ids, wanted_ids)
    torch.testing.assert_close(values, wanted.float(), rtol=1e-6, atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300), st.integers(1, 12), st.integers(1, 4), st.integers(0, 999))
def test_of_equals_those_of_lower_id_are_taken(vocabulary: int, count: int, kinds: int, seed: int) -> None:
    """Logits of few kinds, of which most are equal, some impossible."""
    logits = torch.randint(kinds, (5, vocabulary), generator=generator(seed)).float()
    logits[:, 1:][torch.rand(5, vocabulary - 1, generator=generator(seed)) < 0.3] = -torch.inf
    wanted, wanted_ids = best_tokens(logits.double().log_softmax(-1), count)
    values, ids = best_of(logits, count)
    possible = ~wanted.isneginf()  # which of the impossible ones does not matter
    assert torch.equal(ids[possible], wanted_ids[possible])
    torch.testing.assert_close(values, wanted.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_row_that_is_broken_is_seen_to_be(broken: float) -> None:
    logits = torch.randn(3, 200, generator=generator(1))
    logits[1, 77] = broken
    logits[2] = -torch.inf
    values, ids = best_of(logits, 5)
    assert values[1:].isnan().all()
    assert not values[0].isnan().any()
    assert ((ids >= 0) & (ids < 200)).all()


# --- attention --------------------------------------------------------------------------------------------------------


def seen(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Of queries (B, k, N, d), keys and values (B, N, P, d), by a mask (B, k, P), in double precision."""
    scores = torch.einsum("bknd,bnpd->bknp", q.double(), keys.double())
    looked = scores.masked_fill(~mask.unsqueeze(2), -torch.inf).softmax(-1).nan_to_num(0)
    return torch.einsum("bknp,bnpd->bknd", looked, values.double()), looked


@pytest.mark.parametrize("size", [1, 3, 4, 15, 16, 17, 40])
@pytest.mark.parametrize(("d", "k"), [(16, 1), (32, 5), (48, 2), (64, 3)])
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_attending_to_the_source(size: int, d: int, k: int, scale: float) -> None:
    """Any mask, of the last source an empty one; scores so far apart that most weights vanish."""
    B, N, draw = 4, 3, generator(size)
    q, (keys, values) = scale * torch.randn(B * k, N, d, generator=draw), torch.randn(2, B, N, size, d, generator=draw)
    mask = torch.rand(B, size, generator=draw) < 0.7
    mask[-1] = False
    wanted, wanted_looked = seen(q.view(B, k, N, d), keys, values, mask.unsqueeze(1).expand(-1, k, -1))
    looked, out = torch.full((B * k, N, size), torch.nan), torch.full((B * k, N * d), torch.nan)
    found = decoder_numba.attend_to_source(q, keys, values, mask, out, looked)
    torch.testing.assert_close(found, wanted.float().reshape(B * k, N * d), rtol=1e-4, atol=1e-5 * scale)
    torch.testing.assert_close(looked.view(B, k, N, size), wanted_looked.float(), rtol=1e-4, atol=1e-6 * scale)
    assert found.view(B, -1)[-1].abs().max() == 0
    assert torch.equal(decoder_numba.attend_to_source(q, keys, values, mask, torch.empty_like(out)), found)


@pytest.mark.parametrize("size", [5, 16, 33])
@pytest.mark.parametrize(("d", "k"), [(16, 1), (32, 5), (64, 3)])
@pytest.mark.parametrize("room", [0, 7])
def test_attending_to_the_cache(size: int, d: int, k: int, room: int) -> None:
    B, N, draw = 4, 2, generator(size)
    made, cache = torch.randn(B * k, 3, N, d, generator=draw), torch.randn(B, N, 2, size + room, d, generator=draw)
    cache = cache[:, :, :, :size]
    own = torch.rand(B * k, size, generator=draw) < 0.4
    own.view(B, k, size)[:, :, size - k :] = False
    at = decoder_numba.take_slots(own, B)
    expected = cache.clone()
    expected[torch.arange(B).unsqueeze(1), :, :, at] = made[:, 1:].view(B, k, 2, N, d).transpose(2, 3)
    found = decoder_numba.attend_to_cache(made, cache, own, at, torch.full((B * k, N * d), torch.nan))
    assert torch.equal(cache, expected)
    wanted, _ = seen(made[:, 0].view(B, k, N, d), cache[:, :, 0], cache[:, :, 1], own.view(B, k, size))
    torch.testing.assert_close(found, wanted.float().reshape(B * k, N * d), rtol=1e-4, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 20), st.integers(0, 999))
def test_places_that_are_nobodys_are_taken(sources: int, k: int, size: int, seed: int) -> None:
    own = torch.rand(sources * k, k + size, generator=generator(seed)) < 0.15
    before = own.view(sources, k, -1)
    free = int((~before.any(dim=1)).sum(dim=1).min())
    assert decoder_numba.free_slots(own, sources) == free
    if free < k:
        return
    before = before.clone()
    at, after = decoder_numba.take_slots(own, sources), own.view(sources, k, -1)
    new = after & ~before
    assert torch.equal(after & before, before)
    assert torch.equal(new.sum(dim=2), torch.ones(sources, k, dtype=torch.long))
    assert torch.equal(new.int().argmax(dim=2), at)
    assert not (new & before.any(dim=1, keepdim=True)).any()
    assert new.any(dim=1).sum() == sources * k  # no two have the same


@pytest.mark.parametrize("width", [16, 48, 512])
def test_layer_norm(width: int) -> None:
    norm, x = nn.LayerNorm(width), torch.randn(7, width, generator=generator(1)) * 5 + 3
    x[3] = 2.0
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    with torch.no_grad():
        wanted, before, out = norm(x), x.clone(), torch.empty_like(x)
        given = norm.weight, norm.bias, norm.eps
        torch.testing.assert_close(decoder_numba.layer_norm(x, *given, out), wanted, rtol=1e-5, atol=1e-5)
        assert torch.equal(x, before)
        assert torch.equal(decoder_numba.layer_norm(x, *given, x), out)
        assert torch.equal(x, out)


# --- steps and searches -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("kind", WIDE)
def test_a_step_in_machine_code_is_a_step(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypotheses are moved about, and one source has nothing to look at."""
    model, calls, taken = made(WIDE[kind]), [], decoder_numba.attend_to_cache

    def attend_to_cache(*given: Tensor) -> Tensor:
        calls.append(given)
        return taken(*given)

    monkeypatch.setattr(decoder_numba, "attend_to_cache", attend_to_cache)
    with torch.no_grad():
        quick = steps(model)
        assert calls
        monkeypatch.setattr(decoder_numba, "SOURCES", 10**9)
        slow = steps(model)
    for one, other in zip(quick, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.usefixtures("few")
def test_steps_of_all_kinds_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step in machine code, several tokens at once, some of them padding, sources that leave, a wider beam."""
    model, V, empty = made(WIDE["plain"]), 37, Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *given, **more: empty(*given, **more).fill_(torch.nan))

    def walk() -> list[Tensor]:
        draw = generator(3)
        tokens, mask = torch.randint(1, V, (4, 6), generator=draw), torch.arange(6) < torch.tensor([[6], [2], [3], [5]])
        state, k, sources, found = model.start({"tokens": tokens, "mask": mask}), 1, 4, []
        for T, padded, wider, leave in [
            (1, False, 3, False), (1, False, 3, False), (1, True, 3, False), (2, False, 3, False), (1, False, 3, True),
            (3, True, 3, False), *[(1, False, 3, False)] * 9, (1, False, 1, True), *[(1, False, 5, False)] * 9,
        ]:  # fmt: skip
            R = sources * k
            real = torch.rand(R, T, generator=draw) < 0.6 if padded else None
            output = model.step(torch.randint(1, V, (R, T), generator=draw), state, real)
            found.append(output.log_probs)
            stay = torch.arange(sources - leave)
            rows = stay.unsqueeze(1) * k + torch.randint(k, (len(stay), wider), generator=draw)
            state, k, sources = select(output.state, rows.flatten(), stay), wider, len(stay)
        return found

    quick = walk()
    monkeypatch.setattr(decoder_numba, "SOURCES", 10**9)
    for one, other in zip(quick, walk(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def searched(model: Transformer, options: BeamConfig, sources: int = 12, **more: Any) -> list[Any]:
    draw = generator(5)
    tokens = torch.randint(1, 37, (sources, 7), generator=draw)
    mask = torch.arange(7) < torch.randint(1, 8, (sources, 1), generator=draw)
    found = beam_search(model, source={"tokens": tokens, "mask": mask}, options=options, end=0, **more)
    return [[(one.tokens, one.finished, one.log_prob, one.attention) for one in row] for row in found]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("kind", WIDE)
@pytest.mark.parametrize(
    ("options", "more"),
    [
        (BeamConfig(beam=1), {}),
        (BeamConfig(beam=4, n_best=4), {"attention": True}),
        (BeamConfig(beam=5, n_best=2, length_penalty=0.6, max_length=40, min_length=25), {"banned": [3, 9]}),
        (BeamConfig(beam=3, coverage_penalty=0.3), {"prompt": torch.arange(1, 13).view(12, 1)}),
    ],
    ids=["greedy", "attention", "long", "coverage"],
)
def test_a_search_finds_the_same(
    kind: str, options: BeamConfig, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(WIDE[kind])
    quick = searched(model, options, **more)
    monkeypatch.setattr(decoder_numba, "SOURCES", 10**9)
    monkeypatch.setattr(decoder_numba, "ROWS", 10**9)
    slow = searched(model, options, **more)
    for row, other in zip(quick, slow, strict=True):
        assert [one[:2] for one in row] == [one[:2] for one in other]
        for one, same in zip(row, other, strict=True):
            assert one[2] == pytest.approx(same[2], rel=1e-4, abs=1e-4)
            if one[3] is not None:
                torch.testing.assert_close(one[3], same[3], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("few")
def test_ties_go_to_the_better_hypothesis_then_to_the_lower_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tokens are equally probable."""
    model = made(WIDE["plain"])
    with torch.no_grad():
        model.output.weight.zero_()
        model.output.bias.zero_()
        model.output.bias[0] = -torch.inf
    options = BeamConfig(beam=3, n_best=3, max_length=3)
    found = searched(model, options)
    assert [one[0] for one in found[0]] == [[1, 1, 1], [1, 1, 2], [1, 1, 3]]
    monkeypatch.setattr(decoder_numba, "SOURCES", 10**9)
    monkeypatch.setattr(decoder_numba, "ROWS", 10**9)
    assert [[one[0] for one in row] for row in found] == [[one[0] for one in row] for row in searched(model, options)]


@pytest.mark.usefixtures("few")
def test_without_numba_it_is_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    options = BeamConfig(beam=3, n_best=2)
    with_it = searched(made(WIDE["plain"]), options)
    monkeypatch.setattr(decoder_numba, "loops", lambda: None)
    without = searched(made(WIDE["plain"]), options)
    assert [[one[:2] for one in row] for row in with_it] == [[one[:2] for one in row] for row in without]


@pytest.mark.parametrize("error", [ImportError, OSError, SystemError])
def test_loops_that_cannot_be_compiled_are_not_there(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> None:
        raise error(name)

    assert has_numba()  # it is only about what comes after numba
    monkeypatch.setattr(decoder_numba, "loops", functools.cache(decoder_numba.loops.__wrapped__))
    monkeypatch.setattr(importlib, "import_module", fails)
    assert not decoder_numba.there()


def test_loops_are_not_asked_for_where_numba_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_numba, "loops", functools.cache(decoder_numba.loops.__wrapped__))
    monkeypatch.setattr(decoder_numba, "has_numba", lambda: False)
    assert not decoder_numba.there()


@pytest.mark.usefixtures("few")
def test_what_torch_makes_where_nothing_is_said_does_not_matter() -> None:
    """Neither the kind of numbers nor the device."""
    model, options, before = made(WIDE["plain"]), BeamConfig(beam=3, n_best=2), torch.get_default_dtype()
    wanted, logits = searched(model, options), torch.randn(5, 90)
    best = best_of(logits, 4)
    torch.set_default_dtype(torch.float64)
    try:
        found = searched(model, options)
    finally:
        torch.set_default_dtype(before)
    assert [[one[:3] for one in row] for row in found] == [[one[:3] for one in row] for row in wanted]
    own = torch.zeros(3, 4, dtype=torch.bool)
    with torch.device("meta"):
        assert torch.equal(best_of(logits, 4)[1], best[1])
        assert decoder_numba.take_slots(own, 3).tolist() == [[0], [0], [0]]


def test_numbers_of_another_kind_are_refused() -> None:
    """Loops are given addresses, and would read whatever lies there."""
    x, mask = torch.ones(2, 16), torch.ones(2, 3, dtype=torch.bool)
    keys = torch.ones(2, 1, 3, 16)
    decoder_numba.attend_to_source(x, keys, keys, mask, torch.empty_like(x))
    with pytest.raises(AssertionError):
        decoder_numba.attend_to_source(x, keys.double(), keys, mask, torch.empty_like(x))
    with pytest.raises(AssertionError):
        decoder_numba.attend_to_source(x, keys, keys, mask.long(), torch.empty_like(x))
    with pytest.raises(AssertionError):
        decoder_numba.layer_norm(x, x[0].bfloat16(), x[0], 1e-5, torch.empty_like(x))


@pytest.mark.usefixtures("few")
def test_sources_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    model, source = made(WIDE["plain"]), {"tokens": torch.zeros(3, 0, dtype=torch.long)}
    source["mask"] = source["tokens"].bool()

    def found() -> list[list[int]]:
        options = BeamConfig(beam=3, max_length=8)
        return [row[0].tokens for row in beam_search(model, source=source, options=options, end=0)]

    quick = found()
    monkeypatch.setattr(decoder_numba, "loops", lambda: None)
    assert quick == found()


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("count", [3, decoder_numba.MOST, decoder_numba.MOST + 1, 400])
def test_many_of_a_row_are_sorted_by_torch(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    best = decoder_numba.best_tokens

    def noted(parts: Any, rows: int, count: int) -> tuple[Tensor, Tensor]:
        taken.append(count)
        return best(parts, rows, count)

    monkeypatch.setattr(decoder_numba, "best_tokens", noted)
    torch.manual_seed(0)
    layer, x = nn.Linear(16, 300), torch.randn(4, 16)
    with torch.no_grad():
        values, ids = PackedWeights.of(layer).best(x, count)
        wanted = best_tokens(layer(x).log_softmax(-1), count)
    assert taken == ([count] if count <= decoder_numba.MOST else [])
    assert torch.equal(ids, wanted[1])
    torch.testing.assert_close(values, wanted[0])


@torch.no_grad()
@pytest.mark.usefixtures("few")
def test_what_was_cloned_stays() -> None:
    from seqloom.core.tree import clone

    model = made(WIDE["plain"])
    source = {"tokens": torch.tensor([[3, 5, 7]]), "mask": torch.ones(1, 3, dtype=torch.bool)}
    state = model.step(torch.zeros(1, 1, dtype=torch.long), model.start(source)).state
    state = model.step(torch.tensor([[4]]), state).state
    kept = DecodeState(clone(state.hidden), clone(state.memory))
    one = model.step(torch.tensor([[8]]), state).log_probs
    torch.testing.assert_close(model.step(torch.tensor([[8]]), kept).log_probs, one)


def test_few_sentences_do_not_load_it() -> None:
    """So the first line of a translation comes soon."""
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
