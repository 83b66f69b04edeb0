"""Classifiers and taggers with a backbone: pooling, training, influence and additional encoders."""

from typing import Any

import pytest
import torch
from tests.fine_tuning import KINDS, SHAPES
from torch import Tensor

from seqloom.config import build
from seqloom.core.errors import UsageError
from seqloom.core.tokens import Specials
from seqloom.models.fine_tuned import (
    FineTunedClassifier,
    FineTunedClassifierConfig,
    FineTunedTagger,
    FineTunedTaggerConfig,
    Pooler,
)
from seqloom.text.model_inputs import frame_texts
from seqloom.train.optimizers import LayerGroups

V, LABELS = 20, 3
CAUSAL = ("recurrent-lm", "gpt")
FORMS: dict[str, Any] = {"bert": "bert", "electra": "bert", "bilm": "ends"}
TEXTS: tuple[list[int], ...] = ([3, 4, 5], [6], [7, 3, 8, 9, 4], [], [5, 5], [9, 10, 11], [12, 13], [14, 15, 16, 17])


def classifier(kind: str, predicts: bool = False, **options: Any) -> FineTunedClassifier:
    torch.manual_seed(3)
    config = build(FineTunedClassifierConfig, {"backbone": {"kind": kind, **SHAPES[kind]}, "dropout": 0.0, **options})
    model = config.build(V, LABELS, V if predicts else 0).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def batch_of(kind: str, texts: Any = TEXTS) -> dict[str, Tensor]:
    rows = [frame_texts(Specials.after(V), FORMS.get(kind, "causal"), text).tokens for text in texts]
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.arange(longest) < torch.tensor([[len(row)] for row in rows])
    return {"tokens": tokens, "mask": mask, "labels": torch.arange(len(rows)) % LABELS}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", ["extract", "last", "mean", "max", "attention"])
