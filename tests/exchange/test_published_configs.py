"""All keys of published config.json files, including older versions, are supported."""

from typing import Any

import pytest

from seqloom.config import build
from seqloom.exchange.conversion import FAMILIES, find_family
from seqloom.exchange.family import Config, Ids
from seqloom.models.gpt import GPTConfig

GPT2: dict[str, Any] = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}
LLAMA: dict[str, Any] = {
    "_name_or_path": "meta-llama/Llama-2-7b-hf",
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 5632,
    "max_position_embeddings": 2048,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 22,
    "num_key_value_heads": 4,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "transformers_version": "4.31.0.dev0",
    "use_cache": True,
    "vocab_size": 32000,
}
CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "GPT-2": (GPT2, {"d_model": 768, "heads": 12, "layers": 12, "longest": 1024, "window": 1024, "bos": None}),
    "distilled": (
        {**GPT2, "n_layer": 6, "_num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}},
        {"layers": 6, "tied": True},
    ),
    "TinyLlama": (LLAMA, {"kv_heads": 4, "feed_forward_size": 5632, "bos": 2, "window": 2048, "norm_epsilon": 1e-5}),
    "Llama without groups": (
        {key: value for key, value in LLAMA.items() if key not in ("num_key_value_heads", "pretraining_tp")},
        {"kv_heads": None, "tied": False},
    ),
    "SmolLM": (
        {
            **LLAMA,
            "hidden_size": 576,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "eos_token_id": 0,
            "bos_token_id": 0,
            "is_llama_config": True,
            "rope_interleaved": False,
            "rope_theta": 100000,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "pad_token_id": None,
            "tie_word_embeddings": True,
            "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}},
        },
        {"heads": 9, "kv_heads": 3, "bos": None, "tied": True},
    ),
    "Mistral": (
        {
            "architectures": ["MistralForCausalLM"],
            "bos_token_id": 1,
            "eos_token_id": 2,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "initializer_range": 0.02,
            "intermediate_size": 14336,
            "max_position_embeddings": 32768,
            "model_type": "mistral",
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.34.0.dev0",
            "use_cache": True,
            "vocab_size": 32000,
        },
        {"window": 32768, "sliding_window": 4096, "kv_heads": 8, "bias": False},
    ),
}


def read(mapping: dict[str, Any]) -> tuple[GPTConfig, Config]:
    family = find_family(mapping["model_type"], "here")
    config = Config(mapping, "here")
    end, last = family.special_ids(config, {})
    order = [end, *(id for id in range(mapping["vocab_size"]) if id != end)]
    section = family.read_config(config, Ids(order, len(order) - len(last)))
    config.check()
    return build(GPTConfig, section), config


@pytest.mark.parametrize("name", CONFIGS)
def test_published_config_is_read(name: str) -> None:
    mapping, wanted = CONFIGS[name]
    model, config = read(mapping)
    assert {key: getattr(model, key) for key in wanted} == wanted
    assert config.problems == []


@pytest.mark.parametrize("name", CONFIGS)
def test_exported_config_is_read_unchanged(name: str) -> None:
    """Exporting and importing a config does not change it."""
    mapping, _ = CONFIGS[name]
    model, _ = read(mapping)
    family = next(family for family in FAMILIES if not list(family.obstacles(model)))
    end = mapping["eos_token_id"]
    order = [end, *(id for id in range(mapping["vocab_size"]) if id != end)]
    written = {"model_type": family.model_types[0], **family.write_config(model, Ids(order, len(order)))}
    again, _ = read(written)
    assert again == model


def test_rotary_base_is_read() -> None:
    for theta in ({"rope_theta": 500000.0}, {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}):
        assert read({**LLAMA, **theta})[0].positions.base == 500000.0
    assert read(LLAMA)[0].positions.base == 10000.0
