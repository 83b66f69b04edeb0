"""The fused pass through the encoder equals the pass through its blocks."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.accel.test_decoder_step import KINDS, PLAIN, V, build_model
from torch import Tensor

from seqloom import accel
from seqloom.accel.decoding import encoder_pass as module
from seqloom.accel.decoding.encoder_pass import can_pack_keys_values, encoder_pass, packed_keys_values
from seqloom.models.transformer import TransformerConfig
from seqloom.nn.masks import AttentionScope
from seqloom.nn.positions import PositionsConfig

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def applies(model: Any) -> bool:
    x, mask = torch.empty(2, 3, model.config.d_model), torch.ones(2, 3, dtype=torch.bool)
    return module.applies(model.encoder, x, AttentionScope.within(mask), None, None, {})


def sources(device: str) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(1, V, (9, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(7) < torch.tensor([[7], [1], [3], [0], [5], [6], [7], [2], [4]])  # one source is empty
    return tokens.to(device), mask.to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_fused_encoder_matches_unfused_blocks(kind: str, device: str) -> None:
    model = build_model(replace(KINDS[kind], encoder_layers=3)).to(device)
    tokens, mask = sources(device)
    with torch.no_grad():
        x = model.source_embed(tokens, torch.arange(7, device=device), 7, mask.sum(dim=1))
        actual = encoder_pass(model.encoder)(x, mask)
        with accel.disabled():
            expected = model.encoder(x, AttentionScope.within(mask)).x
    torch.testing.assert_close(actual[mask], expected[mask], rtol=1e-4, atol=1e-5)
    assert not actual.isnan().any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_packed_keys_and_values_match_unfused_blocks(kind: str, device: str) -> None:
    model = build_model(KINDS[kind]).to(device)
    with torch.no_grad():
        x = torch.randn(9, 7, PLAIN.d_model, device=device)
        actual = packed_keys_values(model.decoder, x)
        for (k, v), block in zip(actual, model.decoder, strict=True):
            assert block.cross_attention is not None
            for packed, plain in zip((k, v), block.cross_attention.keys_values(x), strict=True):
                torch.testing.assert_close(packed, plain, rtol=1e-4, atol=1e-5)
                assert packed.is_contiguous()


def test_changed_weights_are_detected() -> None:
    model: Any = build_model(PLAIN)
    tokens, mask = sources("cpu")
    with torch.no_grad():
        x = model.source_embed(tokens, torch.arange(7), 7, mask.sum(dim=1))
        before = encoder_pass(model.encoder)(x, mask)
        assert encoder_pass(model.encoder) is encoder_pass(model.encoder)
        model.encoder[-1].feed_forward.down.weight.mul_(1.5)
        assert not torch.allclose(encoder_pass(model.encoder)(x, mask), before, atol=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_supported_encoders_are_fused_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not applies(build_model(PLAIN).cuda())  # the model is too narrow
    monkeypatch.setattr(module, "MIN_WIDTH", 1)
    model, (tokens, mask) = build_model(PLAIN), sources("cuda")
    expected = model.start({"tokens": tokens.cpu(), "mask": mask.cpu()}).memory
    model = model.cuda()
    assert not applies(model)  # gradients are enabled
    others = [replace(PLAIN, activation="swiglu"), replace(PLAIN, positions=PositionsConfig(kind="rotary"))]
    with torch.no_grad():
        assert applies(model) and can_pack_keys_values(model.decoder, torch.empty(0))
        actual = model.start({"tokens": tokens, "mask": mask}).memory
        for unsupported in [*others, replace(PLAIN, encoder_layer="convolution")]:
            assert not applies(build_model(unsupported).cuda())
        assert not applies(build_model(PLAIN).cuda().double())
    real = mask[:, None, :, None].cpu()
    for actual_pair, expected_pair in zip(actual["layers"], expected["layers"], strict=True):
        for actual_part, expected_part in zip(actual_pair, expected_pair, strict=True):
            torch.testing.assert_close(actual_part.cpu() * real, expected_part * real, rtol=1e-4, atol=1e-5)


def test_cpu_encoder_uses_unfused_blocks() -> None:
    model = TransformerConfig(d_model=512, heads=2, encoder_layers=1, decoder_layers=1).build(V).eval()
    with torch.no_grad():
        assert not applies(model)
        assert not can_pack_keys_values(model.decoder, torch.empty(0))
