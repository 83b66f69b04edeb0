"""Export of trained runs to `transformers` gives equal ids and logits, or raises an error."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from torch import nn

from seqloom.config import build, to_mapping
from seqloom.core.errors import CheckpointError, UsageError
from seqloom.exchange.conversion import export_run, import_model
from seqloom.exchange.tokenizer_files import tokenizer_files
from seqloom.runs.run import Run
from seqloom.tasks import task_info
from seqloom.text import BytePairConfig, CharactersConfig, Tokenizer, WordsConfig, train_tokenizer

TEXTS = ["The cat sat on the mat.\nThe dog didn't, न म!", "the dog  sat\n\non it <unk> again and the cat"]
TOKENS: dict[str, Any] = {
    "byte-pair": BytePairConfig(size=280),
    "characters": CharactersConfig(),
    "words": WordsConfig(),
}
LLAMA = {"norm": "rms", "positions": {"kind": "rotary"}, "activation": "swiglu", "bias": False}


def make_run(path: Path, tokens: Any = TOKENS["byte-pair"], task: str = "language-model", **model: Any) -> Run:
    """Create a run with random weights."""
    tokenizer = train_tokenizer(tokens, TEXTS)
    section = {"kind": "gpt", "d_model": 16, "heads": 2, "layers": 2, **model}
    if "context" not in section and section.get("positions", {}).get("kind", "learned") == "learned":
        section["positions"] = {"kind": "learned", "max_length": 64}
    mapping = {
        "task": task,
        "data": {"corpus": "pydocs"},
        "tokenizer": to_mapping(tokens),
        "batch": {"length": 16},
        "model": section,
        "train": {"steps": 1},
    }
    recipe = build(task_info(task).recipe, mapping)
    torch.manual_seed(3)
    made = recipe.model.build(len(tokenizer))
    for parameter in made.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    data = {"corpus": "pydocs", "version": "1", "licence": "", "sha256": {}, "counts": {}}
    documents = {"tokenizer.json": tokenizer.to_json(), "data.json": data}
    return Run.create(path, to_mapping(recipe), documents, weights=made.state_dict())


SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt2-no-bias": {"bias": False, "activation": "silu"},
    "gpt2-untied": {"tied": False, "activation": "relu", "d_ff": 20},
    "gpt2-begin": {"bos": 5, "activation": "gelu-tanh", "norm_epsilon": 1e-3},
    "llama": {**LLAMA},
    "llama-halves": {**LLAMA, "positions": {"kind": "rotary", "layout": "halves", "base": 500.0}, "tied": False},
    "llama-grouped": {**LLAMA, "heads": 4, "kv_heads": 2, "bias": True, "bos": 7, "context": 32},
}


@pytest.mark.parametrize("name", SHAPES)
def test_logits_match_transformers(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    run = make_run(tmp_path / "run", **SHAPES[name])
    written = export_run(run.path, tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(written.path).eval()
    assert type(theirs).__name__ == written.family.architecture
    text = "The dog sat on the cat"
    ids = run.tokenizer.encode(text)
    tokenizer = transformers.AutoTokenizer.from_pretrained(written.path)
    assert tokenizer(text)["input_ids"] == ids
    assert tokenizer.eos_token_id == theirs.config.eos_token_id == 0
    assert tokenizer.decode(ids) == text
    begin = SHAPES[name].get("bos", 0)
    assert theirs.config.bos_token_id == theirs.generation_config.bos_token_id == begin
    with torch.no_grad():
        made, wanted = run.model("cpu")(torch.tensor([[0, *ids]])), theirs(torch.tensor([[begin, *ids]])).logits
    torch.testing.assert_close(made, wanted, atol=1e-5, rtol=0)
    again, _ = import_model(written.path, tmp_path / "again")
    assert again.tokenizer.encode(text) == ids
    with torch.no_grad():
        torch.testing.assert_close(again.model("cpu")(torch.tensor([[0, *ids]])), made, atol=1e-6, rtol=0)


# --- tokenizers -------------------------------------------------------------------------------------------------------


def load_with_transformers(tokenizer: Tokenizer, extra: tuple[str, ...] = ()) -> Library:
    return Library.from_str(json.dumps(tokenizer_files(tokenizer, extra)["tokenizer.json"]))


TRAINED = {name: train_tokenizer(tokens, TEXTS) for name, tokens in TOKENS.items()}
WRITTEN = {name: load_with_transformers(tokenizer) for name, tokenizer in TRAINED.items()}


@pytest.mark.parametrize("name", TOKENS)
@given(st.text() | st.text(alphabet="the dogsa\n\t\u2003\x1f\x85<unk>☃"))
@settings(max_examples=150)
def test_ids_match_transformers(name: str, text: str) -> None:
    if "</s>" not in text:
        assert WRITTEN[name].encode(text).ids == TRAINED[name].encode(text)


@pytest.mark.parametrize("name", TOKENS)
def test_decoded_text_matches_transformers(name: str) -> None:
    for text in ("the dog sat", "The cat."):
        ids = TRAINED[name].encode(text)
        assert WRITTEN[name].decode(ids, skip_special_tokens=False) == TRAINED[name].decode(ids).replace(
            "\ufffd", "<unk>"
        )


@pytest.mark.parametrize("name", TOKENS)
def test_special_tokens_keep_their_embedding_rows(name: str) -> None:
    V = len(TRAINED[name])
    made = load_with_transformers(TRAINED[name], ("[CLS]", "[SEP]", "[MASK]"))
    assert [made.token_to_id(word) for word in ("</s>", "[CLS]", "[SEP]", "[MASK]")] == [0, V, V + 1, V + 2]
    assert made.get_vocab_size() == V + 3
    files = tokenizer_files(TRAINED[name], ("[CLS]", "[SEP]", "[MASK]"))
    assert files["special_tokens_map.json"]["mask_token"] == "[MASK]"


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (WordsConfig(lowercase=True), "tokenizer.kind=words, tokenizer.split=whitespace, tokenizer.lowercase=True"),
        (WordsConfig(split="punctuation"), "tokenizer.split=punctuation"),
    ],
)
def test_unsupported_tokenizers_are_rejected(tokens: Any, said: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tokens)
    with pytest.raises(UsageError, match=said):
        export_run(run.path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_word_equal_to_special_token_is_rejected(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(WordsConfig(), ["the </s> dog [CLS]"])
    with pytest.raises(UsageError, match="its words </s> are special tokens"):
        tokenizer_files(tokenizer)
    with pytest.raises(UsageError, match=r"its words </s>, \[CLS\] are"):
        tokenizer_files(tokenizer, ("[CLS]", "[SEP]", "[MASK]"))


# --- unsupported models -----------------------------------------------------------------------------------------------


def test_unsupported_values_are_reported(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run", output_bias=True, embed_scale=True, kv_heads=1, context=32, positions={"kind": "learned"}
    )
    with pytest.raises(UsageError) as error:
        export_run(run.path, tmp_path / "out")
    first, gpt2, llama, mistral = str(error.value).split("\n")
    assert first == f"{run.path} cannot be exported: no family supports its config:"
    assert gpt2 == (
        "  GPT-2: model.embed_scale must be false; it is true; model.output_bias must be false; it is true; "
        "model.kv_heads must equal heads; it is 1; model.context must be 512, the number of positions; it is 32"
    )
    assert llama.startswith("  Llama: model.norm must be 'rms'; it is 'layer'; ")
    assert llama.endswith("model.positions.kind must be rotary; it is learned")
    assert mistral.startswith("  Mistral: model.norm must be ")
    assert error.value.exit_code == 2


def test_unsupported_kind_is_rejected(tmp_path: Path) -> None:
    tokenizer = TRAINED["words"]
    section = {"kind": "recurrent-lm", "embedding": 8, "hidden": 8}
    mapping = {
        "task": "language-model",
        "data": {"corpus": "pydocs"},
        "tokenizer": {"kind": "words"},
        "model": section,
        "train": {"steps": 1},
    }
    recipe = build(task_info("language-model").recipe, mapping)
    data = {"corpus": "pydocs", "version": "1", "licence": "", "sha256": {}, "counts": {}}
    documents = {"tokenizer.json": tokenizer.to_json(), "data.json": data}
    weights = recipe.model.build(len(tokenizer)).state_dict()
    run = Run.create(tmp_path / "run", to_mapping(recipe), documents, weights=weights)
    with pytest.raises(UsageError, match="models of kind recurrent-lm are not supported, only"):
        export_run(run.path, tmp_path / "out")


def test_existing_directory_is_kept(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("")
    with pytest.raises(UsageError, match=r"out already exists\. Choose another path, or delete it first"):
        export_run(run.path, tmp_path / "out")
    with pytest.raises(UsageError, match="exists"):
        export_run(run.path, run.path)
    with pytest.raises(CheckpointError, match="is not a run"):
        export_run(tmp_path / "nothing", tmp_path / "new")


def test_weights_of_another_recipe_are_rejected(tmp_path: Path) -> None:
    run, other = make_run(tmp_path / "run"), make_run(tmp_path / "other", layers=3)
    (run.path / "model.safetensors").write_bytes((other.path / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match=r"model\.safetensors belongs to another run"):
        export_run(run.path, tmp_path / "out")
    run.store().save_best(other.weights())
    with pytest.raises(CheckpointError, match="does not match the model of its recipe"):
        export_run(run.path, tmp_path / "out")
