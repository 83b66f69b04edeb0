"""Damaged, incomplete, dangerous and unsupported Hugging Face directories raise errors, and no code is run.

The directories are written by hand, without `transformers`.
"""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.exchange.small_decoders import END, V, configure, refused, tokenizer_file, weights, write_by_hand
from tests.unprivileged import as_unprivileged_user, forbid

from seqloom.core.errors import CheckpointError, UsageError
from seqloom.exchange.conversion import FAMILIES, import_model, read_directory
from seqloom.exchange.directory import Directory, write_directory
from seqloom.predict.loader import import_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_by_hand(tmp_path / "model")


def test_directory_is_read(folder: Path) -> None:
    found = read_directory(folder)
    assert found.family.name == "GPT-2"
    assert found.parameters == sum(tensor.numel() for tensor in weights().values())
    assert found.tokenizer.encode("the dog") == found.tokenizer.from_original_ids([0, 3])


# --- files ------------------------------------------------------------------------------------------------------------


def test_missing_directory_is_reported(tmp_path: Path) -> None:
    refused(tmp_path / "nothing", "nothing does not exist. Name a folder with config.json")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "is a file")
    refused(tmp_path, "it has no config.json")


@pytest.mark.parametrize("text", ["{", "[]", "", "\udcff", "[" * 100_000])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_invalid_json_is_rejected(folder: Path, name: str, text: str) -> None:
    (folder / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(folder, f"{name} is damaged: it")


def test_missing_tokenizer_is_reported(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    refused(folder, "has no tokenizer.json", "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)")


def test_missing_weights_are_reported(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    refused(folder, "has no weights", "(adapter_model.safetensors is not supported)")
    (folder / "model.onnx").touch()
    refused(folder, "(adapter_model.safetensors, model.onnx are not supported)")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt", "model.pkl"])
def test_pickles_are_not_loaded(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder / name)
    refused(folder, f"only pickled weights ({name})", "loading a pickle can run any code")
    save_file(weights(), folder / "model.safetensors")  # the folder also contains a pickle, which is not loaded
    (folder / name).write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    assert read_directory(folder).parameters


def test_remote_code_is_not_run(folder: Path) -> None:
    configure(folder, auto_map={"AutoModel": "modeling_evil.Evil"})
    refused(folder, "custom code (auto_map in config.json)", "seqloom never runs code that comes with weights")
    configure(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": "x.Y"}}))
    (folder / "modeling_evil.py").write_text("raise SystemExit('ran')")
    refused(folder, "(modeling_evil.py, auto_map in tokenizer_config.json)")


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_truncated_weights_are_rejected(folder: Path, kept: int) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:kept])
    refused(folder, "model.safetensors is damaged: it is not a complete safetensors file")


def test_invalid_header_is_rejected(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + content[8:])
    refused(folder, "not a complete safetensors file")
    (folder / "model.safetensors").write_bytes(content[:8] + b"{{" + content[10:])
    refused(folder, "not a complete safetensors file")


def shard_weights(folder: Path) -> dict[str, str]:
    tensors = sorted(weights().items())
    parts = {"model-1.safetensors": dict(tensors[:9]), "model-2.safetensors": dict(tensors[9:])}
    for name, own in parts.items():
        save_file(own, folder / name)
    (folder / "model.safetensors").unlink()
    index = {tensor: name for name, own in parts.items() for tensor in own}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return index


def reindex(folder: Path, index: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def test_sharded_weights_are_read(folder: Path) -> None:
    whole = read_directory(folder)
    index = shard_weights(folder)
    parts = read_directory(folder)
    assert all(torch.equal(parts.weights[name], whole.weights[name]) for name in whole.weights)
    assert set(parts.directory.sha256()) == set(index.values())


def test_missing_shard_is_reported(folder: Path) -> None:
    shard_weights(folder)
    (folder / "model-2.safetensors").unlink()
    refused(folder, "of 2 weight files, model-2.safetensors is missing. Download the complete directory.")
    (folder / "model-1.safetensors").unlink()
    refused(folder, "model-1.safetensors, model-2.safetensors are missing")


def test_truncated_shard_is_rejected(folder: Path) -> None:
    shard_weights(folder)
    content = (folder / "model-2.safetensors").read_bytes()
    (folder / "model-2.safetensors").write_bytes(content[:-5])
    refused(folder, "model-2.safetensors is damaged")


def test_inconsistent_shard_index_is_rejected(folder: Path) -> None:
    index = shard_weights(folder)
    reindex(folder, {**index, "transformer.more": "model-1.safetensors"})
    refused(folder, "no weight file has transformer.more")
    reindex(folder, {name: file for name, file in index.items() if name != "transformer.wpe.weight"})
    refused(folder, "does not list these tensors of the weight files: transformer.wpe.weight")
    wrong: Any
    for wrong in ({}, [], None, {"a": 1}):
        reindex(folder, wrong)
        refused(folder, "its weight_map must name a file for each tensor")


@pytest.mark.parametrize(
    "name", ["../model-1.safetensors", "/etc/passwd", "sub/a.safetensors", "a\\b.safetensors", "x.bin", ""]
)
def test_index_outside_directory_is_rejected(folder: Path, name: str) -> None:
    index = shard_weights(folder)
    reindex(folder, {**index, "transformer.more": name})
    refused(folder, "must name .safetensors files in the same folder")


# --- config.json ------------------------------------------------------------------------------------------------------


def test_unsupported_model_type_is_rejected(folder: Path) -> None:
    known = ", ".join(name for family in FAMILIES for name in family.model_types)
    configure(folder, model_type="gpt_neox")
    refused(folder, f"has the unsupported model_type 'gpt_neox'. seqloom supports {known}.")
    configure(folder, model_type=...)
    refused(folder, f"config.json has no model_type. seqloom supports {known}.")
    configure(folder, model_type=["gpt2"])
    refused(folder, "unsupported model_type")


def test_all_unsupported_values_are_reported(folder: Path) -> None:
    changes = {
        "activation_function": "quick_gelu",
        "scale_attn_by_inverse_layer_idx": True,
        "add_cross_attention": True,
        "n_layer": "two",
        "layer_norm_epsilon": None,
        "n_ctx": 20,
        "pruned_heads": {"0": [1]},
        "quantization_config": {"bits": 4},
        "some_new_thing": [1, 2],
    }
    configure(folder, **changes)
    message = refused(folder, "config.json is not supported by seqloom (9 problems):")
    assert message.split("\n")[1:] == [
        "  add_cross_attention must be false; it is true",
        "  scale_attn_by_inverse_layer_idx must be false; it is true",
        "  n_layer must be an integer of at least 1; it is 'two'",
        "  layer_norm_epsilon must be a number; it is null",
        "  activation_function must be gelu_new or gelu_pytorch_tanh or gelu or relu or silu or swish; "
        "it is 'quick_gelu'",
        "  n_ctx must be 10; it is 20",
        "  pruned_heads must be {}; it is {0: [1]}",
        "  quantization_config is unknown; it is {bits: 4}",
        "  some_new_thing is unknown; it is [1, 2]",
    ]


def test_keys_without_effect_are_ignored(folder: Path) -> None:
    aside = {"use_cache": False, "output_attentions": True, "torch_dtype": "float16", "summary_type": "mean"}
    aside |= {"task_specific_params": {"a": 1}, "transformers_version": "9", "gradient_checkpointing": True}
    plain = read_directory(folder)
    configure(folder, **aside)
    assert read_directory(folder).model == plain.model


def test_huge_sizes_are_rejected(folder: Path) -> None:
    configure(folder, vocab_size=10**12)
    message = refused(folder, "(1 problem)", "vocab_size must be an integer of at most 16777216; it is 1000000000000")
    assert message.count("\n") == 1
    configure(folder, n_layer=10**7, n_embd=10**9)
    refused(folder, "n_layer must be an integer of at most 1000", "n_embd must be an integer of at most")


def test_booleans_are_not_numbers(folder: Path) -> None:
    configure(folder, n_layer=True, tie_word_embeddings=1)
    refused(folder, "n_layer must be an integer", "tie_word_embeddings must be true or false; it is 1")


@pytest.mark.parametrize("model_type", ["gpt2", "bart"])
def test_several_end_tokens_are_rejected(folder: Path, model_type: str) -> None:
    configure(folder, model_type=model_type, eos_token_id=[3, 6])
    said = "eos_token_id must be a single token: edit config.json to keep the token that ends your texts; it is [3, 6]"
    refused(folder, said)
    configure(folder, eos_token_id=[END])
    assert read_directory(folder).tokenizer.order[0] == END


@pytest.mark.parametrize("end", [V, -1, "6", None])
def test_invalid_end_token_is_rejected(folder: Path, end: Any) -> None:
    configure(folder, eos_token_id=end)
    refused(folder, f"eos_token_id must be a single token id below vocab_size, {V}")


def test_invalid_start_token_is_rejected(folder: Path) -> None:
    configure(folder, bos_token_id=V)
    refused(folder, f"bos_token_id must be a single token id below vocab_size, {V}; it is {V}")


def test_d_model_must_be_divisible_by_heads(folder: Path) -> None:
    configure(folder, n_head=3)
    refused(folder, "d_model must be divisible by heads")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling must have the default type"),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}},
            "rope_parameters must have the default type",
        ),
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "type and only rope_theta",
        ),
        ({"rope_theta": 0.5}, "rope_theta must be a number above 1"),
        ({"head_dim": 3}, "head_dim must be 4; it is 3"),
        ({"hidden_act": "gelu"}, "hidden_act must be silu or swish; it is 'gelu'"),
        ({"attention_bias": True}, "mlp_bias must be true; it is false"),
    ],
)
def test_unsupported_llama_configs_are_rejected(folder: Path, changes: dict[str, Any], said: str) -> None:
    llama = {"model_type": "llama", "vocab_size": V, "hidden_size": 8, "num_attention_heads": 2, "eos_token_id": END}
    (folder / "config.json").write_text(json.dumps({**llama, **changes}))
    refused(folder, said)


