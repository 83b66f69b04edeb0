"""Tokenizers: text to ids and back.

A new kind is a file, its config in `TokenizerConfig` and its class in `TOKENIZERS`.
"""

from collections.abc import Iterable
from typing import Annotated, Any

from seqloom.config import Discriminator
from seqloom.core.errors import CheckpointError
from seqloom.text.base import END, StreamDecoder, Tokenizer, encode_documents, open_json
from seqloom.text.bytepair import BytePair, BytePairConfig
from seqloom.text.characters import Characters, CharactersConfig
from seqloom.text.imported import Imported, ImportedConfig
from seqloom.text.sentencepieces import SentencePieceConfig, SentencePieces
from seqloom.text.words import Words, WordsConfig

__all__ = [
    "END",
    "TOKENIZERS",
    "BytePair",
    "BytePairConfig",
    "Characters",
    "CharactersConfig",
    "Imported",
    "ImportedConfig",
    "SentencePieceConfig",
    "SentencePieces",
    "StreamDecoder",
    "Tokenizer",
    "TokenizerConfig",
    "Words",
    "WordsConfig",
    "encode_documents",
    "tokenizer_from_json",
    "train_tokenizer",
]

TOKENIZERS: dict[str, Any] = {each.kind: each for each in (Characters, Words, BytePair, Imported, SentencePieces)}
TokenizerConfig = Annotated[
    CharactersConfig | WordsConfig | BytePairConfig | ImportedConfig | SentencePieceConfig, Discriminator("kind")
]


def train_tokenizer(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Learn a vocabulary. Give it the training split and nothing else."""
    tokenizer: Tokenizer = TOKENIZERS[config.kind].train(config, texts)
    return tokenizer


def tokenizer_from_json(value: Any) -> Tokenizer:
    """The tokenizer whose `to_json` gave this value; CheckpointError if it is foreign, newer or damaged."""
    kind, content = open_json(value, list(TOKENIZERS))
    try:
        tokenizer: Tokenizer = TOKENIZERS[kind].from_content(content)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"The tokenizer ({kind}) is damaged: {error}.") from error
    return tokenizer
