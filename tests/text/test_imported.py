"""Imported tokenizers: ids are those of the library in the order of seqloom, and no text becomes a special token."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library

from seqloom.core.errors import CheckpointError, DataError, UsageError
from seqloom.text import END, Imported, ImportedConfig, encode_documents, tokenizer_from_json, train_tokenizer

TEXTS = [
    "The quick brown fox jumps over the lazy dog; it didn't bark.",
    "Ein schöner Tag, न मस्ते दुनिया, 👩\u200d👧!\n\nthe dog  jumped over lazy foxes",
]


def bytes_like_gpt2() -> tuple[Library, int, list[int]]:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        TEXTS * 3, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    library.add_special_tokens(["<|endoftext|>"])
    library.add_tokens(["<plain>"])
    return library, library.get_vocab()["<|endoftext|>"], []


def pieces_like_llama() -> tuple[Library, int, list[int]]:
    """Build a tokenizer that uses ▁ for spaces, prepends a space, and has byte fallback."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    letters = sorted({letter for text in TEXTS[:1] for letter in text if letter != " "})
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("o", "x")]
    pieces = [*names, *letters, *("".join(pair) for pair in merges)]
    vocabulary = {name: id for id, name in enumerate(dict.fromkeys(pieces))}
    library = Library(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    library.add_special_tokens(["<unk>", "<s>", "</s>"])
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return library, 2, []


def pieces_like_bert() -> tuple[Library, int, list[int]]:
    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    library.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(vocab_size=120, special_tokens=specials, show_progress=False)
    )
    library.enable_padding()
    library.enable_truncation(4)
    return library, 0, [2, 3, 4]


def pieces_like_t5() -> tuple[Library, int, list[int]]:
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0), ("▁the", -4.0), ("dog", -5.0)]
    pieces += [(letter, -6.0) for letter in "thequickbrownfxjmpsvlazydg</>"]
    library = Library(models.Unigram([*dict(pieces).items()], unk_id=2))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    library.add_special_tokens(["<pad>", "</s>", "<unk>"])
    return library, 1, []


