"""Forward, backward, posteriors and Viterbi compared with path enumeration and hmmlearn."""

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

from seqloom.accel.hmm import numba_inference, scaled
from seqloom.classical.hmm.inference import backtrack, backward, forward, log_likelihood, posterior, recursion, viterbi
from seqloom.core.device import has_numba
from seqloom.core.errors import DataError
from seqloom.core.operations import definitions_only

INF = math.inf


plain = recursion.definition


@pytest.fixture
def without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba_inference, "has_numba", lambda: False)


@pytest.fixture(params=["numba", "scaled", "definition"])
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """The numba kernels, the scaled torch code that is used without numba, and the definition."""
    if request.param == "scaled":
        request.getfixturevalue("without_numba")
    elif request.param == "numba" and not has_numba():
        pytest.skip("numba is not installed")
    with definitions_only() if request.param == "definition" else nullcontext():
        yield str(request.param)


def random_hmm(
    states: int, batch: int, length: int, seed: int = 0, zeros: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log π, log A and log b. A fraction `zeros` of A and b is 0, but never a complete row."""
    random = np.random.default_rng(seed)
    initial, transition = random.dirichlet(np.ones(states)), random.dirichlet(np.ones(states), states)
    emission = random.gamma(0.5, size=(batch, length, states)) + 1e-12
    for table in (transition, emission.reshape(-1, states)):
        gone = random.random(table.shape) < zeros
        gone[np.arange(len(table)), random.integers(states, size=len(table))] = False
        table[gone] = 0
    with np.errstate(divide="ignore"):
        return tuple(torch.from_numpy(np.log(one)) for one in (initial, transition, emission))  # type: ignore[return-value]


def mask_of_lengths(lengths: list[int], longest: int) -> Tensor:
    return torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)


def enumerate_paths(initial: Tensor, transition: Tensor, emission: Tensor) -> dict[tuple[int, ...], float]:
    """Return log p(x, z) of each path z."""
    first, transitions, emissions = initial.tolist(), transition.tolist(), emission.tolist()
    scores = {}
    for path in itertools.product(range(len(first)), repeat=len(emissions)):
        total = first[path[0]] + sum(transitions[a][b] for a, b in itertools.pairwise(path))
        scores[path] = total + sum(row[k] for row, k in zip(emissions, path, strict=True))
    return scores


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("zeros", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_inference_matches_path_enumeration(seed: int, zeros: float) -> None:
    initial, transition, emission = random_hmm(3, 4, 6, seed, zeros)
    lengths = [6, 1, 4, 5]
    mask = mask_of_lengths(lengths, 6)
    paths = [enumerate_paths(initial, transition, own[:length]) for own, length in zip(emission, lengths, strict=True)]
    possible = [row for row, result in enumerate(paths) if max(result.values()) > -INF]
    emission, mask = emission[possible], mask[possible]
    ahead, beta = forward(initial, transition, emission, mask), backward(transition, emission, mask)
    after = posterior(initial, transition, emission, mask)
    states, score = viterbi(initial, transition, emission, mask)
    for row, original in enumerate(possible):
        result, length = paths[original], lengths[original]
        total = torch.logsumexp(torch.tensor(list(result.values()), dtype=torch.float64), 0).item()
        for log_p in (ahead.log_likelihood, after.log_likelihood, log_likelihood(initial, transition, emission, mask)):
            assert log_p[row].item() == pytest.approx(total, abs=1e-10)
        one, two = np.zeros((6, 3)), np.zeros((3, 3))
        for path, value in result.items():
            chance = math.exp(value - total)
            for t, k in enumerate(path):
                one[t, k] += chance
            for a, b in itertools.pairwise(path):
                two[a, b] += chance
        np.testing.assert_allclose(after.states[row].numpy(), one, atol=1e-10, rtol=0)
        np.testing.assert_allclose(after.pairs[row].numpy(), two, atol=1e-10, rtol=0)
        both = (ahead.alpha[row] + beta[row]).logsumexp(1)[:length]
        torch.testing.assert_close(both, torch.full_like(both, total), atol=1e-10, rtol=0)
        assert score[row].item() == pytest.approx(max(result.values()), abs=1e-10)
        assert result[tuple(states[row, :length].tolist())] == pytest.approx(max(result.values()), abs=1e-10)
        assert not states[row, length:].any()


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize(("states", "length"), [(2, 50), (5, 300), (20, 80)])
def test_inference_matches_hmmlearn(states: int, length: int) -> None:
    hmm = pytest.importorskip("hmmlearn.hmm")
    random = np.random.default_rng(states)
    other = hmm.CategoricalHMM(n_components=states, init_params="", random_state=0)
    other.startprob_ = random.dirichlet(np.ones(states))
    other.transmat_ = random.dirichlet(np.ones(states), states)
    other.emissionprob_ = random.dirichlet(np.ones(11), states)
    symbols = random.integers(11, size=(3, length))
    emission = torch.from_numpy(np.log(other.emissionprob_).T[symbols])
    initial, transition = (torch.from_numpy(np.log(one)) for one in (other.startprob_, other.transmat_))
    result = posterior(initial, transition, emission)
    path, score = viterbi(initial, transition, emission)
    for row, own in enumerate(symbols):
        total, states_of = other.score_samples(own[:, None])
        assert result.log_likelihood[row].item() == pytest.approx(total, rel=1e-12)
        np.testing.assert_allclose(result.states[row].numpy(), states_of, atol=1e-10)
        best, expected_path = other.decode(own[:, None])
        assert score[row].item() == pytest.approx(best, rel=1e-12)
        assert path[row].tolist() == expected_path.tolist()


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 5),
    st.lists(st.integers(1, 12), min_size=1, max_size=6),
    st.integers(0, 1000),
    st.sampled_from([0, 0.4]),
)
def test_single_row_gives_the_same_result_as_in_a_batch(
    states: int, lengths: list[int], seed: int, zeros: float
) -> None:
    initial, transition, emission = random_hmm(states, len(lengths), 12, seed, zeros)
    emission = emission.nan_to_num(neginf=-50.0)  # so that every sequence is possible
    mask = mask_of_lengths(lengths, 12)
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
def test_piecewise_recursion_matches_the_definition(batch: int, zeros: float) -> None:
    initial, transition, emission = random_hmm(3, batch, 2500, 1, zeros)
    start = initial.expand(batch, 3)
    assert scaled.chunk_length(emission) is not None
    for largest in (False, True):
        expected = plain(start, transition, emission, largest=largest)
        result = recursion(start, transition, emission, largest=largest)
        for one, other in zip(result, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-9)
    mask = mask_of_lengths([2400, 2100][:batch], 2500)
    for one, other in zip(
        recursion(start, transition, emission, mask), plain(start, transition, emission, mask), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-9)
    backpointers = torch.randint(3, (batch, 2499, 3), generator=torch.Generator().manual_seed(0))
    last = torch.ones(batch, dtype=torch.long)
    assert scaled.backtrack(backpointers, last).equal(backtrack.definition(backpointers, last))


# --- underflow ------------------------------------------------------------------------------------------------------


def underflowing_hmm() -> tuple[Tensor, Tensor, Tensor]:
    """Two disconnected states. Emissions alternate between likely values and values thousands of nats below."""
    initial = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
    transition = torch.eye(2, dtype=torch.float64).log()
    emission = torch.tensor([[[0.0, -2000.0], [-3000.0, 0.0], [0.0, -900.0]]], dtype=torch.float64)
    return initial, transition, emission


@pytest.mark.usefixtures("implementation")
def test_underflow_does_not_lose_states() -> None:
    """Products of probabilities would be 0 here, or would favour the wrong state."""
    initial, transition, emission = underflowing_hmm()
    result = posterior(initial, transition, emission)
    assert result.log_likelihood.item() == pytest.approx(-2900 + math.log(0.5), abs=1e-9)
    assert result.states[0, :, 1].tolist() == pytest.approx([1, 1, 1])
    torch.testing.assert_close(result.pairs[0], torch.tensor([[0, 0], [0, 2.0]], dtype=torch.float64))
    assert viterbi(initial, transition, emission)[0].tolist() == [[1, 1, 1]]
    assert log_likelihood(initial, transition, emission).item() == pytest.approx(-2900 + math.log(0.5), abs=1e-9)
    ahead = forward(initial, transition, emission)
    assert ahead.alpha[0, -1, 0].item() == pytest.approx(-3000 + math.log(0.5))


def test_scaled_recursion_detects_underflow() -> None:
    """Negative control: the scaled recursion gives a wrong result here, and its check reports this."""
    initial, transition, emission = underflowing_hmm()
    _, alpha, trusted = scaled.scaled(initial.expand(1, 2), transition, emission)
    assert not trusted.any()
    assert not alpha[0, -1, 1].isfinite()


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("low", [-100.0, -400.0, -800.0])
def test_unlikely_values_with_zero_transitions_are_exact(low: float) -> None:
    """The left-to-right model reads unlikely values within and beyond the range of float64."""
    random = np.random.default_rng(3)
    transition = torch.from_numpy(np.triu(random.dirichlet(np.ones(4), 4))).log()
    emission = torch.from_numpy(random.uniform(low, 0, (5, 30, 4)))
    initial = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64).log()
    result = forward(initial, transition, emission)
    _, alpha = plain(initial.expand(5, 4), transition, emission)
    torch.testing.assert_close(result.alpha, alpha, rtol=1e-12, atol=0)
    states = posterior(initial, transition, emission).states
    _, gamma = plain(torch.zeros(5, 4, dtype=torch.float64), transition.T, emission.flip(1))
    both = alpha - emission + gamma.flip(1)
    torch.testing.assert_close(states, both.softmax(dim=2), rtol=0, atol=1e-10)


@pytest.mark.usefixtures("implementation")
def test_impossible_sequence_is_reported() -> None:
    initial, transition, emission = random_hmm(2, 3, 4)
    emission[1, 2] = -INF
    assert forward(initial, transition, emission).log_likelihood[1] == -INF
    for infer in (posterior, viterbi):
        with pytest.raises(DataError, match=r"1 of 3 sequences \(2\) have probability 0.*smoothing"):
            infer(initial, transition, emission)


def replace_value(values: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    return {**values, name: value}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda g: replace_value(g, "emission", g["emission"] * math.nan), "log b must not contain NaN"),
        (lambda g: replace_value(g, "transition", g["transition"][:, :2]), "log A must be"),
        (lambda g: replace_value(g, "emission", g["emission"][..., :2]), "log b must have shape"),
        (lambda g: replace_value(g, "emission", g["emission"][:, :0]), "T ≥ 1"),
        (lambda g: replace_value(g, "mask", torch.tensor([[False, True, True, True]] * 2)), "padding must come last"),
        (lambda g: replace_value(g, "mask", torch.ones(2, 4)), "must be torch.bool"),
    ],
)
def test_wrong_shapes_and_nan_are_rejected(change: Callable[[dict[str, Any]], dict[str, Any]], match: str) -> None:
    given = dict(zip(("initial", "transition", "emission"), random_hmm(3, 2, 4), strict=True))
    with pytest.raises(ValueError, match=match):
        forward(**change(given))


@pytest.mark.usefixtures("implementation")
def test_empty_sequence_has_probability_one() -> None:
    initial, transition, emission = random_hmm(3, 2, 4)
    mask = mask_of_lengths([4, 0], 4)
    result = posterior(initial, transition, emission, mask)
    assert result.log_likelihood[1] == 0
    assert not result.states[1].any() and not result.pairs[1].any()
    assert viterbi(initial, transition, emission, mask)[1][1] == 0
