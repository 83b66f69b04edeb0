"""The Transformer compared with torch layers, and negative controls in which a part is broken."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.models.small_seq2seq import V, exactly, some_batch
from tests.models.small_transformer import D, transformer
from tests.models.test_transformer import (
    assert_padding_has_no_effect,
    assert_reordering_works,
    assert_steps_equal_whole,
)
from tests.nn.torch_layers import copy_attention, copy_weights, plain_pairs
from torch import nn

from seqloom.core.tree import select_rows
from seqloom.nn.attention import MultiHeadAttention
from seqloom.nn.cache import extend_caches

# --- torch layers ----------------------------------------------------------------------------------------------------


class TorchTransformer(nn.Module):
    """A post-norm or pre-norm Transformer that consists of torch layers."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        options: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first}
        self.source, self.target = nn.Embedding(V, D), nn.Embedding(V, D)
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(D, 2, 10, **options) for _ in range(2))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(D, 2, 10, **options) for _ in range(2))
        self.norms = nn.ModuleList([nn.LayerNorm(D), nn.LayerNorm(D)] if norm_first else [])
        self.output = nn.Linear(D, V)

    def forward(self, source, mask, inputs):
        angles = [[t / 10000 ** (2 * (i // 2) / D) for i in range(D)] for t in range(20)]
        waves = [[math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(row)] for row in angles]
        table = torch.tensor(waves, dtype=torch.float64)
        x = self.source(source) * math.sqrt(D) + table[: source.shape[1]]
        y = self.target(inputs) * math.sqrt(D) + table[: inputs.shape[1]]
        for layer in self.encoder:
            x = layer(x, src_key_padding_mask=~mask)
        x = self.norms[0](x) if self.norms else x
        ahead = torch.ones(y.shape[1], y.shape[1]).triu(1).bool()
        for layer in self.decoder:
            y = layer(y, x, tgt_mask=ahead, memory_key_padding_mask=~mask)
        return self.output(self.norms[1](y) if self.norms else y)


def torch_equivalent(norm_first: bool) -> None:
    torch.manual_seed(7)
    theirs = TorchTransformer(norm_first).double()
    for parameter in theirs.parameters():
        nn.init.uniform_(parameter, -0.6, 0.6)
    ours: Any = transformer(norm_first=norm_first)
    pairs = plain_pairs(ours.source_embed.embed, theirs.source) + plain_pairs(ours.target_embed.embed, theirs.target)
    pairs += plain_pairs(ours.output, theirs.output)
    for our_norm, norm in zip((ours.encoder_norm, ours.decoder_norm), theirs.norms, strict=False):
        pairs += plain_pairs(our_norm, norm)
    layer: Any
    for block, layer in zip([*ours.encoder, *ours.decoder], [*theirs.encoder, *theirs.decoder], strict=True):
        copy_attention(block.self_attention, layer.self_attn)
        residuals = [block.mixer_residual, block.feed_forward_residual]
        if block.cross_attention is not None:
            copy_attention(block.cross_attention, layer.multihead_attn)
            residuals.insert(1, block.cross_residual)
        pairs += plain_pairs(block.feed_forward.up, layer.linear1) + plain_pairs(block.feed_forward.down, layer.linear2)
        for number, residual in enumerate(residuals, start=1):
            pairs += plain_pairs(residual.norm, getattr(layer, f"norm{number}"))
    copy_weights(pairs)
    batch = some_batch()
    result, expected = (
        each_model(batch["source"], batch["source_mask"], batch["inputs"])[batch["target_mask"]]
        for each_model in (ours, theirs)
    )
    exactly(result, expected)


@pytest.mark.parametrize("norm_first", [False, True])
def test_model_matches_torch_layers(norm_first):
    torch_equivalent(norm_first)


# --- negative controls ------------------------------------------------------------------------------------------------


def select_without_cache(tree, rows):
    """Select rows without reordering the cache."""
    if isinstance(tree, dict) and "cache" in tree:
        owned = tree["cache"]["owned"]
        first = None if owned is None else owned.index_select(0, torch.arange(len(rows)) % len(owned))
        return {"readout": tree["readout"].index_select(0, rows), "cache": {**tree["cache"], "owned": first}}
    return select_rows(tree, rows)


def test_cache_without_reordering_is_detected(monkeypatch):
    model = transformer()
    assert_reordering_works(model)
    monkeypatch.setattr("seqloom.core.protocols.select_rows", select_without_cache)
    with pytest.raises(AssertionError):
        assert_reordering_works(model)


def test_ignored_source_mask_is_detected(monkeypatch):
    model = transformer()
    assert_padding_has_no_effect(model)
    attend = MultiHeadAttention.attend

    def attend_without_mask(self, q, keys_values, mask=None, causal=False, weights=False):
        return attend(self, q, keys_values, None, causal, weights)

    monkeypatch.setattr("seqloom.nn.attention.MultiHeadAttention.attend", attend_without_mask)
    with pytest.raises(AssertionError):
        assert_padding_has_no_effect(model)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "rotary"])
def test_wrong_positions_are_detected(kind, monkeypatch):
    """The decoder gives every token position 0."""
    model = transformer(positions=kind)
    assert_steps_equal_whole(model)

    def count_from_zero(*given):
        caches, update = extend_caches(*given)
        return caches, replace(update, positions=update.positions * 0)

    monkeypatch.setattr("seqloom.models.transformer.extend_caches", count_from_zero)
    with pytest.raises(AssertionError):
        assert_steps_equal_whole(model)


@pytest.mark.parametrize("part", ["scale", "residual", "position"])
def test_missing_part_is_detected(part, monkeypatch):
    torch_equivalent(norm_first=False)
    attend = MultiHeadAttention.attend
    if part == "scale":
        unscaled = lambda self, q, *rest, **options: attend(self, 2 * q, *rest, **options)  # noqa: E731
        monkeypatch.setattr("seqloom.nn.attention.MultiHeadAttention.attend", unscaled)
    elif part == "residual":
        broken = lambda self, x, sublayer: (self.norm(sublayer(x)[0]), sublayer(x)[1])  # noqa: E731
        monkeypatch.setattr("seqloom.nn.transformer.Residual.forward", broken)
    else:
        monkeypatch.setattr(
            "seqloom.nn.positions.Sinusoidal.forward", lambda self, positions, like=None: 0 * positions[:, None]
        )
    with pytest.raises(AssertionError):
        torch_equivalent(norm_first=False)
