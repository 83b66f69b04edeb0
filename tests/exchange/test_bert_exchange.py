"""Import and export of BERT: outputs equal those of `transformers`."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.masked import masked_recipe
from tests.small_bert import save_bert, tokenizer_file, vocabulary
from tests.understanding import trained
from torch import Tensor

from seqloom.cli.app import main
from seqloom.core.errors import CheckpointError, UsageError
from seqloom.core.files import tensors_from_file
from seqloom.exchange import bert
from seqloom.exchange.conversion import export_run, import_model
from seqloom.exchange.weights import TokenRows
from seqloom.models.bert import BERT
from seqloom.predict.loader import load
from seqloom.text import BytePair, Imported

transformers = pytest.importorskip("transformers")

TEXTS = ["The Café in İstanbul is good.", "हिन्दी में", "straße, 北京 한국어!", "a bad New York [MASK] day \u00e9"]
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one head": {"num_attention_heads": 1, "hidden_act": "relu", "num_hidden_layers": 1, "intermediate_size": 5},
    "odd heads": {"hidden_size": 15, "num_attention_heads": 5, "hidden_act": "gelu_new", "num_hidden_layers": 3},
    "untied": {"tie_word_embeddings": False, "hidden_act": "silu", "num_attention_heads": 4},
    "large epsilon": {"layer_norm_eps": 0.01, "num_attention_heads": 8, "hidden_act": "gelu_pytorch_tanh"},
    "padded vocabulary": {"vocab_size": len(vocabulary()) + 11, "hidden_size": 18, "num_attention_heads": 3},
}


def import_bert(folder: Path, **options: Any) -> tuple[Any, Any]:
    """Return the model of `transformers` and the imported run."""
    theirs = save_bert(folder / "there", **options)
    run, _ = import_model(folder / "there", folder / "run")
    return theirs, load(run.path, "cpu")


def rows(tokenizer: Any) -> dict[str, Tensor]:
    """Return a batch of text pairs of different lengths."""
    V, framed = len(tokenizer), []
    for first, second in zip(TEXTS, [*TEXTS[1:], ""], strict=True):
        one, two = tokenizer.encode(first), tokenizer.encode(second)
        framed.append(([V, *one[:20], V + 1, *two[:9], V + 1], 2 + len(one[:20])))
    longest = max(len(tokens) for tokens, _ in framed)
    tokens = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens, _ in framed])
    mask = torch.arange(longest) < torch.tensor([[len(tokens)] for tokens, _ in framed])
    segments = (torch.arange(longest) >= torch.tensor([[border] for _, border in framed])) & mask
    tokens[0, 3] = V + 2  # [MASK]
    return {"tokens": tokens, "mask": mask, "segments": segments.long()}


def their_inputs(tokenizer: Imported, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the same batch as inputs of transformers."""
    order = torch.tensor(tokenizer.order)
    names = {"input_ids": order[batch["tokens"]], "token_type_ids": batch["segments"]}
    return {**names, "attention_mask": batch["mask"].long()}


@torch.no_grad()
def differences(theirs: Any, model: BERT, tokenizer: Imported) -> dict[str, float]:
    """Return the largest difference of each output in double precision."""
    theirs, model, batch = theirs.double(), model.double(), rows(tokenizer)
    found = theirs(**their_inputs(tokenizer, batch), output_hidden_states=True)
    h, real = model.read(**batch), batch["mask"]
    gaps = {"h": h[real] - found.hidden_states[-1][real]}
    if (logits := found.get("prediction_logits", found.get("logits"))) is not None and logits.dim() == 3:
        gaps["masked"] = (model.masked_logits(h) - logits[..., tokenizer.order[: len(tokenizer)]])[real]
    if "seq_relationship_logits" in found:
        gaps["next"] = model.next_logits(h) - found.seq_relationship_logits
    if found.get("pooler_output") is not None:
        gaps["pooled"] = model.pool(h[:, 0]).tanh() - found.pooler_output
    return {name: float(gap.abs().max()) for name, gap in gaps.items()}


@pytest.mark.parametrize("name", SHAPES)
def test_outputs_match_transformers(tmp_path: Path, name: str) -> None:
    theirs, ours = import_bert(tmp_path, **SHAPES[name])
    batch = rows(ours.tokenizer)
    with torch.no_grad():  # in single precision
        found = theirs(**their_inputs(ours.tokenizer, batch)).prediction_logits
        logits = ours.model.masked_logits(ours.model.read(**batch))
    order = ours.tokenizer.order[: len(ours.tokenizer)]
    torch.testing.assert_close(logits[batch["mask"]], found[..., order][batch["mask"]], rtol=1e-5, atol=1e-5)
    gaps = differences(theirs, ours.model, ours.tokenizer)
    assert gaps.keys() == {"h", "masked", "next"} and max(gaps.values()) < 1e-10


