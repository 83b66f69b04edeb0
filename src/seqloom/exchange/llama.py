"""Llama and its like: causal, rotary positions in halves, RMS norms, SwiGLU, keys and values for groups of heads.

Their gate is what goes through SiLU; ours calls that `up`, and what it is multiplied by `gate`.
"""

from collections.abc import Iterator
from typing import ClassVar

from seqloom.exchange.causal import CausalFamily
from seqloom.exchange.directory import Json
from seqloom.exchange.family import Config, Ids, Setting
from seqloom.exchange.weights import SAME, Halves, How, Weight, weight
from seqloom.models.gpt import GPTConfig

PARTS = {  # ours → theirs
    "mixer.attention.v": "self_attn.v_proj",
    "mixer.attention.out": "self_attn.o_proj",
    "feed_forward.up": "mlp.gate_proj",
    "feed_forward.gate": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}
NORMS = {"mixer_residual.norm": "input_layernorm", "feed_forward_residual.norm": "post_attention_layernorm"}
BASE = 10000.0
WINDOW = 4096  # of a Mistral whose config.json does not say


class Llama(CausalFamily):
    name = "Llama"
    model_types = ("llama",)
    architecture = "LlamaForCausalLM"
    prefix = "model."
    ignored = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"model\.rotary_emb\.inv_freq")  # angles
    embedding = "model.embed_tokens.weight"
    default_begin, default_end = 1, 2
    default_context = 2048
    settings = (
        Setting("width", "hidden_size", Config.whole, 4096),
        Setting("heads", "num_attention_heads", Config.whole, 32),
        Setting("layers", "num_hidden_layers", Config.whole, 32),
        Setting("norm_epsilon", "rms_norm_eps", Config.real, 1e-6),
        Setting("attention_dropout", "attention_dropout", Config.real, 0.0),
        Setting("tied", "tie_word_embeddings", Config.flag, False),
    )
    default_kv_heads: ClassVar[int | None] = None  # as many as heads

    fixed: ClassVar[Json] = {
        "norm": "rms",
        "norm_first": True,
        "embed_norm": False,
        "embed_scale": False,
        "activation": "swiglu",
        "output_bias": False,
        "sliding_window": None,
    }

    def read_config(self, config: Config, ids: Ids) -> Json:
        settings = self.read_settings(config)
        width, heads = settings["width"], settings["heads"]
        if config.get("head_dim") is not None:
            config.must("head_dim", width // heads)
        config.must("rope_interleaved", False)
        config.aside("is_llama_config")  # as some say of themselves
        config.one_of("hidden_act", {"silu": None, "swish": None}, "silu")
        kv_heads = config.get("num_key_value_heads", self.default_kv_heads)
        return {
            "kind": self.kind,
            **settings,
            "kv_heads": None if kv_heads in (None, heads) else config.whole("num_key_value_heads", kv_heads),
            "feed_forward": config.whole("intermediate_size", 11008),
            "positions": {"kind": "rotary", "layout": "halves", "base": _base(config)},
            "context": config.whole("max_position_embeddings", self.default_context, least=2),
            "bias": self.bias(config),
            "dropout": 0.0,
            **self.fixed,
            **self.begun(config, ids),
        }

    def bias(self, config: Config) -> bool:
        """There is one key for all layers here."""
        found = config.flag("attention_bias", False)
        config.must("mlp_bias", found, default=False)
        return found

    def obstacles(self, model: GPTConfig) -> Iterator[str]:
        yield from super().obstacles(model)
        if model.positions.kind != "rotary":
            yield f"model.positions.kind must be rotary; it is {model.positions.kind}"

    def write_config(self, model: GPTConfig, ids: Ids) -> Json:
        return {
            **self.written(model, ids),
            **self.write_settings(model),
            "num_key_value_heads": model.kv_heads or model.heads,
            "head_dim": model.width // model.heads,
            "intermediate_size": model.inner,
            "hidden_act": "silu",
            "max_position_embeddings": model.window,
            "rope_theta": model.positions.base or BASE,
            "rope_parameters": {"rope_type": "default", "rope_theta": model.positions.base or BASE},
            "attention_bias": model.bias,
            "mlp_bias": model.bias,
            "initializer_range": model.init,
        }

    def names(self, model: GPTConfig, ids: Ids) -> list[Weight]:
        kinds = ("weight", "bias") if model.bias else ("weight",)
        turned: dict[str, How] = {"q": SAME, "k": SAME}
        if (model.positions.layout or "interleaved") == "interleaved":
            turned = {"q": Halves(model.heads), "k": Halves(model.kv_heads or model.heads)}
        found = self.tokens(model, ids)
        for layer in range(model.layers):
            ours, theirs = f"body.blocks.{layer}.", f"model.layers.{layer}."
            for kind in kinds:
                found += [
                    weight(f"{ours}mixer.attention.{name}.{kind}", f"{theirs}self_attn.{name}_proj.{kind}", how)
                    for name, how in turned.items()
                ]
                found += [weight(f"{ours}{mine}.{kind}", f"{theirs}{other}.{kind}") for mine, other in PARTS.items()]
            found += [weight(f"{ours}{mine}.weight", f"{theirs}{other}.weight") for mine, other in NORMS.items()]
        return [*found, weight("body.norm.weight", "model.norm.weight")]


class Mistral(Llama):
    """Llama without biases, perhaps with a sliding window. Without a window it is exported as a Llama."""

    name = "Mistral"
    model_types = ("mistral",)
    architecture = "MistralForCausalLM"
    default_context = 131072
    default_kv_heads = 8

    fixed: ClassVar[Json] = {
        **{name: value for name, value in Llama.fixed.items() if name != "sliding_window"},
        "bias": False,
    }

    def read_config(self, config: Config, ids: Ids) -> Json:
        unlimited = config.get("sliding_window", WINDOW) is None
        window = None if unlimited else config.whole("sliding_window", WINDOW)
        return {**super().read_config(config, ids), "sliding_window": window}

    def bias(self, config: Config) -> bool:
        return False

    def write_config(self, model: GPTConfig, ids: Ids) -> Json:
        written = {**super().write_config(model, ids), "sliding_window": model.sliding_window}
        return {key: value for key, value in written.items() if key not in ("attention_bias", "mlp_bias")}


def _base(config: Config) -> float:
    """The base of the angles: rope_theta, or, as newer files have it, within rope_parameters."""
    old, new = config.get("rope_theta"), config.get("rope_parameters")
    scaling = config.get("rope_scaling")
    for key, found in (("rope_parameters", new), ("rope_scaling", scaling)):
        if found is None:
            continue
        kind = found.get("rope_type", found.get("type", "default")) if isinstance(found, dict) else None
        if kind != "default" or not found.keys() <= {"rope_type", "type", "rope_theta"}:
            config.problem(key, "must be of the default type, with rope_theta alone", found)
            return BASE
        old = found.get("rope_theta", old)
    if old is None:
        return BASE
    if type(old) not in (int, float) or old <= 1:
        config.problem("rope_theta", "must be a number above 1", old)
        return BASE
    return float(old)
