"""Training does not store the logits of a complete batch, even with a large vocabulary."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from seqloom.core.memory import measure_peak
from seqloom.models.backbones import build_backbone
from seqloom.models.bert import BERTConfig
from seqloom.models.bilm import BiLMConfig
from seqloom.models.gpt import GPTConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig
from seqloom.models.recurrent_seq2seq import RecurrentSeq2SeqConfig
from seqloom.models.transformer import TransformerConfig
from seqloom.models.window_lm import WindowLMConfig

V, B, T = 20_000, 32, 16
LOGITS = B * T * V * 4  # bytes of all logits of a batch
SHAPE: dict[str, Any] = {"d_model": 8, "heads": 2, "layers": 1}


def tokens() -> Tensor:
    return torch.randint(1, V, (B, T), generator=torch.Generator().manual_seed(1))


def stream(model: Any) -> Tensor:
    return model.loss(tokens(), tokens())[0]


def pairs(model: Any) -> Tensor:
    some, mask = tokens(), torch.ones(B, T, dtype=torch.bool)
    batch = {"source": some, "source_mask": mask, "inputs": some, "targets": some, "target_mask": mask}
    return model.loss(batch, 0.1)[0]


def hidden(model: Any) -> Tensor:
    positions = torch.arange(T).expand(B, T)
    return model.loss({"tokens": tokens(), "mask": positions >= 0, "positions": positions, "targets": tokens()})


def bilm_loss(model: Any) -> Tensor:
    return model.loss({"tokens": tokens(), "mask": torch.ones(B, T, dtype=torch.bool)})


def loss_beside(backbone: Any) -> Tensor:
    mask = torch.ones(B, T, dtype=torch.bool)
    return backbone.next_token_loss(backbone.read(tokens(), mask), tokens(), mask)


MODELS: dict[str, tuple[Callable[[], Any], Callable[[Any], Tensor]]] = {
    "recurrent-lm": (lambda: RecurrentLMConfig(hidden=8).build(V), stream),
    "tied": (lambda: RecurrentLMConfig(hidden=8, tied=True).build(V), stream),
    "window-lm": (lambda: WindowLMConfig(hidden=8, embedding=4).build(V), stream),
    "gpt": (lambda: GPTConfig(**SHAPE).build(V), stream),
    "bert": (lambda: BERTConfig(**SHAPE).build(V), hidden),
    "bilm": (lambda: BiLMConfig(hidden=8).build(V), bilm_loss),
    "seq2seq": (lambda: RecurrentSeq2SeqConfig(hidden=8).build(V), pairs),
    "transformer": (lambda: TransformerConfig(d_model=8, heads=2).build(V), pairs),
    "a backbone's next token": (lambda: build_backbone(GPTConfig(**SHAPE), V, True), loss_beside),
}


@pytest.mark.parametrize("kind", MODELS)
def test_training_never_stores_all_logits(kind: str) -> None:
    torch.manual_seed(0)
    build, loss = MODELS[kind]
    model = build()
    numbers = 4 * sum(p.numel() for p in model.parameters())
    with measure_peak(torch.device("cpu"), model.parameters()) as peak:
        loss(model).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert peak.bytes < 4 * numbers + LOGITS * 2 / 3
