"""Sources in few passes come out as from the blocks."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.accel.test_decoder_step import KINDS, PLAIN, V, made
from torch import Tensor

from seqloom import accel
from seqloom.accel.decoding import encoder_pass as module
from seqloom.accel.decoding.encoder_pass import encoder_pass, keys_values, keys_values_apply
from seqloom.models.transformer import TransformerConfig
from seqloom.nn.masks import AttentionScope
from seqloom.nn.positions import PositionsConfig

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def pays(model: Any) -> bool:
    x, mask = torch.empty(2, 3, model.config.d_model), torch.ones(2, 3, dtype=torch.bool)
    return module.applies(model.encoder, x, AttentionScope.within(mask), None, None, {})


def sources(device: str) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(1, V, (9, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(7) < torch.tensor([[7], [1], [3], [0], [5], [6], [7], [2], [4]])  # of one, nothing is real
    return tokens.to(device), mask.to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_sources_in_few_passes_come_out_as_from_the_blocks(kind: str, device: str) -> None:
    model = made(replace(KINDS[kind], encoder_layers=3)).to(device)
    tokens, mask = sources(device)
    with torch.no_grad():
        x = model.source_embed(tokens, torch.arange(7, device=device), 7, mask.sum(dim=1))
        found = encoder_pass(model.encoder)(x, mask)
        with accel.disabled():
            wanted = model.encoder(x, AttentionScope.within(mask)).x
    torch.testing.assert_close(found[mask], wanted[mask], rtol=1e-4, atol=1e-5)
    assert not found.isnan().any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_keys_and_values_of_all_blocks_are_one_product(kind: str, device: str) -> None:
    model = made(KINDS[kind]).to(device)
    with torch.no_grad():
        x = torch.randn(9, 7, PLAIN.d_model, device=device)
        found = keys_values(model.decoder, x)
        for (k, v), block in zip(found, model.decoder, strict=True):
            assert block.cross_attention is not None
            for one, other in zip((k, v), block.cross_attention.keys_values(x), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
                assert one.is_contiguous()


def test_other_weights_are_seen() -> None:
    model: Any = made(PLAIN)
    tokens, mask = sources("cpu")
    with torch.no_grad():
        x = model.source_embed(tokens, torch.arange(7), 7, mask.sum(dim=1))
        before = encoder_pass(model.encoder)(x, mask)
        assert encoder_pass(model.encoder) is encoder_pass(model.encoder)
        model.encoder[-1].feed_forward.down.weight.mul_(1.5)
        assert not torch.allclose(encoder_pass(model.encoder)(x, mask), before, atol=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_takes_the_few_passes_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not pays(made(PLAIN).cuda())  # too narrow
    monkeypatch.setattr(module, "MIN_WIDTH", 1)
    model, (tokens, mask) = made(PLAIN), sources("cuda")
    wanted = model.start({"tokens": tokens.cpu(), "mask": mask.cpu()}).memory
    model = model.cuda()
    assert not pays(model)  # gradients may be wanted
    others = [replace(PLAIN, activation="swiglu"), replace(PLAIN, positions=PositionsConfig(kind="rotary"))]
    with torch.no_grad():
        assert pays(model) and keys_values_apply(model.decoder, torch.empty(0))
        found = model.start({"tokens": tokens, "mask": mask}).memory
        for other in [*others, replace(PLAIN, encoder_layer="convolution")]:
            assert not pays(made(other).cuda())
        assert not pays(made(PLAIN).cuda().double())
    real = mask[:, None, :, None].cpu()
    for pair, other_pair in zip(found["layers"], wanted["layers"], strict=True):
        for one, other in zip(pair, other_pair, strict=True):
            torch.testing.assert_close(one.cpu() * real, other * real, rtol=1e-4, atol=1e-5)


def test_a_cpu_takes_the_blocks() -> None:
    model = TransformerConfig(d_model=512, heads=2, encoder_layers=1, decoder_layers=1).build(V).eval()
    with torch.no_grad():
        assert not pays(model)
        assert not keys_values_apply(model.decoder, torch.empty(0))
