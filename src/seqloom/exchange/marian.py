"""Marian: a Transformer with sinusoidal positions and a SentencePiece tokenizer.

    source    x_1 … x_n </s>              target    <pad> y_1 … y_m </s>

</s> is END. Before a target, <pad> replaces END; <pad> is never generated. In the sinusoids of Marian, all sines
precede all cosines. The export of a seqloom model with alternating sines and cosines reorders the dimensions of
d_model.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import ClassVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from seqloom.core import JsonObject
from seqloom.core.errors import CheckpointError
from seqloom.exchange.directory import Directory
from seqloom.exchange.encoder_decoder import EncoderDecoder, ReorderPairs
from seqloom.exchange.family import Config, Ids
from seqloom.exchange.start_tokens import StartTokenConfig
from seqloom.exchange.weights import IDENTITY, Conversion
from seqloom.nn.positions import BASE, sinusoid_table
from seqloom.text import SentencePieces, Tokenizer
from seqloom.text.base import ForeignTokenizer

MAX_POSITIONS = 1024  # size of the position table in transformers; seqloom has no limit
LANGUAGE_TAG = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]+)*")  # en, pt-BR
POSITION_TABLES = r"model\.(en|de)coder\.embed_positions\.weight"
VOCABULARY, SPM = "vocab.json", ("source.spm", "target.spm")


class Marian(EncoderDecoder):
    name = "Marian"
    model_types = ("marian",)
    architecture = "MarianMTModel"
    fixed: ClassVar[JsonObject] = {**EncoderDecoder.fixed, "embed_norm": False, "source_bos": None}
    ignored_tensors = (POSITION_TABLES,)  # sinusoids are computed
    positions = "sinusoidal"
    required: ClassVar[JsonObject] = {
        **EncoderDecoder.required,
        "normalize_embedding": False,
        "static_position_embeddings": True,
    }
    ignored_keys = f"{EncoderDecoder.ignored_keys} bos_token_id extra_pos_embeddings"
    ids: ClassVar[dict[str, int]] = {"eos_token_id": 0, "decoder_start_token_id": 58100}

    def read_tokenizer(self, directory: Directory, config: Config) -> ForeignTokenizer:
        if directory.has("tokenizer.json") and not any(map(directory.has, SPM)):  # a directory exported by seqloom
            return super().read_tokenizer(directory, config)
        self.read_generation_config(directory, config)
        if missing := [name for name in (*SPM, VOCABULARY) if not directory.has(name)]:
            raise CheckpointError(f"{directory.path} is incomplete: {', '.join(missing)} is missing.")
        about = directory.json("tokenizer_config.json") or {}
        if about.get("separate_vocabs"):
            config.problem(
                "separate_vocabs in tokenizer_config.json",
                "must be false: both languages must share a vocabulary",
                True,
            )
        names, unknown = directory.json(VOCABULARY) or {}, about.get("unk_token", "<unk>")
        languages = {side: about.get(f"{side}_lang") for side in ("source", "target")}
        tags = languages.values()
        content = {
            "vocabulary": names,
            **{name.removesuffix(".spm"): b64encode(directory.read(name)).decode() for name in SPM},
            "rows": self.rows(config),
            "end": config.end_token(self.rows(config), self.ids["eos_token_id"]),
            "padding": config.get("pad_token_id", self.ids["decoder_start_token_id"]),
            "unknown": names.get(str(unknown.get("content") if isinstance(unknown, Mapping) else unknown)),
            "languages": languages if all(isinstance(tag, str) and LANGUAGE_TAG.fullmatch(tag) for tag in tags) else {},
        }
        try:
            return SentencePieces(content)
        except ValueError as error:
            raise CheckpointError(f"The tokenizer of {directory.path} does not match the model: {error}.") from error

    def read_generation_config(self, directory: Directory, config: Config) -> None:
        super().read_generation_config(directory, config)
        with suppress(SafetensorError, OSError):  # unreadable files are reported when the weights are read
            for file in directory.files:
                with safe_open(file, framework="pt") as tensors:
                    for name in tensors.keys():  # noqa: SIM118 (not a dict)
                        if re.fullmatch(POSITION_TABLES, name) and not _are_sinusoids(tensors.get_tensor(name)):
                            config.problem(name, "must be the sinusoids of Marian", "different")

    def read_config(self, config: Config, ids: Ids) -> JsonObject:
        config.integer("max_position_embeddings", MAX_POSITIONS)
        config.require("decoder_vocab_size", ids.rows, None)
        section = super().read_config(config, ids)
        tied, shared = (
            config.boolean("tie_word_embeddings", True),
            config.boolean("share_encoder_decoder_embeddings", True),
        )
        return {
            **section,
            "positions": {"kind": "sinusoidal", "layout": "halves"},
            "tied": "none" if not tied else "all" if shared else "decoder",
        }

    def write_config(self, model: StartTokenConfig, ids: Ids) -> JsonObject:
        return {
            **super().write_config(model, ids),
            "max_position_embeddings": MAX_POSITIONS,
            "decoder_vocab_size": ids.rows,
            "share_encoder_decoder_embeddings": model.tied != "decoder",
            "bos_token_id": None,
        }

    def obstacles(self, model: StartTokenConfig) -> Iterator[str]:
        yield from super().obstacles(model)
        if model.positions.base not in (None, BASE):
            yield f"model.positions.base must be {BASE:g}; it is {model.positions.base:g}"

    def extra_files(self, model: StartTokenConfig, ids: Ids) -> JsonObject:
        files = super().extra_files(model, ids)
        if model.bos is not None:
            for content in files.values():
                content["bad_words_ids"] = [[ids.order[model.bos]]]
        return files

    def tokenizer_files(self, tokenizer: Tokenizer, model: StartTokenConfig) -> JsonObject:
        if not isinstance(tokenizer, SentencePieces):
            return super().tokenizer_files(tokenizer, model)
        content = tokenizer.content()
        names = {id: name for name, id in content["vocabulary"].items()}
        kinds = {"eos_token": "end", "unk_token": "unknown", "pad_token": "padding"}
        specials = {kind: names[content[key]] for kind, key in kinds.items() if content[key] is not None}
        models = {name: b64decode(content[name.removesuffix(".spm")]) for name in SPM}
        languages = {f"{side}_lang": language for side, language in tokenizer.languages.items()}
        about = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": False, **languages, **specials}
        return {**models, VOCABULARY: content["vocabulary"], "tokenizer_config.json": about}

    def reorder(self, model: StartTokenConfig, axis: int, conversion: Conversion = IDENTITY) -> Conversion:
        return conversion if model.positions.layout == "halves" else ReorderPairs(axis, conversion)


def _are_sinusoids(table: Tensor) -> bool:
    if table.dim() != 2 or table.shape[1] % 2:
        return False
    return torch.allclose(table.float(), sinusoid_table(len(table), table.shape[1], "halves"), atol=1e-3)
