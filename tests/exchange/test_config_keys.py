"""Every key of a config.json is supported, has no effect, or is rejected. No key changes results silently.

Each key that `transformers` defines for a family is set to other values, one key at a time. Then either the directory
is rejected, or both sides compute the same logits.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("sentencepiece")
transformers = pytest.importorskip("transformers")
from tests.exchange import small_decoders, small_encoder_decoders  # noqa: E402
from tests.exchange.test_bert_exchange import rows, their_inputs  # noqa: E402
from tests.exchange.test_decoder_parity import encode_both  # noqa: E402
from tests.small_bert import save_bert  # noqa: E402

from seqloom.core.errors import CheckpointError  # noqa: E402
from seqloom.exchange.conversion import read_directory  # noqa: E402

ROPE = [
    {"rope_type": "default", "rope_theta": 500.0},
    {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0},
]
VALUES: dict[str, list[Any]] = {  # other values for keys whose value is not simply a number or a boolean
    "rope_parameters": ROPE,
    "rope_scaling": [{"type": "linear", "factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0}],
    "position_embedding_type": ["relative_key", "relative_key_query"],
    "sliding_window": [2, 5, None],
    "layer_types": [["sliding_attention", "full_attention"]],
    "n_inner": [20, None],
}
ACTIVATIONS = ["relu", "gelu", "gelu_new", "quick_gelu", "silu", "tanh"]
# Names, output formats, and keys that generation_config.json overrides.
SKIPPED = ("model_type", "transformers_version", "return_dict", "decoder_start_token_id")
# Keys of other families, which transformers ignores and seqloom may reject.
ELSEWHERE = {
    "attn_logit_softcapping": 1.0,
    "final_logit_softcapping": 1.0,
    "logit_scale": 0.5,
    "query_pre_attn_scalar": 2,
    "partial_rotary_factor": 0.5,
    "rotary_pct": 0.5,
    "use_sliding_window": True,
    "max_window_layers": 1,
    "layer_types": ["sliding_attention", "full_attention"],
    "attention_multiplier": 0.5,
    "residual_multiplier": 0.5,
    "embedding_multiplier": 2.0,
    "scale_attn_by_inverse_layer_idx": True,
    "alibi": True,
    "parallel_attn": True,
    "qk_norm": True,
    "quantization_config": {"bits": 4},
}


def other_values(key: str, value: Any) -> list[Any]:
    if key in VALUES:
        return VALUES[key]
    if "activation" in key or key == "hidden_act":
        return ACTIVATIONS
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value, 1]
    if isinstance(value, float):
        return [value + 0.25]
    return [True, 2] if value is None else []


def decoder(name: str) -> Callable[[Path], Any]:
    return lambda folder: small_decoders.write(folder, name)


def encoder_decoder(name: str) -> Callable[[Path], Any]:
    return lambda folder: small_encoder_decoders.write(folder, name)


MAKERS: dict[str, Callable[[Path], Any]] = {
    "gpt2": decoder("gpt2-2-heads"),
    "llama": decoder("llama-4-heads"),
    "mistral": decoder("mistral-slides"),
    "bert": lambda folder: save_bert(folder, num_attention_heads=4),
    "bart": encoder_decoder("bart-2-heads"),
    "marian": encoder_decoder("marian-2-heads"),
}


@torch.no_grad()
def their_logits(theirs: Any, found: Any) -> Tensor:
    """Return the logits of some texts in the token order of seqloom."""
    order = found.tokenizer.order
    if found.family.kind == "gpt":
        return theirs(encode_both(theirs, found.tokenizer)[0]).logits[..., order]
    if found.family.kind == "bert":
        batch = rows(found.tokenizer)
        told = theirs(**their_inputs(found.tokenizer, batch)).prediction_logits
        return told[..., order[: len(found.tokenizer)]][batch["mask"]]
    (source, mask), targets = small_encoder_decoders.sources(theirs), small_encoder_decoders.targets(theirs)
    before = len(small_encoder_decoders.before_targets(theirs))
    told = theirs(input_ids=source, attention_mask=mask, decoder_input_ids=targets).logits
    return told[:, before - 1 :, order]


@torch.no_grad()
def our_logits(theirs: Any, found: Any) -> Tensor:
    """Return the logits of the seqloom model for the same texts."""
    model = found.model.build(len(found.tokenizer)).eval()
    model.load_state_dict(found.weights)
    if found.family.kind == "gpt":
        return model(encode_both(theirs, found.tokenizer)[1])
    if found.family.kind == "bert":
        batch = rows(found.tokenizer)
        return model.masked_logits(model.read(**batch))[batch["mask"]]
    source, inputs = small_encoder_decoders.ours(found.tokenizer, theirs)
    return model(source["tokens"], source["mask"], inputs)


def changed(known: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in known.items():
        if key not in SKIPPED:
            yield from ((key, other) for other in other_values(key, value))
    yield from ((key, value) for key, value in ELSEWHERE.items() if key not in known)


def reload_logits(made: Any, folder: Path, found: Any) -> tuple[Any, Tensor] | None:
    """Reload the model of `transformers` with the current config and return its logits, or None if loading fails."""
    try:
        model = type(made)(type(made.config).from_pretrained(folder)).eval()
        model.load_state_dict(made.state_dict())
        model.generation_config = getattr(made, "generation_config", None)
        return model, their_logits(model, found)
    except Exception:
        return None


@pytest.mark.parametrize("name", MAKERS)
def test_no_key_changes_results_silently(name: str, tmp_path: Path) -> None:
    made = MAKERS[name](tmp_path / name)
    file = tmp_path / name / "config.json"
    plain = json.loads(file.read_text())
    first = their_logits(made, read_directory(tmp_path / name))
    honoured, refused, wrong = set(), set(), []
    for key, value in changed(made.config.to_dict()):
        file.write_text(json.dumps({**plain, key: value}))
        try:
            found = read_directory(tmp_path / name)
        except CheckpointError:
            refused.add(key)
            continue
        if (there := reload_logits(made, tmp_path / name, found)) is None:
            continue
        ours = our_logits(there[0], found)
        if ours.shape != there[1].shape or not torch.allclose(ours, there[1], atol=1e-4, rtol=0):
            wrong.append((key, value))
        elif ours.shape != first.shape or not torch.allclose(ours, first, atol=1e-4, rtol=0):
            honoured.add(key)
    assert not wrong
    # Otherwise, the comparison would not be meaningful
    assert len(honoured) >= 2 and len(refused) >= 10, (honoured, refused)
