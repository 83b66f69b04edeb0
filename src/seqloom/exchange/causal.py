"""What the families of decoders share: tokens in and out, what begins and what ends a text."""

from collections.abc import Mapping
from typing import Any, ClassVar

from seqloom.exchange.directory import Json
from seqloom.exchange.family import Config, Family, Ids
from seqloom.exchange.weights import Rows, Weight, weight
from seqloom.models.gpt import GPTConfig

HEAD = "lm_head.weight"
CHUNK = 256  # tokens of a row, where an imported model is trained further


class CausalFamily(Family[GPTConfig]):
    kind = "gpt"
    task = "language-model"
    embedding: ClassVar[str]  # their name of the token vectors
    default_end: ClassVar[int]  # eos_token_id where config.json has none
    default_begin: ClassVar[int]  # likewise bos_token_id

    def specials(self, config: Config, file: Mapping[str, Any]) -> tuple[int, list[int]]:
        config.aside("pad_token_id", "sep_token_id", "decoder_start_token_id")  # padding is masked
        config.must("is_encoder_decoder", False)
        config.must("is_decoder", False, True)
        return config.end(self.rows(config), self.default_end), []

    def begun(self, config: Config, ids: Ids) -> Json:
        """`begin`, where another token than END stands before a text."""
        found = config.get("bos_token_id", self.default_begin)
        if found is None or found == ids.order[0]:
            return {"begin": None}
        if type(found) is not int or not 0 <= found < ids.rows:
            config.problem("bos_token_id", f"must be one token below vocab_size, {ids.rows}", found)
            return {"begin": None}
        return {"begin": ids.ours(found)}

    def written(self, model: GPTConfig, ids: Ids) -> Json:
        return {
            "vocab_size": ids.rows,
            "bos_token_id": ids.order[model.begin or 0],
            "eos_token_id": ids.order[0],
            "tie_word_embeddings": model.tied,
        }

    def tokens(self, model: GPTConfig, ids: Ids) -> list[Weight]:
        rows, vectors = Rows(ids.order, ids.rows), "body.embedded.embed.weight"
        if model.tied:
            return [weight(vectors, self.embedding, rows, shared=("output.weight",), copies=(HEAD,))]
        return [weight(vectors, self.embedding, rows), weight("output.weight", HEAD, rows)]

    def recipe(self, model: GPTConfig) -> Json:
        return {"batch": {"rows": 8, "chunk": min(CHUNK, model.window)}}

    def documents(self, model: GPTConfig, ids: Ids) -> Json:
        ends = {"bos_token_id": ids.order[model.begin or 0], "eos_token_id": ids.order[0]}
        return {"generation_config.json": {"_from_model_config": True, **ends}}