def words() -> tuple[Library, int, list[int]]:
    """Build a tokenizer whose special tokens can occur in any text."""
    names = ["the", "[CLS]", "dog", "[UNK]", "[MASK]", "[SEP]", "end"]
    library = Library(models.WordLevel({name: id for id, name in enumerate(names)}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return library, 6, [1, 5, 4]


LIBRARIES = {
    make.__name__: make() for make in (bytes_like_gpt2, pieces_like_llama, pieces_like_bert, pieces_like_t5, words)
}
SPARE = 3


def imported(name: str) -> Imported:
    library, end, last = LIBRARIES[name]
    return Imported(json.loads(library.to_str()), end, last, library.get_vocab_size() + SPARE)


TOKENIZERS = {name: imported(name) for name in LIBRARIES}
for_every_library = pytest.mark.parametrize("name", LIBRARIES)


def plain_library(name: str) -> Library:
    """Return the library's tokenizer without padding and truncation."""
    library = Library.from_str(LIBRARIES[name][0].to_str())
    library.no_padding()
    library.no_truncation()
    return library


@for_every_library
@pytest.mark.parametrize("text", [*TEXTS, "", " ", "dog", "the  dog", "☃ the dog"])
def test_ids_match_those_of_library(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text)
    assert tokenizer.to_original_ids(ids) == plain_library(name).encode(text, add_special_tokens=False).ids
    assert all(0 < id < len(tokenizer) for id in ids)
    assert tokenizer.from_original_ids(tokenizer.to_original_ids(ids)) == ids
    assert list(tokenizer.encode_batch([text, "dog", text]))[::2] == [ids, ids]


@for_every_library
def test_end_token_is_first_and_other_special_tokens_are_last(name: str) -> None:
    library, end, last = LIBRARIES[name]
    order = TOKENIZERS[name].order
    rows = library.get_vocab_size() + SPARE
    assert sorted(order) == list(range(rows))
    assert order[END] == end
    assert order[len(order) - len(last) :] == last
    between = order[1 : len(order) - len(last)]
    assert between == sorted(between)
    assert len(TOKENIZERS[name]) == rows - len(last)


@for_every_library
@given(st.lists(st.integers(0, 10_000), max_size=12))
@settings(max_examples=60)
def test_streams_match_library_decoding(name: str, numbers: list[int]) -> None:
    tokenizer = TOKENIZERS[name]
    ids = [1 + number % (len(tokenizer) - 1) for number in numbers]
    stream = tokenizer.stream()
    text = "".join(map(stream.push, ids)) + stream.flush()
    assert text == tokenizer.decode(ids)
    silent = tokenizer._silent
    visible = [id for id in tokenizer.to_original_ids(ids) if id not in silent]
    assert text == plain_library(name).decode(visible, skip_special_tokens=False)


@for_every_library
def test_new_document_starts_after_the_end_token(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode("the dog")
    documents, stream = [*ids, END, *ids], tokenizer.stream()
    assert tokenizer.decode(documents) == 2 * tokenizer.decode(ids) == stream.read(documents) + stream.flush()


@for_every_library
@given(st.text())
@settings(max_examples=60)
def test_spans_are_within_text(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    spans = tokenizer.spans(text)
    assert len(spans) == len(tokenizer.encode(text))
    assert all(0 <= start <= end <= len(text) for start, end in spans)


def test_text_round_trips_through_bytes() -> None:
    tokenizer = TOKENIZERS["bytes_like_gpt2"]
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text


@for_every_library
@pytest.mark.parametrize("around", ["{}", "the {} dog", "{}{}", "dog{}"])
def test_special_tokens_are_never_encoded(name: str, around: str) -> None:
    library, end, last = LIBRARIES[name]
    file = json.loads(library.to_str())
    special = {entry["id"] for entry in file["added_tokens"] if entry["special"]} | {end, *last}
    tokenizer = TOKENIZERS[name]
    special.discard(-1 if tokenizer.unknown is None else tokenizer.order[tokenizer.unknown])
    vocabulary = {id: word for word, id in library.get_vocab().items()}
    for id in special:
        text = around.format(vocabulary[id], vocabulary[id])
        assert not special & set(tokenizer.to_original_ids(tokenizer.encode(text)))
        assert len(tokenizer.spans(text)) == len(tokenizer.encode(text))
    assert END in tokenizer.from_original_ids([end])


def test_tokenizers_library_encodes_special_tokens() -> None:
    for name in ("bytes_like_gpt2", "words", "pieces_like_t5"):
        library, end, _ = LIBRARIES[name]
        assert end in library.encode(library.id_to_token(end), add_special_tokens=False).ids


def test_unknown_characters_are_listed() -> None:
    assert TOKENIZERS["pieces_like_bert"].unknown_pieces("the ☃ dog ☃ ♞") == ["☃", "♞"]
    assert TOKENIZERS["words"].unknown_pieces("the cat") == ["cat"]
    assert TOKENIZERS["words"].token(TOKENIZERS["words"].unknown or 0) == "[UNK]"
    assert TOKENIZERS["bytes_like_gpt2"].unknown is None
    assert TOKENIZERS["bytes_like_gpt2"].unknown_pieces("☃") == []


def test_tokens_are_displayed_as_text() -> None:
    gpt2, bert, llama = (TOKENIZERS[f"{name}"] for name in ("bytes_like_gpt2", "pieces_like_bert", "pieces_like_llama"))
    assert [gpt2.token(id) for id in gpt2.encode(" the dog")] == [" ", "the", " dog"]
    assert [gpt2.token(id) for id in gpt2.encode("☃")] == ["<0xE2>", "<0x98>", "<0x83>"]
    assert gpt2.token(END) == bert.token(END) == "</s>"
    assert gpt2.name(END) == "<|endoftext|>"
    assert [bert.token(id) for id in range(len(bert), bert.rows)] == ["[CLS]", "[SEP]", "[MASK]"]
    assert llama.token(llama.encode("the")[0]) == " the"
    assert gpt2.token(len(gpt2) - 1) == f"<unused {len(gpt2) - 1}>"
    assert gpt2.decode([len(gpt2) - 1]) == ""
    with pytest.raises(IndexError):
        gpt2.token(len(gpt2))
    with pytest.raises(IndexError):
        gpt2.to_original_ids([-1])


def test_added_tokens_keep_ids_after_removed_special_tokens() -> None:
    """Special tokens are removed, and later added tokens keep their ids."""
    library = bytes_like_gpt2()[0]
    library.add_special_tokens(["<one>"])
    library.add_tokens([AddedToken("<two>", normalized=False)])
    tokenizer = Imported(
        json.loads(library.to_str()), library.get_vocab()["<|endoftext|>"], [], library.get_vocab_size()
    )
    for text in ("a <plain> b", "a <two> b"):
        ids = tokenizer.encode(text)
        assert tokenizer.to_original_ids(ids) == library.encode(text).ids
        assert tokenizer.decode(ids) == text == library.decode(tokenizer.to_original_ids(ids))
    assert library.token_to_id("<one>") not in tokenizer.to_original_ids(tokenizer.encode("<one>"))


@for_every_library
def test_json_round_trips(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    restored = tokenizer_from_json(json.loads(json.dumps(tokenizer.to_json())))
    assert isinstance(restored, Imported)
    assert restored.fingerprint() == tokenizer.fingerprint()
    assert restored.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])
    assert restored.file == json.loads(LIBRARIES[name][0].to_str())


def file(**changes: Any) -> dict[str, Any]:
    return {**json.loads(LIBRARIES["words"][0].to_str()), **changes}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"rows": 6}, "its ids go up to 6, but the model has 6 embeddings"),
        ({"end": 7}, "special token must be from 0 to 6; got 7"),
        ({"last": [1, 1, 4]}, "must be different tokens"),
        ({"last": "1"}, "ids of its special tokens"),
        ({"end": True}, "ids of its special tokens"),
        ({"file": []}, "must contain a tokenizer.json"),
        ({"file": {}}, "must have a `model`"),
        ({"file": file(model={"type": "Nothing"})}, "library cannot read it"),
        ({"file": file(model={**file()["model"], "dropout": 0.1})}, "dropout must be null.* got 0.1"),
        ({"file": file(model={"type": "WordLevel", "vocab": {"a": 0, "b": 2}, "unk_token": "a"})}, "have no gaps"),
    ],
)
def test_inconsistent_content_is_rejected(content: dict[str, Any], message: str) -> None:
    valid = {"file": file(), "end": 6, "last": [1, 5, 4], "rows": 7}
    Imported.from_content(valid)
    with pytest.raises(ValueError, match=message):
        Imported.from_content({**valid, **content})