# --- consistency ------------------------------------------------------------------------------------------------------


def test_config_that_contradicts_weights_is_rejected(folder: Path) -> None:
    configure(folder, n_layer=1, n_positions=12, n_inner=30)
    message = refused(folder, "do not match its config.json (16 mismatches):")
    assert "transformer.wpe.weight must be 12×8; it is 10×8" in message
    assert "transformer.h.0.mlp.c_fc.weight must be 8×30; it is 8×32" in message
    assert "transformer.h.1.attn.c_attn.weight (8×24) is not a tensor of the model" in message
    assert message.endswith("  and 4 more")
    configure(folder, n_layer=3)
    refused(folder, "(12 mismatches)", "transformer.h.2.ln_1.weight (8) is missing")


def test_different_tied_weights_are_rejected(folder: Path) -> None:
    tensors = weights()
    save_file({**tensors, "lm_head.weight": tensors["transformer.wte.weight"].clone()}, folder / "model.safetensors")
    assert read_directory(folder).model.tied
    save_file({**tensors, "lm_head.weight": tensors["transformer.wte.weight"] + 1}, folder / "model.safetensors")
    refused(folder, "lm_head.weight must equal transformer.wte.weight (tie_word_embeddings)")
    configure(folder, tie_word_embeddings=False)
    assert not read_directory(folder).model.tied
    save_file(tensors, folder / "model.safetensors")
    refused(folder, "lm_head.weight (17×8) is missing")


