"""Families of decoders: GPT-2, Llama and Mistral.

GPT-2 has learned positions, pre-norm layers and transposed matrices. Llama and Mistral have RMSNorm, SwiGLU, grouped
key–value heads, and rotary positions whose pairs form two halves of a head. The matrix `gate` of `transformers`, whose
output is the input of SiLU, is called `up` in seqloom, and the matrix `up` of `transformers` is called `gate`.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from seqloom.core import Json, JsonObject
from seqloom.exchange.family import Config, ConfigSetting, Family, Ids
from seqloom.exchange.tokenizer_files import tokenizer_files
from seqloom.exchange.weights import (
    IDENTITY,
    TRANSPOSE,
    Conversion,
    Fused,
    RotaryHalves,
    TokenRows,
    Unused,
    WeightEntry,
    weight,
)
from seqloom.models.gpt import GPTConfig
from seqloom.text import Tokenizer

HEAD = "lm_head.weight"
BATCH_LENGTH = 256  # batch length of further training of an imported model
LLAMA_PARTS = {  # ours → theirs
    "mixer.attention.v": "self_attn.v_proj",
    "mixer.attention.out": "self_attn.o_proj",
    "feed_forward.up": "mlp.gate_proj",
    "feed_forward.gate": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}
LLAMA_NORMS = {"mixer_residual.norm": "input_layernorm", "feed_forward_residual.norm": "post_attention_layernorm"}
BASE = 10000.0  # default base of rotary positions
WINDOW = 4096  # default window of Mistral


class CausalFamily(Family[GPTConfig]):
    """The common base of decoders: the embeddings, the output layer, and the start and end tokens."""

    kind = "gpt"
    task = "language-model"
    embedding: ClassVar[str]  # name of the token embeddings in `transformers`
    default_end: ClassVar[int]  # default of eos_token_id
    default_begin: ClassVar[int]  # default of bos_token_id

    def special_ids(self, config: Config, file: Mapping[str, Json]) -> tuple[int, list[int]]:
        config.ignore("pad_token_id", "sep_token_id", "decoder_start_token_id")  # not needed, because padding is masked
        config.require("is_encoder_decoder", False)
        config.require("is_decoder", False, True)
        return config.end_token(self.rows(config), self.default_end), []

    def read_config(self, config: Config, ids: Ids) -> JsonObject:
        """Set `bos` if a text starts with a token other than END."""
        bos, begin = config.get("bos_token_id", self.default_begin), None
        if type(bos) is int and 0 <= bos < ids.rows:
            begin = None if bos == ids.order[0] else ids.to_ours(bos)
        elif bos is not None and bos != ids.order[0]:
            config.problem("bos_token_id", f"must be a single token id below vocab_size, {ids.rows}", bos)
        return {**super().read_config(config, ids), "bos": begin}

    def write_config(self, model: GPTConfig, ids: Ids) -> JsonObject:
        ends = {"bos_token_id": ids.order[model.bos or 0], "eos_token_id": ids.order[0]}
        more = {"vocab_size": ids.rows, "initializer_range": model.init}
        return {**ends, **more, **super().write_config(model, ids)}

    def weight_table(self, model: GPTConfig, ids: Ids) -> list[WeightEntry]:
        """Return the entries of the embeddings and the output layer; each family adds the entries of its layers."""
        rows, embedding = TokenRows(ids.order, ids.rows), "backbone.embedded.embed.weight"
        if model.tied:
            return [weight(embedding, self.embedding, rows, shared=("output.weight",), copies=(HEAD,))]
        return [weight(embedding, self.embedding, rows), weight("output.weight", HEAD, rows)]

    def recipe_keys(self, model: GPTConfig) -> JsonObject:
        return {"batch": {"size": 8, "length": min(BATCH_LENGTH, model.window)}}

    def tokenizer_files(self, tokenizer: Tokenizer, model: GPTConfig) -> JsonObject:
        return tokenizer_files(tokenizer, bos=model.bos or 0)

    def extra_files(self, model: GPTConfig, ids: Ids) -> JsonObject:
        ends = {"bos_token_id": ids.order[model.bos or 0], "eos_token_id": ids.order[0]}
        return {"generation_config.json": {"_from_model_config": True, **ends}}


class GPT2(CausalFamily):
    name = "GPT-2"
    model_types = ("gpt2",)
    architecture = "GPT2LMHeadModel"
    prefix = "transformer."
    ignored_tensors = (r"transformer\.h\.\d+\.attn\.(masked_)?bias",)  # causal masks
    embedding = "transformer.wte.weight"
    default_begin = default_end = 50256
    positions = "learned"
    settings = (
        ConfigSetting("d_model", "n_embd", Config.integer, 768),
        ConfigSetting("heads", "n_head", Config.integer, 12),
        ConfigSetting("layers", "n_layer", Config.integer, 12),
        ConfigSetting("norm_epsilon", "layer_norm_epsilon", Config.number, 1e-5),
        ConfigSetting("dropout", "resid_pdrop", Config.number, 0.1),
        ConfigSetting("attention_dropout", "attn_pdrop", Config.number, 0.1),
        ConfigSetting("tied", "tie_word_embeddings", Config.boolean, True),
        ConfigSetting("activation", "activation_function", Config.activation, "gelu_new"),
    )
    fixed: ClassVar[JsonObject] = {
        "norm": "layer",
        "norm_first": True,
        "embed_norm": False,
        "embed_scale": False,
        "output_bias": False,
        "sliding_window": None,
    }
    required: ClassVar[JsonObject] = {
        "add_cross_attention": False,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    }
    # seqloom has one dropout rate for embeddings and layers; reorder_and_upcast_attn only affects half precision.
    ignored_keys = """embd_pdrop reorder_and_upcast_attn summary_activation summary_first_dropout summary_proj_to_labels
        summary_type summary_use_proj"""

    def read_config(self, config: Config, ids: Ids) -> JsonObject:
        section = super().read_config(config, ids)
        length = config.integer("n_positions", 1024, least=2)
        config.require("n_ctx", length)
        inner = None if config.get("n_inner") is None else config.integer("n_inner")
        return {**section, "d_ff": inner, "positions": {"kind": "learned", "max_length": length}, "bias": True}

    def obstacles(self, model: GPTConfig) -> Iterator[str]:
        yield from super().obstacles(model)
        if model.positions.kind == "learned" and model.window != model.longest:
            yield f"model.context must be {model.longest}, the number of positions; it is {model.window}"

    def write_config(self, model: GPTConfig, ids: Ids) -> JsonObject:
        sizes = {"n_inner": model.d_ff, "n_positions": model.longest, "embd_pdrop": model.dropout}
        return {**super().write_config(model, ids), **sizes}

    def weight_table(self, model: GPTConfig, ids: Ids) -> list[WeightEntry]:
        table = super().weight_table(model, ids)
        table.append(weight("backbone.embedded.positions.weight", "transformer.wpe.weight"))
        sizes = {"attn.c_attn": 3 * model.d_model, "attn.c_proj": model.d_model, "mlp.c_proj": model.d_model}
        sizes["mlp.c_fc"] = model.feed_forward_size
        linear = {
            "mixer.attention.out": "attn.c_proj",
            "feed_forward.up": "mlp.c_fc",
            "feed_forward.down": "mlp.c_proj",
        }
        norms = {"mixer_residual.norm": "ln_1", "feed_forward_residual.norm": "ln_2"}
        for layer in range(model.layers):
            ours, theirs = f"backbone.blocks.{layer}.", f"transformer.h.{layer}."
            heads = [f"{ours}mixer.attention.{name}" for name in "qkv"]
            fused = Fused(3, dim=1, transposed=True)
            table.append(
                WeightEntry(tuple(f"{name}.weight" for name in heads), (f"{theirs}attn.c_attn.weight",), fused)
            )
            table += [
                weight(f"{ours}{mine}.weight", f"{theirs}{one}.weight", TRANSPOSE) for mine, one in linear.items()
            ]
            if model.bias:
                biases = tuple(f"{name}.bias" for name in heads)
                table.append(WeightEntry(biases, (f"{theirs}attn.c_attn.bias",), Fused(3)))
                table += [weight(f"{ours}{mine}.bias", f"{theirs}{one}.bias") for mine, one in linear.items()]
            else:  # layers of `transformers` always have a bias here
                table += [WeightEntry((), (f"{theirs}{one}.bias",), Unused((size,))) for one, size in sizes.items()]
            table += _norms({f"{ours}{mine}": f"{theirs}{one}" for mine, one in norms.items()})
        return table + _norms({"backbone.norm": "transformer.ln_f"})


def _norms(names: Mapping[str, str]) -> list[WeightEntry]:
    parts = ("weight", "bias")
    return [weight(f"{ours}.{part}", f"{theirs}.{part}") for ours, theirs in names.items() for part in parts]


class Llama(CausalFamily):
    name = "Llama"
    model_types = ("llama",)
    architecture = "LlamaForCausalLM"
    prefix = "model."
    ignored_tensors = (
        r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
        r"model\.rotary_emb\.inv_freq",
    )  # the frequencies of rotary positions, which are computed
    embedding = "model.embed_tokens.weight"
    default_begin, default_end = 1, 2
    default_context = 2048
    default_kv_heads: ClassVar[int | None] = None  # None: the number of heads
    positions = "rotary"
    grouped = True
    settings = (
        ConfigSetting("d_model", "hidden_size", Config.integer, 4096),
        ConfigSetting("heads", "num_attention_heads", Config.integer, 32),
        ConfigSetting("layers", "num_hidden_layers", Config.integer, 32),
        ConfigSetting("d_ff", "intermediate_size", Config.integer, 11008, "feed_forward_size"),
        ConfigSetting("norm_epsilon", "rms_norm_eps", Config.number, 1e-6),
        ConfigSetting("attention_dropout", "attention_dropout", Config.number, 0.0),
        ConfigSetting("tied", "tie_word_embeddings", Config.boolean, False),
    )
    fixed: ClassVar[JsonObject] = {
        "norm": "rms",
        "norm_first": True,
        "embed_norm": False,
        "embed_scale": False,
        "activation": "swiglu",
        "output_bias": False,
        "sliding_window": None,
    }
    required: ClassVar[JsonObject] = {"rope_interleaved": False}
    ignored_keys = "is_llama_config"  # a key of some published models

    def read_config(self, config: Config, ids: Ids) -> JsonObject:
        section = super().read_config(config, ids)
        if config.get("head_dim") is not None:
            config.require("head_dim", section["d_model"] // section["heads"])
        config.one_of("hidden_act", {"silu": None, "swish": None}, "silu")
        kv_heads = config.get("num_key_value_heads", self.default_kv_heads)
        same = kv_heads in (None, section["heads"])
        return {
            **section,
            "kv_heads": None if same else config.integer("num_key_value_heads", kv_heads),
            "positions": {"kind": "rotary", "layout": "halves", "base": _base(config)},
            "context": config.integer("max_position_embeddings", self.default_context, least=2),
            "bias": self.bias(config),
            "dropout": 0.0,
        }

    def bias(self, config: Config) -> bool:
        """Return whether layers have biases; seqloom has one key for the biases of all layers."""
        has_bias = config.boolean("attention_bias", False)
        config.require("mlp_bias", has_bias, default=False)
        return has_bias

    def write_config(self, model: GPTConfig, ids: Ids) -> JsonObject:
        base = model.positions.base or BASE
        return {
            **super().write_config(model, ids),
            "num_key_value_heads": model.kv_heads or model.heads,
            "head_dim": model.d_model // model.heads,
            "hidden_act": "silu",
            "max_position_embeddings": model.window,
            "rope_theta": base,
            "rope_parameters": {"rope_type": "default", "rope_theta": base},
            "attention_bias": model.bias,
            "mlp_bias": model.bias,
        }

    def weight_table(self, model: GPTConfig, ids: Ids) -> list[WeightEntry]:
        conversions: dict[str, Conversion] = {"q": IDENTITY, "k": IDENTITY}
        if (model.positions.layout or "interleaved") == "interleaved":
            conversions = {"q": RotaryHalves(model.heads), "k": RotaryHalves(model.kv_heads or model.heads)}
        table = super().weight_table(model, ids)
        for layer in range(model.layers):
            ours, theirs = f"backbone.blocks.{layer}.", f"model.layers.{layer}."
            for kind in ("weight", "bias") if model.bias else ("weight",):
                table += [
                    weight(f"{ours}mixer.attention.{name}.{kind}", f"{theirs}self_attn.{name}_proj.{kind}", conversion)
                    for name, conversion in conversions.items()
                ]
                table += [weight(f"{ours}{mine}.{kind}", f"{theirs}{one}.{kind}") for mine, one in LLAMA_PARTS.items()]
            table += [weight(f"{ours}{mine}.weight", f"{theirs}{one}.weight") for mine, one in LLAMA_NORMS.items()]
        return [*table, weight("backbone.norm.weight", "model.norm.weight")]


class Mistral(Llama):
    """Llama without biases and with an optional sliding window. Without a window, it is exported as a Llama model."""

    name = "Mistral"
    model_types = ("mistral",)
    architecture = "MistralForCausalLM"
    default_context = 131072
    default_kv_heads = 8
    fixed: ClassVar[JsonObject] = {
        **{name: value for name, value in Llama.fixed.items() if name != "sliding_window"},
        "bias": False,
    }

    def read_config(self, config: Config, ids: Ids) -> JsonObject:
        unlimited = config.get("sliding_window", WINDOW) is None
        window = None if unlimited else config.integer("sliding_window", WINDOW)
        return {**super().read_config(config, ids), "sliding_window": window}

    def bias(self, config: Config) -> bool:
        return False

    def write_config(self, model: GPTConfig, ids: Ids) -> JsonObject:
        config = {**super().write_config(model, ids), "sliding_window": model.sliding_window}
        return {key: value for key, value in config.items() if key not in ("attention_bias", "mlp_bias")}


def _base(config: Config) -> float:
    """Return the base of rotary positions: rope_theta, which newer files store inside rope_parameters."""
    base, sections = config.get("rope_theta"), {key: config.get(key) for key in ("rope_parameters", "rope_scaling")}
    for key, options in sections.items():
        if options is None:
            continue
        kind = options.get("rope_type", options.get("type", "default")) if isinstance(options, dict) else None
        if kind != "default" or not options.keys() <= {"rope_type", "type", "rope_theta"}:
            config.problem(key, "must have the default type and only rope_theta", options)
            return BASE
        base = options.get("rope_theta", base)
    if base is not None and (type(base) not in (int, float) or base <= 1):
        config.problem("rope_theta", "must be a number above 1", base)
        return BASE
    return BASE if base is None else float(base)
