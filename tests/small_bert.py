"""Small BERTs in the format of `transformers`: a tokenizer.json of word pieces, and models with random weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Library
from tokenizers import normalizers, pre_tokenizers
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from torch import nn

from seqloom.text import Imported

SPECIAL = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'-ßœहिनदीमेंलखासभ北京東한국어שלוםعرب"
WORDS = ["cafe", "##eme", "cr", "creme", "ab", "istanbul", "the", "straße", "tokyo", "new", "york", "good", "bad"]
SHAPE: dict[str, Any] = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 48,
}


def vocabulary() -> dict[str, int]:
    """Return a vocabulary of all letters and some words, in which [CLS], [SEP] and [MASK] are not last."""
    pieces = [*SPECIAL, *LETTERS, *LETTERS.upper(), *(f"##{letter}" for letter in LETTERS + LETTERS.upper()), *WORDS]
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}


def tokenizer_file(lowercase: bool = True) -> dict[str, Any]:
    library = Library(WordPiece(vocabulary(), unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = WordPieceDecoder()
    library.add_special_tokens([name for name in SPECIAL if name != "[unused0]"])
    tokenizer: dict[str, Any] = json.loads(library.to_str())
    return tokenizer


def wordpiece(lowercase: bool = True) -> Imported:
    ids = vocabulary()
    return Imported(tokenizer_file(lowercase), 0, [ids[name] for name in ("[CLS]", "[SEP]", "[MASK]")], len(ids))


def save_bert(folder: Path, kind: str = "BertForPreTraining", seed: int = 3, **changes: Any) -> Any:
    """Save a random model and its tokenizer in a folder. Return the model in evaluation mode."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = transformers.BertConfig(**{"vocab_size": len(vocabulary()), **SHAPE, **changes})
    model = getattr(transformers, kind)(config).eval()
    for name, parameter in model.named_parameters():
        low, high = (0.5, 1.5) if name.endswith("LayerNorm.weight") else (-0.4, 0.4)
        nn.init.uniform_(parameter, low, high)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_file()), encoding="utf-8")
    return model
