import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.standard import STANDARD_SCORES

from seqloom.core.errors import DataError
from seqloom.nn.scores import DEFAULT_MAX_LENGTH, SCORES, LocationScore, score_class, standard

B, K, T, S, H, M = 2, 3, 4, 5, 6, 8


def exactly(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=0)


def make(name, query=H, memory=M, seed=0, **options):
    torch.manual_seed(seed)
    score = SCORES[name](query, memory, **options).double()
    if score.covered is not None:
        torch.nn.init.normal_(score.covered)  # the initial value 0 would hide errors
    return score


def score_by_equation(name, score, s, h, j, a=None):
    """Compute the equation for a query s (H,), an encoder state h (M,) at position j, and its coverage a."""
    h_p = h if score.project is None else score.project.weight @ h
    extra = 0 if a is None else score.covered * a
    if name == "cosine":
        return score.strength * (s @ h_p) / (s.norm() * h_p.norm()) + extra
    if name == "additive":
        w = torch.cat([score.weight_s.weight, score.weight_h.weight], dim=1)  # W of W [s; h]
        return score.v.weight[0] @ torch.tanh(w @ torch.cat([s, h]) + extra)
    if name == "location":
        return score.weight.weight[j] @ s + extra
    if name == "general":
        return s @ score.weight.weight @ h + extra
    return s @ h_p / (math.sqrt(len(s)) if name == "scaled-dot" else 1) + extra


@pytest.mark.parametrize("coverage", [False, True])
@pytest.mark.parametrize("memory", [H, M])
@pytest.mark.parametrize("name", STANDARD_SCORES)
def test_score_matches_its_equation(name, memory, coverage):
    score = make(name, memory=memory, coverage=coverage)
    s, h = torch.randn(B, K, T, H).double(), torch.randn(B, S, memory).double()
    a = torch.rand(B, K, T, S).double() if coverage else None
    result = score(s, score.prepare(h), a)
    assert result.shape == (B, K, T, S)
    for b, k, t, j in torch.cartesian_prod(*map(torch.arange, (B, K, T, S))).tolist():
        seen = None if a is None else a[b, k, t, j]
        exactly(result[b, k, t, j], score_by_equation(name, score, s[b, k, t], h[b, j], j, seen))


@pytest.mark.parametrize("name", STANDARD_SCORES)
def test_location_aware_score_matches_its_equation(name):
    """f_j sums the previous weights around j, multiplied by the kernel of each filter."""
    score = make(name).read_previous_weights(3, 5).double()
    filters = score.located.convolution.weight[:, 0]  # (F, 5)
    torch.nn.init.normal_(score.located.project.weight)
    s, h = torch.randn(B, K, T, H).double(), torch.randn(B, S, M).double()
    alpha = torch.rand(B, K, T, S).double()
    result, plain = score(s, score.prepare(h), None, alpha), make(name).double()
    plain.load_state_dict({key: value for key, value in score.state_dict().items() if not key.startswith("located")})
    for b, k, t, j in torch.cartesian_prod(*map(torch.arange, (B, K, T, S))).tolist():
        near = [alpha[b, k, t, i] if 0 <= i < S else torch.zeros(()).double() for i in range(j - 2, j + 3)]
        location = score.located.project.weight @ (filters @ torch.stack(near))
        query, key = s[b, k, t].view(1, 1, -1), h[b, j].view(1, 1, -1)
        if name == "additive":
            w = torch.cat([score.weight_s.weight, score.weight_h.weight], dim=1)
            expected = score.v.weight[0] @ torch.tanh(w @ torch.cat([s[b, k, t], h[b, j]]) + location)
        else:
            expected = plain(s[b, k, t].view(1, 1, -1), plain.prepare(h[b : b + 1]))[0, 0, j] + location[0]
        exactly(result[b, k, t, j], expected)
    with pytest.raises(ValueError, match="previous weights must be passed"):
        score(query, score.prepare(key))


@pytest.mark.parametrize("name", SCORES)
def test_new_score_ignores_the_previous_weights(name):
    score = make(name)
    s, h = torch.randn(B, K, T, H).double(), torch.randn(B, S, M).double()
    before = score(s, score.prepare(h))
    aware = score.read_previous_weights(2, 3).double()
    exactly(aware(s, aware.prepare(h), None, torch.rand(B, K, T, S).double()), before)


@pytest.mark.parametrize("name", SCORES)
def test_several_queries_share_a_source(name):
    score = make(name)
    s, h = torch.randn(B, K, T, H).double(), torch.randn(B, S, M).double()
    copied = score(s.flatten(0, 1), score.prepare(h.repeat_interleave(K, dim=0)))
    exactly(score(s, score.prepare(h)).flatten(0, 1), copied)


@pytest.mark.parametrize("name", SCORES)
def test_query_without_time_dimension_gives_the_result_of_a_single_step(name):
    score = make(name)
    s, h = torch.randn(B, H).double(), torch.randn(B, S, M).double()
    exactly(score(s, score.prepare(h)), score(s.unsqueeze(1), score.prepare(h)).squeeze(1))


@pytest.mark.parametrize("coverage", [False, True])
@pytest.mark.parametrize("name", SCORES)
def test_gradients_match_finite_differences(name, coverage):
    score = make(name, 3, 4, coverage=coverage)
    s, h = torch.randn(2, 2, 3).double().requires_grad_(), torch.randn(2, 3, 4).double().requires_grad_()
    a = torch.rand(2, 2, 3).double().requires_grad_() if coverage else None

    def run(s, h, a, *_):
        return score(s, score.prepare(h), a)

    inputs: tuple[Any, ...] = (s, h, a, *score.parameters())
    assert torch.autograd.gradcheck(run, inputs)


