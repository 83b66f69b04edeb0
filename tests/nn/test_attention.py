import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqloom.nn.attention import Attention, masked_softmax
from seqloom.nn.scores import SCORES

B, K, T, S, H, M = 3, 2, 4, 5, 6, 8
LENGTHS = torch.tensor([[5], [2], [0]])  # the last source consists of padding
MASK = torch.arange(S) < LENGTHS


def exactly(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=0)


def make(name, seed=0, **options):
    torch.manual_seed(seed)
    return Attention(SCORES[name](H, M, **options)).double()


def some(*shape):
    return torch.randn(*shape).double()


@pytest.fixture(params=SCORES)
def attention(request):
    return make(request.param)


def test_weights_sum_to_one_and_are_zero_at_padding(attention):
    context, weights = attention(some(B, K, T, H), attention.prepare(some(B, S, M), MASK))
    assert context.shape == (B, K, T, M) and weights.shape == (B, K, T, S)
    exactly(weights.sum(-1), (LENGTHS > 0).double().unsqueeze(-1).expand(B, K, T))
    assert not weights[~MASK[:, None, None].expand_as(weights)].any()
    assert (weights[MASK[:, None, None].expand_as(weights)] > 0).all()


def test_context_is_the_weighted_sum(attention):
    memory = some(B, S, M)
    context, weights = attention(some(B, T, H), attention.prepare(memory, MASK))
    for b in range(B):
        for t in range(T):
            exactly(context[b, t], sum(weights[b, t, j] * memory[b, j] for j in range(S)))


def test_values_at_padding_are_ignored(attention):
    query, memory = some(B, T, H), some(B, S, M)
    other = torch.where(MASK.unsqueeze(-1), memory, 1e6 * some(B, S, M))
    exactly(attention(query, attention.prepare(memory, MASK)), attention(query, attention.prepare(other, MASK)))


def test_empty_source_gives_zeros_and_zero_gradients(attention):
    query, memory = some(B, T, H).requires_grad_(), some(B, S, M).requires_grad_()
    context, weights = attention(query, attention.prepare(memory, MASK))
    assert not context[2].any() and not weights[2].any()
    (context.square().sum() + weights.square().sum()).backward()
    for given_ in (query, memory):
        assert given_.grad.isfinite().all() and not given_.grad[2].any()
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters())
    assert not memory.grad[1, 2:].any()  # no gradient from padding


@settings(max_examples=40, deadline=None)
@given(order=st.permutations(range(S)), name=st.sampled_from([name for name in SCORES if name != "location"]))
def test_attention_is_permutation_equivariant(order, name):
    """C27: a permutation of the source permutes the weights and does not change the context."""
    attention, query, memory = make(name), some(B, T, H), some(B, S, M)
    context, weights = attention(query, attention.prepare(memory, MASK))
    moved, there = attention(query, attention.prepare(memory[:, order], MASK[:, order]))
    exactly(moved, context)
    exactly(there, weights[..., order])


def test_location_score_depends_on_the_order():
    """Negative control for the tests above."""
    attention, query, memory = make("location"), some(B, T, H), some(B, S, M)
    context, _ = attention(query, attention.prepare(memory, MASK))
    moved, _ = attention(query, attention.prepare(memory.flip(1), MASK.flip(1)))
    assert (moved - context)[:2].abs().max() > 0.1


@pytest.mark.parametrize("name", SCORES)
def test_coverage_lowers_repeated_attention(name):
    attention = make(name, coverage=True)
    if name == "additive":
        torch.nn.init.constant_(attention.score.covered, -1.0)
        torch.nn.init.constant_(attention.score.v.weight, 1.0)
    else:
        torch.nn.init.constant_(attention.score.covered, -1.0)
    query, memory = some(1, 1, H), attention.prepare(some(1, S, M), torch.ones(1, S, dtype=torch.bool))
    _, fresh = attention(query, memory, torch.zeros(1, 1, S).double())
    _, after = attention(query, memory, torch.tensor([[[1.0, 0, 0, 0, 0]]]).double())
    assert after[0, 0, 0] < fresh[0, 0, 0]
    assert (after[0, 0, 1:] > fresh[0, 0, 1:]).all()


def test_softmax_has_single_precision_and_does_not_overflow():
    mask = torch.tensor([True, True, False])
    weights = masked_softmax(torch.tensor([1e4, -1e4, 5.0], dtype=torch.float16), mask)
    assert weights.dtype == torch.float32 and weights.tolist() == [1.0, 0.0, 0.0]
    low = torch.full((3,), torch.finfo(torch.float32).min)  # as low as the value of masked scores
    assert masked_softmax(low, mask)[2] == 0


def test_half_precision_is_supported():
    attention = make("general").to(torch.bfloat16)
    context, weights = attention(some(B, T, H).bfloat16(), attention.prepare(some(B, S, M).bfloat16(), MASK))
    assert context.dtype == torch.bfloat16 and weights.dtype == torch.float32
