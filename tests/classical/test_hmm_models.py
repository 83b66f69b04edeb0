"""Hidden Markov models compared with path enumeration, hmmlearn and manual counts."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from seqloom.classical.hmm import HiddenMarkov, HMMConfig, batch_documents, check_seen
from seqloom.classical.hmm import tag_chain as chain
from seqloom.classical.hmm.gaussian import GaussianHMM, GaussianHMMConfig
from seqloom.classical.hmm.inference import forward
from seqloom.classical.hmm.restarts import RestartSearch, SearchConfig, run_search
from seqloom.classical.hmm.tagger import classify_letters, interpolate_counts, word_shapes
from seqloom.core.errors import CheckpointError, DataError
from seqloom.core.protocols import CausalLanguageModel
from seqloom.decoding.beam import BeamConfig, beam_search

V = 7


def stream(seed: int = 0, length: int = 400) -> Tensor:
    found = torch.randint(0, V, (length,), generator=torch.Generator().manual_seed(seed))
    found[-1] = 0
    return found


def random_model(states: int = 3, seed: int = 0, **options: Any) -> HiddenMarkov:
    return HMMConfig(states=states, **options).build(V).draw_start(stream(), seed, 0)


# --- as a language model --------------------------------------------------------------------------------------------


def probability(model: HiddenMarkov, tokens: list[int]) -> float:
    """Return p of the first tokens of a text by enumerating all state paths."""
    table, emission = model.transition.exp(), model.emission.exp()
    total = 0.0
    for path in itertools.product(range(model.states + 1), repeat=len(tokens)):
        chance, before = 1.0, model.states
        for state, token in zip(path, tokens, strict=True):
            chance, before = chance * float(table[before, state] * emission[state, token]), state
        total += chance
    return total


def test_scores_match_path_enumeration() -> None:
    model = random_model()
    assert isinstance(model, CausalLanguageModel)
    text = [3, 0, 2, 5, 1]  # contains the end of a document
    inputs, targets = torch.tensor([[0, *text[:-1]]]), torch.tensor([text])
    scores, _ = model.score(inputs, targets, model.start())
    for end in range(1, len(text) + 1):
        assert math.exp(float(scores[0, :end].sum())) == pytest.approx(probability(model, text[:end]), rel=1e-10)
    after = model.step(inputs, model.start()).log_probs
    assert float(after[0, text[-1]]) == pytest.approx(float(scores[0, -1]), abs=1e-12)
    assert float(after.exp().sum()) == pytest.approx(1, abs=1e-12)


def test_reading_in_chunks_with_padding_is_equivalent_to_reading_in_one_call() -> None:
    model, tokens = random_model(4), torch.tensor([[0, 2, 3, 0, 5], [0, 1, 1, 6, 4]])
    targets = tokens.roll(-1, 1)
    whole, end = model.score(tokens, targets, model.start(rows=2))
    state, parts = model.start(rows=2), []
    for t in range(5):
        part, state = model.score(tokens[:, t : t + 1], targets[:, t : t + 1], state)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    torch.testing.assert_close(state.hidden, end.hidden)
    mask = torch.tensor([[True, False, True, True, True], [False, False, True, True, False]])
    padded = model.step(tokens, model.start(rows=2), mask).log_probs
    for row in range(2):
        alone = model.step(tokens[row][mask[row]][None], model.start()).log_probs
        torch.testing.assert_close(padded[row], alone[0])
    start = model.start(rows=2)
    nothing = model.step(tokens, model.start(rows=2), torch.zeros(2, 5, dtype=torch.bool))
    torch.testing.assert_close(nothing.state.hidden, start.hidden)


def test_beam_search_scores_match_those_of_the_model() -> None:
    model = random_model(2)
    found = beam_search(
        model, prompt=torch.empty(1, 0, dtype=torch.long), options=BeamConfig(beam=3, max_length=4), end=0
    )
    one = found[0][0]
    tokens = [*one.tokens, 0] if one.finished else list(one.tokens)
    scores, _ = model.score(torch.tensor([[0, *tokens[:-1]]]), torch.tensor([tokens]), model.start())
    assert one.log_prob == pytest.approx(float(scores.sum()), abs=1e-6)


# --- Baum–Welch -----------------------------------------------------------------------------------------------------


def test_iteration_matches_hmmlearn() -> None:
    """The chain has END as a state. Like hmmlearn, it uses no smoothing."""
    hmm = pytest.importorskip("hmmlearn.hmm")
    tokens, model = stream(), random_model(3, smoothing=0)
    other = hmm.CategoricalHMM(4, n_iter=1, tol=-1, init_params="", params="te")
    other.n_features = V
    other.startprob_, other.transmat_ = model.transition[-1].exp().numpy(), model.transition.exp().numpy()
    other.emissionprob_ = model.emission.exp().numpy()
    total = other.score(tokens.numpy()[:, None])
    other.fit(tokens.numpy()[:, None])
    better, value = model.improve(tokens)
    assert value * len(tokens) == pytest.approx(total, rel=1e-11)
    np.testing.assert_allclose(better.emission.exp().numpy(), other.emissionprob_, atol=1e-10)
    # hmmlearn does not count a transition before the first token; here the stream begins after an END
    np.testing.assert_allclose(better.transition.exp().numpy()[:-1], other.transmat_[:-1], atol=1e-10)


def test_likelihood_increases_and_batching_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, model, values = stream(), random_model(3, smoothing=0), []
    for _ in range(8):
        model, value = model.improve(tokens)
        values.append(value)
    assert all(b >= a - 1e-12 for a, b in itertools.pairwise(values))
    assert values[-1] > values[0] + 1e-4
    whole, value = model.improve(tokens)
    monkeypatch.setattr("seqloom.classical.hmm.BLOCK", 50)
    parts = list(batch_documents(tokens))
    assert len(parts) > 3 and sum(int(mask.sum()) for _, mask in parts) == len(tokens)
    assert all((rows[mask] == 0).sum() == len(rows) for rows, mask in parts)
    cut, other = model.improve(tokens)
    assert other == pytest.approx(value, rel=1e-12)
    torch.testing.assert_close(cut.transition.exp(), whole.transition.exp(), atol=1e-12, rtol=0)
    torch.testing.assert_close(cut.emission.exp(), whole.emission.exp(), atol=1e-12, rtol=0)


def test_two_states_separate_alternating_symbols() -> None:
    """Symbols alternate between 1, 2, 3 and 4, 5, 6. A model with two states learns this."""
    draws = torch.randint(1, 4, (200,), generator=torch.Generator().manual_seed(1))
    tokens = torch.cat([draws + 3 * (torch.arange(200) % 2), torch.tensor([0])])
    search = RestartSearch(lambda: HMMConfig(states=2).build(V))
    shape = HMMConfig(states=2).build(V)
    config = SearchConfig(restarts=4, iterations=60)
    for _ in run_search(search, config, lambda r: shape.draw_start(tokens, 1, r), lambda m: m.improve(tokens)):
        pass
    assert isinstance(search.best, HiddenMarkov)
    path = search.best.likeliest_states(tokens)[:-1]
    assert path[0::2].unique().numel() == path[1::2].unique().numel() == 1
    assert path[0] != path[1]


def test_resumed_search_matches_uninterrupted_search() -> None:
    tokens, shape, config = stream(), HMMConfig(states=2).build(V), SearchConfig(restarts=3, iterations=5, tolerance=0)

    def stages(search: RestartSearch) -> Any:
        return run_search(search, config, lambda r: shape.draw_start(tokens, 1, r), lambda m: m.improve(tokens))

    whole = RestartSearch(lambda: HMMConfig(states=2).build(V))
    for last in stages(whole):
        assert last.step <= last.total == 15
    broken = RestartSearch(lambda: HMMConfig(states=2).build(V))
    for number, _ in enumerate(stages(broken)):
        if number == 6:
            break
    kept = {name: tensor.clone() for name, tensor in broken.state_dict().items()}
    again = RestartSearch(lambda: HMMConfig(states=2).build(V))
    again.load_state_dict(kept)
    (*_, last) = stages(again)
    assert last.model is again.best and again.finished
    for name, table in whole.state_dict().items():
        assert table.equal(again.state_dict()[name]), name
    # Negative control: the results differ if the iteration counter is lost
    forgetful = RestartSearch(lambda: HMMConfig(states=2).build(V))
    forgetful.load_state_dict({**kept, "search": kept["search"] * torch.tensor([1, 0, 1, 1])})
    assert forgetful.iteration != broken.iteration


def test_n_states_carry_at_most_log2_n_bits() -> None:
    """I(past; future) ≤ H(state) ≤ log2 N for random models, over all pasts of two tokens."""
    for seed in range(20):
        model = random_model(2, seed, smoothing=0.3)
        pasts = torch.cartesian_prod(*[torch.arange(1, V)] * 2)
        first, _ = model.score(
            torch.cat([torch.zeros(len(pasts), 1).long(), pasts[:, :-1]], 1), pasts, model.start(rows=len(pasts))
        )
        chance = first.sum(1).exp()
        future = model.step(torch.cat([torch.zeros(len(pasts), 1).long(), pasts], 1), model.start(rows=len(pasts)))
        given = future.log_probs
        prior = (chance / chance.sum()) @ given.exp()
        bits = ((chance / chance.sum()) @ (given.exp() * (given - prior.log()).nan_to_num(neginf=0)).sum(1)) / math.log(
            2
        )
        assert -1e-9 < float(bits) <= 1 + 1e-9


def test_unseen_symbols_and_foreign_tensors_are_rejected() -> None:
    counts = torch.tensor([4, 0, 3])
    check_seen(counts, ["</s>", "<unk>", "a"], smoothing=0.01)
    with pytest.raises(DataError, match=r"does not contain '<unk>'.*model\.smoothing above 0"):
        check_seen(counts, ["</s>", "<unk>", "a"], smoothing=0)
    with pytest.raises(CheckpointError, match=r"emission must have the shape \(4, 7\); got \(3, 7\)"):
        random_model(3).load_state_dict(random_model(2).state_dict() | {"transition": random_model(3).transition})
    with pytest.raises(CheckpointError, match="transition missing"):
        random_model(3).load_state_dict({"emission": random_model(3).emission})


def test_impossible_sequence_has_probability_0_and_resets_the_state() -> None:
    """Without smoothing, 2 follows 1 and 1 follows 2."""
    model = HMMConfig(states=2, smoothing=0).build(V)
    model.set(torch.tensor([[0.0, 1, 1], [1, 0, 1], [1, 1, 0]]).double(), torch.eye(3, V).double().roll(1, 1))
    scores, state = model.score(torch.tensor([[0, 1, 1, 1]]), torch.tensor([[1, 1, 1, 2]]), model.start())
    assert scores[0, 0].exp() == pytest.approx(0.5) and scores[0, 1:].tolist() == [-math.inf] * 3
    assert state.hidden.exp().tolist() == [pytest.approx([1 / 3] * 3)]
    after = model.step(torch.tensor([[0, 1, 1]]), model.start())
    assert float(after.log_probs.exp().sum()) == pytest.approx(1)


def test_unreachable_state_becomes_uniform() -> None:
    model = HMMConfig(states=2, smoothing=0).build(V)
    counts = torch.ones(3, 3).double()
    counts[:, 1] = 0  # the second state is unreachable
    better, _ = model.set(counts, torch.ones(3, V).double()).improve(stream())
    better, value = better.improve(stream())
    assert math.isfinite(value)
    torch.testing.assert_close(better.transition[1].exp(), torch.full((3,), 1 / 3).double())
    assert float(better.emission[1, 0]) == -math.inf  # only the last state emits END
    assert float(better.emission[1].exp().sum()) == pytest.approx(1)


# --- Gaussian -------------------------------------------------------------------------------------------------------


def two_regimes(steps: int = 300, seed: int = 0) -> Tensor:
    random = np.random.default_rng(seed)
    kind = (np.arange(steps) // 25) % 2
    means, mixed = np.array([[10.0, -5], [16, 3]]), np.array([[[1, 0.8], [0, 0.6]], [[2, 0], [-1, 1]]])
    return torch.from_numpy(means[kind] + np.einsum("tij,tj->ti", mixed[kind], random.normal(size=(steps, 2))))


def gaussian_model(values: Tensor, **options: Any) -> GaussianHMM:
    model = GaussianHMMConfig(**{"states": 2, "smoothing": 0, "min_variance": 0, **options}).build(values.shape[1])
    return model.fit_scale([values], ["a", "b", "c"][: values.shape[1]]).draw_start([values], 1, 0)


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_gaussian_iterations_match_hmmlearn(kind: str) -> None:
    hmm = pytest.importorskip("hmmlearn.hmm")
    values = two_regimes()
    model = gaussian_model(values, covariance=kind)
    scaled = ((values - model.center) / model.scale).numpy()
    name = {"diagonal": "diag", "full": "full"}[kind]
    other = hmm.GaussianHMM(2, name, min_covar=0, n_iter=5, tol=-1, init_params="", covars_prior=0)
    other.startprob_, other.transmat_ = model.initial.exp().numpy(), model.transition.exp().numpy()
    other.means_ = model.means.numpy()
    other.covars_ = model.covariances.numpy() if kind == "full" else model.covariances.diagonal(dim1=1, dim2=2).numpy()
    expected = other.score(scaled) - len(values) * float(model.scale.log().sum())
    assert float(model.score(values[None]).sum()) == pytest.approx(expected, rel=1e-11)
    other.fit(scaled)
    for _ in range(5):
        model, _ = model.improve([values])
    np.testing.assert_allclose(model.means.numpy(), other.means_, atol=1e-8)
    covars = model.covariances.numpy()
    np.testing.assert_allclose(covars, other.covars_, atol=1e-8)
    np.testing.assert_allclose(model.transition.exp().numpy(), other.transmat_, atol=1e-8)


def test_missing_values_are_marginalized() -> None:
    """Integrating over a value equals omitting it. The scores of other values do not change."""
    values = two_regimes(6)
    model, _ = gaussian_model(two_regimes()).improve([two_regimes()])
    gaps = values.clone()
    gaps[2, 0] = gaps[3] = math.nan
    grid = torch.linspace(-40, 60, 4001, dtype=torch.float64)
    rows = values[:3].repeat(len(grid), 1, 1)
    rows[:, 2, 0] = grid
    summed = torch.trapezoid(model.score(rows).sum(1).exp(), grid)
    assert math.exp(float(model.score(gaps[None, :3]).sum())) == pytest.approx(float(summed), rel=1e-6)
    found = model.score(gaps[None])
    assert found[0, 3] == 0 and found.isfinite().all()
    masked = model.score(torch.nan_to_num(gaps)[None], ~gaps.isnan()[None])
    torch.testing.assert_close(found, masked)
    ahead = forward(model.initial, model.transition, model.emission_log_probs(gaps[None]))
    assert float(found.sum()) == pytest.approx(float(ahead.log_likelihood), rel=1e-12)


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_estimation_with_gaps_finds_the_regimes(kind: str) -> None:
    values = two_regimes(400)
    gaps = values.clone()
    gaps[torch.rand(values.shape, generator=torch.Generator().manual_seed(2)) < 0.25] = math.nan
    model, likelihoods = gaussian_model(gaps, covariance=kind), []
    for _ in range(25):
        model, value = model.improve([gaps])
        likelihoods.append(value)
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(likelihoods))
    path = model.likeliest_states(gaps)
    truth = torch.arange(400) // 25 % 2
    right = float((path == truth).double().mean())
    assert max(right, 1 - right) > 0.95
    means = (model.means * model.scale + model.center)[:, 0].sort().values
    torch.testing.assert_close(means, torch.tensor([10.0, 16.0], dtype=torch.float64), atol=0.5, rtol=0)


def test_prediction_is_a_mixture() -> None:
    values = two_regimes()
    model, _ = gaussian_model(values).improve([values])
    after = model.step(values[None], model.start(1))
    weights = after.state.exp()[0]
    assert float(weights.sum()) == pytest.approx(1)
    means = model.means * model.scale + model.center
    torch.testing.assert_close(after.mean[0], weights @ means)
    assert after.covariance is not None and (torch.linalg.eigvalsh(after.covariance[0]) > 0).all()
    first = model.step(values[None, :200], model.start(1))
    rest = model.step(values[None, 200:], first.state)
    torch.testing.assert_close(rest.mean, after.mean)


def test_singular_covariance_is_reported_and_floor_prevents_it() -> None:
    line = torch.linspace(0, 1, 40, dtype=torch.float64)
    values = torch.stack([line, 2 * line + 1], dim=1)  # all values lie on a line
    for kind in ("full", "diagonal"):
        one_value = torch.cat([torch.full((30, 1), 5.0), torch.randn(30, 1, generator=torch.manual_seed(0))]).double()
        given = values if kind == "full" else one_value
        with pytest.raises(DataError, match=r"covariance of state \d has become singular.*model\.min_variance"):
            model = gaussian_model(given, covariance=kind)
            for _ in range(60):
                model, _ = model.improve([given])
        model = gaussian_model(given, covariance=kind, min_variance=1e-3)
        for _ in range(60):
            model, value = model.improve([given])
        assert math.isfinite(value)
    for bad, message in (
        (torch.tensor([[1.0, 2], [1, 3]]), "variable a is constant"),
        (torch.tensor([[0.1, 2 + row % 2] for row in range(10)]).double(), "variable a is constant"),
        (torch.tensor([[math.nan, 2], [math.nan, 3]]), "variable a has no value"),
        (torch.tensor([[math.inf, 2], [1, 3]]), "must be finite"),
    ):
        with pytest.raises(DataError, match=message):
            gaussian_model(bad.double())


# --- the tagger -----------------------------------------------------------------------------------------------------


def test_tag_chain_matches_path_enumeration() -> None:
    random = np.random.default_rng(0)
    tags = 3
    table = torch.from_numpy(np.log(random.dirichlet(np.ones(tags + 1), (tags + 1, tags + 1))))
    table[0, 1, 2] = -1e6  # a forbidden transition
    emission = torch.from_numpy(np.log(random.gamma(1.0, size=(4, 5, tags))))
    lengths = [5, 1, 3, 2]
    mask = torch.arange(5) < torch.tensor(lengths).unsqueeze(1)
    best = chain.viterbi(table, emission, mask)
    states, total = chain.marginals(table, emission, mask)
    torch.testing.assert_close(chain.log_likelihood(table, emission, mask), total)
    for row, length in enumerate(lengths):
        scores: dict[tuple[int, ...], float] = {}
        for path in itertools.product(range(tags), repeat=length):
            whole = [tags, tags, *path, tags]
            value = sum(float(table[a, b, c]) for a, b, c in zip(whole, whole[1:], whole[2:], strict=False))
            scores[path] = value + sum(float(emission[row, t, k]) for t, k in enumerate(path))
        values = torch.tensor(list(scores.values()), dtype=torch.float64)
        assert float(total[row]) == pytest.approx(float(values.logsumexp(0)), abs=1e-9)
        winner = max(scores, key=scores.__getitem__)
        assert tuple(best[row, :length].tolist()) == winner
        padded = torch.tensor([[*winner, *[0] * (5 - length)]])
        own = chain.score(table, emission[row : row + 1], padded, mask[row : row + 1])
        assert float(own) == pytest.approx(scores[winner], abs=1e-9)
        expected = torch.zeros(5, tags, dtype=torch.float64)
        for path, value in scores.items():
            for t, k in enumerate(path):
                expected[t, k] += math.exp(value - float(total[row]))
        torch.testing.assert_close(states[row], expected, atol=1e-9, rtol=0)


def test_interpolated_transitions_sum_to_one() -> None:
    counts = np.zeros((4, 4, 4))
    counts[3, 3, 0], counts[3, 0, 1], counts[0, 1, 2], counts[1, 2, 3], counts[0, 1, 3] = 5, 5, 4, 4, 1
    for order in (2, 3):
        table, weights = interpolate_counts(counts, order)
        np.testing.assert_allclose(table.sum(axis=2), 1)
        assert sum(weights) == pytest.approx(1) and (weights[2] == 0) == (order == 2)
        assert (table[:, :, [0, 1, 2, 3]] > 0).all()  # every tag occurs, so none has probability 0
    flat, _ = interpolate_counts(counts, 2)
    np.testing.assert_allclose(flat, np.broadcast_to(flat[:1], flat.shape))  # order 2 ignores the first tag


def test_words_of_equal_form_share_a_shape() -> None:
    alphabet = sorted(set("abcABC12-.é"))
    kinds, lowercase = (torch.from_numpy(table) for table in classify_letters(alphabet))
    numbers = {letter: number for number, letter in enumerate(alphabet, start=2)}

    def shape(word: str, first: bool = False) -> int:
        row = torch.tensor([[*(numbers.get(letter, 1) for letter in word), *[0] * (8 - len(word))]])
        return int(word_shapes(row, torch.tensor([first]), kinds)[0])

    alike = [{"abc", "cab", "xyz"}, {"Abc", "A"}, {"ABC", "BA"}, {"a1", "2b"}, {"12", "1.2"}, {"a-b"}, {"A-B"}, {"1-2"}]
    found = [{shape(word) for word in words} for words in alike]
    assert all(len(one) == 1 for one in found)
    assert len(set().union(*found)) == len(alike)
    assert shape("Abc", first=True) != shape("Abc") and shape("abc", first=True) == shape("abc")
    assert lowercase[numbers["A"]] == numbers["a"] and lowercase[numbers["1"]] == numbers["1"]
