"""The conditional random field compared with the enumeration of all tag sequences."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from seqloom.core.iob import SCHEMES, may_follow, read_tags
from seqloom.nn.crf import LinearChainCRF

SPANS = ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
BIOES = ["B-LOC", "E-LOC", "I-LOC", "O", "S-LOC", "B-PER", "E-PER", "S-PER"]


def random_crf(tags: int, names: list[str] | None = None, scheme: Any = "IOB2", seed: int = 0) -> LinearChainCRF:
    torch.manual_seed(seed)
    crf = LinearChainCRF(tags).double()
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter)
    if names is not None:
        crf.constrain(names, scheme)
    return crf


def enumerated(crf: LinearChainCRF, emissions: Tensor) -> dict[tuple[int, ...], float]:
    """Return s(y) of every allowed tag sequence of a sentence (T, K), computed by the definition."""
    result: dict[tuple[int, ...], float] = {}
    K, allowed = crf.tags, crf.allowed.tolist()
    start, transitions, end = (part.tolist() for part in (crf.start, crf.transitions, crf.end))
    scores = emissions.tolist()
    for tags in itertools.product(range(K), repeat=len(emissions)):
        ways = list(itertools.pairwise((K, *tags, K)))  # K is the state before the first and after the last tag
        if not all(allowed[a][b] for a, b in ways):
            continue
        total = start[tags[0]] + end[tags[-1]] + sum(scores[t][tag] for t, tag in enumerate(tags))
        result[tags] = total + sum(transitions[a][b] for a, b in itertools.pairwise(tags))
    return result


def batch(lengths: tuple[int, ...], tags: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Return emissions (B, T, K) with arbitrary values at padding, and their mask."""
    torch.manual_seed(seed)
    emissions = torch.randn(len(lengths), max(lengths), tags, dtype=torch.float64)
    return emissions * 2, torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)


CASES = [(K, None, "IOB2") for K in (1, 2, 3, 4)] + [(5, SPANS, "IOB2"), (5, SPANS, "IOB1"), (8, BIOES, "BIOES")]
LENGTHS = (3, 1, 5, 2, 4, 0)


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[2] if case[1] else 'free'}")
def case(request: pytest.FixtureRequest) -> tuple[LinearChainCRF, Tensor, Tensor, list[dict[tuple[int, ...], float]]]:
    tags, names, scheme = request.param
    crf, (emissions, mask) = random_crf(tags, names, scheme), batch(LENGTHS, tags)
    rows = zip(emissions, LENGTHS, strict=True)
    return crf, emissions, mask, [enumerated(crf, row[:n]) if n else {(): 0.0} for row, n in rows]


def test_partition_matches_enumeration(case) -> None:
    crf, emissions, mask, all_scores = case
    expected = [math.log(math.fsum(map(math.exp, scores.values()))) for scores in all_scores]
    result = crf.log_partition(emissions, mask)
    torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float64), atol=1e-10, rtol=0)


def test_likelihoods_match_enumeration_and_sum_to_one(case) -> None:
    crf, emissions, mask, all_scores = case
    for row, scores in enumerate(all_scores):
        tags = torch.zeros(len(scores), mask.shape[1], dtype=torch.long)
        for position, sequence in enumerate(scores):
            tags[position, : len(sequence)] = torch.tensor(sequence, dtype=torch.long)
        tags = tags.masked_fill(~mask[row], 7_000)  # tags at padding are ignored
        several = [part[row].expand(len(scores), *part[row].shape) for part in (emissions, mask)]
        result = crf.log_likelihood(several[0], tags, several[1])
        logs = torch.tensor(list(scores.values()), dtype=torch.float64)
        torch.testing.assert_close(result, logs - logs.logsumexp(0), atol=1e-10, rtol=0)
        assert result.exp().sum().item() == pytest.approx(1, abs=1e-10)


def test_viterbi_matches_enumeration(case) -> None:
    crf, emissions, mask, all_scores = case
    tags, score = crf.viterbi(emissions, mask)
    for row, scores in enumerate(all_scores):
        best = max(scores, key=scores.__getitem__)
        assert tuple(tags[row, : len(best)].tolist()) == best
        assert not tags[row, len(best) :].any()
        assert score[row].item() == pytest.approx(scores[best], abs=1e-10)


