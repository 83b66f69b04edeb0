"""BERT, a masked language model.

A directory may contain only the backbone (BertModel), or also the masked-language-model and next-sentence-prediction
heads (BertForPreTraining, BertForMaskedLM). Any other head (BertForSequenceClassification) is not imported. Missing
layers are initialized randomly. [PAD] is END. In seqloom, [CLS], [SEP] and [MASK] have the last ids and are never
predicted: their biases are not imported, and they are exported as a large negative number.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from seqloom.core import Json, JsonObject
from seqloom.core.errors import CheckpointError
from seqloom.core.tokens import CLASSIFY_TEXT, EXTRA, MASK_TEXT, SEPARATE_TEXT
from seqloom.exchange.family import Config, ConfigSetting, Family, Ids, token_id
from seqloom.exchange.weights import Tensors, TokenRows, WeightEntry, map_layers, weight
from seqloom.models.bert import SEGMENTS, BERTConfig
from seqloom.nn.transformer import EPSILON
from seqloom.text import Imported, Tokenizer

PAD = "[PAD]"
INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
EXCLUDED_BIAS = -10_000.0  # the bias of a token that is never predicted; representable in half precision
LAYER = {
    "mixer.attention.q": "attention.self.query",
    "mixer.attention.k": "attention.self.key",
    "mixer.attention.v": "attention.self.value",
    "mixer.attention.out": "attention.output.dense",
    "mixer_residual.norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_residual.norm": "output.LayerNorm",
}
HEADS = {
    "pool": "bert.pooler.dense",
    "dense": "cls.predictions.transform.dense",
    "dense_norm": "cls.predictions.transform.LayerNorm",
    "next": "cls.seq_relationship",
}


@dataclass(frozen=True)
class Duplicated:
    """Token rows that `transformers` stores in two tensors; only the first tensor is used."""

    rows: TokenRows

    def read(self, theirs: Tensors) -> Tensors:
        return self.rows.read(theirs[:1])

    def write(self, ours: Tensors) -> Tensors:
        (tensor,) = self.rows.write(ours)
        return tensor, tensor.clone()


def frame_template(ids: Mapping[str, int]) -> JsonObject:
    """Return the post-processor for a single text, [CLS] a [SEP], and for a pair, [CLS] a [SEP] b [SEP]."""

    def special(name: str, segment: int) -> JsonObject:
        return {"SpecialToken": {"id": name, "type_id": segment}}

    def text(name: str, segment: int) -> list[JsonObject]:
        return [{"Sequence": {"id": name, "type_id": segment}}, special(SEPARATE_TEXT, segment)]

    single = [special(CLASSIFY_TEXT, 0), *text("A", 0)]
    named = {name: {"id": name, "ids": [id], "tokens": [name]} for name, id in ids.items()}
    return {"type": "TemplateProcessing", "single": single, "pair": [*single, *text("B", 1)], "special_tokens": named}


class BERTFamily(Family[BERTConfig]):
    name = "BERT"
    model_types = ("bert",)
    kind = "bert"
    task = "masked-lm"
    architecture = "BertForPreTraining"
    prefix = "bert."
    ignored_tensors = (r"bert\.embeddings\.position_ids",)
    unused_tensors = (r"(classifier|qa_outputs)\..+",)
    extra = EXTRA
    positions = "learned"
    settings = (
        ConfigSetting("d_model", "hidden_size", Config.integer, 768),
        ConfigSetting("heads", "num_attention_heads", Config.integer, 12),
        ConfigSetting("layers", "num_hidden_layers", Config.integer, 12),
        ConfigSetting("dropout", "hidden_dropout_prob", Config.number, 0.1),
        ConfigSetting("attention_dropout", "attention_probs_dropout_prob", Config.number, 0.1),
        ConfigSetting("init", "initializer_range", Config.number, 0.02),
        ConfigSetting("tied", "tie_word_embeddings", Config.boolean, True),
        ConfigSetting("d_ff", "intermediate_size", Config.integer, 3072, "feed_forward_size"),
        ConfigSetting("activation", "hidden_act", Config.activation, "gelu"),
    )
    parts: ClassVar[dict[str, tuple[str, ...]]] = {
        "the masked-language-model head": ("dense", "dense_norm", "output", "bias"),
        "the next-sentence-prediction head": ("next",),
        "the pooling layer of [CLS]": ("pool",),
    }

    fixed: ClassVar[JsonObject] = {
        "norm": "layer",
        "norm_first": False,
        "embed_norm": True,
        "embed_scale": False,
        "bias": True,
    }
    required: ClassVar[JsonObject] = {
        "type_vocab_size": SEGMENTS,
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "is_encoder_decoder": False,
    }
    # Transformers does not use the keys in the last two lines.
    ignored_keys = """pad_token_id vocab_size bos_token_id eos_token_id sep_token_id classifier_dropout
        directionality pooler_type pooler_fc_size pooler_num_fc_layers
        pooler_num_attention_heads pooler_size_per_head"""

    def architecture_without(self, initialized: Collection[str]) -> str:
        if "dense.weight" in initialized:
            return "BertModel"
        return "BertForMaskedLM" if "next.weight" in initialized else self.architecture

    def special_ids(self, config: Config, file: Mapping[str, Json]) -> tuple[int, list[int]]:
        pad = config.get("pad_token_id", 0)
        ids: JsonObject = {PAD: token_id(file, PAD) if pad is None else pad}
        ids |= {name: token_id(file, name) for name in (CLASSIFY_TEXT, SEPARATE_TEXT, MASK_TEXT)}
        if missing := [name for name, id in ids.items() if type(id) is not int]:
            raise CheckpointError(
                f"The tokenizer of {config.where} must have the tokens {', '.join(ids)}; missing: {', '.join(missing)}."
            )
        end, *last = ids.values()
        return end, last

    def read_config(self, config: Config, ids: Ids) -> JsonObject:
        return {
            **super().read_config(config, ids),
            "norm_epsilon": config.number("layer_norm_eps", 1e-12),
            "positions": {"kind": "learned", "max_length": config.integer("max_position_embeddings", 512)},
        }

    def write_config(self, model: BERTConfig, ids: Ids) -> JsonObject:
        return {
            **super().write_config(model, ids),
            "layer_norm_eps": EPSILON["layer"] if model.norm_epsilon is None else model.norm_epsilon,
            "max_position_embeddings": model.longest,
            "position_embedding_type": "absolute",
            "type_vocab_size": SEGMENTS,
            "vocab_size": ids.rows,
            "pad_token_id": ids.order[0],
        }

    def obstacles(self, model: BERTConfig) -> Iterator[str]:
        yield from super().obstacles(model)
        if model.positions.kind == "learned" and model.longest != model.positions.longest:
            yield f"model.context must be {model.positions.longest}, the number of positions; it is {model.context}"

    def weight_table(self, model: BERTConfig, ids: Ids) -> list[WeightEntry]:
        every, predicted = TokenRows(ids.order, ids.rows), TokenRows(ids.order[: ids.vocabulary], ids.rows)
        decoder, bias = "cls.predictions.decoder.weight", ("cls.predictions.decoder.bias", "cls.predictions.bias")
        biases = TokenRows(predicted.order, predicted.total, EXCLUDED_BIAS)
        ours, embeddings = "backbone.embedded", "bert.embeddings"
        copies = (decoder,) if model.tied else ()
        table = [
            weight(f"{ours}.embed.weight", f"{embeddings}.word_embeddings.weight", every, copies=copies),
            weight(f"{ours}.positions.weight", f"{embeddings}.position_embeddings.weight"),
            weight(f"{ours}.segments.weight", f"{embeddings}.token_type_embeddings.weight"),
            weight(f"{ours}.norm.weight", f"{embeddings}.LayerNorm.weight"),
            weight(f"{ours}.norm.bias", f"{embeddings}.LayerNorm.bias"),
            *map_layers("backbone.blocks", "bert.encoder.layer", model.layers, LAYER, ("weight", "bias")),
            *(
                weight(f"{head}.{part}", f"{theirs}.{part}", optional=True)
                for head, theirs in HEADS.items()
                for part in ("weight", "bias")
            ),
        ]
        if model.tied:
            return [*table, weight("bias", bias[1], biases, optional=True, copies=bias[:1])]
        return [
            *table,
            weight("output", decoder, predicted, optional=True),
            WeightEntry(("bias",), bias, Duplicated(biases), optional=True),
        ]

    def tokenizer_files(self, tokenizer: Tokenizer, model: BERTConfig) -> JsonObject:
        """Return the files of a tokenizer that adds [CLS] and [SEP]."""
        files = super().tokenizer_files(tokenizer, model)
        ids = {name: len(tokenizer) + index for index, name in enumerate((CLASSIFY_TEXT, SEPARATE_TEXT))}
        if not isinstance(tokenizer, Imported):
            files["tokenizer.json"] = {**files["tokenizer.json"], "post_processor": frame_template(ids)}
        settings = {"model_max_length": model.longest, "model_input_names": INPUTS}
        files["tokenizer_config.json"] = {**files["tokenizer_config.json"], **settings}
        return files

    def recipe_keys(self, model: BERTConfig) -> JsonObject:
        return {"objective": "mlm", "batch": {"max_length": min(128, model.longest or 128)}}
