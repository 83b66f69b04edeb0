"""What stands before a text where it is not END, and outputs without a bias: as in models from elsewhere."""

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


def made(config: GPTConfig = CONFIG) -> GPT:
    torch.manual_seed(1)
    model = config.build(V).double().eval()
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def plain(model: GPT) -> GPT:
    """The same weights without a token of its own to begin with."""
    other = replace(model.config, bos=None).build(V).double().eval()
    other.load_state_dict(model.state_dict())
    return other


def rows(*ids: int) -> Tensor:
    return torch.tensor([ids])


def test_end_at_place_0_is_read_as_the_beginning() -> None:
    model = made()
    told = model(rows(END, 3, 4, END, 5))
    torch.testing.assert_close(told, plain(model)(rows(BEGIN, 3, 4, END, 5)))  # and a later END is the end
    assert (told - plain(model)(rows(END, 3, 4, END, 5))).abs().max() > 1e-3
    torch.testing.assert_close(model(rows(2, 3)), plain(model)(rows(2, 3)))  # nothing else is


def test_every_document_of_a_row_begins_so() -> None:
    model = made()
    documents = rows(1, 1, 1, 2, 2)
    told = model(rows(END, 3, 4, END, 5), documents)
    torch.testing.assert_close(told[:, :3], model(rows(END, 3, 4)))
    torch.testing.assert_close(told[:, 3:], model(rows(END, 5)))


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_step_by_step(cut: int) -> None:
    model = made()
    ids = rows(END, 3, 4, END, 5, 6)
    wanted = model(ids).log_softmax(dim=-1)
    state = model.start(rows=1)
    for start in range(0, ids.shape[1], cut):
        piece = ids[:, start : start + cut]
        output = model.step(piece, state)
        state = output.state
        torch.testing.assert_close(output.log_probs, wanted[:, start + piece.shape[1] - 1])


def test_padding_before_a_text() -> None:
    model = made()
    ids, mask = torch.tensor([[0, 0, END, 3, 4]]), torch.tensor([[False, False, True, True, True]])
    output = model.step(ids, model.start(rows=1), mask)
    torch.testing.assert_close(output.log_probs, model(rows(END, 3, 4)).log_softmax(dim=-1)[:, -1])


def test_a_body_begins_so_too() -> None:
    model = made()
    backbone = GPTBackbone(CONFIG, V, predicts=True).double().eval()
    backbone.load_pretrained(model.state_dict(), "it")
    ids = rows(END, 3, 4)
    torch.testing.assert_close(backbone.next_token_logits(backbone.read(ids, torch.ones_like(ids).bool())), model(ids))


def test_a_token_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="bos must be at least 0; got -1"):
        GPTConfig(bos=-1)
    with pytest.raises(UsageError, match=r"model\.bos must be one of the 11 tokens of the vocabulary; got 11"):
        GPTConfig(bos=V).build(V)


@pytest.mark.parametrize("tied", [True, False])
def test_no_bias(tied: bool) -> None:
    model = made(replace(CONFIG, tied=tied))
    assert "output.bias" not in model.state_dict()
    ids, targets = rows(END, 3, 4), rows(3, 4, 5)
    h = model.backbone.read(ids)
    logits = h @ model.output.weight.t()
    torch.testing.assert_close(model(ids), logits)
    loss, _ = model.loss(ids, targets)
    torch.testing.assert_close(loss, F.cross_entropy(logits[0], targets[0]))
    loss.backward()
    found = [parameter.grad for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = None
    F.cross_entropy(model(ids)[0], targets[0]).backward()
    for grad, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(grad, parameter.grad)


def test_a_bias_is_there_if_it_is_asked_for() -> None:
    assert "output.bias" in GPTConfig(d_model=8, heads=2, layers=1, output_bias=True).build(V).state_dict()
    assert GPTBackbone(CONFIG, V, predicts=True).output.bias is None  # type: ignore[union-attr]
