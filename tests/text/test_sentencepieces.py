"""The tokenizer of Marian: ids and texts equal those of `transformers` on both sides."""

import json
import sys
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.core.errors import CheckpointError, DataError, ResourceError, UsageError
from seqloom.text import END, SentencePieceConfig, SentencePieces, tokenizer_from_json, train_tokenizer

pytest.importorskip("sentencepiece")
from tests.text.small_pairs import ENGLISH, FRENCH
from tests.text.small_sentencepieces import content, files

CODES = (">>fra<<", ">>deu<<")
TEXTS = [
    *ENGLISH,
    *FRENCH,
    "  the   ﬁne cat 猫 zz ",
    ">>fra<< The cat",
    ">>xyz<< The cat",
    ">>fra<<>>deu<<cat",
    "Cafe\u0301 👩\u200d👧 ▁ x▁y",
    "",
]


@pytest.fixture(scope="module", params=["unigram", "bpe", "bytes"])
def directory(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("marian")
    options = {"byte_fallback": True} if request.param == "bytes" else {"kind": request.param}
    files(path, codes=CODES, **options)
    return path


@pytest.fixture(scope="module")
def tokenizer(directory):
    return SentencePieces(content(directory, spare=2))


@pytest.fixture(scope="module")
def marian(directory):
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers warns about a punctuation normalizer that neither tokenizer uses
        return transformers.MarianTokenizer.from_pretrained(directory)


@pytest.mark.parametrize("side", ["source", "target"])
def test_ids_and_texts_match_transformers(tokenizer, marian, side):
    reader = tokenizer if side == "source" else tokenizer.of_targets
    different = 0
    for text in TEXTS:
        ids = marian(**({"text": text} if side == "source" else {"text_target": text}))["input_ids"]
        assert [*tokenizer.to_original_ids(reader.encode(text)), *tokenizer.to_original_ids([END])] == ids
        assert tokenizer.from_original_ids(ids) == [*reader.encode(text), END]
        tokens = [token for token in reader.encode(text) if token != tokenizer.unknown]
        assert reader.decode([*tokens, END]) == marian.decode(ids, skip_special_tokens=True)
        different += tokenizer.encode(text) != tokenizer.of_targets.encode(text)
    assert different > 5  # the two sides segment texts differently


def test_no_text_is_encoded_to_the_end_token_or_padding(tokenizer):
    for text in ("</s>", "<pad>", "a </s> b", "<pad></s><unk>"):
        assert not {END, tokenizer.padding} & {*tokenizer.encode(text), *tokenizer.of_targets.encode(text)}
    assert tokenizer.decode([END, tokenizer.padding, END]) == ""
    assert tokenizer.banned == (tokenizer.unknown, tokenizer.padding)


@given(st.text())
def test_pieces_concatenate_to_text(text):
    tokenizer = _tokenizer()
    ids = tokenizer.encode(text)
    for listed in (ids, [*ids, END, *ids]):
        decoder = tokenizer.stream()
        pieces = [decoder.push(token) for token in listed]
        assert "".join(pieces) + decoder.flush() == tokenizer.decode(listed)
    assert len(tokenizer.spans(text)) == len(ids) == len(tokenizer.decoded_spans(ids))


_CACHE: list[SentencePieces] = []


def _tokenizer():
    """Return one tokenizer for all examples."""
    if not _CACHE:
        import tempfile
        from pathlib import Path

        with tempfile.TemporaryDirectory() as path:
            files(Path(path), byte_fallback=True)
            _CACHE.append(SentencePieces(content(Path(path))))
    return _CACHE[0]


def test_spans_refer_to_original_text(tokenizer):
    text = ">>fra<< the ﬁne  cat"
    spans = tokenizer.spans(text)
    assert spans[0] == (0, 7) and spans[-1][1] == len(text)
    assert "".join(text[start:end] for start, end in spans) == text.replace(
        "<< ", "<<"
    )  # the space after the language code does not belong to a piece


def test_unknown_text_is_listed(tmp_path):
    files(tmp_path)
    tokenizer = SentencePieces(content(tmp_path))
    assert tokenizer.unknown_pieces("the 猫 cat 猫, Ω") == ["猫", "Ω"]
    assert tokenizer.unknown_pieces("the cat") == []
    assert (
        tokenizer.unknown is not None
        and tokenizer.token(tokenizer.unknown) == "<unk>"
        and tokenizer.token(END) == "</s>"
    )
    assert tokenizer.token(tokenizer.encode("the cat")[0]).startswith(" ")


def test_json_round_trips(tokenizer):
    restored = tokenizer_from_json(json.loads(json.dumps(tokenizer.to_json())))
    assert restored.fingerprint() == tokenizer.fingerprint() and len(restored) == len(tokenizer)
    for text in TEXTS:
        assert restored.encode(text) == tokenizer.encode(text)
        assert restored.of_targets.encode(text) == tokenizer.of_targets.encode(text)
    assert restored.of_targets.of_targets is restored.of_targets
    assert (
        restored.token(len(restored) - 1) == f"<unused {len(restored) - 1}>"
        and restored.decode([len(restored) - 1]) == ""
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "cnViYmlzaA=="}, "source.spm is not a SentencePiece model"),
        ({"source": "???"}, "source.spm is not a SentencePiece model"),
        ({"source": None}, "source.spm is missing"),
        ({"rows": 10}, r"ids go from 0 to \d+, but the model has 10 embeddings"),
        ({"end": 0}, "must be different tokens"),
        ({"padding": 10_000}, "id of padding must be from 0 to"),
        ({"vocabulary": {"a": 0, "b": 0}}, "have the same id"),
        ({"vocabulary": {"a": "0"}}, "must map names to ids"),
    ],
)
def test_invalid_content_is_reported(tmp_path, changes, message):
    files(tmp_path)
    with pytest.raises(ValueError, match=message):
        SentencePieces({**content(tmp_path), **changes})


def test_damaged_file_is_rejected(tmp_path):
    files(tmp_path)
    value = SentencePieces(content(tmp_path)).to_json()
    value["content"]["rows"] += 1
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        tokenizer_from_json(value)


def test_sentencepiece_tokenizer_cannot_be_trained():
    with pytest.raises(UsageError, match="cannot be trained"):
        train_tokenizer(SentencePieceConfig(), ["a"])


def test_lone_surrogate_is_rejected(tokenizer):
    with pytest.raises(DataError, match=r"lone surrogate U\+D800"):
        tokenizer.encode("a\ud800")


def test_missing_library_is_reported(tmp_path, monkeypatch):
    files(tmp_path)
    valid = content(tmp_path)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ResourceError, match=r"pip install 'seqloom\[marian\]'"):
        SentencePieces(valid)


def test_spelled_tokens_concatenate_to_the_text(tokenizer):
    for text in TEXTS:
        ids = [token for token in tokenizer.of_targets.encode(text) if token != tokenizer.unknown]
        spelled = b"".join(map(tokenizer.of_targets.spell, ids)).decode()
        assert spelled.strip(" ") == tokenizer.decode(ids)
    assert tokenizer.spell(END) == tokenizer.spell(tokenizer.padding) == b""
