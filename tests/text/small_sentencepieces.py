"""Small SentencePiece models, trained on demand, for tests of the tokenizer of Marian."""

import io
import json
from base64 import b64encode
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
from tests.text.small_pairs import ENGLISH, FRENCH


@cache
def spm(language: str, kind: str = "unigram", byte_fallback: bool = False) -> bytes:
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((ENGLISH if language == "en" else FRENCH) * 10),
        model_writer=out,
        vocab_size=330 if byte_fallback else 80,
        model_type=kind,
        byte_fallback=byte_fallback,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return out.getvalue()


def vocabulary(*models: bytes, codes: tuple[str, ...] = ()) -> dict[str, int]:
    """Return the pieces of both models as in Marian's vocabulary, where <pad> is last and two pieces are missing."""
    pieces: dict[str, None] = {}
    for model in models:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        names = [processor.id_to_piece(id) for id in range(processor.get_piece_size())]
        pieces |= dict.fromkeys(name for name in names if name not in ("<unk>", "<s>", "</s>", "z", "▁bus"))
    names = ["<unk>", *codes, "</s>", *pieces, "<pad>"]
    return {name: id for id, name in enumerate(names)}


def files(directory: Path, *, codes: tuple[str, ...] = (), **options: Any) -> dict[str, int]:
    """Write source.spm, target.spm and vocab.json. Return the vocabulary."""
    models = {"source.spm": spm("en", **options), "target.spm": spm("fr", **options)}
    names = vocabulary(*models.values(), codes=codes)
    directory.mkdir(exist_ok=True)
    for name, model in models.items():
        (directory / name).write_bytes(model)
    (directory / "vocab.json").write_text(json.dumps(names), encoding="utf-8")
    return names


def content(directory: Path, *, spare: int = 0) -> dict[str, Any]:
    """Return the content of a tokenizer that is built from these files."""
    names = json.loads((directory / "vocab.json").read_text(encoding="utf-8"))
    models = {side: b64encode((directory / f"{side}.spm").read_bytes()).decode() for side in ("source", "target")}
    specials = {"end": names["</s>"], "padding": names["<pad>"], "unknown": names["<unk>"]}
    return {"vocabulary": names, **models, **specials, "rows": len(names) + spare}
