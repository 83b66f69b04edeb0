"""Models with all faster implementations equal their definitions."""

from typing import Any

import pytest
import torch
from tests.models.small_seq2seq import model as recurrent
from tests.models.small_transformer import SWITCHES, transformer
from torch import Tensor, nn

from seqloom import accel
from seqloom.accel import layers
from seqloom.accel.decoding import write_in_place
from seqloom.nn.cache import write_slots
from seqloom.nn.masks import all_known_true, any_known_true, select_real

V, S, T = 11, 21, 19  # long enough for fused attention on a CPU


def make_batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    source, targets = (torch.randint(1, V, (3, size), generator=generator) for size in (S, T))
    lengths = torch.tensor([[0], [4], [9]])
    return {
        "source": source,
        "source_mask": torch.arange(S) < S - lengths,
        "inputs": torch.cat([torch.zeros_like(targets[:, :1]), targets[:, :-1]], dim=1),
        "targets": targets,
        "target_mask": torch.arange(T) < T - lengths,
    }


def loss_and_gradients(model: Any) -> list[Tensor]:
    loss = model.loss(make_batch(), 0.1)[0]
    return [loss, *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)]


def assert_equal_to_definition(model: nn.Module) -> None:
    model = model.double().eval()
    fast = loss_and_gradients(model)
    with accel.disabled():
        plain = loss_and_gradients(model)
    for actual, expected in zip(fast, plain, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", SWITCHES)
def test_transformer_matches_the_reference_implementation(name: str) -> None:
    assert_equal_to_definition(transformer(**SWITCHES[name]))


@pytest.mark.parametrize("options", [{}, {"bidirectional": False}, {"attention": None}, {"reverse": True}])
def test_recurrent_encoder_decoder_matches_the_reference_implementation(options: dict[str, Any]) -> None:
    assert_equal_to_definition(recurrent(**options))


def test_select_real_keeps_every_real_position() -> None:
    batch = make_batch()
    x, mask = torch.randn(3, T, 4), batch["target_mask"]
    assert torch.equal(layers.select_on_cpu(x, mask), select_real.definition(x, mask)[mask.flatten()])


def test_masks_on_other_devices_are_not_read() -> None:
    mask = torch.ones(3, dtype=torch.bool)
    assert all_known_true.definition(mask) and any_known_true.definition(mask)
    assert not layers.assume_false(mask)
    assert layers.is_not_on_cpu(mask.to("meta")) and not layers.is_not_on_cpu(mask)


def test_slots_are_written_in_place_or_to_a_copy() -> None:
    buffer, keys, values = torch.zeros(2, 3, 2, 5, 4), torch.randn(2, 3, 2, 4), torch.randn(2, 3, 2, 4)
    copy = write_slots.definition(buffer, 1, keys, values)
    assert not buffer.any() and torch.equal(copy[:, :, 0, 1:3], keys) and torch.equal(copy[:, :, 1, 1:3], values)
    assert write_in_place(buffer, 1, keys, values) is buffer and torch.equal(buffer, copy)


def test_wrong_implementation_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformer()
    assert_equal_to_definition(model)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda q, k, v, **_: q)
    with pytest.raises(AssertionError):
        assert_equal_to_definition(model)