def test_stored_attention_masks_are_ignored(folder: Path) -> None:
    bare = {name.removeprefix("transformer."): tensor for name, tensor in weights().items()}
    masks = {f"h.{layer}.attn.{name}": torch.ones(1) for layer in range(2) for name in ("bias", "masked_bias")}
    save_file({**bare, **masks}, folder / "model.safetensors")  # as in the published GPT-2
    assert read_directory(folder).parameters


def test_unknown_head_is_rejected(folder: Path) -> None:
    save_file({**weights(), "score.weight": torch.ones(2, 8)}, folder / "model.safetensors")
    refused(folder, "score.weight (2×8) is not a tensor of the model")


def test_tokenizer_that_contradicts_embedding_is_rejected(folder: Path) -> None:
    configure(folder, vocab_size=V - 3)
    refused(folder, "tokenizer.json does not match the model: its ids go up to 14, but the model has 14 embeddings")
    configure(folder, vocab_size=V + 1)
    refused(folder, "transformer.wte.weight must be 18×8; it is 17×8")
    configure(folder, vocab_size=...)
    refused(folder, "vocab_size must be an integer of at least 1; it is missing")


def test_unreadable_tokenizer_is_rejected(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer_file(), "pre_tokenizer": {"type": "Unused"}}))
    refused(folder, "tokenizer.json does not match the model: the tokenizers library cannot read it")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"added_tokens": 3}, "a list of `added_tokens`"),
        (
            {"added_tokens": ["<s>"]},
            "each entry of `added_tokens` must have a whole number `id` and a string `content`; got '<s>'",
        ),
        (
            {"added_tokens": [{"id": "2", "content": "<s>"}]},
            "must have a whole number `id` and a string `content`; got {id: '2'",
        ),
        ({"added_tokens": [{"id": 2}]}, "must have a whole number `id` and a string `content`; got {id: 2}"),
        ({"model": None}, "it must have a `model`"),
    ],
)
@pytest.mark.parametrize("model_type", ["gpt2", "bert", "bart"])
def test_incomplete_tokenizer_is_rejected(folder: Path, model_type: str, changes: Any, said: str) -> None:
    configure(folder, model_type=model_type)
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer_file(), **changes}))
    refused(folder, "tokenizer.json does not match the model: ", said)