@pytest.mark.parametrize(
    ("kind", "initialized", "compared"),
    [
        ("BertModel", {"dense", "dense_norm", "next", "bias"}, {"h", "pooled"}),
        ("BertForMaskedLM", {"pool", "next"}, {"h", "masked"}),
        ("BertForSequenceClassification", {"dense", "dense_norm", "next", "bias"}, {"h"}),
        ("BertForQuestionAnswering", {"dense", "dense_norm", "next", "bias", "pool"}, {"h"}),
    ],
)
def test_missing_layers_are_initialized_randomly(
    tmp_path: Path, kind: str, initialized: set[str], compared: set[str]
) -> None:
    theirs = save_bert(tmp_path / "there", kind)
    run, found = import_model(tmp_path / "there", tmp_path / "run")
    assert {name.removesuffix(".weight").removesuffix(".bias") for name in found.initialized} == initialized
    assert (kind in ("BertForSequenceClassification", "BertForQuestionAnswering")) == bool(found.unused)
    assert run.data["imported"]["initialized"] == found.initialized and run.data["imported"]["unused"] == found.unused
    ours = load(run.path, "cpu")
    gaps = differences(theirs, ours.model, ours.tokenizer)
    assert gaps.keys() == compared and max(gaps.values()) < 1e-10
    written = export_run(run.path, tmp_path / "out")  # without the missing layers
    assert written.architecture == {"BertForMaskedLM": kind}.get(kind, "BertModel")
    back = getattr(transformers, written.architecture).from_pretrained(tmp_path / "out").eval()
    if kind == written.architecture:
        assert max(differences(back, ours.model, ours.tokenizer).values()) < 1e-10
    again, found_again = import_model(tmp_path / "out", tmp_path / "again")
    assert found_again.initialized == found.initialized
    before, after = (load_file(path / "model.safetensors") for path in (run.path, again.path))  # headers name the run
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def test_command_reports_missing_heads(tmp_path: Path, capfd: Any) -> None:
    save_bert(tmp_path / "there", "BertForSequenceClassification")
    capfd.readouterr()
    assert main(["import-hf", str(tmp_path / "there"), str(tmp_path / "run")]) == 0
    shown = capfd.readouterr()
    assert (
        "the directory has no weights for the masked-language-model head and for the next-sentence-prediction head, "
        "which are initialized randomly." in shown.err
    )
    assert "were not imported: classifier.bias, classifier.weight" in shown.err
    assert "seqloom similar" in shown.out and "seqloom fill-mask" not in shown.out
    assert "because they were missing: dense.weight" in (tmp_path / "run" / "card.md").read_text()
    for words in (
        ["fill-mask", str(tmp_path / "run"), "the [MASK]"],
        ["evaluate", str(tmp_path / "run"), __file__],
    ):
        assert main(words) == 2
        assert "cannot predict masked tokens: it was imported without an output layer" in capfd.readouterr().err
    assert main(["generate", str(tmp_path / "run"), "--prompt", "the"]) == 2
    said = capfd.readouterr().err
    assert (
        "use `seqloom embed` and `seqloom similar`" in said and "init.from=" in said and "seqloom fill-mask" not in said
    )


def test_command_reports_missing_parts_of_heads(tmp_path: Path, capfd: Any) -> None:
    save_bert(tmp_path / "there")
    tensors = load_file(tmp_path / "there" / "model.safetensors")
    for name in ("bert.pooler.dense.weight", "bert.pooler.dense.bias"):
        del tensors[name]
    save_file(tensors, tmp_path / "there" / "model.safetensors")
    capfd.readouterr()
    assert main(["import-hf", str(tmp_path / "there"), str(tmp_path / "run")]) == 0
    said = "no weights for the pooling layer of [CLS], which is initialized randomly."
    assert said in capfd.readouterr().err
    found = bert.BERTFamily().missing(["bias", "odd.weight"], ["bias", "dense.weight", "odd.weight", "next.bias"])
    assert found == ["a part of the masked-language-model head (bias)", "odd.weight"]


