"""Export of trained translators: Marian for sinusoidal positions, and BART for learned positions."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")
import transformers
from tests.text.small_pairs import ENGLISH, FRENCH

from seqloom.config import build, to_mapping
from seqloom.core.errors import UsageError
from seqloom.exchange.conversion import export_run, read_directory
from seqloom.exchange.encoder_decoder import ReorderPairs
from seqloom.runs.run import Run
from seqloom.tasks.translate import Recipe
from seqloom.text import BytePairConfig, train_tokenizer

SMALL = {"kind": "transformer", "d_model": 12, "heads": 3, "encoder_layers": 2, "decoder_layers": 1, "d_ff": 16}
LEARNED = {"positions": {"kind": "learned", "max_length": 30}, "embed_norm": True}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "side by side": ("Marian", {"tied": "all"}),
    "side by side, two matrices": ("Marian", {"tied": "decoder", "activation": "gelu"}),
    "side by side, three": ("Marian", {"tied": "none", "embed_scale": False}),
    "halves": ("Marian", {"tied": "all", "positions": {"kind": "sinusoidal", "layout": "halves"}}),
    "learned": ("BART", {**LEARNED, "tied": "all"}),
    "learned, three": ("BART", {**LEARNED, "tied": "none", "activation": "gelu-tanh"}),
}


def make_run(path: Path, model: dict[str, Any]) -> Any:
    """Create a run with random weights. Return its model."""
    data = {"corpus": "parallel", "train": ["a.en", "a.fr"]}
    tokenizer = train_tokenizer(BytePairConfig(size=300), [*ENGLISH, *FRENCH])
    mapping = {"data": data, "tokenizer": {"kind": "byte-pair"}, "model": {**SMALL, **model}, "train": {"steps": 1}}
    recipe = build(Recipe, mapping)
    torch.manual_seed(3)
    made = recipe.model.build(len(tokenizer)).eval()
    for name, parameter in made.named_parameters():
        nn.init.uniform_(parameter, *((0.5, 1.5) if "norm.weight" in name else (-0.5, 0.5)))
    about = {"corpus": "parallel", "version": "1", "sha256": {}, "counts": {}, "source": "en", "target": "fr"}
    documents = {"tokenizer.json": tokenizer.to_json(), "data.json": about}
    Run.create(path, to_mapping(recipe), documents, weights=made.state_dict())
    return made, tokenizer


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_logits_and_ids_match_transformers(name, tmp_path):
    family, options = MODELS[name]
    model, tokenizer = make_run(tmp_path / "run", options)
    written = export_run(tmp_path / "run", tmp_path / "out")
    assert written.family.name == family
    other = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    texts = [ENGLISH[0], "naïve 猫 </s>"]
    read = reader(texts, padding=True, return_tensors="pt")
    for row, mask, text in zip(read["input_ids"].tolist(), read["attention_mask"], texts, strict=True):
        # </s> is a special token in transformers
        assert row[: int(mask.sum())] == [*tokenizer.encode(text), 0] or "</s>" in text
    source, mask = read["input_ids"], read["attention_mask"]
    inputs = torch.tensor([[0, 5, 9, 7, 30], [0, 200, 4, 8, 1]])
    wanted = other(input_ids=source, attention_mask=mask, decoder_input_ids=inputs).logits
    torch.testing.assert_close(model(source, mask.bool(), inputs), wanted, atol=1e-5, rtol=0)
    assert other.generation_config.decoder_start_token_id == 0


@pytest.mark.parametrize("name", ["side by side", "learned"])
@torch.no_grad()
def test_exported_translator_is_imported_with_equal_outputs(name, tmp_path):
    model, tokenizer = make_run(tmp_path / "run", MODELS[name][1])
    export_run(tmp_path / "run", tmp_path / "out")
    found = read_directory(tmp_path / "out")
    again = found.model.build(len(found.tokenizer)).eval()
    again.load_state_dict(found.weights)
    text = torch.tensor([[*found.tokenizer.encode(ENGLISH[1]), 0]])
    assert text.tolist() == [[*tokenizer.encode(ENGLISH[1]), 0]]
    inputs = torch.tensor([[0, 5, 9, 7, 30]])
    torch.testing.assert_close(again(text, None, inputs), model(text, None, inputs), atol=1e-5, rtol=0)


def test_wrong_order_of_d_model_changes_results(tmp_path, monkeypatch):
    """Control: adjacent sines and cosines are exported without reordering."""
    monkeypatch.setattr(ReorderPairs, "write", lambda self, ours: self.conversion.write(ours))
    with pytest.raises(AssertionError, match="not close"):
        test_logits_and_ids_match_transformers("side by side", tmp_path)


def test_unsupported_config_is_reported(tmp_path):
    changes = {"norm_first": True, "activation": "swiglu", "positions": {"kind": "rotary"}, "kv_heads": 1}
    make_run(tmp_path / "run", changes)
    with pytest.raises(UsageError) as refused:
        export_run(tmp_path / "run", tmp_path / "out")
    lines = str(refused.value).splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["BART", "Marian"]
    for line in lines[1:]:
        for key in ("norm_first", "activation", "positions.kind", "kv_heads"):
            assert re.search(rf"model\.{key} must (be|have|equal) ", line)
    assert not (tmp_path / "out").exists()
