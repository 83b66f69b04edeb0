"""Backbones: loaded weights give the results of the pretrained model, and mismatches are reported."""

from typing import Any

import pytest
import torch
from tests.fine_tuning import KINDS, SHAPES, token_vectors
from torch import Tensor

from seqloom.config import build
from seqloom.core.errors import UsageError
from seqloom.core.tokens import EXTRA, Specials
from seqloom.models import MODELS
from seqloom.models.backbones import BACKBONES, Backbone, backbone_class, build_backbone
from seqloom.models.bilm import BiLM, BiLMBackbone
from seqloom.nn.pooling import LayerMix

V = 20
CLASSIFY, SEPARATE = Specials.after(V).classify, Specials.after(V).separate


def form_of(config: Any) -> str:
    return backbone_class(config).form


def max_length_of(config: Any) -> int | None:
    return backbone_class(config).longest(config)


def can_predict(config: Any) -> bool:
    return backbone_class(config).can_predict(config)


def config_of(kind: str, **changes: Any) -> Any:
    return build(MODELS.find(kind), {"kind": kind, **SHAPES[kind], **changes})


def build_pretrained(config: Any, seed: int = 1) -> Any:
    """Build a pretrained model in float64 without zero parameters."""
    torch.manual_seed(seed)
    model = config.build(V).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def load_backbone(config: Any, model: Any, predicts: bool = False) -> Backbone:
    torch.manual_seed(9)
    backbone = build_backbone(config, V, predicts).double().eval()
    backbone.load_pretrained(model.state_dict(), "runs/pretrained")
    return backbone


def pretrained_h(model: Any, tokens: Tensor, mask: Tensor) -> Tensor:
    if hasattr(model, "stack"):
        h: Tensor = model.stack.read(model.embed_tokens(tokens), mask)[0]
        return h
    if isinstance(model, BiLM):  # all layers have equal weights in the mixture
        return LayerMix(3).double()(model.backbone(tokens, mask).layer_states())
    h = model.backbone.read(tokens, mask)
    return h


