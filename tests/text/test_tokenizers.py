"""Requirements for every kind of tokenizer."""

import copy
import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqloom.config import build, to_mapping
from seqloom.core.errors import CheckpointError, DataError, UsageError
from seqloom.text import (
    END,
    TOKENIZERS,
    BytePairConfig,
    CharactersConfig,
    Tokenizer,
    TokenizerConfig,
    WordsConfig,
    encode_documents,
    tokenizer_from_json,
    train_tokenizer,
)
from seqloom.text.base import digest

TEXTS = [
    "The cat sat on the mat. The dog (a </s> dog) didn't.\n\nनमस्ते दुनिया! Ünïcode cafe\u0301 👩\u200d👧",
    "the <unk> cat, the mat; 12 dogs\n",
    "",
]
CONFIGS: dict[str, Any] = {
    "characters": CharactersConfig(),
    "words": WordsConfig(),
    "words-rare": WordsConfig(min_count=2, max_size=8, lowercase=True),
    "punctuation": WordsConfig(split="punctuation"),
    "byte-pair": BytePairConfig(size=300),
}


@pytest.fixture(params=CONFIGS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(CONFIGS[request.param], TEXTS)


def test_all_kinds_are_tested() -> None:
    """Imported kinds cannot be trained and have separate tests."""
    assert {each.kind for each in CONFIGS.values()} == set(TOKENIZERS) - {"huggingface", "sentencepiece"}


@pytest.mark.parametrize("name", CONFIGS)
def test_config_round_trips(name: str) -> None:
    assert build(TokenizerConfig, to_mapping(CONFIGS[name])) == CONFIGS[name]


def test_unknown_kind_and_key_are_rejected() -> None:
    with pytest.raises(UsageError, match="byte-pair"):
        build(TokenizerConfig, {"kind": "byte-pear"})
    with pytest.raises(UsageError, match="min_count"):
        build(TokenizerConfig, {"kind": "words", "mincount": 2})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "words", "min_count": 0}, "min_count: must be at least 1; got 0"),
        ({"kind": "words", "max_size": 2}, "at least 3"),
        ({"kind": "byte-pair", "size": 256}, "at least 257"),
    ],
)
def test_impossible_sizes_are_rejected(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(TokenizerConfig, values)


def test_end_and_unknown_have_fixed_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.end == END == 0
    assert tokenizer.token(END) == "</s>"
    assert tokenizer.decode([END]) == ""
    if tokenizer.unknown is not None:
        assert tokenizer.unknown == 1
        assert tokenizer.token(1) == "<unk>"


@given(text=st.text() | st.sampled_from(["</s>", "a </s> b", "<unk></s>", "</s>\n</s>", "\ufffd￭,", "￭"]))
@pytest.mark.parametrize("name", CONFIGS)
def test_ids_are_in_range_and_exclude_the_end_token(name: str, text: str) -> None:
    tokenizer = TRAINED[name]
    ids = tokenizer.encode(text)
    assert END not in ids
    assert all(0 < id < len(tokenizer) for id in ids)


@given(data=st.data())
@pytest.mark.parametrize("name", CONFIGS)
def test_stream_matches_decode(name: str, data: st.DataObject) -> None:
    tokenizer = TRAINED[name]
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=30))
    stream = tokenizer.stream()
    assert "".join(map(stream.push, ids)) + stream.flush() == tokenizer.decode(ids)


@given(data=st.data())
@pytest.mark.parametrize("name", CONFIGS)
def test_stream_continues_prompt(name: str, data: st.DataObject) -> None:
    tokenizer = TRAINED[name]
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=30))
    cut = data.draw(st.integers(0, len(ids)))
    stream = tokenizer.stream()
    prompt = stream.read(ids[:cut])
    assert prompt + stream.read(ids[cut:]) + stream.flush() == tokenizer.decode(ids)


def test_ids_outside_vocabulary_are_rejected(tokenizer: Tokenizer) -> None:
    for wrong in (-1, len(tokenizer)):
        with pytest.raises(IndexError, match="token ids must be from 0"):
            tokenizer.decode([wrong])
        with pytest.raises(IndexError, match="token ids must be from 0"):
            tokenizer.token(wrong)


def test_unknown_pieces_are_encoded_as_unknown(tokenizer: Tokenizer) -> None:
    strange = "∞ the"
    if tokenizer.unknown is None:
        assert tokenizer.unknown_pieces(strange) == []
    else:
        assert tokenizer.unknown_pieces(strange)[0] == "∞"
        assert tokenizer.encode(strange)[0] == tokenizer.unknown


