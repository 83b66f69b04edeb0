"""Small random GPT-2 and Llama models in directories of `transformers`."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn

from seqloom.core.errors import CheckpointError
from seqloom.exchange.conversion import read_directory

WORDS = ["the", "a", "<s>", "dog", "cat", "sees", "</s>", "barks", "<unk>", "and", "old", "big", "then", "it", "runs"]
SPARE = 2  # number of embedding rows after those of the tokenizer
V = len(WORDS) + SPARE
BEGIN, END, UNKNOWN = WORDS.index("<s>"), WORDS.index("</s>"), WORDS.index("<unk>")
LONGEST = 40

# The models cover odd heads, tied weights, activations, start tokens, ε, sizes, grouped heads and rotary bases.
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2-2-heads": {},
    "gpt2-3-heads": {"n_embd": 24, "n_head": 3, "n_layer": 3, "activation_function": "relu", "bos_token_id": BEGIN},
    "gpt2-untied": {"n_embd": 20, "n_head": 5, "tie_word_embeddings": False, "activation_function": "gelu"},
    "gpt2-1-head": {"n_embd": 15, "n_head": 1, "n_inner": 7, "n_layer": 1, "activation_function": "silu"},
    "gpt2-7-heads": {"n_embd": 14, "n_head": 7, "layer_norm_epsilon": 1e-3, "activation_function": "gelu_pytorch_tanh"},
    "gpt2-inner-1": {"n_embd": 4, "n_inner": 1, "n_layer": 1},
    "gpt2-no-begin": {"n_embd": 12, "n_head": 4, "bos_token_id": None, "n_inner": 50},
    "llama-4-heads": {},
    "llama-grouped": {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 24},
    "llama-tied": {"tie_word_embeddings": True, "num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 18},
    "llama-biased": {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3, "num_hidden_layers": 3},
    "llama-slow-angles": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "hidden_size": 40},
    "llama-width-2": {"hidden_size": 2, "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 1},
    "llama-5-heads": {"hidden_size": 30, "num_attention_heads": 5, "num_key_value_heads": 5, "bos_token_id": END},
    "mistral": {"sliding_window": None, "num_key_value_heads": 2, "bos_token_id": BEGIN},
    "mistral-window": {"sliding_window": LONGEST, "num_attention_heads": 2, "num_key_value_heads": 1},
    "mistral-slides": {"sliding_window": 3, "num_attention_heads": 2, "num_key_value_heads": 1},
    "mistral-slides-5": {"sliding_window": 5, "num_hidden_layers": 3, "bos_token_id": BEGIN},
    "mistral-slides-2": {"sliding_window": 2, "num_key_value_heads": 2},
}
BASE: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 16, "n_head": 2, "n_layer": 2, "n_positions": LONGEST, "bos_token_id": END},
    "llama": {
        "hidden_size": 16,
        "intermediate_size": 20,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": LONGEST,
        "bos_token_id": BEGIN,
    },
}
BASE["mistral"] = BASE["llama"]


def tokenizer_file() -> dict[str, Any]:
    made = Tokenizer(models.WordLevel({word: id for id, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["<s>", "</s>", "<unk>"])
    found: dict[str, Any] = json.loads(made.to_str())
    return found


def make(name: str, **changes: Any) -> Any:
    """Return a random model in evaluation mode."""
    import transformers

    kind = name.partition("-")[0]
    configs = {"gpt2": "GPT2Config", "llama": "LlamaConfig", "mistral": "MistralConfig"}
    classes = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}
    settings = {"vocab_size": V, "eos_token_id": END, **BASE[kind], **SHAPES.get(name, {}), **changes}
    config = getattr(transformers, configs[kind])(**settings)
    torch.manual_seed(7)
    model = getattr(transformers, classes[kind])(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            norm = parameter.dim() == 1 and "weight" in key
            nn.init.uniform_(parameter, *((0.5, 1.5) if norm else (-0.5, 0.5)))
        _ends(model)
    return model


def _ends(model: Any) -> None:
    """Move the output vector of END towards the mean of h, so that some texts end."""
    read = torch.cat([torch.full((4, 1), begins(model)), texts()], dim=1)
    found = model(read, output_hidden_states=True)
    mean, logits = found.hidden_states[-1].mean(dim=(0, 1)), found.logits
    missing = (logits.max(dim=-1).values - logits[..., END]).mean()
    model.lm_head.weight[END] += 0.9 * missing * mean / mean.square().sum()


def save(model: Any, directory: Path, **options: Any) -> Path:
    """Save a model with `save_pretrained`, with a tokenizer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(directory, **options)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer_file()))
    return directory


def write(directory: Path, name: str, **changes: Any) -> Any:
    model = make(name, **changes)
    save(model, directory)
    return model


def begins(model: Any) -> int:
    """Return the id of the start token in `transformers`."""
    found = model.config.bos_token_id
    return END if found is None else int(found)


def texts(rows: int = 4, length: int = 11) -> Tensor:
    """Return random texts as ids of `transformers` (rows, length)."""
    plain = torch.tensor([id for id in range(V) if id not in (BEGIN, END)])
    return plain[torch.randint(len(plain), (rows, length), generator=torch.Generator().manual_seed(3))]


# --- without transformers ---------------------------------------------------------------------------------------------

CONFIG: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": V,
    "n_embd": 8,
    "n_head": 2,
    "n_layer": 2,
    "n_positions": 10,
    "bos_token_id": END,
    "eos_token_id": END,
    "architectures": ["GPT2LMHeadModel"],
}


def weights(rows: int = V, places: int = 10) -> dict[str, Tensor]:
    """Return weights of two layers with d_model 8."""
    wide = {"attn.c_attn": (8, 24), "attn.c_proj": (8, 8), "mlp.c_fc": (8, 32), "mlp.c_proj": (32, 8)}
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (rows, 8), "wpe.weight": (places, 8)}
    for layer in ("h.0", "h.1"):
        for name, shape in wide.items():
            shapes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[1:]}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"{layer}.{name}.weight": (8,), f"{layer}.{name}.bias": (8,)}
    shapes |= {"ln_f.weight": (8,), "ln_f.bias": (8,)}
    generator = torch.Generator().manual_seed(1)
    return {f"transformer.{name}": torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write_by_hand(path: Path) -> Path:
    """Write a directory with a tiny GPT-2 that has a few words."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer_file()))
    save_file(weights(), path / "model.safetensors", {"format": "pt"})
    return path


def write_of_bytes(path: Path) -> Path:
    """Write a directory with a tiny GPT-2 of bytes and a context of 256."""
    names = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({name: id for id, name in enumerate(names)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(names[:1])
    path.mkdir(parents=True)
    sizes = {"vocab_size": len(names), "n_positions": 256, "bos_token_id": 0, "eos_token_id": 0}
    (path / "config.json").write_text(json.dumps({**CONFIG, **sizes}))
    made.save(str(path / "tokenizer.json"))
    save_file(weights(len(names), 256), path / "model.safetensors", {"format": "pt"})
    return path


def configure(folder: Path, **changes: Any) -> None:
    config = {**CONFIG, **changes}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def refused(folder: Path, *said: str) -> str:
    with pytest.raises(CheckpointError) as error:
        read_directory(folder)
    message = str(error.value)
    for part in said:
        assert part in message
    assert error.value.exit_code == 4
    return message