@settings(max_examples=30, deadline=None)
@given(factor=st.floats(0.01, 100), seed=st.integers(0, 9))
def test_cosine_ignores_norms_and_dot_does_not(factor, seed):
    s, h = torch.randn(B, T, H).double(), torch.randn(B, S, M).double()
    cosine, dot = make("cosine", seed=seed), make("dot", seed=seed)
    torch.testing.assert_close(cosine(factor * s, cosine.prepare(h)), cosine(s, cosine.prepare(factor * h)))
    torch.testing.assert_close(dot(factor * s, dot.prepare(h)), factor * dot(s, dot.prepare(h)))
    assert cosine(s, cosine.prepare(h)).abs().max() <= 10 + 1e-9


def test_larger_cosine_strength_sharpens_the_weights():
    """One of 20 encoder states has cosine 1; all other states have cosine −1."""
    score = make("cosine", H, H)
    s = torch.ones(1, 1, H).double()
    h = torch.cat([s, -s.expand(1, 19, H)], dim=1)
    best = dict.fromkeys((1.0, 10.0), 0.0)
    for beta in best:
        torch.nn.init.constant_(score.strength, beta)
        best[beta] = score(s, score.prepare(h)).softmax(-1)[0, 0, 0].item()
    assert best[1.0] < 0.3 and best[10.0] > 0.99


def test_projection_is_noted_only_for_different_sizes():
    for name in SCORES:
        assert make(name, H, H).notes() == [] and make(name, H, H).project is None
    for name in ("dot", "scaled-dot", "cosine"):
        (note,) = make(name, 6, 8).notes()
        assert "projects the encoder states from 8 to 6 dimensions" in note
    for name in ("additive", "general", "location"):
        assert make(name, 6, 8).notes() == []


def test_scaled_dot_variance_is_independent_of_the_size():
    def spread(name, width):
        score = SCORES[name](width, width)
        return score(torch.randn(1, 200, width), score.prepare(torch.randn(1, 200, width))).std().item()

    torch.manual_seed(0)
    assert abs(spread("scaled-dot", 16) - 1) < 0.1 and abs(spread("scaled-dot", 1024) - 1) < 0.1
    assert spread("dot", 1024) > 25


def test_zero_encoder_state_has_a_finite_gradient():
    for name in SCORES:
        score = make(name)
        h = torch.zeros(B, S, M).double().requires_grad_()
        s = torch.zeros(B, T, H).double().requires_grad_()
        score(s, score.prepare(h)).sum().backward()
        assert all(x.grad is None or x.grad.isfinite().all() for x in (s, h, *score.parameters()))


# Location.


def test_source_longer_than_the_locations_is_rejected():
    score = LocationScore(H, M, max_length=4)
    with pytest.raises(DataError, match=r"has 4 positions, but a source has 5 tokens.*max_length"):
        score.prepare(torch.randn(B, 5, M))
    assert score.prepare(torch.randn(B, 4, M)).shape == (B, 4, 0)
    assert LocationScore(H, M).max_length == DEFAULT_MAX_LENGTH


def test_padding_beyond_the_locations_is_accepted():
    score = LocationScore(H, M, max_length=4)
    mask = torch.arange(6) < torch.tensor([[4], [2]])
    keys = score.prepare(torch.randn(B, 6, M), mask)
    result = score(torch.randn(B, T, H), keys)
    assert result.shape == (B, T, 6)
    assert not result[..., 4:].any()  # the scores are arbitrary, because attention masks padding
    mask[1] = True
    with pytest.raises(DataError, match="a source has 6 tokens"):
        score.prepare(torch.randn(B, 6, M), mask)


@pytest.mark.parametrize("coverage", [False, True])
def test_additive_score_computed_in_pieces_matches_one_call(monkeypatch, coverage):
    score = make("additive", coverage=coverage)
    s, keys = torch.randn(B, K, T, H).double(), score.prepare(torch.randn(B, S, M).double())
    a = torch.rand(B, K, T, S).double() if coverage else None
    together = score(s, keys, a)
    monkeypatch.setattr(standard, "MAX_ELEMENTS", 5 * keys.numel())
    exactly(score(s, keys, a), together)


def test_location_score_ignores_encoder_states():
    score = make("location")
    s = torch.randn(B, T, H).double()
    first, second = (score(s, score.prepare(torch.randn(B, S, M).double())) for _ in range(2))
    exactly(first, second)


# Invalid input.


def test_error_for_an_unknown_name_has_a_suggestion():
    with pytest.raises(ValueError, match="did you mean scaled-dot"):
        score_class("scaled_dot")


@pytest.mark.parametrize("name", SCORES)
def test_coverage_needs_a_score_built_for_it(name):
    s, h, a = torch.randn(B, T, H).double(), torch.randn(B, S, M).double(), torch.rand(B, T, S).double()
    for score, given_ in ((make(name), a), (make(name, coverage=True), None)):
        with pytest.raises(ValueError, match="coverage must be passed"):
            score(s, score.prepare(h), given_)


@pytest.mark.parametrize("name", SCORES)
def test_initial_score_ignores_coverage(name):
    score = SCORES[name](H, M, coverage=True).double()
    s, keys = torch.randn(B, T, H).double(), score.prepare(torch.randn(B, S, M).double())
    exactly(score(s, keys, torch.rand(B, T, S).double()), score(s, keys, torch.zeros(B, T, S).double()))
