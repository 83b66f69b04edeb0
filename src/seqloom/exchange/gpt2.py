"""GPT-2: causal, learned positions, norms before each layer; its layers have their matrices the other way round."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from seqloom.exchange.causal import CausalFamily
from seqloom.exchange.directory import Json
from seqloom.exchange.family import ACTIVATIONS, Config, Ids, Setting, activation_name, block_obstacles
from seqloom.exchange.weights import TRANSPOSED, How, Joined, Nothing, Weight, weight
from seqloom.models.gpt import GPTConfig


class GPT2(CausalFamily):
    name = "GPT-2"
    model_types = ("gpt2",)
    architecture = "GPT2LMHeadModel"
    prefix = "transformer."
    ignored = (r"transformer\.h\.\d+\.attn\.(masked_)?bias",)  # which places lie ahead
    embedding = "transformer.wte.weight"
    default_begin = default_end = 50256
    settings = (
        Setting("width", "n_embd", Config.whole, 768),
        Setting("heads", "n_head", Config.whole, 12),
        Setting("layers", "n_layer", Config.whole, 12),
        Setting("norm_epsilon", "layer_norm_epsilon", Config.real, 1e-5),
        Setting("dropout", "resid_pdrop", Config.real, 0.1),
        Setting("attention_dropout", "attn_pdrop", Config.real, 0.1),
        Setting("tied", "tie_word_embeddings", Config.flag, True),
    )

    fixed: ClassVar[Json] = {
        "norm": "layer",
        "norm_first": True,
        "embed_norm": False,
        "embed_scale": False,
        "output_bias": False,
        "sliding_window": None,
    }

    def read_config(self, config: Config, ids: Ids) -> Json:
        config.must("add_cross_attention", False)
        config.must("scale_attn_weights", True)
        config.must("scale_attn_by_inverse_layer_idx", False)
        config.aside("embd_pdrop")  # there is one dropout here, that of the layers
        config.aside("reorder_and_upcast_attn")  # a matter of half precision
        config.aside(*(f"summary_{name}" for name in ("activation", "first_dropout", "proj_to_labels", "type")))
        config.aside("summary_use_proj")
        inner = config.get("n_inner")
        places = config.whole("n_positions", 1024, least=2)
        config.must("n_ctx", places)
        return {
            "kind": self.kind,
            **self.read_settings(config),
            "feed_forward": None if inner is None else config.whole("n_inner"),
            "activation": config.one_of("activation_function", ACTIVATIONS, "gelu_new"),
            "positions": {"kind": "learned", "max_length": places},
            "bias": True,
            **self.fixed,
            **self.begun(config, ids),
        }

    def obstacles(self, model: GPTConfig) -> Iterator[str]:
        yield from super().obstacles(model)
        if model.positions.kind != "learned":
            yield f"model.positions.kind must be learned; it is {model.positions.kind}"
        elif model.window != model.longest:
            yield f"model.context must be all {model.longest} positions; it is {model.window}"
        yield from block_obstacles(model.kv_heads, model.heads, model.activation)

    def write_config(self, model: GPTConfig, ids: Ids) -> Json:
        return {
            **self.written(model, ids),
            **self.write_settings(model),
            "n_inner": model.feed_forward,
            "n_positions": model.longest,
            "activation_function": activation_name(model.activation),
            "embd_pdrop": model.dropout,
            "initializer_range": model.init,
        }

    def names(self, model: GPTConfig, ids: Ids) -> list[Weight]:
        found = [*self.tokens(model, ids), weight("body.embedded.positions.weight", "transformer.wpe.weight")]
        for layer in range(model.layers):
            rows = _block(f"body.blocks.{layer}.", f"transformer.h.{layer}.")
            found += rows if model.bias else [_without_bias(row, model) for row in rows]
        return found + _pair("body.norm", "transformer.ln_f")


def _block(ours: str, theirs: str) -> list[Weight]:
    parts: Mapping[str, How] = {"weight": Joined(3, dim=1, transposed=True), "bias": Joined(3)}
    joined = [
        Weight(tuple(f"{ours}mixer.attention.{name}.{part}" for name in "qkv"), (f"{theirs}attn.c_attn.{part}",), how)
        for part, how in parts.items()
    ]
    return [
        *joined,
        *_linear(f"{ours}mixer.attention.out", f"{theirs}attn.c_proj"),
        *_pair(f"{ours}mixer_residual.norm", f"{theirs}ln_1"),
        *_linear(f"{ours}feed_forward.up", f"{theirs}mlp.c_fc"),
        *_linear(f"{ours}feed_forward.down", f"{theirs}mlp.c_proj"),
        *_pair(f"{ours}feed_forward_residual.norm", f"{theirs}ln_2"),
    ]


def _without_bias(row: Weight, model: GPTConfig) -> Weight:
    """A layer without a bias is there one whose bias is 0."""
    name = row.theirs[0].removesuffix(".bias")
    outputs = {"c_attn": 3 * model.width, "c_proj": model.width, "c_fc": model.inner}.get(name.split(".")[-1])
    return row if name == row.theirs[0] or outputs is None else Weight((), row.theirs, Nothing((outputs,)))


def _linear(ours: str, theirs: str) -> list[Weight]:
    return [weight(f"{ours}.weight", f"{theirs}.weight", TRANSPOSED), weight(f"{ours}.bias", f"{theirs}.bias")]


def _pair(ours: str, theirs: str) -> list[Weight]:
    return [weight(f"{ours}.{part}", f"{theirs}.{part}") for part in ("weight", "bias")]
