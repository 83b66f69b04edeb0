"""BART: `bart` there, a Transformer with learned positions and normed embeddings here.

    source    <s> x_1 … x_n </s>          target    </s> <s> y_1 … y_m </s>

</s> is END. <s> before a source, and before a target where the directory asks for it
(forced_bos_token_id), is put there by our model. Their table of positions begins with two rows that
mean nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from seqloom.exchange.directory import Json
from seqloom.exchange.encoder_decoder import SIDES, EncoderDecoder
from seqloom.exchange.family import Config, Ids
from seqloom.exchange.start_tokens import StartTokenConfig
from seqloom.exchange.weights import Leading, WeightEntry, weight

OFFSET = 2


class BART(EncoderDecoder):
    name = "BART"
    model_types = ("bart",)
    architecture = "BartForConditionalGeneration"
    fixed: ClassVar[Json] = {**EncoderDecoder.fixed, "embed_norm": True}
    positions = "learned"
    required: ClassVar[Json] = {
        **EncoderDecoder.required,
        "normalize_embedding": True,
        "static_position_embeddings": False,
        "extra_pos_embeddings": OFFSET,
    }
    left = (r"classification_head\..*", r"qa_outputs\..*")
    ids: ClassVar[dict[str, int]] = {"bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}

    def specials(self, config: Config, file: Mapping[str, Any]) -> tuple[int, list[int]]:
        end, last = super().specials(config, file)
        try:
            around = added_around(file.get("post_processor"))
        except (LookupError, TypeError, AttributeError, ValueError):
            raise ValueError("its post_processor is damaged") from None
        wanted = (self._bos(config), end)
        if around is None or around == wanted or config.problems:
            return end, last
        puts, reads = (
            " and ".join(f"{id} {side}" for id, side in zip(ids, ("before", "after"), strict=True) if id is not None)
            for ids in (around, wanted)
        )
        raise ValueError(
            f"its post_processor puts {puts or 'nothing around'} a text, and by bos_token_id and eos_token_id of "
            f"config.json the model reads {reads or 'nothing around'} it. If the config is right, write the tokenizer "
            "anew with transformers: BartTokenizerFast.from_pretrained(DIR).save_pretrained(DIR)"
        )

    def read_config(self, config: Config, ids: Ids) -> Json:
        found, begin = super().read_config(config, ids), config.token("bos_token_id", ids, self._bos(config))
        if config.flag("force_bos_token_to_be_generated", False) and found["target_bos"] is None:
            found["target_bos"] = begin  # as earlier versions said it
        return {
            **found,
            "source_bos": begin,
            "positions": {"kind": "learned", "max_length": config.whole("max_position_embeddings", 1024)},
            "tied": "all" if config.flag("tie_word_embeddings", True) else "none",
        }

    def _bos(self, config: Config) -> Any:
        return config.get("bos_token_id", self.ids["bos_token_id"])

    def write_config(self, model: StartTokenConfig, ids: Ids) -> Json:
        return {
            **super().write_config(model, ids),
            "max_position_embeddings": model.positions.longest,
            "bos_token_id": None if model.source_bos is None else ids.order[model.source_bos],
        }

    def obstacles(self, model: StartTokenConfig) -> Iterator[str]:
        yield from super().obstacles(model)
        if model.tied == "decoder":
            yield "model.tied must be all or none; it is decoder"

    def names(self, model: StartTokenConfig, ids: Ids) -> list[WeightEntry]:
        table = super().names(model, ids)
        for theirs, ours in SIDES.items():
            table.append(weight(f"{ours}.positions.weight", f"model.{theirs}.embed_positions.weight", Leading(OFFSET)))
            for part in ("weight", "bias"):
                table.append(weight(f"{ours}.norm.{part}", f"model.{theirs}.layernorm_embedding.{part}"))
        return table


def added_around(processor: Any) -> tuple[int | None, int | None] | None:
    """Their ids of what a tokenizer.json puts before a text and after it; None if it does not say."""
    if not isinstance(processor, Mapping):
        return None
    kind = processor.get("type")
    if kind == "Sequence":
        found = (added_around(one) for one in processor.get("processors", ()))
        return next((around for around in found if around is not None), None)
    if kind in ("RobertaProcessing", "BertProcessing"):
        return processor["cls"][1], processor["sep"][1]
    if kind != "TemplateProcessing":
        return None
    names = [piece.get("SpecialToken", {}).get("id") for piece in processor["single"]]
    known = {name: entry["ids"][0] for name, entry in processor.get("special_tokens", {}).items()}
    text = names.index(None)
    before, after = (known.get(part[0]) if part else None for part in (names[:text], names[text + 1 :]))
    return before, after
