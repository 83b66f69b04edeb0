"""The common base of BART and Marian, which name the parts of the Transformer in the same way.

    model.shared.weight                          E, if source, target and output share it
    model.encoder.layers.0.self_attn.q_proj …    layers
    final_logits_bias (1, V)                     b_o

If only target and output share E, it is `model.decoder.embed_tokens.weight`; without sharing there are three tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from seqloom.core import Json, JsonObject
from seqloom.decoding.rules import MAX_LENGTH_PENALTY
from seqloom.exchange.directory import GENERATION, Directory
from seqloom.exchange.family import Config, ConfigSetting, Family, Ids
from seqloom.exchange.start_tokens import StartTokenConfig
from seqloom.exchange.tokenizer_files import tokenizer_files
from seqloom.exchange.weights import IDENTITY, Conversion, Tensors, TokenRows, Unused, WeightEntry, weight
from seqloom.nn.positions import join_pairs, split_pairs
from seqloom.text import END, Imported, Tokenizer
from seqloom.text.base import END_TEXT, ForeignTokenizer

OUTPUT = "lm_head.weight"
SIDES = {"encoder": "source_embed", "decoder": "target_embed"}
# The name in seqloom, the name in transformers, and the weight axis of size d_model. For axis 0, the bias also has
# this size.
ATTENTION = (("q", "q_proj", 1), ("k", "k_proj", 1), ("v", "v_proj", 1), ("out", "out_proj", 0))
ENCODER = {"mixer.attention": "self_attn"}
DECODER = {"mixer.attention": "self_attn", "cross_attention": "encoder_attn"}
FEED_FORWARD = (("feed_forward.up", "fc1", 1), ("feed_forward.down", "fc2", 0))
NORMS = {
    "encoder": {"mixer_residual": "self_attn", "feed_forward_residual": "final"},
    "decoder": {"mixer_residual": "self_attn", "cross_residual": "encoder_attn", "feed_forward_residual": "final"},
}


@dataclass(frozen=True)
class Bias:
    """The output bias: (1, V) in `transformers`, and (V,) in seqloom, where the tokens have another order."""

    rows: TokenRows

    def read(self, theirs: Tensors) -> Tensors:
        return self.rows.read((theirs[0][0],))

    def write(self, ours: Tensors) -> Tensors:
        return (self.rows.write(ours)[0].unsqueeze(0),)


@dataclass(frozen=True)
class ReorderPairs:
    """The order of sinusoids: sines and cosines alternate in seqloom and form two halves in `transformers`.

    The axis `dim`, of size d_model, is reordered accordingly, and `conversion` is applied as well.
    """

    dim: int
    conversion: Conversion = IDENTITY

    def read(self, theirs: Tensors) -> Tensors:
        return tuple(
            join_pairs(*split_pairs(tensor.movedim(self.dim, -1), "halves"), "interleaved").movedim(-1, self.dim)
            for tensor in self.conversion.read(theirs)
        )

    def write(self, ours: Tensors) -> Tensors:
        reordered = (
            join_pairs(*split_pairs(tensor.movedim(self.dim, -1), "interleaved"), "halves").movedim(-1, self.dim)
            for tensor in ours
        )
        return self.conversion.write(tuple(reordered))


class EncoderDecoder(Family[StartTokenConfig]):
    kind = "start-token-transformer"
    task = "translate"
    prefix = "model."
    settings = (
        ConfigSetting("d_model", "d_model", Config.integer, 1024),
        ConfigSetting("encoder_layers", "encoder_layers", Config.integer, 12),
        ConfigSetting("decoder_layers", "decoder_layers", Config.integer, 12),
        ConfigSetting("embed_scale", "scale_embedding", Config.boolean, False),
        ConfigSetting("dropout", "dropout", Config.number, 0.1),
        ConfigSetting("attention_dropout", "attention_dropout", Config.number, 0.0),
        ConfigSetting("activation_dropout", "activation_dropout", Config.number, 0.0),
        ConfigSetting("activation", "activation_function", Config.activation, "gelu"),
    )
    fixed: ClassVar[JsonObject] = {
        "norm": "layer",
        "norm_first": False,
        "residual": True,
        "scale": True,
        "causal": True,
        "bias": True,
        "encoder_layer": "self-attention",
    }
    required: ClassVar[JsonObject] = {
        "is_encoder_decoder": True,
        **dict.fromkeys(("is_decoder", "normalize_before", "add_final_layer_norm"), False),
        **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), 0.0),
    }
    # The keys in the second line are from earlier versions and unused; the keys in the third line describe
    # distillation.
    ignored_keys = """vocab_size eos_token_id pad_token_id classifier_dropout classif_dropout
        _num_labels save_step add_bias_logits output_past
        replacing_rate student_encoder_layers student_decoder_layers"""
    ids: ClassVar[dict[str, int]]  # default token ids of transformers

    def read_tokenizer(self, directory: Directory, config: Config) -> ForeignTokenizer:
        self.read_generation_config(directory, config)
        return super().read_tokenizer(directory, config)

    def read_generation_config(self, directory: Directory, config: Config) -> None:
        """Let `generation_config.json` override config.json."""
        generation = directory.json(GENERATION) or {}
        keys = ("decoder_start_token_id", "forced_bos_token_id")
        config.mapping = {**config.mapping, **{key: generation[key] for key in keys if key in generation}}

    def special_ids(self, config: Config, file: Mapping[str, Json]) -> tuple[int, list[int]]:
        return config.end_token(self.rows(config), self.ids["eos_token_id"]), []

    def read_config(self, config: Config, ids: Ids) -> JsonObject:
        section = super().read_config(config, ids)
        config.require("num_hidden_layers", section["encoder_layers"])
        for ours, theirs, default in (("heads", "attention_heads", 16), ("d_ff", "ffn_dim", 4096)):
            section[ours] = config.integer(f"encoder_{theirs}", default)
            config.require(f"decoder_{theirs}", section[ours], default=default)
        start = config.integer("decoder_start_token_id", self.ids["decoder_start_token_id"], least=0)
        begin = None if start == ids.order[END] else config.token("decoder_start_token_id", ids, start)
        forced = config.token("forced_bos_token_id", ids, config.get("forced_bos_token_id"))
        return {**section, "bos": begin, "target_bos": forced}

    def decoding(self, directory: Directory) -> JsonObject:
        """Return the search options. As in transformers, `generation_config.json` overrides config.json."""
        generation = directory.json(GENERATION)
        options = directory.config if generation is None else generation
        beam, penalty = options.get("num_beams"), options.get("length_penalty")
        decode: JsonObject = {"beam": beam if type(beam) is int and beam >= 1 else 1, "length_penalty": 1.0}
        if isinstance(penalty, int | float) and 0 <= penalty <= MAX_LENGTH_PENALTY:
            decode["length_penalty"] = float(penalty)
        return {"decode": decode}

    # Export

    def write_config(self, model: StartTokenConfig, ids: Ids) -> JsonObject:
        both = {"attention_heads": model.heads, "ffn_dim": model.feed_forward_size, "layerdrop": 0.0}
        end = ids.order[END]
        return {
            **super().write_config(model, ids),
            **{f"{side}_{key}": value for side in SIDES for key, value in both.items()},
            "vocab_size": ids.rows,
            "eos_token_id": end,
            "decoder_start_token_id": end if model.bos is None else ids.order[model.bos],
            "forced_eos_token_id": end,
            "pad_token_id": end if ids.padding is None else ids.padding,
            "is_encoder_decoder": True,
            "tie_word_embeddings": model.tied != "none",
        }

    def extra_files(self, model: StartTokenConfig, ids: Ids) -> JsonObject:
        config = self.write_config(model, ids)
        keys = ("eos_token_id", "bos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id")
        generation = {key: config[key] for key in keys if config.get(key) is not None}
        if model.target_bos is not None:
            generation["forced_bos_token_id"] = ids.order[model.target_bos]
        return {GENERATION: generation}

    def tokenizer_files(self, tokenizer: Tokenizer, model: StartTokenConfig) -> JsonObject:
        """Return the files of a tokenizer that adds END to every text."""
        files = tokenizer_files(tokenizer, (), model.source_bos or END)
        for settings in (files["tokenizer_config.json"], files["special_tokens_map.json"]):
            padding = tokenizer.padding
            settings["pad_token"] = settings["eos_token"] if padding is None else tokenizer.token(padding)
        if not isinstance(tokenizer, Imported):
            text, other = ({"Sequence": {"id": name, "type_id": segment}} for name, segment in (("A", 0), ("B", 1)))
            after = {"SpecialToken": {"id": END_TEXT, "type_id": 0}}
            files["tokenizer.json"] = {
                **files["tokenizer.json"],
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [text, after],
                    "pair": [text, other, after],
                    "special_tokens": {END_TEXT: {"id": END_TEXT, "ids": [END], "tokens": [END_TEXT]}},
                },
            }
        return files

    # Table of weights

    def weight_table(self, model: StartTokenConfig, ids: Ids) -> list[WeightEntry]:
        rows = TokenRows(ids.order, ids.rows)
        table = [*self._embeddings(model, rows), weight("output.bias", "final_logits_bias", Bias(rows), zero=True)]
        for side, attentions in (("encoder", ENCODER), ("decoder", DECODER)):
            for layer in range(getattr(model, f"{side}_layers")):
                here, there = f"{side}.{layer}", f"model.{side}.layers.{layer}"
                linear = [
                    (f"{here}.{mine}.{a}", f"{there}.{other}.{b}", axis)
                    for mine, other in attentions.items()
                    for a, b, axis in ATTENTION
                ]
                linear += [(f"{here}.{mine}", f"{there}.{other}", axis) for mine, other, axis in FEED_FORWARD]
                norms = [(f"{here}.{mine}.norm", f"{there}.{other}_layer_norm") for mine, other in NORMS[side].items()]
                for ours, theirs, axis in [*linear, *((ours, theirs, 0) for ours, theirs in norms)]:
                    bias = IDENTITY if axis else self.reorder(model, 0)
                    table.append(weight(f"{ours}.weight", f"{theirs}.weight", self.reorder(model, axis)))
                    table.append(weight(f"{ours}.bias", f"{theirs}.bias", bias))
        return table

    def reorder(self, model: StartTokenConfig, axis: int, conversion: Conversion = IDENTITY) -> Conversion:
        """Return the conversion of a tensor whose `axis` has size d_model."""
        return conversion

    def _embeddings(self, model: StartTokenConfig, rows: TokenRows) -> list[WeightEntry]:
        conversion = self.reorder(model, 1, rows)
        source, target, output = (f"{mine}.weight" for mine in ("source_embed.embed", "target_embed.embed", "output"))
        separate = {side: f"model.{side}.embed_tokens.weight" for side in SIDES}
        if model.tied == "all":
            copies = (*separate.values(), OUTPUT)
            return [weight(target, "model.shared.weight", conversion, shared=(source, output), copies=copies)]
        source_entry = weight(source, separate["encoder"], conversion)
        if model.tied == "decoder":
            target_entry = weight(target, separate["decoder"], conversion, shared=(output,), copies=(OUTPUT,))
            return [source_entry, target_entry]
        unused = WeightEntry((), ("model.shared.weight",), Unused((rows.total, model.d_model)), optional=True)
        target_entry, output_entry = weight(target, separate["decoder"], conversion), weight(output, OUTPUT, conversion)
        return [source_entry, target_entry, output_entry, unused]
