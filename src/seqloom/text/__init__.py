"""Tokenizers, which convert text to token ids and back.

To add a kind of tokenizer, add a module and an entry in `TOKENIZERS`. The module of a kind is imported on first use.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from seqloom.config import Kinds
from seqloom.core import END
from seqloom.core.errors import CheckpointError
from seqloom.text.base import StreamDecoder, Tokenizer, encode_documents, open_json

if TYPE_CHECKING:
    from seqloom.text.bytepair import BytePair, BytePairConfig
    from seqloom.text.imported import Imported, ImportedConfig
    from seqloom.text.sentencepieces import SentencePieceConfig, SentencePieces
    from seqloom.text.vocabularies import Characters, CharactersConfig, Words, WordsConfig

    TokenizerConfig = CharactersConfig | WordsConfig | BytePairConfig | ImportedConfig | SentencePieceConfig

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

# For each kind: the module, the tokenizer class and its config class.
TOKENIZERS = {
    "characters": ("vocabularies", "Characters", "CharactersConfig"),
    "words": ("vocabularies", "Words", "WordsConfig"),
    "byte-pair": ("bytepair", "BytePair", "BytePairConfig"),
    "huggingface": ("imported", "Imported", "ImportedConfig"),
    "sentencepiece": ("sentencepieces", "SentencePieces", "SentencePieceConfig"),
}
if not TYPE_CHECKING:
    CONFIGS = {kind: f"seqloom.text.{file}:{config}" for kind, (file, _, config) in TOKENIZERS.items()}
    TokenizerConfig = Annotated[Any, Kinds("kind", CONFIGS)]


def __getattr__(name: str) -> Any:
    """Import a tokenizer or its config on first access."""
    for file, *classes in TOKENIZERS.values():
        if name in classes:
            return getattr(import_module(f"seqloom.text.{file}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def tokenizer_class(kind: str) -> Any:
    """Import the tokenizer class of a kind."""
    file, name, _ = TOKENIZERS[kind]
    return getattr(import_module(f"seqloom.text.{file}"), name)


def train_tokenizer(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Train a tokenizer on texts, which must come only from the training split."""
    tokenizer: Tokenizer = tokenizer_class(config.kind).train(config, texts)
    return tokenizer


def tokenizer_from_json(value: Any) -> Tokenizer:
    """Load a tokenizer from the result of `to_json`.

    Raise `CheckpointError` if the value is invalid, damaged or from a newer version.
    """
    kind, content = open_json(value, list(TOKENIZERS))
    try:
        tokenizer: Tokenizer = tokenizer_class(kind).from_content(content)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"The tokenizer ({kind}) is damaged: {error}.") from error
    return tokenizer
