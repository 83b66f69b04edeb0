"""Forward, backward, posteriors and Viterbi: against all paths one by one, against hmmlearn, and against themselves."""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seqloom.accel.hmm import compiled, scaled
from seqloom.classical.hmm.inference import backtrack, backward, forward, log_likelihood, posterior, recursion, viterbi
from seqloom.core.device import has_numba
from seqloom.core.errors import DataError
from seqloom.core.operations import definitions_only

INF = math.inf


plain = recursion.definition


@pytest.fixture
def without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "has_numba", lambda: False)


@pytest.fixture(params=["compiled", "scaled", "definition"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """With numba, as if it were not installed, and by definition."""
    if request.param == "scaled":
        request.getfixturevalue("without_numba")
    elif request.param == "compiled" and not has_numba():
        pytest.skip("numba is not installed")
    with definitions_only() if request.param == "definition" else nullcontext():
        yield str(request.param)


def drawn(states: int, batch: int, length: int, seed: int = 0, zeros: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """log π, log A, log b; a share of A and b is zero, but never all of a row."""
    random = np.random.default_rng(seed)
    initial, transition = random.dirichlet(np.ones(states)), random.dirichlet(np.ones(states), states)
    emission = random.gamma(0.5, size=(batch, length, states)) + 1e-12
    for table in (transition, emission.reshape(-1, states)):
        gone = random.random(table.shape) < zeros
        gone[np.arange(len(table)), random.integers(states, size=len(table))] = False
        table[gone] = 0
    with np.errstate(divide="ignore"):
        return tuple(torch.from_numpy(np.log(one)) for one in (initial, transition, emission))  # type: ignore[return-value]


def lengths_mask(lengths: list[int], longest: int) -> Tensor:
    return torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)


def every_path(initial: Tensor, transition: Tensor, emission: Tensor) -> dict[tuple[int, ...], float]:
    """log p(x, z) of each z."""
    first, moves, shown = initial.tolist(), transition.tolist(), emission.tolist()
    found = {}
    for path in itertools.product(range(len(first)), repeat=len(shown)):
        total = first[path[0]] + sum(moves[a][b] for a, b in itertools.pairwise(path))
        found[path] = total + sum(own[k] for own, k in zip(shown, path, strict=True))
    return found


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("zeros", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_all_paths_one_by_one(seed: int, zeros: float) -> None:
    initial, transition, emission = drawn(3, 4, 6, seed, zeros)
    lengths = [6, 1, 4, 5]
    mask = lengths_mask(lengths, 6)
    paths = [every_path(initial, transition, own[:length]) for own, length in zip(emission, lengths, strict=True)]
    possible = [row for row, found in enumerate(paths) if max(found.values()) > -INF]
    emission, mask = emission[possible], mask[possible]
    ahead, beta = forward(initial, transition, emission, mask), backward(transition, emission, mask)
    after = posterior(initial, transition, emission, mask)
    states, score = viterbi(initial, transition, emission, mask)
    for row, original in enumerate(possible):
        found, length = paths[original], lengths[original]
        total = torch.logsumexp(torch.tensor(list(found.values()), dtype=torch.float64), 0).item()
        for said in (ahead.log_likelihood, after.log_likelihood, log_likelihood(initial, transition, emission, mask)):
            assert said[row].item() == pytest.approx(total, abs=1e-10)
        one, two = np.zeros((6, 3)), np.zeros((3, 3))
        for path, value in found.items():
            chance = math.exp(value - total)
            for t, k in enumerate(path):
                one[t, k] += chance
            for a, b in itertools.pairwise(path):
                two[a, b] += chance
        np.testing.assert_allclose(after.states[row].numpy(), one, atol=1e-10, rtol=0)
        np.testing.assert_allclose(after.pairs[row].numpy(), two, atol=1e-10, rtol=0)
        both = (ahead.alpha[row] + beta[row]).logsumexp(1)[:length]
        torch.testing.assert_close(both, torch.full_like(both, total), atol=1e-10, rtol=0)
        assert score[row].item() == pytest.approx(max(found.values()), abs=1e-10)
        assert found[tuple(states[row, :length].tolist())] == pytest.approx(max(found.values()), abs=1e-10)
        assert not states[row, length:].any()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("states", "length"), [(2, 50), (5, 300), (20, 80)])
def test_hmmlearn_gives_the_same(states: int, length: int) -> None:
    hmm = pytest.importorskip("hmmlearn.hmm")
    random = np.random.default_rng(states)
    other = hmm.CategoricalHMM(n_components=states, init_params="", random_state=0)
    other.startprob_ = random.dirichlet(np.ones(states))
    other.transmat_ = random.dirichlet(np.ones(states), states)
    other.emissionprob_ = random.dirichlet(np.ones(11), states)
    symbols = random.integers(11, size=(3, length))
    emission = torch.from_numpy(np.log(other.emissionprob_).T[symbols])
    initial, transition = (torch.from_numpy(np.log(one)) for one in (other.startprob_, other.transmat_))
    found = posterior(initial, transition, emission)
    path, score = viterbi(initial, transition, emission)
    for row, own in enumerate(symbols):
        total, states_of = other.score_samples(own[:, None])
        assert found.log_likelihood[row].item() == pytest.approx(total, rel=1e-12)
        np.testing.assert_allclose(found.states[row].numpy(), states_of, atol=1e-10)
        best, way_of = other.decode(own[:, None])
        assert score[row].item() == pytest.approx(best, rel=1e-12)
        assert path[row].tolist() == way_of.tolist()


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 5),
    st.lists(st.integers(1, 12), min_size=1, max_size=6),
    st.integers(0, 1000),
    st.sampled_from([0, 0.4]),
)
def test_a_row_alone_is_the_row_in_a_batch(states: int, lengths: list[int], seed: int, zeros: float) -> None:
    initial, transition, emission = drawn(states, len(lengths), 12, seed, zeros)
    emission = emission.nan_to_num(neginf=-50.0)  # so that every sequence is possible
    mask = lengths_mask(lengths, 12)
    together = posterior(initial, transition, emission, mask)
    states_of, score = viterbi(initial, transition, emission, mask)
    for row, length in enumerate(lengths):
        own = emission[row : row + 1, :length]
        alone, (path, best) = posterior(initial, transition, own), viterbi(initial, transition, own)
        torch.testing.assert_close(together.log_likelihood[row], alone.log_likelihood[0])
        torch.testing.assert_close(together.states[row, :length], alone.states[0])
        torch.testing.assert_close(together.pairs[row], alone.pairs[0])
        torch.testing.assert_close(score[row], best[0])
        assert states_of[row, :length].tolist() == path[0].tolist()


