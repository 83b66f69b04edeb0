"""What BART and Marian have in common: an encoder and a decoder of the Transformer of 2017, under the same names.

    model.shared.weight                          E, where source, target and output have one
    model.encoder.layers.0.self_attn.q_proj …    a layer each
    final_logits_bias (1, V)                     b_o

Where only target and output have one E it is `model.decoder.embed_tokens.weight`; where none have,
there are three.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from seqloom.decoding.rules import MAX_LENGTH_PENALTY
from seqloom.exchange.directory import GENERATION, Directory, Json
from seqloom.exchange.family import Config, ConfigSetting, Family, Ids
from seqloom.exchange.start_tokens import StartTokenConfig
from seqloom.exchange.tokenizer_files import tokenizer_files
from seqloom.exchange.weights import SAME, How, Nothing, Tensors, TokenRows, WeightEntry, weight
from seqloom.nn.positions import join_pairs, split_pairs
from seqloom.text import END, Imported, Tokenizer
from seqloom.text.base import END_TEXT, ForeignTokenizer

OUTPUT = "lm_head.weight"
SIDES = {"encoder": "source_embed", "decoder": "target_embed"}
# Ours, theirs, and along which axis of the weight the width lies, in a bias too if it is the first.
ATTENTION = (("q", "q_proj", 1), ("k", "k_proj", 1), ("v", "v_proj", 1), ("out", "out_proj", 0))
ENCODER = {"mixer.attention": "self_attn"}
DECODER = {"mixer.attention": "self_attn", "cross_attention": "encoder_attn"}
FED_FORWARD = (("feed_forward.up", "fc1", 1), ("feed_forward.down", "fc2", 0))
NORMS = {
    "encoder": {"mixer_residual": "self_attn", "feed_forward_residual": "final"},
    "decoder": {"mixer_residual": "self_attn", "cross_residual": "encoder_attn", "feed_forward_residual": "final"},
}


@dataclass(frozen=True)
class Bias:
    """(1, V) there, (V,) here, in another order."""

    rows: TokenRows

    def read(self, theirs: Tensors) -> Tensors:
        return self.rows.read((theirs[0][0],))

    def write(self, ours: Tensors) -> Tensors:
        return (self.rows.write(ours)[0].unsqueeze(0),)


@dataclass(frozen=True)
class Parted:
    """Where sines and cosines stand side by side here, and in two halves there, so does everything else of that width:
    the axis `dim` of a tensor is put in their order, then `how` does the rest."""

    dim: int
    how: How = SAME

    def read(self, theirs: Tensors) -> Tensors:
        return tuple(
            join_pairs(*split_pairs(tensor.movedim(self.dim, -1), "halves"), "interleaved").movedim(-1, self.dim)
            for tensor in self.how.read(theirs)
        )

    def write(self, ours: Tensors) -> Tensors:
        turned = (
            join_pairs(*split_pairs(tensor.movedim(self.dim, -1), "interleaved"), "halves").movedim(-1, self.dim)
            for tensor in ours
        )
        return self.how.write(tuple(turned))


class EncoderDecoder(Family[StartTokenConfig]):
    kind = "start-token-transformer"
    task = "translate"
    prefix = "model."
    settings = (
        ConfigSetting("d_model", "d_model", Config.whole, 1024),
        ConfigSetting("encoder_layers", "encoder_layers", Config.whole, 12),
        ConfigSetting("decoder_layers", "decoder_layers", Config.whole, 12),
        ConfigSetting("embed_scale", "scale_embedding", Config.flag, False),
        ConfigSetting("dropout", "dropout", Config.real, 0.1),
        ConfigSetting("attention_dropout", "attention_dropout", Config.real, 0.0),
        ConfigSetting("activation_dropout", "activation_dropout", Config.real, 0.0),
        ConfigSetting("activation", "activation_function", Config.activation, "gelu"),
    )
    fixed: ClassVar[Json] = {
        "norm": "layer",
        "norm_first": False,
        "residual": True,
        "scale": True,
        "causal": True,
        "bias": True,
        "encoder_layer": "self-attention",
    }
    required: ClassVar[Json] = {
        "is_encoder_decoder": True,
        **dict.fromkeys(("is_decoder", "normalize_before", "add_final_layer_norm"), False),
        **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), 0.0),
    }
    # the second line is of earlier versions and unused, the third says how a model was distilled
    aside = """vocab_size eos_token_id pad_token_id classifier_dropout classif_dropout
        _num_labels save_step add_bias_logits output_past
        replacing_rate student_encoder_layers student_decoder_layers"""
    ids: ClassVar[dict[str, int]]  # those that transformers takes where config.json does not say

    def tokenizer(self, directory: Directory, config: Config) -> ForeignTokenizer:
        self.generation(directory, config)
        return super().tokenizer(directory, config)

    def generation(self, directory: Directory, config: Config) -> None:
        """What `generation_config.json` says stands before what config.json does."""
        found = directory.json(GENERATION) or {}
        known = ("decoder_start_token_id", "forced_bos_token_id")
        config.mapping = {**config.mapping, **{key: found[key] for key in known if key in found}}

    def specials(self, config: Config, file: Mapping[str, Any]) -> tuple[int, list[int]]:
        return config.end(self.rows(config), self.ids["eos_token_id"]), []

    def read_config(self, config: Config, ids: Ids) -> Json:
        found = super().read_config(config, ids)
        config.must("num_hidden_layers", found["encoder_layers"])
        for ours, theirs, default in (("heads", "attention_heads", 16), ("d_ff", "ffn_dim", 4096)):
            found[ours] = config.whole(f"encoder_{theirs}", default)
            config.must(f"decoder_{theirs}", found[ours], default=default)
        start = config.whole("decoder_start_token_id", self.ids["decoder_start_token_id"], least=0)
        begin = None if start == ids.order[END] else config.token("decoder_start_token_id", ids, start)
        forced = config.token("forced_bos_token_id", ids, config.get("forced_bos_token_id"))
        return {**found, "bos": begin, "target_bos": forced}

    def decoding(self, directory: Directory) -> Json:
        """As transformers searches: where there is a `generation_config.json`, config.json has no say in it."""
        said = directory.json(GENERATION)
        said = directory.config if said is None else said
        beam, penalty = said.get("num_beams"), said.get("length_penalty")
        found: Json = {"beam": beam if type(beam) is int and beam >= 1 else 1, "length_penalty": 1.0}
        if isinstance(penalty, int | float) and 0 <= penalty <= MAX_LENGTH_PENALTY:
            found["length_penalty"] = float(penalty)
        return {"decode": found}

    # Writing.

    def write_config(self, model: StartTokenConfig, ids: Ids) -> Json:
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

    def documents(self, model: StartTokenConfig, ids: Ids) -> Json:
        written = self.write_config(model, ids)
        kept = ("eos_token_id", "bos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id")
        found = {key: written[key] for key in kept if written.get(key) is not None}
        if model.target_bos is not None:
            found["forced_bos_token_id"] = ids.order[model.target_bos]
        return {GENERATION: found}

    def tokenizer_files(self, tokenizer: Tokenizer, model: StartTokenConfig) -> Json:
        """Of a tokenizer that was learned here, too, the one there puts END after every text."""
        found = tokenizer_files(tokenizer, (), model.source_bos or END)
        about, special = found["tokenizer_config.json"], found["special_tokens_map.json"]
        for settings in (about, special):
            padding = tokenizer.padding
            settings["pad_token"] = settings["eos_token"] if padding is None else tokenizer.token(padding)
        if not isinstance(tokenizer, Imported):
            text, other = ({"Sequence": {"id": name, "type_id": segment}} for name, segment in (("A", 0), ("B", 1)))
            after = {"SpecialToken": {"id": END_TEXT, "type_id": 0}}
            found["tokenizer.json"] = {
                **found["tokenizer.json"],
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [text, after],
                    "pair": [text, other, after],
                    "special_tokens": {END_TEXT: {"id": END_TEXT, "ids": [END], "tokens": [END_TEXT]}},
                },
            }
        return found

    # The table.

    def names(self, model: StartTokenConfig, ids: Ids) -> list[WeightEntry]:
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
                linear += [(f"{here}.{mine}", f"{there}.{other}", axis) for mine, other, axis in FED_FORWARD]
                norms = [(f"{here}.{mine}.norm", f"{there}.{other}_layer_norm") for mine, other in NORMS[side].items()]
                for own, theirs, axis in [*linear, *((own, theirs, 0) for own, theirs in norms)]:
                    table.append(weight(f"{own}.weight", f"{theirs}.weight", self.ordered(model, axis)))
                    table.append(weight(f"{own}.bias", f"{theirs}.bias", SAME if axis else self.ordered(model, 0)))
        return table

    def ordered(self, model: StartTokenConfig, axis: int, how: How = SAME) -> How:
        """What else happens to a tensor along whose `axis` the width lies."""
        return how

    def _embeddings(self, model: StartTokenConfig, rows: TokenRows) -> list[WeightEntry]:
        how = self.ordered(model, 1, rows)
        source, target, output = (f"{mine}.weight" for mine in ("source_embed.embed", "target_embed.embed", "output"))
        apart = {side: f"model.{side}.embed_tokens.weight" for side in SIDES}
        if model.tied == "all":
            copies = (*apart.values(), OUTPUT)
            return [weight(target, "model.shared.weight", how, shared=(source, output), copies=copies)]
        own = weight(source, apart["encoder"], how)
        if model.tied == "decoder":
            return [own, weight(target, apart["decoder"], how, shared=(output,), copies=(OUTPUT,))]
        unused = WeightEntry((), ("model.shared.weight",), Nothing((rows.total, model.d_model)), optional=True)
        return [own, weight(target, apart["decoder"], how), weight(output, OUTPUT, how), unused]
