"""Marian: `marian` there, a Transformer with sinusoidal positions here, and SentencePiece for its tokenizer.

    source    x_1 … x_n </s>              target    <pad> y_1 … y_m </s>

</s> is END, and <pad>, which stands before a target in its place, is never said. Their sines stand
before their cosines; a model of ours that has them side by side is the same model with its width in
another order, and is written so.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import ClassVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from seqloom.core.errors import CheckpointError
from seqloom.exchange.directory import Directory, Json
from seqloom.exchange.encoder_decoder import EncoderDecoder, Parted
from seqloom.exchange.family import Config, Ids
from seqloom.exchange.start_tokens import StartTokenConfig
from seqloom.exchange.weights import SAME, How
from seqloom.nn.positions import BASE, sinusoid_table
from seqloom.text import SentencePieces, Tokenizer
from seqloom.text.base import ForeignTokenizer

LONGEST = 1024  # places of the table that transformers makes; ours has no end
TAG = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]+)*")  # of a language: en, pt-BR
PLACES = r"model\.(en|de)coder\.embed_positions\.weight"
VOCABULARY, SPM = "vocab.json", ("source.spm", "target.spm")


class Marian(EncoderDecoder):
    name = "Marian"
    model_types = ("marian",)
    architecture = "MarianMTModel"
    fixed: ClassVar[Json] = {**EncoderDecoder.fixed, "embed_norm": False, "source_bos": None}
    ignored = (PLACES,)  # sinusoids, which are made on the spot
    positions = "sinusoidal"
    required: ClassVar[Json] = {
        **EncoderDecoder.required,
        "normalize_embedding": False,
        "static_position_embeddings": True,
    }
    aside = f"{EncoderDecoder.aside} bos_token_id extra_pos_embeddings"  # these two are said, and never used
    ids: ClassVar[dict[str, int]] = {"eos_token_id": 0, "decoder_start_token_id": 58100}

    def tokenizer(self, directory: Directory, config: Config) -> ForeignTokenizer:
        if directory.has("tokenizer.json") and not any(map(directory.has, SPM)):  # that of a run that was trained here
            return super().tokenizer(directory, config)
        self.generation(directory, config)
        if missing := [name for name in (*SPM, VOCABULARY) if not directory.has(name)]:
            raise CheckpointError(f"{directory.path} is incomplete: {', '.join(missing)} is missing.")
        about = directory.json("tokenizer_config.json") or {}
        if about.get("separate_vocabs"):
            config.problem("separate_vocabs in tokenizer_config.json", "must be false: both languages share one", True)
        names, unknown = directory.json(VOCABULARY) or {}, about.get("unk_token", "<unk>")
        languages = {side: about.get(f"{side}_lang") for side in ("source", "target")}
        tags = languages.values()
        content = {
            "vocabulary": names,
            **{name.removesuffix(".spm"): b64encode(directory.read(name)).decode() for name in SPM},
            "rows": self.rows(config),
            "end": config.end(self.rows(config), self.ids["eos_token_id"]),
            "padding": config.get("pad_token_id", self.ids["decoder_start_token_id"]),
            "unknown": names.get(str(unknown.get("content") if isinstance(unknown, Mapping) else unknown)),
            "languages": languages if all(isinstance(tag, str) and TAG.fullmatch(tag) for tag in tags) else {},
        }
        try:
            return SentencePieces(content)
        except ValueError as error:
            raise CheckpointError(f"The tokenizer of {directory.path} does not fit the model: {error}.") from error

    def generation(self, directory: Directory, config: Config) -> None:
        super().generation(directory, config)
        with suppress(SafetensorError, OSError):  # a file that cannot be read is another's to refuse
            for file in directory.files:
                with safe_open(file, framework="pt") as tensors:
                    for name in tensors.keys():  # noqa: SIM118 (not a dict)
                        if re.fullmatch(PLACES, name) and not _are_sinusoids(tensors.get_tensor(name)):
                            config.problem(name, "must be the sinusoids of Marian", "another table")

    def read_config(self, config: Config, ids: Ids) -> Json:
        config.whole("max_position_embeddings", LONGEST)
        config.must("decoder_vocab_size", ids.rows, None)
        found = super().read_config(config, ids)
        tied, shared = config.flag("tie_word_embeddings", True), config.flag("share_encoder_decoder_embeddings", True)
        return {
            **found,
            "positions": {"kind": "sinusoidal", "layout": "halves"},
            "tied": "none" if not tied else "all" if shared else "decoder",
        }

    def write_config(self, model: StartTokenConfig, ids: Ids) -> Json:
        return {
            **super().write_config(model, ids),
            "max_position_embeddings": LONGEST,
            "decoder_vocab_size": ids.rows,
            "share_encoder_decoder_embeddings": model.tied != "decoder",
            "bos_token_id": None,
        }

    def obstacles(self, model: StartTokenConfig) -> Iterator[str]:
        yield from super().obstacles(model)
        if model.positions.base not in (None, BASE):
            yield f"model.positions.base must be {BASE:g}; it is {model.positions.base:g}"

    def documents(self, model: StartTokenConfig, ids: Ids) -> Json:
        found = super().documents(model, ids)
        if model.bos is not None:
            for said in found.values():
                said["bad_words_ids"] = [[ids.order[model.bos]]]
        return found

    def tokenizer_files(self, tokenizer: Tokenizer, model: StartTokenConfig) -> Json:
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

    def ordered(self, model: StartTokenConfig, axis: int, how: How = SAME) -> How:
        return how if model.positions.layout == "halves" else Parted(axis, how)


def _are_sinusoids(table: Tensor) -> bool:
    if table.dim() != 2 or table.shape[1] % 2:
        return False
    return torch.allclose(table.float(), sinusoid_table(len(table), table.shape[1], "halves"), atol=1e-3)
