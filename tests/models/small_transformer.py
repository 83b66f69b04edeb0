"""Small Transformers for the tests in this directory. `small_seq2seq` defines the batches."""

from typing import Any

import torch
from tests.models.small_seq2seq import V
from torch import nn

from seqloom.exchange.start_tokens import StartTokenConfig
from seqloom.models.transformer import Transformer
from seqloom.nn.positions import PositionsConfig

D = 8


def transformer(seed: int = 0, positions: dict[str, Any] | str = "sinusoidal", **options: Any) -> Transformer:
    """Build a model. `positions` contains options of PositionsConfig, or the kind of positions."""
    torch.manual_seed(seed)
    kind = {"kind": positions} if isinstance(positions, str) else positions
    sizes = {"d_model": D, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "d_ff": 10}
    model = StartTokenConfig(**{**sizes, "positions": PositionsConfig(**kind), **options}).build(V)
    for parameter in model.parameters():  # larger than the initial values, so that every part has an effect
        nn.init.uniform_(parameter, -0.6, 0.6)
    return model.double().eval()


# Every option alone, and together with options that could conflict with it.
SWITCHES: dict[str, dict[str, Any]] = {
    "2017": {},
    "before": {"norm_first": True},
    "halves": {"positions": {"kind": "sinusoidal", "layout": "halves", "base": 20.0}},
    "learned": {"positions": {"kind": "learned", "max_length": 40}},
    "learned-before": {"positions": "learned", "norm_first": True, "embed_norm": True},
    "rotary": {"positions": "rotary"},
    "rotary-halves": {"positions": {"kind": "rotary", "layout": "halves"}, "kv_heads": 1},
    "none": {"positions": "none"},
    "today": {
        "positions": "rotary",
        "norm": "rms",
        "norm_first": True,
        "activation": "swiglu",
        "kv_heads": 1,
        "bias": False,
    },
    "no-norm": {"norm": "none"},
    "no-residual": {"residual": False, "norm": "rms", "encoder_layers": 1, "decoder_layers": 1, "activation": "gelu"},
    "no-scale": {"scale": False, "embed_scale": False},
    "one-head": {"heads": 1, "activation": "gelu", "tied": "decoder"},
    "tied": {"tied": "all", "activation": "silu", "embed_norm": True},
    "aligned": {"align_layer": 1, "decoder_layers": 3},
    "windowed": {"encoder_layer": "windowed", "window": 2},
    "recurrent": {"encoder_layer": "recurrent", "cell": "gru"},
    "convolution": {"encoder_layer": "convolution", "positions": "none"},
    "dilated": {"encoder_layer": "dilated", "kernel": 3},
    "bos": {"bos": 5, "tied": "all"},
    "begins": {"source_bos": 3, "bos": 5, "target_bos": 4, "positions": {"kind": "learned", "max_length": 40}},
}
