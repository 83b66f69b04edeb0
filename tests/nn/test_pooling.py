"""Poolings compared with a plain loop over the sequences."""

import math

import pytest
import torch
from torch import Tensor

from seqloom.nn.pooling import POOLINGS, AttentionPooling, Pooling

LENGTHS = (4, 1, 0, 6)
H = 5


def sequences() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    h = torch.randn(len(LENGTHS), max(LENGTHS), H, dtype=torch.float64)
    return h, torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(1), torch.randn(len(LENGTHS), H).double()


def pool_by_loop(pooling: Pooling, kind: str, rows: list[list[float]], end: list[float]) -> list[float]:
    """Compute the vector of one sequence element by element."""
    if kind == "last":
        return end
    if not rows:
        return [0.0] * H
    columns = list(zip(*rows, strict=True))
    if kind == "mean":
        return [sum(column) / len(rows) for column in columns]
    if kind == "max":
        return [max(column) for column in columns]
    assert isinstance(pooling, AttentionPooling)
    W, b, v = pooling.weight.weight.tolist(), pooling.weight.bias.tolist(), pooling.v.weight[0].tolist()
    scores = []
    for h in rows:
        inner = [sum(w * x for w, x in zip(W[i], h, strict=True)) + b[i] for i in range(H)]
        scores.append(sum(v[i] * math.tanh(inner[i]) for i in range(H)))
    total = sum(map(math.exp, scores))
    return [sum(math.exp(e) / total * x for e, x in zip(scores, column, strict=True)) for column in columns]


@pytest.fixture(params=POOLINGS)
def kind(request):
    return request.param


def test_pooling_matches_a_plain_loop(kind) -> None:
    h, mask, ends = sequences()
    pooling = POOLINGS[kind](H).double()
    result, weights = pooling(h, mask, ends)
    rows = zip(h.tolist(), LENGTHS, ends.tolist(), strict=True)
    expected = [pool_by_loop(pooling, kind, row[:length], end) for row, length, end in rows]
    torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float64), atol=1e-10, rtol=0)
    assert (weights is not None) == (kind == "attention")


def test_padding_has_no_effect_and_no_gradient(kind) -> None:
    h, mask, ends = sequences()
    pooling = POOLINGS[kind](H).double()
    result = pooling(h, mask, ends)[0]
    for nonsense in (1e6, -1e6, math.nan):
        other = torch.where(mask.unsqueeze(2), h, nonsense).requires_grad_()
        again = pooling(other, mask, ends)[0]
        assert torch.equal(again, result)
        if kind != "last":
            (gradient,) = torch.autograd.grad(again.square().sum(), other)
            assert not gradient[~mask].any() and gradient[mask].any()


def test_attention_weights_sum_to_one_and_give_the_pooled_vector() -> None:
    h, mask, ends = sequences()
    pooled, weights = POOLINGS["attention"](H).double()(h, mask, ends)
    assert weights is not None and weights.shape == mask.shape
    torch.testing.assert_close(weights.sum(dim=1), mask.any(dim=1).double())
    assert not weights[~mask].any() and (weights[mask] > 0).all()
    torch.testing.assert_close((weights.unsqueeze(2) * h).sum(dim=1), pooled)


def test_half_precision_is_supported(kind) -> None:
    h, mask, ends = (part.bfloat16() if part.is_floating_point() else part for part in sequences())
    pooled, weights = POOLINGS[kind](H).bfloat16()(h, mask, ends)
    assert pooled.dtype == torch.bfloat16 and pooled.isfinite().all()
    assert weights is None or weights.dtype == torch.float32