def test_single_text_gives_the_same_result_as_in_a_batch(kind: str, pooling: str) -> None:
    model = classifier(kind, pooling=pooling)
    together = model(batch_of(kind))
    assert together.shape == (len(TEXTS), LABELS)
    for row, text in enumerate(TEXTS):
        torch.testing.assert_close(model(batch_of(kind, [text]))[0], together[row], rtol=0, atol=1e-12)
    weights = model.attention(batch_of(kind))
    assert (weights is None) == (pooling != "attention")
    if weights is not None:
        torch.testing.assert_close(weights.sum(dim=1), torch.ones(len(TEXTS), dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_poolings_match_their_definitions(kind: str) -> None:
    model, batch = classifier(kind), batch_of(kind)
    h, ends = model.read(batch), batch["mask"].sum(dim=1) - 1
    (extracted, _), (last, _) = (
        Pooler(way, model.backbone.output_size)(model.backbone, h, batch["mask"]) for way in ("extract", "last")
    )
    rows = torch.arange(len(h))
    torch.testing.assert_close(last, h[rows, ends - 1])
    backbone: Any = model.backbone
    if FORMS.get(kind) == "bert":
        expected = backbone.pool(h[:, 0]).tanh()
    elif kind == "bilm":
        expected = torch.cat([h[rows, ends, :6], h[:, 0, 6:]], dim=1)
    else:
        expected = h[rows, ends]
    torch.testing.assert_close(extracted, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_eight_texts_are_memorized(kind: str) -> None:
    model, batch = classifier(kind), batch_of(kind)
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(130):
        optimizer.zero_grad()
        loss = model.loss(batch)[0]
        if loss < 0.04:
            break
        loss.backward()
        optimizer.step()
    assert model.loss(batch)[0] < 0.05
    assert (model.probabilities(batch).argmax(dim=1) == batch["labels"]).all()


@pytest.mark.parametrize("kind", CAUSAL)
def test_language_model_loss_is_added(kind: str) -> None:
    model, batch = classifier(kind, predicts=True), batch_of(kind)
    plain, count = model.loss(batch)
    both, _ = model.loss(batch, language_model=0.5)
    h = model.read(batch)
    torch.testing.assert_close(both, plain + 0.5 * model.backbone.next_token_loss(h, batch["tokens"], batch["mask"]))
    assert both > plain and int(count) == len(TEXTS)
    model.loss(batch, language_model=0.5)[0].backward()
    assert all(parameter.grad is not None for parameter in model.backbone.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_influence_matches_finite_differences(kind: str) -> None:
    """Scale the embedding of a token by 1 + ε at every occurrence."""
    model, text = classifier(kind), [7, 3, 8, 9, 4]
    batch, labels = batch_of(kind, [text]), torch.tensor([1])
    result, step = model.influence(batch, labels)[0], 1e-6
    for token in batch["tokens"][0].tolist():
        row, ends = model.backbone.token_embedding().weight, []
        for size in (1 + step, 1 - step):
            with torch.no_grad():
                kept = row[token].clone()
                row[token] *= size
                ends.append(model(batch)[0, 1].item())
                row[token] = kept
        influence = result[batch["tokens"][0] == token].sum().item()
        assert influence == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-6)
    assert not model.backbone.token_embedding()._forward_hooks  # the hook is removed


@pytest.mark.parametrize("kind", KINDS)
def test_padding_has_no_gradient(kind: str) -> None:
    model, batch = classifier(kind, pooling="mean"), batch_of(kind, [[3, 4, 5], [6]])
    batch["tokens"][1, 3:] = 19  # a token that occurs only at padding
    model.loss(batch)[0].backward()
    gradient = model.backbone.token_embedding().weight.grad
    assert gradient is not None
    assert (gradient[19] == 0).all() and (gradient[6] != 0).any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("crf", [False, True])
def test_tagger_reads_words_at_their_first_tokens(kind: str, crf: bool) -> None:
    torch.manual_seed(5)
    config = build(FineTunedTaggerConfig, {"backbone": {"kind": kind, **SHAPES[kind]}, "crf": crf, "dropout": 0.0})
    model = config.build(V, 4).double().eval()
    assert isinstance(model, FineTunedTagger)
    batch = batch_of(kind, [[3, 4, 5], [6, 7]])
    batch |= {"first": torch.tensor([[1, 3], [2, 0]]), "words": torch.tensor([[True, True], [True, False]])}
    batch["tags"] = torch.tensor([[1, 2], [3, 0]])
    emissions = model(batch)
    torch.testing.assert_close(emissions[0, 1], model.output(model.read(batch)[0, 3]))
    assert model.predict(batch).shape == (2, 2)
    torch.testing.assert_close(model.probabilities(batch).sum(dim=2), batch["words"].double())
    value, count = model.loss(batch)
    assert int(count) == 3
    value.backward()
    assert model.chain.learned == crf
    assert not crf or model.chain.transitions.grad is not None


@pytest.mark.parametrize("kind", KINDS)
def test_last_layer_group_has_the_parameters_above_the_backbone(kind: str) -> None:
    model = classifier(kind, predicts=kind in CAUSAL, pooling="attention")
    *below, head = model.layer_groups()
    assert len(below) == 3  # embeddings and two layers
    assert {id(p) for p in (*model.output.parameters(), *model.pooler.parameters())} <= set(map(id, head))
    everything = [id(parameter) for group in (*below, head) for parameter in group]
    assert sorted(everything) == sorted(map(id, model.parameters()))


def test_missing_backbone_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"init\.from"):
        FineTunedClassifierConfig().build(V, LABELS)
    with pytest.raises(ValueError, match="dropout must be"):
        FineTunedTaggerConfig(dropout=1.0)


# --- additional encoder -----------------------------------------------------------------------------------------------

ENCODER = {"kind": "recurrent", "cell": "gru", "hidden": 5}


@pytest.mark.parametrize("kind", ["bert", "bilm"])
@pytest.mark.parametrize("pooling", ["extract", "last", "max", "attention"])
def test_encoder_reads_the_backbone_states(kind: str, pooling: str) -> None:
    model, batch = classifier(kind, pooling=pooling, encoder=ENCODER), batch_of(kind)
    assert model.encoder is not None and model.encoder.output_size == model.output.in_features == 10
    together = model(batch)
    for row, text in enumerate(TEXTS):
        torch.testing.assert_close(model(batch_of(kind, [text]))[0], together[row], rtol=0, atol=1e-12)
    if pooling == "extract":  # `extract` uses the final state
        ends = model.encoder.read(model.backbone.read(batch["tokens"], batch["mask"]), batch["mask"])[1]
        torch.testing.assert_close(together, model.output(ends))
    assert not torch.allclose(together, classifier(kind, pooling=pooling)(batch))


def test_tagger_supports_an_encoder() -> None:
    torch.manual_seed(3)
    backbone = {"kind": "bilm", **SHAPES["bilm"]}
    model = (
        build(FineTunedTaggerConfig, {"backbone": backbone, "encoder": ENCODER, "dropout": 0.0})
        .build(V, 4)
        .double()
        .eval()
    )
    batch = {**batch_of("bilm", [[3, 4, 5], [6]]), "first": torch.tensor([[1, 3], [1, 0]])}
    assert model.encoder is not None
    h = model.encoder(model.backbone.read(batch["tokens"], batch["mask"]), batch["mask"])
    rows = torch.tensor([[0, 0], [1, 1]])
    torch.testing.assert_close(model(batch), model.output(h[rows, batch["first"]]))


def test_mix_and_task_layers_are_trained_above_a_frozen_backbone() -> None:
    model, batch = classifier("bilm", encoder=ENCODER), batch_of("bilm")
    groups = LayerGroups(model.layer_groups(), freeze=3)
    assert len(groups.parameters) == 4  # embeddings, two layers, and the layers of the task
    groups.unfreeze(0)
    model.loss(batch)[0].backward()
    learning = {name.split(".")[0] for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert learning == {"backbone", "encoder", "output"}
    of_the_body = {name for name, parameter in model.backbone.named_parameters() if parameter.grad is not None}
    assert of_the_body == {"mix.weights", "mix.scale"}


def test_max_length_is_the_minimum_of_backbone_and_encoder() -> None:
    learned = {"kind": "transformer", "d_model": 8, "heads": 2, "positions": {"kind": "learned", "max_length": 9}}
    for kind, encoder, longest in (
        ("gpt", None, 32),
        ("gpt", learned, 9),
        ("bilm", learned, 9),
        ("bilm", ENCODER, None),
    ):
        config = build(FineTunedClassifierConfig, {"backbone": {"kind": kind, **SHAPES[kind]}, "encoder": encoder})
        assert config.longest == longest


def test_invalid_encoder_is_reported() -> None:
    with pytest.raises(UsageError, match=r"encoder\.hidden: must be at least 1") as error:
        build(FineTunedTaggerConfig, {"encoder": {**ENCODER, "hidden": 0, "layers": 0}}, source="the recipe")
    assert "encoder.layers: must be at least 1" in str(error.value)