def test_batch_encoding_matches_single_encodings(tokenizer: Tokenizer) -> None:
    assert list(tokenizer.encode_batch(TEXTS)) == [tokenizer.encode(text) for text in TEXTS]


def test_documents_end_with_the_end_token(tokenizer: Tokenizer) -> None:
    stream = encode_documents(tokenizer, TEXTS)
    expected = [id for text in TEXTS for id in [*tokenizer.encode(text), END]]
    assert stream.dtype == torch.int64
    assert stream.tolist() == expected
    assert encode_documents(tokenizer, []).tolist() == []


def test_json_round_trips(tokenizer: Tokenizer) -> None:
    restored = tokenizer_from_json(json.loads(json.dumps(tokenizer.to_json(), ensure_ascii=False)))
    assert type(restored) is type(tokenizer)
    assert len(restored) == len(tokenizer)
    assert restored.fingerprint() == tokenizer.fingerprint()
    for text in [*TEXTS, "something else entirely ￭ ∂"]:
        assert restored.encode(text) == tokenizer.encode(text)
    assert [restored.token(id) for id in range(len(restored))] == [tokenizer.token(id) for id in range(len(tokenizer))]


@pytest.mark.parametrize("foreign", [None, [], "x", {}, {"format": "other"}, {"model": {"type": "BPE"}}])
def test_foreign_json_is_rejected(foreign: Any) -> None:
    with pytest.raises(CheckpointError, match="not a seqloom tokenizer"):
        tokenizer_from_json(foreign)


def test_newer_json_is_rejected(tokenizer: Tokenizer) -> None:
    with pytest.raises(CheckpointError, match=r"version 2; this version of seqloom reads formats up to 1.*newer"):
        tokenizer_from_json({**tokenizer.to_json(), "version": 2})


@pytest.mark.parametrize("change", [{"version": "1"}, {"version": None}, {"kind": "syllables"}, {"kind": []}])
def test_damaged_header_is_rejected(tokenizer: Tokenizer, change: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError):
        tokenizer_from_json({**tokenizer.to_json(), **change})


def test_changed_entry_fails_checksum(tokenizer: Tokenizer) -> None:
    value = copy.deepcopy(tokenizer.to_json())
    content = value["content"]
    entries = content.get("alphabet") or content.get("words") or content["library"]["model"]["merges"][0]
    entries[0] = "Q"
    with pytest.raises(CheckpointError, match="checksum"):
        tokenizer_from_json(value)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("characters", {}),
        ("characters", {"alphabet": ["ab"]}),
        ("characters", {"alphabet": ["a", "a"]}),
        ("words", {"words": ["a"]}),
        ("words", {"words": ["a", "<unk>"], **to_mapping(WordsConfig())}),
        ("words", {"words": [1], "min_count": 1, "max_size": None, "split": "whitespace", "lowercase": False}),
        ("words", {"words": ["a"], "min_count": 1, "max_size": None, "split": "commas", "lowercase": False}),
        ("byte-pair", {}),
        ("byte-pair", {"library": None}),
        ("byte-pair", {"library": {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}}),
    ],
)
def test_invalid_content_is_rejected(kind: str, content: dict[str, Any]) -> None:
    value = {"format": "seqloom-tokenizer", "version": 1, "kind": kind, "content": content}
    with pytest.raises(CheckpointError, match="damaged"):
        tokenizer_from_json({**value, "sha256": digest(kind, content)})


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_training_without_text_is_rejected(name: str, texts: list[str]) -> None:
    with pytest.raises(DataError, match="needs text"):
        train_tokenizer(CONFIGS[name], texts)


PRINT_FINGERPRINTS = """
import sys
sys.path[:0] = {path!r}
from seqloom.text import *
texts = {texts!r}
configs = [CharactersConfig(), WordsConfig(), WordsConfig(split="punctuation"), BytePairConfig(size=400)]
print([train_tokenizer(config, texts).fingerprint() for config in configs])
"""


def test_training_is_independent_of_hash_seed() -> None:
    script = PRINT_FINGERPRINTS.format(path=sys.path, texts=TEXTS * 3)
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true"}
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**environment, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1


TRAINED = {name: train_tokenizer(config, TEXTS) for name, config in CONFIGS.items()}


def test_spelled_tokens_concatenate_to_the_text(tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        ids = [token for token in tokenizer.encode(text) if token != tokenizer.unknown]
        spelled = b"".join(map(tokenizer.spell, ids)).decode()
        assert spelled.split() == tokenizer.decode(ids).split()
    assert tokenizer.spell(END) == b""
    assert tokenizer.unknown is None or tokenizer.spell(tokenizer.unknown) == b""
