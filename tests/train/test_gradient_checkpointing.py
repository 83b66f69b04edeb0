"""Recomputed activations give bit-identical gradients, including with dropout, and use less memory."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from seqloom.core.memory import measure_peak
from seqloom.models.bert import BERTConfig
from seqloom.models.classifier import ClassifierConfig
from seqloom.models.gpt import GPTConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig
from seqloom.models.recurrent_seq2seq import AttentionConfig, RecurrentSeq2SeqConfig
from seqloom.models.transformer import TransformerConfig
from seqloom.nn.encoders import TransformerEncoderConfig
from seqloom.recipes import read_recipe
from seqloom.tasks.language_model import Task
from seqloom.train.config import FitConfig
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState, recomputable_layers
from seqloom.train.wrappers import recompute_activations, wrap

CPU = torch.device("cpu")
V, B, T = 20, 4, 48
BODY: dict[str, Any] = {"d_model": 16, "heads": 2, "layers": 6, "dropout": 0.2, "attention_dropout": 0.1}


def tokens() -> Tensor:
    return torch.randint(1, V, (B, T), generator=torch.Generator().manual_seed(1))


def mask() -> Tensor:
    return torch.arange(T) < torch.tensor([[T], [T - 3], [9], [1]])


def stream(model: Any) -> Tensor:
    return model.loss(tokens(), tokens())[0]


def pairs(model: Any) -> Tensor:
    some = tokens()
    batch = {"source": some, "source_mask": mask(), "inputs": some, "targets": some, "target_mask": mask()}
    return model.loss(batch, 0.1)[0]


def hidden(model: Any) -> Tensor:
    positions = torch.arange(T).expand(B, T)
    return model.loss({"tokens": tokens(), "mask": mask(), "positions": positions, "targets": tokens()})


def classes(model: Any) -> Tensor:
    return model.loss({"tokens": tokens(), "mask": mask(), "labels": torch.tensor([0, 1, 1, 0])})[0]


def recurrent(cell: str) -> Callable[[], Any]:
    config = RecurrentLMConfig(cell=cell, hidden=16, layers=4, dropout=0.2, weight_dropout=0.3)
    return lambda: config.build(V)


def translator(order: str) -> Callable[[], Any]:
    attention = AttentionConfig(order=order, score="additive")  # type: ignore[arg-type]
    return lambda: RecurrentSeq2SeqConfig(hidden=16, dropout=0.2, attention=attention).build(V)


ENCODER = TransformerEncoderConfig(d_model=16, heads=2, layers=6, dropout=0.2)
# For each model: how to build it, its loss, and the maximum memory ratio with recomputation.
MODELS: dict[str, tuple[Callable[[], Any], Callable[[Any], Tensor], float]] = {
    "gpt": (lambda: GPTConfig(**BODY).build(V), stream, 0.45),
    "bert": (lambda: BERTConfig(**BODY).build(V), hidden, 0.45),
    "transformer": (
        lambda: TransformerConfig(d_model=16, heads=2, encoder_layers=4, decoder_layers=4, dropout=0.2).build(V),
        pairs,
        0.45,
    ),
    "classifier": (lambda: ClassifierConfig(embedding=16, encoder=ENCODER).build(V, 2), classes, 0.45),
    "lstm": (recurrent("lstm"), stream, 0.7),
    "gru-cho": (recurrent("gru-cho"), stream, 0.7),
    "bahdanau": (translator("bahdanau"), pairs, 0.7),
    "luong": (translator("luong"), pairs, 0.95),  # scores all states in one operation, so that little memory is saved
}


def measure_training(model: Any, loss: Callable[[Any], Tensor]) -> tuple[float, list[Tensor | None], int]:
    torch.manual_seed(7)
    parameters = [*model.parameters()]
    with measure_peak(CPU, parameters) as peak:
        value = loss(model.train())
        value.backward()
    numbers = 2 * 4 * sum(p.numel() for p in parameters)  # weights and their gradients
    return value.item(), [p.grad for p in parameters], peak.bytes - numbers


@pytest.mark.parametrize("kind", MODELS)
def test_recomputation_gives_equal_gradients_with_less_memory(kind: str) -> None:
    torch.manual_seed(0)
    build, loss, at_most = MODELS[kind]
    plain = build()
    other = copy.deepcopy(plain)
    layers = recomputable_layers(other)
    assert layers
    value, gradients, peak = measure_training(plain, loss)
    with recompute_activations(layers):
        again, same, less = measure_training(other, loss)
    assert value == again
    for expected, actual in zip(gradients, same, strict=True):
        assert (expected is None and actual is None) or torch.equal(expected, actual)  # type: ignore[arg-type]
    assert less < at_most * peak


def test_checkpointing_is_off_without_gradients() -> None:
    model = GPTConfig(**BODY).build(V)
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    for block in model.backbone.blocks:
        block.feed_forward.register_forward_hook(count)
    with recompute_activations(recomputable_layers(model)):
        model.eval()
        stream(model).backward()
        assert calls == 6
        with torch.no_grad():
            stream(model.train())
        assert calls == 12
        stream(model).backward()
        assert calls == 24
    stream(model).backward()
    assert calls == 30


def test_layers_are_restored_even_after_an_error() -> None:
    model = GPTConfig(**BODY).build(V)
    layers = recomputable_layers(model)
    with pytest.raises(KeyError), recompute_activations(layers):
        assert all("forward" in vars(layer) for layer in layers)
        raise KeyError
    assert not any("forward" in vars(layer) for layer in layers)


def test_copied_model_recomputes_and_keeps_weight_names() -> None:
    model = GPTConfig(**BODY).build(V)
    names = list(model.state_dict())
    with recompute_activations(recomputable_layers(model)):
        copied = copy.deepcopy(model)
        assert list(copied.state_dict()) == names
        with torch.no_grad():
            for parameter in copied.parameters():
                parameter.zero_()
        stream(copied.train()).backward()
    assert all(p.grad is None for p in model.parameters())
    assert any(p.grad is not None for p in copied.parameters())


def test_training_gives_equal_weights_with_less_memory(tiny_task) -> None:
    small = [
        "batch.size=8",
        "batch.length=32",
        "model.d_model=16",
        "model.layers=6",
        "train.steps=3",
        "train.device=cpu",
    ]

    def train(*words: str) -> TrainState:
        _, recipe = read_recipe("gpt-facts", [*small, *words])
        state = TrainState(Task.prepare(recipe), recipe.train, 1)
        step = wrap(state)
        for _ in range(3):
            make_step(state, step)
        return state

    plain, twice = train(), train("train.gradient_checkpointing=true")
    for expected, actual in zip(plain.model.parameters(), twice.model.parameters(), strict=True):
        assert torch.equal(expected, actual)
    assert twice.tally.memory < 0.8 * plain.tally.memory
    assert not any("recompute" in note for note in twice.notes())
    none = TrainState(tiny_task(), FitConfig(steps=2, device="cpu", gradient_checkpointing=True), 1)
    assert none.notes() == ["train.gradient_checkpointing has no effect: the model has no blocks or layers"]