def test_marginals_match_enumeration(case) -> None:
    crf, emissions, mask, all_scores = case
    result = crf.marginals(emissions, mask)
    expected = torch.zeros_like(result)
    for row, scores in enumerate(all_scores):
        total = math.fsum(map(math.exp, scores.values()))
        for sequence, score in scores.items():
            for t, tag in enumerate(sequence):
                expected[row, t, tag] += math.exp(score) / total
    torch.testing.assert_close(result, expected, atol=1e-10, rtol=0)


def test_marginals_are_the_gradient_of_the_partition(case) -> None:
    """∂ log Z / ∂e_{t,k} = p(y_t = k)."""
    crf, emissions, mask, _ = case
    emissions.requires_grad_()
    (gradient,) = torch.autograd.grad(crf.log_partition(emissions, mask).sum(), emissions)
    torch.testing.assert_close(crf.marginals(emissions, mask).detach(), gradient, atol=1e-10, rtol=0)


@pytest.mark.parametrize("names", [None, SPANS])
def test_gradients_match_finite_differences(names: list[str] | None) -> None:
    crf, (emissions, mask) = random_crf(5, names), batch((3, 1, 2, 0), 5)
    tags = torch.tensor([[1, 3, 4], [4, 0, 0], [0, 2, 0], [0, 0, 0]])  # valid in IOB2
    shapes = [parameter.shape for parameter in crf.parameters()]

    def value(emissions: Tensor, *parameters: Tensor) -> Tensor:
        given = dict(zip(("start", "transitions", "end"), parameters, strict=True))
        return torch.func.functional_call(crf, given, (emissions, tags, mask), tie_weights=False)

    crf.forward = crf.log_likelihood
    inputs = [emissions, *(torch.randn(shape, dtype=torch.float64) for shape in shapes)]
    assert torch.autograd.gradcheck(value, [tensor.requires_grad_() for tensor in inputs])


def test_padding_has_no_effect_and_no_gradient(case) -> None:
    crf, emissions, mask, _ = case
    emissions.requires_grad_()
    tags = crf.viterbi(emissions, mask)[0]
    value = crf.log_likelihood(emissions, tags, mask)
    (gradient,) = torch.autograd.grad(value.sum(), emissions)
    assert not gradient[~mask].any()
    wider = torch.nn.functional.pad(emissions.detach(), (0, 0, 0, 3), value=50.0)
    more, longer = torch.nn.functional.pad(mask, (0, 3)), torch.nn.functional.pad(tags, (0, 3))
    torch.testing.assert_close(crf.log_likelihood(wider, longer, more), value.detach(), atol=1e-12, rtol=0)
    assert torch.equal(crf.viterbi(wider, more)[0][:, : mask.shape[1]], tags)
    for row in range(len(mask)):
        alone = [part[row : row + 1] for part in (emissions.detach(), tags, mask)]
        torch.testing.assert_close(crf.log_likelihood(*alone)[0], value[row].detach(), atol=1e-12, rtol=0)


def test_crf_without_transitions_is_a_softmax_per_word() -> None:
    crf, (emissions, mask) = LinearChainCRF(4, learned=False), batch((3, 5, 1), 4)
    assert not list(crf.parameters()) and list(crf.state_dict()) == ["allowed"]
    log_probs = emissions.log_softmax(dim=2)
    tags = torch.randint(4, mask.shape)
    expected = log_probs.gather(2, tags.unsqueeze(2)).squeeze(2).masked_fill(~mask, 0).sum(dim=1)
    torch.testing.assert_close(crf.log_likelihood(emissions, tags, mask), expected, atol=1e-10, rtol=0)
    assert torch.equal(crf.viterbi(emissions, mask)[0], emissions.argmax(dim=2).masked_fill(~mask, 0))
    torch.testing.assert_close(
        crf.marginals(emissions, mask), log_probs.exp().masked_fill(~mask.unsqueeze(2), 0), atol=1e-10, rtol=0
    )


# --- constraints ------------------------------------------------------------------------------------------------------

TAGS = st.lists(st.sampled_from(["A", "B", "C"]), min_size=1, max_size=3, unique=True)