def test_damaged_content_is_rejected() -> None:
    value = TOKENIZERS["words"].to_json()
    value["content"] = {**value["content"], "end": 0}
    with pytest.raises(CheckpointError, match="checksum"):
        tokenizer_from_json(value)


def test_imported_tokenizer_cannot_be_trained() -> None:
    with pytest.raises(UsageError, match=r"cannot be trained\. Import a model with `seqloom import-hf`"):
        train_tokenizer(ImportedConfig(), TEXTS)


def test_lone_surrogate_is_rejected() -> None:
    for read in (TOKENIZERS["words"].encode, TOKENIZERS["words"].spans):
        with pytest.raises(DataError, match="lone surrogate U\\+D800"):
            read("a \ud800")


def test_documents_end_with_the_end_token() -> None:
    tokenizer = TOKENIZERS["words"]
    assert encode_documents(tokenizer, ["the dog", "dog"]).tolist() == [1, 2, 0, 2, 0]


def test_spans_include_letters_removed_by_normalizer() -> None:
    library = words()[0]
    library.normalizer = normalizers.Replace(Regex("x+"), "")
    tokenizer = Imported(json.loads(library.to_str()), 6, [1, 5, 4], 7)
    assert tokenizer.encode("xxthe dxog") == [1, 2]
    assert [("xxthe dxog")[a:b] for a, b in tokenizer.spans("xxthe dxog")] == ["the", "dxog"]


@for_every_library
@pytest.mark.parametrize("text", TEXTS)
def test_spelled_tokens_concatenate_to_the_text(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = [token for token in tokenizer.encode(text) if token != tokenizer.unknown]
    spelled = b"".join(map(tokenizer.spell, ids)).decode()
    if name == "pieces_like_bert":  # the decoder of BERT attaches punctuation marks to words
        assert "".join(spelled.split()) == "".join(tokenizer.decode(ids).split())
    else:
        assert spelled.split() == tokenizer.decode(ids).split()
    assert tokenizer.spell(END) == b""