def padded(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return tokens (3, 6) without special tokens, in rows of lengths 6, 4 and 1."""
    tokens = torch.randint(V, (3, 6), generator=torch.Generator().manual_seed(seed))
    return tokens, torch.arange(6) < torch.tensor([[6], [4], [1]])


@pytest.mark.parametrize("kind", KINDS)
def test_backbone_states_match_those_of_the_pretrained_model(kind: str) -> None:
    config = config_of(kind)
    model = build_pretrained(config)
    backbone, (tokens, mask) = load_backbone(config, model), padded()
    actual, expected = backbone.read(tokens, mask), pretrained_h(model, tokens, mask)
    assert torch.equal(actual[mask], expected[mask])
    assert actual.shape == (3, 6, backbone.output_size)
    assert not torch.allclose(
        build_backbone(config, V).double().eval().read(tokens, mask)[mask], expected[mask]
    )  # negative control


@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_of_special_tokens_are_loaded_or_random(kind: str) -> None:
    config = config_of(kind)
    model = build_pretrained(config)
    before = model.state_dict()
    embeddings = load_backbone(config, model).token_embedding().weight
    expected = token_vectors(kind, before)
    assert embeddings.shape == (V + EXTRA, expected.shape[1])
    assert torch.equal(embeddings[: len(expected)], expected)
    assert len(expected) == (V + EXTRA if kind in ("bert", "electra") else V)
    assert (embeddings[V:] != 0).all()


def test_bert_pooler_and_segments_are_loaded() -> None:
    config = config_of("bert")
    model = build_pretrained(config)
    backbone = load_backbone(config, model)
    tokens = torch.tensor([[CLASSIFY, 3, SEPARATE, 5, SEPARATE, 0], [CLASSIFY, 3, 4, SEPARATE, 6, SEPARATE]])
    segments, mask = torch.tensor([[0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1]]), torch.ones(2, 6, dtype=torch.bool)
    mask[0, 5] = False
    h = backbone.read(tokens, mask, segments)
    assert torch.equal(h[mask], model.read(tokens, mask, segments)[mask])
    assert not torch.equal(h[mask], backbone.read(tokens, mask)[mask])
    assert torch.equal(backbone.extract(h, mask), model.pool(h[:, 0]).tanh())


@pytest.mark.parametrize("kind", ["recurrent-lm", "gpt"])
def test_causal_backbone_extracts_the_last_state(kind: str) -> None:
    config = config_of(kind)
    backbone, (tokens, mask) = load_backbone(config, build_pretrained(config)), padded()
    h = backbone.read(tokens, mask)
    assert torch.equal(backbone.extract(h, mask), torch.stack([h[0, 5], h[1, 3], h[2, 0]]))
    other = tokens.clone()
    other[0, 3] = (other[0, 3] + 1) % V
    assert torch.equal(backbone.read(other, mask)[0, :3], h[0, :3])  # the model is causal
    assert not torch.equal(backbone.read(other, mask)[0, 3:], h[0, 3:])


@pytest.mark.parametrize("kind", KINDS)
def test_padding_has_no_effect(kind: str) -> None:
    config = config_of(kind)
    backbone, (tokens, mask) = load_backbone(config, build_pretrained(config)), padded()
    together = backbone.extract(backbone.read(tokens, mask), mask)
    for row, length in enumerate((6, 4, 1)):
        alone, real = tokens[row : row + 1, :length], mask[row : row + 1, :length]
        torch.testing.assert_close(
            backbone.extract(backbone.read(alone, real), real)[0], together[row], rtol=0, atol=1e-12
        )


PREDICTING: dict[str, list[dict[str, Any]]] = {
    "recurrent-lm": [{}, {"tied": False}, {"embedding": 10}, {"connections": "highway", "embedding": 10}],
    "gpt": [{}, {"tied": False}],
}


@pytest.mark.parametrize(("kind", "changes"), [(kind, one) for kind, ways in PREDICTING.items() for one in ways])
def test_next_token_layer_is_loaded(kind: str, changes: dict[str, Any]) -> None:
    config = config_of(kind, **changes)
    model = build_pretrained(config)
    backbone, (tokens, mask) = load_backbone(config, model, predicts=True), padded()
    expected = model(tokens)[0] if kind == "recurrent-lm" else model(tokens)
    actual = backbone.next_token_logits(backbone.read(tokens, mask))
    torch.testing.assert_close(actual[mask], expected[mask], rtol=0, atol=1e-12)
    assert actual.shape == (3, 6, V)  # special tokens are never predicted


def test_language_model_loss_ignores_special_tokens() -> None:
    config = config_of("gpt")
    model = build_pretrained(config)
    backbone = load_backbone(config, model, predicts=True)
    tokens = torch.tensor([[0, 3, 4, CLASSIFY, 0], [0, 5, 6, 7, CLASSIFY]])
    mask = torch.arange(5) < torch.tensor([[4], [5]])
    result = backbone.next_token_loss(backbone.read(tokens, mask), tokens, mask)
    scores = [
        model.score(torch.tensor([[0, *text[:-1]]]), torch.tensor([text]), model.start())[0].sum()
        for text in ([3, 4], [5, 6, 7])
    ]
    torch.testing.assert_close(result, -sum(scores) / 5)


def test_prediction_needs_the_next_token_layer() -> None:
    for kind in ("recurrent-lm", "gpt"):
        with pytest.raises(ValueError, match="without a next-token output layer"):
            build_backbone(config_of(kind), V).next_token_logits(torch.zeros(1, 10 if kind == "recurrent-lm" else 12))
    with pytest.raises(ValueError, match="cannot predict the next token"):
        build_backbone(config_of("bert"), V, predicts=True)
    with pytest.raises(ValueError, match="cannot predict the next token"):
        build_backbone(config_of("bilm"), V, predicts=True)
    assert [kind for kind in KINDS if can_predict(config_of(kind))] == ["recurrent-lm", "gpt"]
    assert not can_predict(config_of("recurrent-lm", tied=False, softmax={"kind": "adaptive", "cutoffs": [5]}))


@pytest.mark.parametrize("kind", KINDS)
def test_mismatches_are_listed_and_no_weight_is_loaded(kind: str) -> None:
    model = build_pretrained(config_of(kind))
    wide = {"hidden": 14} if "hidden" in SHAPES[kind] else {"d_model": 16}
    backbone = build_backbone(config_of(kind, layers=3, **wide), V)
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    with pytest.raises(UsageError, match=r"runs/pretrained do not match the backbone: .* must be .*; got .*") as caught:
        backbone.load_pretrained(model.state_dict(), "runs/pretrained")
    assert "more." in str(caught.value) or "is missing" in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_missing_and_unexpected_layers_are_reported(kind: str) -> None:
    two, three = (config_of(kind, layers=layers) for layers in (2, 3))
    with pytest.raises(UsageError, match="is missing"):
        build_backbone(three, V).load_pretrained(build_pretrained(two).state_dict(), "runs/pretrained")
    with pytest.raises(UsageError, match="is unexpected"):
        build_backbone(two, V).load_pretrained(build_pretrained(three).state_dict(), "runs/pretrained")


@pytest.mark.parametrize("kind", KINDS)
def test_different_vocabulary_is_rejected(kind: str) -> None:
    config = config_of(kind)
    torch.manual_seed(1)
    with pytest.raises(UsageError, match=rf"got {V + (4 if kind in ('bert', 'electra') else 1)}×.*"):
        build_backbone(config, V).load_pretrained(config.build(V + 1).state_dict(), "runs/pretrained")


@pytest.mark.parametrize("kind", KINDS)
def test_layer_groups_contain_every_parameter_once(kind: str) -> None:
    backbone = build_backbone(config_of(kind, layers=3), V)
    groups = [[id(parameter) for parameter in group] for group in backbone.layer_groups()]
    assert len(groups) == 4 and all(groups)
    mixed = {f"mix.{name}" for name in ("weights", "scale")}  # trained together with the layers above
    names = [id(parameter) for name, parameter in backbone.named_parameters() if name not in mixed]
    assert sorted(name for group in groups for name in group) == sorted(names)
    assert id(backbone.token_embedding().weight) in groups[0]


def test_layer_groups_contain_the_gates_of_highway_layers() -> None:
    backbone = build_backbone(config_of("recurrent-lm", layers=3, connections="highway", embedding=10), V)
    assert sum(len(group) for group in backbone.layer_groups()) == len(list(backbone.parameters()))
    both = build_backbone(config_of("bilm", layers=3, connections="highway"), V)
    assert [len(group) for group in both.layer_groups()] == [1, 12, 12, 12]
    # All parameters except those of the mixture
    assert sum(len(group) for group in both.layer_groups()) == len(list(both.parameters())) - 2


def test_missing_pooler_keeps_its_random_weights() -> None:
    model = build_pretrained(config_of("electra"))
    assert not any(name.startswith("pool") for name in model.state_dict())
    backbone = load_backbone(config_of("electra"), model)
    torch.manual_seed(9)
    drawn = build_backbone(config_of("electra"), V).double().state_dict()
    assert torch.equal(backbone.state_dict()["pool.weight"], drawn["pool.weight"])


def test_mix_of_layers_reads_all_layers_and_both_final_states() -> None:
    config = config_of("bilm")
    model = build_pretrained(config)
    (tokens, mask), backbone = padded(), load_backbone(config, model)
    assert isinstance(backbone, BiLMBackbone)
    backbone.mix.weights.data = torch.tensor([0.5, -1.0, 2.0]).double()
    backbone.mix.scale.data = torch.tensor([3.0]).double()
    x, first, second = model.backbone(tokens, mask).layer_states()
    shares = torch.tensor([0.5, -1.0, 2.0]).double().softmax(dim=0)
    h = backbone.read(tokens, mask)
    torch.testing.assert_close(h, 3 * (shares[0] * x + shares[1] * first + shares[2] * second), rtol=0, atol=1e-12)
    last = torch.stack([h[0, 5], h[1, 3], h[2, 0]])
    assert torch.equal(backbone.extract(h, mask), torch.cat([last[:, :6], h[:, 0, 6:]], dim=1))


def test_renamed_weights_load_into_another_backbone() -> None:
    """A fine-tuned backbone can be fine-tuned again."""
    for kind in KINDS:
        config = config_of(kind)
        first = load_backbone(config, build_pretrained(config))
        second = build_backbone(config, V).double()
        second.load_pretrained(type(first).rename_to_pretrained(first.state_dict()), "runs/first")
        assert all(torch.equal(tensor, second.state_dict()[name]) for name, tensor in first.state_dict().items())


def test_each_backbone_has_the_expected_form_and_maximum_length() -> None:
    assert BACKBONES.paths.keys() <= MODELS.paths.keys()
    assert {kind: form_of(config_of(kind)) for kind in KINDS} == {
        "recurrent-lm": "causal",
        "gpt": "causal",
        "bert": "bert",
        "electra": "bert",
        "bilm": "ends",
    }
    assert {kind: max_length_of(config_of(kind)) for kind in KINDS} == {
        "recurrent-lm": None,
        "gpt": 32,
        "bert": 32,
        "electra": 32,
        "bilm": None,
    }
    assert max_length_of(config_of("gpt", context=16)) == 16