@given(TAGS, st.sampled_from(SCHEMES), st.integers(1, 12), st.integers(0, 10_000), st.sampled_from([1.0, 1e3, 1e9]))
def test_decoded_tags_are_valid_for_any_emissions(types, scheme, length, seed, scale) -> None:
    """Emissions are up to a thousand times larger than the penalty that training uses."""
    prefixes = "BIES" if scheme == "BIOES" else "BI"
    names = ["O", *(f"{prefix}-{name}" for name in types for prefix in prefixes)]
    crf = LinearChainCRF(len(names), learned=seed % 2 == 0)
    crf.constrain(names, scheme)
    torch.manual_seed(seed)
    emissions, mask = scale * torch.randn(4, length, len(names)), torch.ones(4, length, dtype=torch.bool)
    for row in crf.viterbi(emissions, mask)[0].tolist():
        assert read_tags([names[tag] for tag in row], scheme).mistakes == []


def test_unconstrained_tags_are_invalid() -> None:
    """Negative control for the tests above."""
    emissions = torch.randn(50, 6, len(SPANS), generator=torch.Generator().manual_seed(0))
    free, bound = LinearChainCRF(len(SPANS)), LinearChainCRF(len(SPANS))
    bound.constrain(SPANS)
    mask = torch.ones(50, 6, dtype=torch.bool)
    wrong = [
        sum(bool(read_tags([SPANS[tag] for tag in row]).mistakes) for row in crf.viterbi(emissions, mask)[0].tolist())
        for crf in (free, bound)
    ]
    assert wrong[0] > 40 and wrong[1] == 0


def test_invalid_sequence_has_probability_0_and_finite_loss() -> None:
    """Training data with invalid sequences must not cause an infinite loss."""
    crf, (emissions, mask) = random_crf(5, SPANS), batch((3,), 5)
    probabilities = crf.marginals(emissions, mask)
    assert not probabilities[0, 0, [2, 3]].any() and probabilities[0, 0, [0, 1, 4]].all()
    value = crf.log_likelihood(emissions, torch.tensor([[4, 3, 4]]), mask)  # O I-PER O
    assert -2e6 < value.item() < -9e5
    gradients = torch.autograd.grad(value.sum(), list(crf.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_constraints_follow_the_scheme_and_are_saved() -> None:
    crf = LinearChainCRF(len(BIOES))
    crf.constrain(BIOES, "BIOES")
    around = [*BIOES, None]
    for i, before in enumerate(around):
        for j, tag in enumerate(around):
            assert bool(crf.allowed[i, j]) == may_follow(before, tag, "BIOES")
    other = LinearChainCRF(len(BIOES))
    other.load_state_dict(crf.state_dict())
    assert torch.equal(other.allowed, crf.allowed)
    with torch.device("meta"):  # models are built on this device to count their parameters
        LinearChainCRF(len(BIOES)).constrain(BIOES, "BIOES")


def test_unsatisfiable_constraints_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"names must have 3 entries.*got 2"):
        LinearChainCRF(3).constrain(["B-X", "O"])
    with pytest.raises(ValueError, match="is a valid IOB2 sequence on its own"):
        LinearChainCRF(2).constrain(["I-X", "I-Y"])


# --- precision and shapes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_long_sentences_are_stable_in_single_precision(dtype) -> None:
    crf = random_crf(6).float()
    emissions = (30 * torch.randn(2, 400, 6, generator=torch.Generator().manual_seed(3))).to(dtype)
    mask, tags = torch.ones(2, 400, dtype=torch.bool), torch.randint(6, (2, 400))
    value = crf.log_likelihood(emissions, tags, mask)
    exact = crf.double().log_likelihood(emissions.double(), tags, mask)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=0)
    assert crf.marginals(emissions.double(), mask).sum(dim=2).sub(1).abs().max() < 1e-12


def test_wrong_shapes_are_rejected() -> None:
    crf, mask = LinearChainCRF(3), torch.ones(2, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"\(B, T, 3\), T ≥ 1; got \(2, 4, 5\)"):
        crf.log_partition(torch.zeros(2, 4, 5), mask)
    with pytest.raises(ValueError, match="mask must be"):
        crf.log_partition(torch.zeros(2, 4, 3), mask.float())
    with pytest.raises(ValueError, match="padding must come last"):
        crf.viterbi(torch.zeros(2, 4, 3), mask.logical_not().index_fill(1, torch.tensor(2), True))
    with pytest.raises(ValueError, match="must be at least 1"):
        LinearChainCRF(0)
