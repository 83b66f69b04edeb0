"""Export of tokenizers to `transformers` with identical ids.

An imported tokenizer is exported unchanged. For a tokenizer trained by seqloom, END and the special rows after the
vocabulary become special tokens with the same ids. An error reports a tokenizer that `transformers` cannot represent
exactly.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from seqloom.core import JsonObject
from seqloom.core.errors import UsageError
from seqloom.text import BytePair, Characters, Imported, Tokenizer, Words
from seqloom.text.base import END_TEXT, UNKNOWN_TEXT

BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
SPACES = "".join(letter for letter in map(chr, range(0x110000)) if letter.isspace() and letter != "\n")


def tokenizer_files(tokenizer: Tokenizer, extra: Sequence[str] = (), bos: int = 0) -> JsonObject:
    """Return tokenizer.json and its settings.

    `extra` contains the names of the rows after the vocabulary, and `bos` is the id of the token that starts a text.
    """
    if isinstance(tokenizer, Imported):
        file, names = tokenizer.file, {id: tokenizer.name(id) for id in range(tokenizer.rows)}
        named = {our: names[our] for our in (0, bos, tokenizer.unknown) if our is not None}
        last = [names[our] for our in range(len(tokenizer), tokenizer.rows)]
    else:
        file = _file(tokenizer, extra)
        named = {0: END_TEXT} | ({} if tokenizer.unknown is None else {tokenizer.unknown: UNKNOWN_TEXT})
        last = list(extra)
    special = {"bos_token": named.get(bos, END_TEXT), "eos_token": named[0]}
    if tokenizer.unknown is not None:
        special["unk_token"] = named[tokenizer.unknown]
    if last:
        special = {key: value for key, value in special.items() if key == "unk_token"}
        special |= dict(zip(("cls_token", "sep_token", "mask_token"), last, strict=False)) | {"pad_token": named[0]}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special}
    return {"tokenizer.json": file, "tokenizer_config.json": settings, "special_tokens_map.json": special}


def _file(tokenizer: Tokenizer, extra: Sequence[str]) -> JsonObject:
    after = {name: len(tokenizer) + index for index, name in enumerate(extra)}
    if isinstance(tokenizer, BytePair):
        file = tokenizer.content()["library"]
        pieces = {piece: id + 1 for piece, id in file["model"]["vocab"].items()}  # END precedes the ids of the library
        vocabulary = {END_TEXT: 0, **pieces, **after}
        added = _added([END_TEXT, *after], vocabulary)
        return {**file, "added_tokens": added, "decoder": BYTES, "model": {**file["model"], "vocab": vocabulary}}
    if isinstance(tokenizer, Characters):
        words = [tokenizer.token(id) for id in range(2, len(tokenizer))]
        return _listed(words, after, [_split(r"[\s\S]", "Isolated")], {"type": "Fuse"})
    if isinstance(tokenizer, Words) and tokenizer.config.split == "whitespace" and not tokenizer.config.lowercase:
        between = [_split(f"[{re.escape(SPACES)}]+", "Removed"), _split("\n", "Isolated")]
        return _listed(tokenizer.words, after, between, None)
    chosen: JsonObject = {"kind": tokenizer.kind}
    if isinstance(tokenizer, Words):
        chosen |= {"split": tokenizer.config.split, "lowercase": tokenizer.config.lowercase}
    named = ", ".join(f"tokenizer.{key}={value}" for key, value in chosen.items())
    raise UsageError(
        f"The tokenizer cannot be exported ({named}): tokenizer.json cannot represent it exactly. Train with "
        "tokenizer.kind byte-pair, characters, or words with split=whitespace and lowercase=false."
    )


def _listed(words: Sequence[str], after: Mapping[str, int], splits: list[Any], decoder: Any) -> JsonObject:
    """Return a tokenizer.json with one word per id."""
    taken = {END_TEXT, UNKNOWN_TEXT, *after} & set(words)
    if taken - {UNKNOWN_TEXT}:
        raise UsageError(
            f"The tokenizer cannot be exported: its words {', '.join(sorted(taken))} are special "
            "tokens in transformers."
        )
    vocabulary = {END_TEXT: 0, UNKNOWN_TEXT: 1, **{word: id for id, word in enumerate(words, start=2)}, **after}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added([END_TEXT, *after], vocabulary),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
        "post_processor": None,
        "decoder": decoder,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": UNKNOWN_TEXT},
    }


def _split(pattern: str, behavior: str) -> JsonObject:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


def _added(names: Sequence[str], vocabulary: Mapping[str, int]) -> list[JsonObject]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [{"id": vocabulary[name], "content": name, **plain, "special": True} for name in names]