@pytest.mark.parametrize("zeros", [0.0, 0.4])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.usefixtures("without_numba")
def test_in_pieces_is_as_a_whole(batch: int, zeros: float) -> None:
    initial, transition, emission = drawn(3, batch, 2500, 1, zeros)
    start = initial.expand(batch, 3)
    assert scaled.piece_size(emission) is not None
    for largest in (False, True):
        expected = plain(start, transition, emission, largest=largest)
        found = recursion(start, transition, emission, largest=largest)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-9)
    mask = lengths_mask([2400, 2100][:batch], 2500)
    for one, other in zip(
        recursion(start, transition, emission, mask), plain(start, transition, emission, mask), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-9)
    came_from = torch.randint(3, (batch, 2499, 3), generator=torch.Generator().manual_seed(0))
    last = torch.ones(batch, dtype=torch.long)
    assert scaled.backtrack(came_from, last).equal(backtrack.definition(came_from, last))


# --- what is very small ---------------------------------------------------------------------------------------------


def narrow() -> tuple[Tensor, Tensor, Tensor]:
    """Two states without a way between them; the likelier one is thousands of nats off at first, then the other is."""
    initial = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
    transition = torch.eye(2, dtype=torch.float64).log()
    emission = torch.tensor([[[0.0, -2000.0], [-3000.0, 0.0], [0.0, -900.0]]], dtype=torch.float64)
    return initial, transition, emission