@pytest.mark.parametrize("vocabulary", [3, ["a"], [["a", 0.0]], [[]], {"[CLS]": "1"}])
def test_vocabulary_without_special_tokens_is_rejected(folder: Path, vocabulary: Any) -> None:
    configure(folder, model_type="bert")
    file = {"added_tokens": [], "model": {"type": "Unigram", "vocab": vocabulary}}
    (folder / "tokenizer.json").write_text(json.dumps(file))
    refused(folder, "must have the tokens [PAD], [CLS], [SEP], [MASK]; missing: [CLS], [SEP], [MASK]")


@pytest.mark.parametrize(
    "processor",
    [
        {"type": "RobertaProcessing"},
        {"type": "RobertaProcessing", "cls": ["<s>"], "sep": None},
        {"type": "TemplateProcessing", "single": [3]},
        {"type": "TemplateProcessing", "single": [], "special_tokens": {}},
        {"type": "Sequence", "processors": 3},
    ],
)
def test_damaged_post_processor_is_rejected(folder: Path, processor: Any) -> None:
    configure(folder, model_type="bart")
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer_file(), "post_processor": processor}))
    refused(folder, "tokenizer.json does not match the model: its post_processor is damaged.")


# --- runs -------------------------------------------------------------------------------------------------------------


def test_failed_import_leaves_no_files(folder: Path, tmp_path: Path) -> None:
    configure(folder, n_layer=3)
    with pytest.raises(CheckpointError):
        import_model(folder, tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_existing_run_is_kept(folder: Path, tmp_path: Path) -> None:
    import_model(folder, tmp_path / "run")
    with pytest.raises(UsageError, match=r"run already exists\. Choose another run directory"):
        import_model(folder, tmp_path / "run")


def test_run_records_its_source(folder: Path, tmp_path: Path) -> None:
    run, found = import_run(folder, tmp_path / "run")
    digest = found.directory.sha256()["model.safetensors"]
    assert run.data["imported"] == {
        "directory": "model",
        "family": "GPT-2",
        "sha256": {"model.safetensors": digest},
        "initialized": [],
        "unused": [],
    }
    card = (run.path / "card.md").read_text()
    assert digest in card
    assert "directory `model` (GPT-2)" in card
    assert str(tmp_path) not in card + (run.path / "recipe.yaml").read_text() + json.dumps(run.data)


def test_directory_is_written(tmp_path: Path) -> None:
    write_directory(tmp_path / "new", {"model_type": "x"}, {"w": torch.ones(2)}, {"a.json": {"b": 1}, "c.spm": b"raw"})
    found = Directory.open(tmp_path / "new")
    assert found.config == {"model_type": "x"}
    assert found.json("a.json") == {"b": 1}
    assert found.json("b.json") is None
    assert (tmp_path / "new" / "c.spm").read_bytes() == b"raw"
    assert torch.equal(found.tensors()["w"], torch.ones(2))
    with pytest.raises(UsageError, match=r"exists\. Choose another path"):
        write_directory(tmp_path / "new", {}, {}, {})
    (tmp_path / "empty").mkdir()
    write_directory(tmp_path / "empty", {}, {"w": torch.ones(2)}, {})


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", ""])
def test_unreadable_file_is_not_reported_as_missing(folder: Path, name: str) -> None:
    with as_unprivileged_user(folder) as own:
        read_directory(own)  # control
        forbid(own / name)
        refused(own, str(own / name), "cannot be read (Permission denied)")
