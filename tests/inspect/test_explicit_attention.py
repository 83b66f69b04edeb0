"""The pass with explicit attention weights computes the same values as the fast pass.

The output of each attention, MultiHead(…), is recorded layer by layer in both passes of a whole model. The outputs must
be equal and in the same order, and the fast pass must use the fused kernel. Recurrent attention has a single
implementation, which `test_alignment_view` compares with the search.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.fine_tuning import SHAPES
from tests.models.small_transformer import SWITCHES, transformer
from torch import Tensor, nn

from seqloom.accel.layers import MAX_PLAIN_QUERIES
from seqloom.config import build
from seqloom.core.tokens import Specials
from seqloom.models.bert import BERTConfig
from seqloom.models.classifier import ClassifierConfig
from seqloom.models.electra import ElectraConfig
from seqloom.models.fine_tuned import FineTunedClassifierConfig, FineTunedTaggerConfig
from seqloom.models.gpt import GPTConfig
from seqloom.models.tagger import TaggerConfig
from seqloom.nn import attention
from seqloom.nn.attention import MultiHeadAttention
from seqloom.nn.positions import PositionsConfig
from seqloom.text.model_inputs import frame_texts

V, S, T = 11, MAX_PLAIN_QUERIES + 5, MAX_PLAIN_QUERIES + 3  # long enough for the fused kernel on a CPU
SHAPE: dict[str, Any] = {"d_model": 16, "heads": 4, "layers": 2, "d_ff": 24, "dropout": 0.0}
BACKBONES: dict[str, dict[str, Any]] = {**SHAPES, "transformer": {"d_model": 16, "heads": 4, "dropout": 0.0}}
ENCODER = {"kind": "transformer", "d_model": 16, "heads": 2, "dropout": 0.0, "attention_dropout": 0.0}


def ready(model: nn.Module) -> Any:
    """Convert to float64, with weights that give sharp attention."""
    torch.manual_seed(5)
    model = model.double().eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.5)
    return model


def contributions(model: nn.Module, run: Callable[[], Any]) -> tuple[list[Tensor], Any]:
    """Return the outputs of each attention during a run, and its result."""
    seen: list[Tensor] = []
    parts = [module.out for module in model.modules() if isinstance(module, MultiHeadAttention)]
    handles = [part.register_forward_hook(lambda module, given, made: seen.append(made)) for part in parts]
    try:
        with torch.no_grad():
            return seen, run()
    finally:
        for handle in handles:
            handle.remove()


def agree(
    model: nn.Module, fast: Callable[[], Any], explicit: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Run both passes, compare the outputs of every attention, and return the result of the explicit pass."""
    used = {"fused": 0, "open": 0}

    def counting(name: str, function: Callable[..., Any]) -> Any:
        def counted(*arguments: Any, **options: Any) -> Any:
            used[name] += 1
            return function(*arguments, **options)

        return counted

    kernel, definition = F.scaled_dot_product_attention, attention.attention_with_weights
    monkeypatch.setattr(F, "scaled_dot_product_attention", counting("fused", kernel))
    monkeypatch.setattr(attention, "attention_with_weights", counting("open", definition))
    first, _ = contributions(model, fast)
    assert used["fused"] == len(first) > 0 and used["open"] == 0
    second, result = contributions(model, explicit)
    assert used["fused"] == len(first) and used["open"] == len(second) == len(first)
    for fast_output, explicit_output in zip(first, second, strict=True):
        torch.testing.assert_close(fast_output, explicit_output, rtol=1e-9, atol=1e-11)
        assert fast_output.std() > 0.01  # the outputs are not constant
    return result


def pairs() -> dict[str, Tensor]:
    torch.manual_seed(6)
    source, targets = torch.randint(1, V, (1, S)), torch.randint(1, V, (1, T))
    return {
        "source": source,
        "source_mask": torch.ones_like(source, dtype=torch.bool),
        "inputs": torch.cat([torch.zeros_like(targets[:, :1]), targets[:, :-1]], dim=1),
        "targets": targets,
        "target_mask": torch.ones_like(targets, dtype=torch.bool),
    }


def text(tokens: list[int] | None = None) -> dict[str, Tensor]:
    torch.manual_seed(7)
    row = torch.randint(1, V, (1, S)) if tokens is None else torch.tensor([tokens])
    return {
        "tokens": row,
        "mask": torch.ones_like(row, dtype=torch.bool),
        "first": torch.arange(0, row.shape[1], 2).unsqueeze(0),
        "words": torch.ones(1, (row.shape[1] + 1) // 2, dtype=torch.bool),
    }


@pytest.mark.parametrize("name", SWITCHES)
def test_explicit_attention_of_translator_matches_fused_attention(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = ready(transformer(**SWITCHES[name])), pairs()
    agree(model, lambda: model.target_log_probs(batch), lambda: model.attentions(batch), monkeypatch)


@pytest.mark.parametrize(
    "options",
    [
        {"positions": PositionsConfig(kind="learned", max_length=64)},
        {"positions": PositionsConfig(kind="rotary"), "context": 64, "kv_heads": 1},
        {"context": 64, "norm_first": False, "embed_norm": True},
    ],
    ids=["learned", "rotary", "norms after"],
)
def test_explicit_attention_of_gpt_matches_fused_attention(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokens = ready(GPTConfig(**{**SHAPE, **options}).build(V)), text()["tokens"]
    agree(model, lambda: model(tokens), lambda: model.attentions(tokens), monkeypatch)


@pytest.mark.parametrize("config", [BERTConfig, ElectraConfig])
def test_explicit_attention_of_encoder_matches_fused_attention(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = ready(config(**SHAPE, positions=PositionsConfig(kind="rotary")).build(V)), text()["tokens"]
    agree(model, lambda: model.backbone.read(tokens), lambda: model.attentions(tokens), monkeypatch)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(
            lambda: build(ClassifierConfig, {"embedding": 16, "encoder": ENCODER}).build(V, 3, 0), id="labels"
        ),
        pytest.param(lambda: build(TaggerConfig, {"embedding": 12, "encoder": ENCODER}).build(V, 4, 0), id="tags"),
    ],
)
def test_explicit_attention_of_encoder_models_matches_fused_attention(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, batch = ready(model()), text()
    agree(made, lambda: made(batch), lambda: made.attentions(batch), monkeypatch)


@pytest.mark.parametrize("config", [FineTunedClassifierConfig, FineTunedTaggerConfig])
@pytest.mark.parametrize("kind", ["gpt", "bert", "electra", "transformer"])
def test_explicit_attention_of_fine_tuned_model_matches_fused_attention(
    kind: str, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = {"kind": kind, **BACKBONES[kind]}
    model = ready(build(config, {"backbone": backbone, "dropout": 0.0}).build(V, 3))
    batch = text(frame_texts(Specials.after(V), model.backbone.form, torch.randint(1, V, (S,)).tolist()).tokens)
    agree(model, lambda: model(batch), lambda: model.attentions(batch), monkeypatch)


def test_different_forward_pass_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = ready(GPTConfig(**SHAPE, context=64).build(V)), text()["tokens"]
    with pytest.raises(AssertionError):
        agree(model, lambda: model(tokens), lambda: model.attentions(tokens.flip(1)), monkeypatch)
