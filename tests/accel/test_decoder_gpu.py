"""Kernels between the products of a decoder's step: they find what PyTorch finds."""

import pytest
import torch
from torch import nn

from seqloom.accel.decoding import decoder_gpu
from seqloom.accel.decoding.packed import APART, PackedWeights

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SHAPES = [
    (2, 3, 5, 16, 20, 3),
    (3, 2, 1, 32, 70, 69),
    (2, 2, 4, 16, 300, 60),
    (1, 1, 17, 16, 51, 2),
    (128, 8, 5, 64, 120, 9),
]
NAMES = ("sources", "heads", "k", "width", "places", "read")


@pytest.mark.parametrize(NAMES, SHAPES)
def test_hypotheses_look_at_what_they_own(sources: int, heads: int, k: int, width: int, places: int, read: int):
    torch.manual_seed(0)
    rows, device = sources * k, "cuda"
    made = torch.randn(rows, 3, heads, width, device=device)
    cache = torch.randn(sources, heads, 2, places, width, device=device)
    cache[:, :, :, read * k :] = torch.nan  # nobody has been there
    own = torch.rand(rows, places, device=device) < 0.5
    own[:, read * k :] = False
    own[torch.arange(rows), read * k + torch.arange(rows) % k] = True
    written = cache.clone()
    new = made.view(sources, k, 3, heads, width)[:, :, 1:].permute(0, 3, 2, 1, 4)
    written[:, :, :, read * k : (read + 1) * k] = new
    found = decoder_gpu.attend_to_cache(made, cache, own, torch.tensor(read, device=device))
    torch.testing.assert_close(cache, written, rtol=0, atol=0, equal_nan=True)
    q = made[:, 0].view(sources, k, heads, width)
    scores = torch.einsum("bknd,bnpd->bnkp", q.double(), cache[:, :, 0].double())
    looked = scores.masked_fill(~own.view(sources, 1, k, places), -torch.inf).softmax(-1)
    wanted = torch.einsum("bnkp,bnpd->bknd", looked, cache[:, :, 1].double().nan_to_num())
    torch.testing.assert_close(found.double(), wanted.reshape(rows, -1), rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize(NAMES, SHAPES)
def test_hypotheses_look_at_their_source(sources: int, heads: int, k: int, width: int, places: int, read: int):
    torch.manual_seed(0)
    rows, device = sources * k, "cuda"
    q = torch.randn(rows, heads, width, device=device)
    both = torch.randn(sources, places, 2, heads, width, device=device).permute(2, 0, 3, 1, 4)
    added = torch.where(torch.rand(sources, 1, 1, places, device=device) < 0.6, 0.0, -torch.inf)
    added[..., 0] = 0
    found = decoder_gpu.attend_to_source(q, both[0], both[1], added)
    scores = torch.einsum("bknd,bnpd->bnkp", q.view(sources, k, heads, width).double(), both[0].double()) + added
    wanted = torch.einsum("bnkp,bnpd->bknd", scores.softmax(-1), both[1].double())
    torch.testing.assert_close(found.double(), wanted.reshape(rows, -1), rtol=1e-5, atol=3e-5)


PRODUCTS = [
    (1, 16, 16),
    (7, 100, 130),
    (640, 512, 512),
    (33, 5003, 96),
    (100, 130, 2000),  # shared by several
    (3000, 2048, 48),  # by large tiles
]


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize(("rows", "width", "depth"), PRODUCTS)
def test_products_are_those_of_float32(rows: int, width: int, depth: int, activation: str):
    torch.manual_seed(0)
    x, plus = torch.randn(rows, depth, device="cuda"), torch.randn(rows, width, device="cuda")
    weight, bias = torch.randn(width, depth, device="cuda"), torch.randn(width, device="cuda")
    parts = decoder_gpu.parts(weight)
    found = decoder_gpu.product(x, parts, bias, activation)
    exact = APART[activation](x.double() @ weight.double().t() + bias.double())
    assert (found.double() - exact).norm() / exact.norm() < 5e-7  # TF32 alone keeps 11 bits: 3e-4
    together = decoder_gpu.product(x, parts, bias, activation, plus)
    torch.testing.assert_close(together, found + plus, atol=1e-5, rtol=1e-6)
    bare = decoder_gpu.product(x, parts)
    torch.testing.assert_close(bare.double(), x.double() @ weight.double().t(), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("rows", "width", "depth"), PRODUCTS)
def test_a_norm_can_follow(rows: int, width: int, depth: int):
    torch.manual_seed(0)
    x, plus = torch.randn(rows, depth, device="cuda"), torch.randn(rows, width, device="cuda")
    layer, norm = nn.Linear(depth, width, device="cuda"), nn.LayerNorm(width, device="cuda")
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
        wanted = norm(layer(x) + plus)
        torch.testing.assert_close(PackedWeights.of(layer)(x, plus, norm), wanted, rtol=1e-5, atol=1e-5)
        for other in (nn.RMSNorm(width, device="cuda"), nn.LayerNorm(width, bias=False, device="cuda")):
            torch.testing.assert_close(PackedWeights.of(layer)(x, None, other), other(layer(x)), rtol=1e-5, atol=1e-5)


def test_few_rows_and_other_numbers_are_left_to_pytorch():
    layer = nn.Linear(8, 8, device="cuda")
    with torch.no_grad():
        packed = PackedWeights.of(layer)
        for x in (torch.randn(3, 8, device="cuda"), torch.randn(0, 8, device="cuda")):
            assert torch.equal(packed(x), layer(x))
    assert not decoder_gpu.suits(torch.zeros(8, 8, device="cuda", dtype=torch.float64))
    assert not decoder_gpu.suits(torch.zeros(8, 8))


@pytest.mark.parametrize("vocabulary", [5, 1000, 10_007, 32_768])
def test_tokens_are_ranked_as_by_pytorch(vocabulary: int):
    torch.manual_seed(0)
    logits = torch.randn(50, vocabulary, device="cuda")
    logits[::2] = logits[::2].round()  # many equals
    logits[1] = 0
    values, ids = decoder_gpu.ranked(logits, 9)
    wanted, places = logits.sort(dim=1, descending=True, stable=True)
    count = min(9, vocabulary)
    assert torch.equal(ids, places[:, :count])
    torch.testing.assert_close(values, wanted[:, :count] - logits.logsumexp(dim=1, keepdim=True), atol=1e-5, rtol=1e-6)
