"""Bidirectional language model: equality with two torch LSTMs, causality of each direction, loss and training."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seqloom.config import build
from seqloom.core.errors import UsageError
from seqloom.models.bilm import BiLM, BiLMConfig

V, H = 11, 6
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tied": True},
    "one layer": {"layers": 1},
    "gru, residual": {"cell": "gru", "connections": "residual", "layers": 3},
    "highway": {"connections": "highway"},
    "dense, small": {"connections": "dense", "init": 0.3},
}


def model(**options: Any) -> BiLM:
    torch.manual_seed(5)
    bilm = BiLMConfig(**{"hidden": H, **options}).build(V).double().eval()
    for parameter in bilm.parameters():
        nn.init.normal_(parameter, std=0.4)
    return bilm


@pytest.fixture(params=KINDS)
def bilm(request: pytest.FixtureRequest) -> BiLM:
    return model(**KINDS[request.param])


def batch(lengths: tuple[int, ...] = (7, 4, 2, 7), width: int = 7) -> dict[str, Tensor]:
    tokens = torch.randint(1, V, (len(lengths), width), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(width) < torch.tensor(lengths).unsqueeze(1)
    return {"tokens": tokens.masked_fill(~mask, 0), "mask": mask}


def lstm(stack: Any) -> nn.LSTM:
    """Return a torch LSTM with the weights of a stack."""
    bilm = nn.LSTM(H, H, num_layers=len(stack.cells), batch_first=True).double()
    for depth, cell in enumerate(stack.cells):
        for theirs, ours in (
            ("weight_ih", "weight_x"),
            ("weight_hh", "weight_h"),
            ("bias_ih", "bias_x"),
            ("bias_hh", "bias_h"),
        ):
            getattr(bilm, f"{theirs}_l{depth}").data = getattr(cell, ours).data
    return bilm


def test_states_match_those_of_two_torch_lstms() -> None:
    ours = model()
    tokens = batch()["tokens"][:1]
    x = ours.backbone.embed(tokens)
    right, left = ours(tokens, torch.ones_like(tokens, dtype=torch.bool))
    forwards, backwards = lstm(ours.backbone.forwards)(x)[0], lstm(ours.backbone.backwards)(x.flip(1))[0].flip(1)
    for result, h in ((right, forwards), (left, backwards)):
        torch.testing.assert_close(result, h @ ours.output.weight.T + ours.output.bias, rtol=0, atol=1e-10)
    h = ours.read(tokens, torch.ones_like(tokens, dtype=torch.bool))
    torch.testing.assert_close(h, torch.cat([forwards, backwards], dim=2), rtol=0, atol=1e-10)


def test_neither_direction_reads_its_targets(bilm: BiLM) -> None:
    given = batch()
    right, left = bilm(given["tokens"], given["mask"])
    other = given["tokens"].clone()
    other[0, 3] = other[0, 3] % (V - 1) + 1
    changed_right, changed_left = bilm(other, given["mask"])
    assert torch.equal(right[0, :3], changed_right[0, :3]) and torch.equal(left[0, 4:], changed_left[0, 4:])
    assert not torch.equal(right[0, 3:], changed_right[0, 3:]) and not torch.equal(left[0, :4], changed_left[0, :4])
    assert torch.equal(right[1:], changed_right[1:]) and torch.equal(left[1:], changed_left[1:])


def test_targets_and_padding_have_no_gradient(bilm: BiLM) -> None:
    given, seen = batch(), []
    handle = bilm.backbone.embed.register_forward_hook(lambda *arguments: seen.append(arguments[2].requires_grad_()))
    right, left = bilm(given["tokens"], given["mask"])
    handle.remove()
    (to_right,) = torch.autograd.grad(right[0, 2].sum(), seen[0], retain_graph=True)
    (to_left,) = torch.autograd.grad(left[0, 4].sum(), seen[0], retain_graph=True)
    assert to_right[0, :3].abs().sum() > 0 and not to_right[0, 3:].any() and not to_right[1:].any()
    assert to_left[0, 4:].abs().sum() > 0 and not to_left[0, :4].any()
    (padding,) = torch.autograd.grad(bilm.loss(given), bilm.backbone.embed.weight)
    # Padding uses an embedding, which has a gradient only if it is tied to the output layer
    assert not padding[0].any() or bilm.config.tied


def test_single_row_gives_the_same_result_as_in_a_batch(bilm: BiLM) -> None:
    given = batch()
    right, left = bilm.log_probs(given)
    assert right.shape == left.shape == (4, 6)
    for row, length in enumerate((7, 4, 2, 7)):
        alone = {name: value[row : row + 1, :length] for name, value in given.items()}
        for together, single in zip((right, left), bilm.log_probs(alone), strict=True):
            torch.testing.assert_close(together[row, : length - 1], single[0], rtol=0, atol=1e-12)
            assert not together[row, length - 1 :].any()


def test_loss_is_the_mean_of_both_directions(bilm: BiLM) -> None:
    given = batch()
    tokens, mask = given["tokens"], given["mask"]
    after, before = (logits.log_softmax(dim=2) for logits in bilm(tokens, mask))
    right = after[:, :-1].gather(2, tokens[:, 1:, None]).squeeze(2)[mask[:, 1:]]
    left = before[:, 1:].gather(2, tokens[:, :-1, None]).squeeze(2)[mask[:, 1:]]
    torch.testing.assert_close(bilm.loss(given), -(right.mean() + left.mean()) / 2)
    with torch.no_grad():  # without gradients, another implementation is used
        torch.testing.assert_close(bilm.loss(given), -(right.mean() + left.mean()) / 2)
    scored = bilm.log_probs(given)
    torch.testing.assert_close(scored[0].sum() + scored[1].sum(), right.sum() + left.sum())


def test_texts_are_memorized() -> None:
    """The first tokens are excluded, because they cannot be predicted."""
    bilm = BiLMConfig(hidden=24, layers=1).build(V)
    tokens = torch.tensor([[0, n, n + 1, (3 * n) % 7 + 1, n, 0] for n in range(1, 9)])
    given = {"tokens": tokens, "mask": torch.ones_like(tokens, dtype=torch.bool)}
    optimizer = torch.optim.Adam(bilm.parameters(), lr=0.03)
    for _ in range(150):
        optimizer.zero_grad()
        bilm.loss(given).backward()
        optimizer.step()
    right, left = bilm.log_probs(given)
    assert right[:, 1:].mean() > -0.1 and left[:, :-1].mean() > -0.1
    assert right[:, 0].mean().item() == pytest.approx(-torch.tensor(8.0).log().item(), abs=0.2)


def test_dropout_is_active_only_in_training() -> None:
    bilm, given = model(dropout=0.4, embedding_dropout=0.2, weight_dropout=0.2, variational_dropout=True), batch()
    assert torch.equal(bilm.loss(given), bilm.loss(given))
    bilm.train()
    assert not torch.equal(bilm.loss(given), bilm.loss(given))


def test_tied_embeddings_are_one_matrix() -> None:
    tied = model(tied=True)
    assert tied.output.weight is tied.backbone.embed.weight
    assert model().output.weight is not model().backbone.embed.weight


def test_all_problems_are_reported() -> None:
    wrong = {"layers": 0, "hidden": 0, "dropout": 1.0, "weight_dropout": -1, "init": 0.0, "cell": "lst"}
    with pytest.raises(UsageError) as error:
        build(BiLMConfig, wrong, source="the recipe")
    for key in ("layers", "hidden", "dropout", "weight_dropout", "init"):
        assert f"{key}: must be" in str(error.value)
    assert "did you mean lstm" in str(error.value)
