"""Triton kernels of a decoder step compared with PyTorch."""

import pytest
import torch
from torch import nn

from seqloom.accel.decoding import decoder_gpu
from seqloom.accel.decoding.packed import ACTIVATIONS, PackedWeights

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SHAPES = [
    (2, 3, 5, 16, 20, 3),
    (3, 2, 1, 32, 70, 69),
    (2, 2, 4, 16, 300, 60),
    (1, 1, 17, 16, 51, 2),
    (128, 8, 5, 64, 120, 9),
]
NAMES = ("sources", "heads", "k", "width", "slots", "step")


@pytest.mark.parametrize(NAMES, SHAPES)
def test_hypotheses_attend_to_their_own_slots(sources: int, heads: int, k: int, width: int, slots: int, step: int):
    torch.manual_seed(0)
    rows, device = sources * k, "cuda"
    qkv = torch.randn(rows, 3, heads, width, device=device)
    cache = torch.randn(sources, heads, 2, slots, width, device=device)
    cache[:, :, :, step * k :] = torch.nan  # these slots are not used
    owned = torch.rand(rows, slots, device=device) < 0.5
    owned[:, step * k :] = False
    owned[torch.arange(rows), step * k + torch.arange(rows) % k] = True
    written = cache.clone()
    new = qkv.view(sources, k, 3, heads, width)[:, :, 1:].permute(0, 3, 2, 1, 4)
    written[:, :, :, step * k : (step + 1) * k] = new
    actual = decoder_gpu.attend_to_cache(qkv, cache, owned, torch.tensor(step, device=device))
    torch.testing.assert_close(cache, written, rtol=0, atol=0, equal_nan=True)
    q = qkv[:, 0].view(sources, k, heads, width)
    scores = torch.einsum("bknd,bnpd->bnkp", q.double(), cache[:, :, 0].double())
    attention_weights = scores.masked_fill(~owned.view(sources, 1, k, slots), -torch.inf).softmax(-1)
    expected = torch.einsum("bnkp,bnpd->bknd", attention_weights, cache[:, :, 1].double().nan_to_num())
    torch.testing.assert_close(actual.double(), expected.reshape(rows, -1), rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize(NAMES, SHAPES)
def test_hypotheses_attend_to_their_source(sources: int, heads: int, k: int, width: int, slots: int, step: int):
    torch.manual_seed(0)
    rows, device = sources * k, "cuda"
    q = torch.randn(rows, heads, width, device=device)
    keys_values = torch.randn(sources, slots, 2, heads, width, device=device).permute(2, 0, 3, 1, 4)
    added = torch.where(torch.rand(sources, 1, 1, slots, device=device) < 0.6, 0.0, -torch.inf)
    added[..., 0] = 0
    actual = decoder_gpu.attend_to_source(q, keys_values[0], keys_values[1], added)
    scores = torch.einsum("bknd,bnpd->bnkp", q.view(sources, k, heads, width).double(), keys_values[0].double()) + added
    expected = torch.einsum("bnkp,bnpd->bknd", scores.softmax(-1), keys_values[1].double())
    torch.testing.assert_close(actual.double(), expected.reshape(rows, -1), rtol=1e-5, atol=3e-5)


PRODUCTS = [
    (1, 16, 16),
    (7, 100, 130),
    (640, 512, 512),
    (33, 5003, 96),
    (100, 130, 2000),  # divided among programs
    (3000, 2048, 48),  # large tiles
]


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize(("rows", "width", "depth"), PRODUCTS)
def test_products_have_float32_precision(rows: int, width: int, depth: int, activation: str):
    torch.manual_seed(0)
    x, addend = torch.randn(rows, depth, device="cuda"), torch.randn(rows, width, device="cuda")
    weight, bias = torch.randn(width, depth, device="cuda"), torch.randn(width, device="cuda")
    split_weight = decoder_gpu.split_tf32(weight)
    actual = decoder_gpu.fused_linear(x, split_weight, bias, activation)
    exact = ACTIVATIONS[activation](x.double() @ weight.double().t() + bias.double())
    assert (actual.double() - exact).norm() / exact.norm() < 5e-7  # TF32 alone has 11 bits, and an error of 3e-4
    together = decoder_gpu.fused_linear(x, split_weight, bias, activation, addend)
    torch.testing.assert_close(together, actual + addend, atol=1e-5, rtol=1e-6)
    bare = decoder_gpu.fused_linear(x, split_weight)
    torch.testing.assert_close(bare.double(), x.double() @ weight.double().t(), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("rows", "width", "depth"), PRODUCTS)
def test_product_with_norm_matches_pytorch(rows: int, width: int, depth: int):
    torch.manual_seed(0)
    x, addend = torch.randn(rows, depth, device="cuda"), torch.randn(rows, width, device="cuda")
    layer, norm = nn.Linear(depth, width, device="cuda"), nn.LayerNorm(width, device="cuda")
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
        expected = norm(layer(x) + addend)
        torch.testing.assert_close(PackedWeights.of(layer)(x, addend, norm), expected, rtol=1e-5, atol=1e-5)
        for other in (nn.RMSNorm(width, device="cuda"), nn.LayerNorm(width, bias=False, device="cuda")):
            torch.testing.assert_close(PackedWeights.of(layer)(x, None, other), other(layer(x)), rtol=1e-5, atol=1e-5)


def test_few_rows_and_other_dtypes_use_pytorch():
    layer = nn.Linear(8, 8, device="cuda")
    with torch.no_grad():
        packed = PackedWeights.of(layer)
        for x in (torch.randn(3, 8, device="cuda"), torch.randn(0, 8, device="cuda")):
            assert torch.equal(packed(x), layer(x))
    assert not decoder_gpu.supports_weight(torch.zeros(8, 8, device="cuda", dtype=torch.float64))
    assert not decoder_gpu.supports_weight(torch.zeros(8, 8))


@pytest.mark.parametrize("vocabulary", [5, 1000, 10_007, 32_768])
def test_token_ranking_matches_pytorch(vocabulary: int):
    torch.manual_seed(0)
    logits = torch.randn(50, vocabulary, device="cuda")
    logits[::2] = logits[::2].round()  # creates many ties
    logits[1] = 0
    values, ids = decoder_gpu.rank_tokens(logits, 9)
    expected, order = logits.sort(dim=1, descending=True, stable=True)
    count = min(9, vocabulary)
    assert torch.equal(ids, order[:, :count])
    torch.testing.assert_close(
        values, expected[:, :count] - logits.logsumexp(dim=1, keepdim=True), atol=1e-5, rtol=1e-6
    )