@pytest.mark.usefixtures("way")
def test_what_underflows_is_not_lost() -> None:
    """Products of probabilities would say 0 here, or take the wrong state."""
    initial, transition, emission = narrow()
    found = posterior(initial, transition, emission)
    assert found.log_likelihood.item() == pytest.approx(-2900 + math.log(0.5), abs=1e-9)
    assert found.states[0, :, 1].tolist() == pytest.approx([1, 1, 1])
    torch.testing.assert_close(found.pairs[0], torch.tensor([[0, 0], [0, 2.0]], dtype=torch.float64))
    assert viterbi(initial, transition, emission)[0].tolist() == [[1, 1, 1]]
    assert log_likelihood(initial, transition, emission).item() == pytest.approx(-2900 + math.log(0.5), abs=1e-9)
    ahead = forward(initial, transition, emission)
    assert ahead.alpha[0, -1, 0].item() == pytest.approx(-3000 + math.log(0.5))


def test_the_scaled_way_alone_would_be_wrong() -> None:
    """The control: without the check of what was lost, the test above cannot pass; and the check does notice."""
    initial, transition, emission = narrow()
    _, alpha, trusted = scaled.scaled(initial.expand(1, 2), transition, emission)
    assert not trusted.any()
    assert not alpha[0, -1, 1].isfinite()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("low", [-100.0, -400.0, -800.0])
def test_outliers_and_ways_that_are_closed(low: float) -> None:
    """Left to right only, with values that fit a state badly: as far as doubles reach, and beyond."""
    random = np.random.default_rng(3)
    transition = torch.from_numpy(np.triu(random.dirichlet(np.ones(4), 4))).log()
    emission = torch.from_numpy(random.uniform(low, 0, (5, 30, 4)))
    initial = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64).log()
    found = forward(initial, transition, emission)
    _, alpha = plain(initial.expand(5, 4), transition, emission)
    torch.testing.assert_close(found.alpha, alpha, rtol=1e-12, atol=0)
    states = posterior(initial, transition, emission).states
    _, gamma = plain(torch.zeros(5, 4, dtype=torch.float64), transition.T, emission.flip(1))
    both = alpha - emission + gamma.flip(1)
    torch.testing.assert_close(states, both.softmax(dim=2), rtol=0, atol=1e-10)


@pytest.mark.usefixtures("way")
def test_what_cannot_be_is_refused_by_name() -> None:
    initial, transition, emission = drawn(2, 3, 4)
    emission[1, 2] = -INF
    assert forward(initial, transition, emission).log_likelihood[1] == -INF
    for ask in (posterior, viterbi):
        with pytest.raises(DataError, match=r"1 of 3 sequences \(2\) cannot come from this model.*smoothing"):
            ask(initial, transition, emission)


def swapped(values: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    return {**values, name: value}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda g: swapped(g, "emission", g["emission"] * math.nan), "log b must be numbers or −inf; got NaN"),
        (lambda g: swapped(g, "transition", g["transition"][:, :2]), "log A must be"),
        (lambda g: swapped(g, "emission", g["emission"][..., :2]), "log b must have shape"),
        (lambda g: swapped(g, "emission", g["emission"][:, :0]), "T ≥ 1"),
        (lambda g: swapped(g, "mask", torch.tensor([[False, True, True, True]] * 2)), "padding last"),
        (lambda g: swapped(g, "mask", torch.ones(2, 4)), "must be torch.bool"),
    ],
)
def test_wrong_shapes_and_nan_are_refused(change: Callable[[dict[str, Any]], dict[str, Any]], match: str) -> None:
    given = dict(zip(("initial", "transition", "emission"), drawn(3, 2, 4), strict=True))
    with pytest.raises(ValueError, match=match):
        forward(**change(given))


@pytest.mark.usefixtures("way")
def test_an_empty_sequence_has_probability_one() -> None:
    initial, transition, emission = drawn(3, 2, 4)
    mask = lengths_mask([4, 0], 4)
    found = posterior(initial, transition, emission, mask)
    assert found.log_likelihood[1] == 0
    assert not found.states[1].any() and not found.pairs[1].any()
    assert viterbi(initial, transition, emission, mask)[1][1] == 0
