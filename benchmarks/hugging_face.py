"""The correspondence between the parameters of a seqloom Transformer and those of Marian, BART and similar models."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

OFFSET = 2  # learned positions of `transformers` start at the third row of the table
SIDES = {"source_embed": "encoder", "target_embed": "decoder"}
EMBEDDING = {"embed": "embed_tokens", "positions": "embed_positions", "norm": "layernorm_embedding"}
PARTS = {
    "mixer.attention": "self_attn",
    "cross_attention": "encoder_attn",
    "mixer_residual.norm": "self_attn_layer_norm",
    "cross_residual.norm": "encoder_attn_layer_norm",
    "feed_forward_residual.norm": "final_layer_norm",
    "feed_forward.up": "fc1",
    "feed_forward.down": "fc2",
}


def same_parameters(ours: Any, theirs: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter of a seqloom Transformer with the corresponding parameter of the `transformers` model."""
    known = theirs.state_dict()
    for name, parameter in ours.state_dict().items():
        other = known[their_name(name)]
        if name.endswith("embed.positions.weight"):
            other = other[OFFSET:]
        yield parameter, other.view_as(parameter)


def their_name(name: str) -> str:
    if name == "output.bias":
        return "final_logits_bias"
    if name == "output.weight":
        return "lm_head.weight"
    first, rest = name.split(".", 1)
    if first in SIDES:
        part, kind = rest.split(".")
        return f"model.{SIDES[first]}.{EMBEDDING[part]}.{kind}"
    if first.endswith("_norm"):
        return f"model.{first.removesuffix('_norm')}.layer_norm.{rest}"
    number, rest = rest.split(".", 1)
    part = next(part for part in PARTS if rest.startswith(f"{part}."))
    tail = rest.removeprefix(f"{part}.")
    if PARTS[part].endswith("attn"):  # q.weight corresponds to q_proj.weight
        tail = tail.replace(".", "_proj.")
    return f"model.{first}.layers.{number}.{PARTS[part]}.{tail}"


def theirs(ours: Any) -> Any:
    """Return the same model in transformers: Marian, or Pegasus for pre-norm."""
    import transformers

    transformers.logging.set_verbosity_error()
    config = ours.config
    if config.tied != "all" or config.positions.kind != "sinusoidal" or config.norm != "layer" or config.embed_norm:
        raise SystemExit("Marian needs model.tied=all, sinusoidal positions, and LayerNorm in the blocks only.")
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("ffn_dim", config.feed_forward_size), ("attention_heads", config.heads))
    }
    kind = "Pegasus" if config.norm_first else "Marian"
    model = getattr(transformers, "PegasusForConditionalGeneration" if config.norm_first else "MarianMTModel")(
        getattr(transformers, f"{kind}Config")(
            vocab_size=ours.output.out_features,
            d_model=config.d_model,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            activation_function=config.activation,
            scale_embedding=config.embed_scale,
            eos_token_id=0,
            pad_token_id=0,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
            **sides,
        )
    )
    with torch.no_grad():
        for parameter, other in same_parameters(ours, model):
            other.copy_(parameter)
        for side in (model.model.encoder, model.model.decoder):  # set the seqloom order of sines and cosines
            table = side.embed_positions.weight
            table.copy_(ours.source_embed.positions(torch.arange(len(table))))
    return model.eval()
