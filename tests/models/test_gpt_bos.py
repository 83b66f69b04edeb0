"""The option `bos`, and outputs without bias, both of which imported models use."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.errors import UsageError
from seqloom.models.gpt import GPT, GPTBackbone, GPTConfig
from seqloom.text import END

V, BEGIN = 11, 7
CONFIG = GPTConfig(d_model=8, heads=2, layers=2, dropout=0.0, bos=BEGIN, context=16)


def build_gpt(config: GPTConfig = CONFIG) -> GPT:
    torch.manual_seed(1)
    model = config.build(V).double().eval()
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def without_bos(model: GPT) -> GPT:
    """Return a model with the same weights without `bos`."""
    other = replace(model.config, bos=None).build(V).double().eval()
    other.load_state_dict(model.state_dict())
    return other


def rows(*ids: int) -> Tensor:
    return torch.tensor([ids])


def test_first_end_is_read_as_bos() -> None:
    model = build_gpt()
    outputs = model(rows(END, 3, 4, END, 5))
    # An END at a later position is unchanged
    torch.testing.assert_close(outputs, without_bos(model)(rows(BEGIN, 3, 4, END, 5)))
    assert (outputs - without_bos(model)(rows(END, 3, 4, END, 5))).abs().max() > 1e-3
    torch.testing.assert_close(model(rows(2, 3)), without_bos(model)(rows(2, 3)))  # other tokens are unchanged


def test_every_packed_document_starts_with_bos() -> None:
    model = build_gpt()
    documents = rows(1, 1, 1, 2, 2)
    outputs = model(rows(END, 3, 4, END, 5), documents)
    torch.testing.assert_close(outputs[:, :3], model(rows(END, 3, 4)))
    torch.testing.assert_close(outputs[:, 3:], model(rows(END, 5)))


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_steps_with_bos_match_one_forward_pass(cut: int) -> None:
    model = build_gpt()
    ids = rows(END, 3, 4, END, 5, 6)
    expected = model(ids).log_softmax(dim=-1)
    state = model.start(rows=1)
    for start in range(0, ids.shape[1], cut):
        piece = ids[:, start : start + cut]
        output = model.step(piece, state)
        state = output.state
        torch.testing.assert_close(output.log_probs, expected[:, start + piece.shape[1] - 1])


def test_bos_is_read_after_left_padding() -> None:
    model = build_gpt()
    ids, mask = torch.tensor([[0, 0, END, 3, 4]]), torch.tensor([[False, False, True, True, True]])
    output = model.step(ids, model.start(rows=1), mask)
    torch.testing.assert_close(output.log_probs, model(rows(END, 3, 4)).log_softmax(dim=-1)[:, -1])


def test_backbone_reads_the_bos_token() -> None:
    model = build_gpt()
    backbone = GPTBackbone(CONFIG, V, predicts=True).double().eval()
    backbone.load_pretrained(model.state_dict(), "it")
    ids = rows(END, 3, 4)
    torch.testing.assert_close(backbone.next_token_logits(backbone.read(ids, torch.ones_like(ids).bool())), model(ids))


def test_invalid_bos_is_rejected() -> None:
    with pytest.raises(ValueError, match="bos must be at least 0; got -1"):
        GPTConfig(bos=-1)
    with pytest.raises(UsageError, match=r"model\.bos must be one of the 11 tokens of the vocabulary; got 11"):
        GPTConfig(bos=V).build(V)


@pytest.mark.parametrize("tied", [True, False])
def test_output_has_no_bias_by_default(tied: bool) -> None:
    model = build_gpt(replace(CONFIG, tied=tied))
    assert "output.bias" not in model.state_dict()
    ids, targets = rows(END, 3, 4), rows(3, 4, 5)
    h = model.backbone.read(ids)
    logits = h @ model.output.weight.t()
    torch.testing.assert_close(model(ids), logits)
    loss, _ = model.loss(ids, targets)
    torch.testing.assert_close(loss, F.cross_entropy(logits[0], targets[0]))
    loss.backward()
    result = [parameter.grad for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = None
    F.cross_entropy(model(ids)[0], targets[0]).backward()
    for grad, parameter in zip(result, model.parameters(), strict=True):
        torch.testing.assert_close(grad, parameter.grad)


def test_output_bias_is_optional() -> None:
    assert "output.bias" in GPTConfig(d_model=8, heads=2, layers=1, output_bias=True).build(V).state_dict()
    assert GPTBackbone(CONFIG, V, predicts=True).output.bias is None  # type: ignore[union-attr]