def test_old_names_of_norms_are_read(tmp_path: Path) -> None:
    """bert-base-uncased was published with these names."""
    _, ours = import_bert(tmp_path)
    path = tmp_path / "there" / "model.safetensors"
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = load_file(path)
    for new, name in old.items():
        tensors = {key.replace(new, name): tensor for key, tensor in tensors.items()}
    assert sum(key.endswith(".LayerNorm.gamma") for key in tensors) == 6
    save_file(tensors, path, {"format": "pt"})
    run, found = import_model(tmp_path / "there", tmp_path / "old")
    assert not found.initialized
    again = load(run.path, "cpu")
    assert all(torch.equal(tensor, again.model.state_dict()[name]) for name, tensor in ours.model.state_dict().items())
    there = transformers.BertForPreTraining.from_pretrained(tmp_path / "there").eval()  # has the same effect
    assert max(differences(there, again.model, again.tokenizer).values()) < 1e-10


def test_tokens_match_transformers(tmp_path: Path) -> None:
    _, ours = import_bert(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "there" / "tokenizer.json"))
    tokenizer = ours.tokenizer
    for text in (text for text in TEXTS if "[MASK]" not in text):
        assert tokenizer.to_original_ids(tokenizer.encode(text)) == theirs.encode(text, add_special_tokens=False)
    ids, V = vocabulary(), len(tokenizer)
    assert tokenizer.order[0] == ids["[PAD]"] and len(ids) == V + 3
    assert tokenizer.to_original_ids([V, V + 1, V + 2]) == [ids["[CLS]"], ids["[SEP]"], ids["[MASK]"]]
    spelled = {tokenizer.token(id) for id in tokenizer.encode("[CLS] [MASK] [PAD]")}
    assert spelled.isdisjoint({"[CLS]", "[MASK]", "[PAD]", "</s>"})  # plain text


def test_fill_mask_matches_transformers(tmp_path: Path) -> None:
    """Compare `fill_mask` with the probabilities of transformers without special tokens."""
    theirs, ours = import_bert(tmp_path)
    (told,) = ours.fill_mask("the [MASK] in [MASK] york .", top=4)
    tokenizer, V = ours.tokenizer, len(ours.tokenizer)
    ids = [V, *tokenizer.encode("the"), V + 2, *tokenizer.encode("in"), V + 2, *tokenizer.encode("york ."), V + 1]
    with torch.no_grad():
        logits = theirs(input_ids=torch.tensor([tokenizer.to_original_ids(ids)])).prediction_logits[0]
    wanted = logits[:, tokenizer.order[:V]].softmax(dim=1)
    for guesses, place in zip(told.masks, [place for place, id in enumerate(ids) if id == V + 2], strict=True):
        values, best = wanted[place].topk(4)
        assert [guess.id for guess in guesses] == best.tolist()
        assert [guess.probability for guess in guesses] == pytest.approx(values.tolist(), abs=1e-6)


# --- export ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_exported_model_is_imported_unchanged(tmp_path: Path, name: str) -> None:
    theirs, ours = import_bert(tmp_path, **SHAPES[name])
    export_run(ours.run.path, tmp_path / "out")
    back = transformers.BertForPreTraining.from_pretrained(tmp_path / "out").eval()
    batch = their_inputs(ours.tokenizer, rows(ours.tokenizer))
    with torch.no_grad():
        one, other = theirs(**batch), back(**batch)
    told = ours.tokenizer.order[: len(ours.tokenizer)]
    close = 0 if name != "large epsilon" else 1e-5  # only one of two implementations of tanh-GELU is exported
    torch.testing.assert_close(one.prediction_logits[..., told], other.prediction_logits[..., told], rtol=0, atol=close)
    torch.testing.assert_close(one.seq_relationship_logits, other.seq_relationship_logits, rtol=0, atol=close)
    never = other.prediction_logits[..., ours.tokenizer.last].amax()
    assert never < -5_000  # [CLS], [SEP] and [MASK] are never predicted
    run, _ = import_model(tmp_path / "out", tmp_path / "again")
    first, second = (tensors_from_file(path / "model.safetensors") for path in (ours.run.path, run.path))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    assert run.recipe["model"] == ours.run.recipe["model"] and run.tokenizer.to_json() == ours.tokenizer.to_json()
    assert json.loads((tmp_path / "out" / "tokenizer.json").read_text()) == tokenizer_file()


