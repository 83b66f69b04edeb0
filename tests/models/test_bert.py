"""BERT: documents, padding, masked tokens, loss and training."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from seqloom.core.errors import UsageError
from seqloom.core.tokens import EXTRA
from seqloom.data.masking import MaskedBatches, MasksConfig, pack
from seqloom.models.bert import BERT, BERTConfig
from seqloom.nn.positions import PositionsConfig

V, S = 30, 24
SHAPE: dict[str, Any] = {"d_model": 16, "heads": 2, "layers": 2, "d_ff": 32, "dropout": 0.0}
POSITIONS = {
    "learned": PositionsConfig(kind="learned", max_length=S),
    "rotary": PositionsConfig(kind="rotary"),
    "sinusoidal": PositionsConfig(),
}


def bert(kind: str = "learned", **changes: Any) -> BERT:
    torch.manual_seed(3)
    model = BERTConfig(**{**SHAPE, "positions": POSITIONS[kind], **changes}).build(V).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def packed(texts: list[list[int]], model: BERT, masks: MasksConfig | None = None) -> dict[str, Any]:
    batches = MaskedBatches(
        pack(texts, model.specials, S),
        masks=masks or MasksConfig(),
        masking="static",
        specials=model.specials,
        vocabulary=V,
        size=8,
    )
    return batches.batch(1, 0)


TEXTS = [[5, 6, 7], [8, 9, 10, 11], [12, 13], [4] * 9]  # texts of one row


@pytest.mark.parametrize("kind", POSITIONS)
@pytest.mark.parametrize("norm_first", [False, True])
def test_packed_documents_give_the_same_results_as_separate_documents(kind: str, norm_first: bool) -> None:
    """The state of each token in a packed row equals its state in the separate document."""
    model = bert(kind, norm_first=norm_first)
    source = pack(TEXTS, model.specials, S + 4)
    assert len(source.tokens) == 1 and source.documents.max() == 4
    tokens, documents = (torch.from_numpy(part.astype(np.int64)) for part in source)
    h = model.read(tokens, documents > 0, None, documents)
    for number in range(1, 5):
        selected = documents[0] == number
        alone = model.read(tokens[:, selected])
        torch.testing.assert_close(h[:, selected], alone, rtol=1e-10, atol=1e-12)


def test_packed_documents_are_independent() -> None:
    model = bert()
    source = pack(TEXTS, model.specials, S + 4)
    tokens, documents = (torch.from_numpy(part.astype(np.int64)) for part in source)
    changed = torch.where((documents == 1) & (tokens < V), 29, tokens)
    assert (changed != tokens).any()
    before, after = (model.read(text, documents > 0, None, documents) for text in (tokens, changed))
    others = documents > 1
    assert torch.equal(before[others], after[others])
    assert not torch.equal(before[documents == 1], after[documents == 1])
    vectors = torch.randn(1, S + 4, 16, dtype=torch.float64, requires_grad=True)
    model.backbone.embed.register_forward_hook(lambda *_: vectors)
    model.read(tokens, documents > 0, None, documents)[documents == 2].square().sum().backward()
    assert vectors.grad is not None
    reached = vectors.grad.abs().sum(dim=2) > 0
    assert torch.equal(reached, documents == 2)


def test_documents_that_are_not_numbered_affect_each_other() -> None:
    model = bert()
    source = pack(TEXTS, model.specials, S)
    tokens, documents = (torch.from_numpy(part.astype(np.int64)) for part in source)
    changed = torch.where((documents == 1) & (tokens < V), 29, tokens)
    before, after = (model.read(text, documents > 0) for text in (tokens, changed))
    assert not torch.equal(before[documents == 2], after[documents == 2])


def test_padding_has_no_effect() -> None:
    model = bert()
    tokens, segments = torch.randint(1, V, (3, 10)), torch.tensor([[0] * 6 + [1] * 4] * 3)
    more = F.pad(tokens, (0, 5), value=7)
    mask = torch.arange(15).expand(3, -1) < 10
    read = model.read(more, mask, F.pad(segments, (0, 5)))
    torch.testing.assert_close(read[:, :10], model.read(tokens, None, segments), rtol=1e-10, atol=1e-12)


def test_states_depend_on_context_on_both_sides_and_on_positions_and_segments() -> None:
    model, tokens = bert(), torch.arange(1, 9).unsqueeze(0)
    plain = model.read(tokens)
    for position in (0, 7):
        changed = tokens.clone()
        changed[0, position] = 20
        # Every position depends on the changed token
        assert (model.read(changed) - plain).abs().amax(dim=2).min() > 1e-6
    assert not torch.allclose(model.read(tokens.flip(1)).flip(1), plain)
    assert not torch.allclose(model.read(tokens, None, torch.ones_like(tokens)), plain)


def test_loss_is_the_mean_over_masked_positions() -> None:
    model = bert()
    batch = packed(TEXTS, model, MasksConfig(mlm_probability=0.4))
    h = model.read(batch["tokens"], batch["mask"], None, batch["documents"])
    log_probs = model.masked_logits(h).log_softmax(dim=2)
    assert log_probs.shape == (*batch["tokens"].shape, V)  # special tokens are never predicted
    losses = [
        -log_probs[row, position, target]
        for row, (positions, targets) in enumerate(zip(batch["positions"], batch["targets"], strict=True))
        for position, target in zip(positions.tolist(), targets.tolist(), strict=True)
        if target >= 0
    ]
    torch.testing.assert_close(model.loss(batch), torch.stack(losses).mean(), rtol=1e-10, atol=1e-12)
    other = torch.tensor([1, 0])[: len(h)]
    pair = F.cross_entropy(model.next_logits(h), other)
    both = model.loss({**batch, "other": other})
    torch.testing.assert_close(both, torch.stack(losses).mean() + pair, rtol=1e-10, atol=1e-12)


def test_row_without_masked_tokens_has_zero_loss() -> None:
    model = bert()
    batch = packed(TEXTS, model)
    batch["targets"] = torch.full_like(batch["targets"], -1)
    assert model.loss(batch).item() == 0


def test_eight_rows_are_memorized() -> None:
    torch.manual_seed(0)
    model = BERTConfig(**{**SHAPE, "d_model": 32, "norm_first": True}).build(V)
    batch = packed([torch.randint(1, V, (20,)).tolist() for _ in range(8)], model)
    batch["other"] = torch.tensor([0, 1] * 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(150):
        optimizer.zero_grad()
        loss = model.loss(batch)
        if loss.item() < 0.02:
            break
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.02


def test_embeddings_and_output_layer_are_tied() -> None:
    model = bert()
    names = dict(model.named_parameters())
    assert model.backbone.embed.weight.shape == (V + EXTRA, 16)
    assert not [name for name, tensor in names.items() if tensor.shape == (V, 16)]
    with torch.no_grad():
        model.backbone.embed.weight[V:] += 1  # the rows of special tokens
        before = model.masked_logits(torch.ones(1, 16, dtype=torch.float64))
        model.backbone.embed.weight[3] *= 2
        after = model.masked_logits(torch.ones(1, 16, dtype=torch.float64))
    assert (before != after).nonzero().tolist() == [[0, 3]]


def test_attention_weights_of_every_layer_and_head_sum_to_one() -> None:
    layers = bert().attentions(torch.arange(1, 9).unsqueeze(0))
    assert [tuple(layer.shape) for layer in layers] == [(1, 2, 8, 8)] * 2
    assert all(torch.allclose(layer.sum(dim=3), torch.ones(1, 2, 8, dtype=torch.float64)) for layer in layers)


def test_text_longer_than_the_positions_is_rejected() -> None:
    with pytest.raises(UsageError, match=rf"has {S} positions, but a text has {S + 1} tokens"):
        bert().read(torch.ones(1, S + 1, dtype=torch.long))
