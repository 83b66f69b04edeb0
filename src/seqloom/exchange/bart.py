"""BART: a Transformer with learned positions and normalized embeddings.

    source    <s> x_1 … x_n </s>          target    </s> <s> y_1 … y_m </s>

</s> is END. The model of seqloom adds <s> before a source and, with `forced_bos_token_id`, before a target. The
position table of `transformers` starts with two unused rows.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from seqloom.core import Json, JsonObject
from seqloom.exchange.encoder_decoder import SIDES, EncoderDecoder
from seqloom.exchange.family import Config, Ids
from seqloom.exchange.start_tokens import StartTokenConfig
from seqloom.exchange.weights import LeadingRows, WeightEntry, weight

OFFSET = 2


class BART(EncoderDecoder):
    name = "BART"
    model_types = ("bart",)
    architecture = "BartForConditionalGeneration"
    fixed: ClassVar[JsonObject] = {**EncoderDecoder.fixed, "embed_norm": True}
    positions = "learned"
    required: ClassVar[JsonObject] = {
        **EncoderDecoder.required,
        "normalize_embedding": True,
        "static_position_embeddings": False,
        "extra_pos_embeddings": OFFSET,
    }
    unused_tensors = (r"classification_head\..*", r"qa_outputs\..*")
    ids: ClassVar[dict[str, int]] = {"bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}

    def special_ids(self, config: Config, file: Mapping[str, Json]) -> tuple[int, list[int]]:
        end, last = super().special_ids(config, file)
        try:
            added = find_added_tokens(file.get("post_processor"))
        except (LookupError, TypeError, AttributeError, ValueError):
            raise ValueError("its post_processor is damaged") from None
        expected = (self._bos(config), end)
        if added is None or added == expected or config.problems:
            return end, last
        adds, reads = (
            " and ".join(f"{id} {side}" for id, side in zip(ids, ("before", "after"), strict=True) if id is not None)
            for ids in (added, expected)
        )
        raise ValueError(
            f"its post_processor adds {adds or 'nothing around'} a text, but according to bos_token_id and "
            f"eos_token_id of config.json, the model reads {reads or 'nothing around'} it. If the config is right, "
            "recreate the "
            "tokenizer with transformers: BartTokenizerFast.from_pretrained(DIR).save_pretrained(DIR)"
        )

    def read_config(self, config: Config, ids: Ids) -> JsonObject:
        section, begin = super().read_config(config, ids), config.token("bos_token_id", ids, self._bos(config))
        if config.boolean("force_bos_token_to_be_generated", False) and section["target_bos"] is None:
            section["target_bos"] = begin  # the key in configs of earlier versions
        return {
            **section,
            "source_bos": begin,
            "positions": {"kind": "learned", "max_length": config.integer("max_position_embeddings", 1024)},
            "tied": "all" if config.boolean("tie_word_embeddings", True) else "none",
        }

    def _bos(self, config: Config) -> Any:
        return config.get("bos_token_id", self.ids["bos_token_id"])

    def write_config(self, model: StartTokenConfig, ids: Ids) -> JsonObject:
        return {
            **super().write_config(model, ids),
            "max_position_embeddings": model.positions.longest,
            "bos_token_id": None if model.source_bos is None else ids.order[model.source_bos],
        }

    def obstacles(self, model: StartTokenConfig) -> Iterator[str]:
        yield from super().obstacles(model)
        if model.tied == "decoder":
            yield "model.tied must be all or none; it is decoder"

    def weight_table(self, model: StartTokenConfig, ids: Ids) -> list[WeightEntry]:
        table = super().weight_table(model, ids)
        for theirs, ours in SIDES.items():
            positions = f"model.{theirs}.embed_positions.weight"
            table.append(weight(f"{ours}.positions.weight", positions, LeadingRows(OFFSET)))
            for part in ("weight", "bias"):
                table.append(weight(f"{ours}.norm.{part}", f"model.{theirs}.layernorm_embedding.{part}"))
        return table


def find_added_tokens(processor: Any) -> tuple[int | None, int | None] | None:
    """Return the ids, in the file, of the tokens that a post-processor adds around a text, or None if unknown."""
    if not isinstance(processor, Mapping):
        return None
    kind = processor.get("type")
    if kind == "Sequence":
        results = map(find_added_tokens, processor.get("processors", ()))
        return next((added for added in results if added is not None), None)
    if kind in ("RobertaProcessing", "BertProcessing"):
        return processor["cls"][1], processor["sep"][1]
    if kind != "TemplateProcessing":
        return None
    names = [piece.get("SpecialToken", {}).get("id") for piece in processor["single"]]
    known = {name: entry["ids"][0] for name, entry in processor.get("special_tokens", {}).items()}
    text = names.index(None)
    before, after = (known.get(part[0]) if part else None for part in (names[:text], names[text + 1 :]))
    return before, after