@pytest.mark.parametrize("tokenizer", ["byte-pair", "words"])
def test_trained_model_is_exported(tmp_path: Path, tokenizer: str) -> None:
    chosen = {"byte-pair": ["tokenizer.kind=byte-pair", "tokenizer.size=290"], "words": []}[tokenizer]
    chosen += ["model.positions.kind=learned", "model.positions.max_length=24", "train.steps=2"]
    trained(masked_recipe(tmp_path, *chosen), tmp_path / "own")
    ours = load(tmp_path / "own", "cpu")
    export_run(tmp_path / "own", tmp_path / "out")
    there = transformers.BertForPreTraining.from_pretrained(tmp_path / "out").eval()
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "The cats purr all day ."
    V, ids = len(ours.tokenizer), ours.tokenizer.encode(text)
    row = reader(text, "They eat milk .", return_tensors="pt")
    second = ours.tokenizer.encode("They eat milk .")
    assert row["input_ids"][0].tolist() == [V, *ids, V + 1, *second, V + 1]
    assert row["token_type_ids"][0].tolist() == [0] * (len(ids) + 2) + [1] * (len(second) + 1)
    assert reader.mask_token_id == V + 2 and reader.pad_token_id == 0
    with torch.no_grad():
        found = there(**row)
        h = ours.model.read(row["input_ids"], None, row["token_type_ids"])
        torch.testing.assert_close(ours.model.masked_logits(h), found.prediction_logits[..., :V], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours.model.next_logits(h), found.seq_relationship_logits, rtol=1e-5, atol=1e-5)
    if isinstance(ours.tokenizer, BytePair):  # it can be imported again
        again = load(import_model(tmp_path / "out", tmp_path / "again")[0].path, "cpu")
        assert again.tokenizer.encode(text) == ids
        first, second_weights = ours.model.state_dict(), again.model.state_dict()
        assert all(torch.equal(first[name], second_weights[name]) for name in first)


def test_unsupported_config_is_not_exported(tmp_path: Path) -> None:
    shape = ["model.norm_first=true", "model.positions.kind=rotary", "model.kv_heads=1", "model.activation=swiglu"]
    trained(masked_recipe(tmp_path, *shape, "model.context=24", "train.steps=1"), tmp_path / "own")
    with pytest.raises(UsageError) as caught:
        export_run(tmp_path / "own", tmp_path / "out")
    for words in ("model.norm_first must be", "model.positions.kind must be learned", "model.kv_heads", "swiglu"):
        assert words in str(caught.value)
    assert not (tmp_path / "out").exists()


# --- errors ---------------------------------------------------------------------------------------------------------


def test_unsupported_config_is_rejected_with_all_problems(tmp_path: Path) -> None:
    save_bert(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    changes = {
        "position_embedding_type": "relative_key",
        "type_vocab_size": 4,
        "is_decoder": True,
        "hidden_act": "mish",
    }
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes, "experts": 8, "pruned_heads": {"0": [1]}}))
    with pytest.raises(CheckpointError) as caught:
        import_model(tmp_path, tmp_path / "run")
    for key in (*changes, "experts", "pruned_heads", "6 problems"):
        assert key in str(caught.value)


def test_tokenizer_without_special_tokens_is_rejected(tmp_path: Path) -> None:
    save_bert(tmp_path)
    file = tokenizer_file()
    file["added_tokens"] = [entry for entry in file["added_tokens"] if entry["content"] != "[MASK]"]
    file["model"]["vocab"]["[other]"] = file["model"]["vocab"].pop("[MASK]")
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    with pytest.raises(CheckpointError, match=r"must have the tokens \[PAD\].*missing: \[MASK\]"):
        import_model(tmp_path, tmp_path / "run")


def test_tokenizer_with_more_tokens_than_embeddings_is_rejected(tmp_path: Path) -> None:
    save_bert(tmp_path, vocab_size=len(vocabulary()) - 2)
    with pytest.raises(CheckpointError, match=r"tokenizer.json does not match the model: its ids go up to"):
        import_model(tmp_path, tmp_path / "run")


def test_wrong_weights_are_rejected_with_all_mismatches(tmp_path: Path) -> None:
    save_bert(tmp_path, num_hidden_layers=3)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2, "intermediate_size": 25}))
    with pytest.raises(CheckpointError) as caught:
        import_model(tmp_path, tmp_path / "run")
    said = str(caught.value)
    assert "bert.encoder.layer.0.intermediate.dense.weight must be 25×16; it is 24×16" in said
    assert "22 mismatches" in said and "and 10 more" in said


@pytest.mark.parametrize("part", ["heads", "order", "epsilon", "segments"])
def test_wrong_weight_mapping_changes_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    if part == "heads":
        swapped = {"mixer.attention.q": "attention.self.key", "mixer.attention.k": "attention.self.query"}
        monkeypatch.setattr(bert, "LAYER", {**bert.LAYER, **swapped})
    elif part == "order":  # our order instead of theirs
        monkeypatch.setattr(TokenRows, "read", lambda self, theirs: (theirs[0][: len(self.order)],))
    theirs, ours = import_bert(tmp_path)
    if part == "epsilon":
        for module in ours.model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.eps = 1e-3
    if part == "segments":
        monkeypatch.setattr(ours.model.backbone.embedded, "segments", None)
    assert max(differences(theirs, ours.model, ours.tokenizer).values()) > 1e-4
