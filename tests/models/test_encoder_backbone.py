"""The encoder of an encoder–decoder as a backbone: loaded weights, pooling, layer groups and mismatches."""

from typing import Any

import pytest
import torch
from torch import Tensor

from seqloom.config import build
from seqloom.core.errors import UsageError
from seqloom.core.tokens import EXTRA
from seqloom.exchange.start_tokens import StartTokenConfig
from seqloom.models.backbones import backbone_class, build_backbone
from seqloom.models.encoder_backbone import EncoderBackbone
from seqloom.models.transformer import TransformerConfig

V = 20
SHAPE: dict[str, Any] = {
    "kind": "start-token-transformer",
    "d_model": 12,
    "heads": 2,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "d_ff": 16,
    "dropout": 0.0,
    "source_bos": 0,
}
WAYS: dict[str, dict[str, Any]] = {
    "tied": {"tied": "all"},
    "untied": {"tied": "none"},
    "learned": {"positions": {"kind": "learned", "max_length": 32}, "tied": "decoder"},
    "rotary, pre-norm": {"positions": {"kind": "rotary"}, "norm_first": True, "tied": "all"},
    "another first token": {"source_bos": 7},
    "recurrent layers": {"encoder_layer": "recurrent", "positions": {"kind": "none"}},
}


def config_of(**changes: Any) -> StartTokenConfig:
    return build(StartTokenConfig, {**SHAPE, **changes})


def build_pretrained(config: TransformerConfig, extra: int) -> Any:
    torch.manual_seed(1)
    model = config.build(V, extra).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def load_backbone(config: StartTokenConfig, model: Any) -> EncoderBackbone:
    backbone = build_backbone(config, V).double().eval()
    assert isinstance(backbone, EncoderBackbone)
    backbone.load_pretrained(model.state_dict(), "runs/pretrained")
    return backbone


def texts() -> tuple[Tensor, Tensor]:
    """Return rows x END (3, 6) of lengths 6, 4 and 2."""
    tokens = torch.randint(1, V, (3, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(6) < torch.tensor([[6], [4], [2]])
    tokens[range(3), [5, 3, 1]] = 0
    return tokens, mask


def add_ends(tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return END x END, the input of models with a backbone."""
    return torch.nn.functional.pad(tokens, (1, 0)), torch.nn.functional.pad(mask, (1, 0), value=True)


@pytest.mark.parametrize("extra", [0, EXTRA, EXTRA + 100], ids=["translator", "bart", "t5"])
@pytest.mark.parametrize("way", WAYS)
def test_backbone_states_match_those_of_the_encoder(way: str, extra: int) -> None:
    config = config_of(**WAYS[way])
    model = build_pretrained(config, extra)
    backbone, (tokens, mask) = load_backbone(config, model), texts()
    states = backbone.read(*add_ends(tokens, mask))[:, 1:]
    expected = model.encoder_states(tokens, mask)
    torch.testing.assert_close(states[mask], expected[mask], rtol=0, atol=1e-12)
    random_states = build_backbone(config, V).double().eval().read(*add_ends(tokens, mask))[:, 1:]
    assert not torch.allclose(random_states[mask], expected[mask])  # negative control


def test_extract_is_the_mean_without_padding() -> None:
    config = config_of()
    backbone, (tokens, mask) = load_backbone(config, build_pretrained(config, 0)), add_ends(*texts())
    h = backbone.read(tokens, mask)
    c = backbone.extract(h, mask)
    for row, length in enumerate((7, 5, 3)):
        torch.testing.assert_close(c[row], h[row, :length].mean(dim=0), rtol=0, atol=1e-12)
        alone = backbone.read(tokens[row : row + 1, :length], mask[row : row + 1, :length])
        torch.testing.assert_close(alone[0], h[row, :length], rtol=0, atol=1e-12)
    assert torch.isfinite(backbone.extract(h, torch.zeros_like(mask))).all()  # an empty text


def test_attention_weights_match_those_of_the_encoder() -> None:
    config = config_of()
    model = build_pretrained(config, 0)
    backbone, (tokens, mask) = load_backbone(config, model), texts()
    weights = backbone.attentions(*add_ends(tokens, mask))
    inputs = {"inputs": tokens, "target_mask": mask}
    expected = model.attentions({"source": tokens, "source_mask": mask, **inputs})["encoder"]
    assert len(weights) == 2
    for actual, other in zip(weights, expected, strict=True):
        torch.testing.assert_close(actual[:, :, 1:, 1:], other, rtol=0, atol=1e-12)
        assert not actual[1, :, 5:].any()


def test_layer_groups_contain_every_parameter_once() -> None:
    backbone = build_backbone(config_of(encoder_layers=3, norm_first=True), V)
    groups = [[id(parameter) for parameter in group] for group in backbone.layer_groups()]
    assert len(groups) == 4 and all(groups) and id(backbone.token_embedding().weight) in groups[0]
    assert sorted(member for group in groups for member in group) == sorted(map(id, backbone.parameters()))


def test_mismatches_are_listed_and_no_weight_is_loaded() -> None:
    model = build_pretrained(config_of(), EXTRA)
    for changes, message in (
        ({"encoder_layers": 3}, "is missing"),
        ({"encoder_layers": 1}, "is unexpected"),
        ({"d_model": 16}, r"source_embed\.embed\.weight must be 20×16; got 23×12; .* and \d+ more"),
    ):
        backbone = build_backbone(config_of(**changes), V)
        before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
        with pytest.raises(UsageError, match=rf"runs/pretrained do not match the backbone: .*{message}"):
            backbone.load_pretrained(model.state_dict(), "runs/pretrained")
        assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())
    with pytest.raises(UsageError, match=r"must be 20×12; got 21×12"):
        build_backbone(config_of(), V).load_pretrained(config_of().build(V + 1).state_dict(), "runs/pretrained")


def test_fine_tuned_backbone_can_be_fine_tuned_again() -> None:
    config = config_of()
    first = load_backbone(config, build_pretrained(config, EXTRA + 5))
    second = build_backbone(config, V).double()
    second.load_pretrained(type(first).rename_to_pretrained(first.state_dict()), "runs/first")
    assert all(torch.equal(tensor, second.state_dict()[name]) for name, tensor in first.state_dict().items())


def test_backbone_has_no_length_limit_and_cannot_predict_tokens() -> None:
    config = config_of()
    kind = backbone_class(config)
    assert kind.form == "ends" and kind.longest(config) is None and not kind.can_predict(config)
    assert kind.longest(config_of(positions={"kind": "learned", "max_length": 32})) == 32
    with pytest.raises(ValueError, match="cannot predict the next token"):
        build_backbone(config, V, predicts=True)


def test_encoder_of_a_plain_transformer_reads_the_end_token_unchanged() -> None:
    shape = {name: value for name, value in SHAPE.items() if name not in ("kind", "source_bos")}
    config = build(TransformerConfig, shape)
    model = build_pretrained(config, EXTRA)
    backbone = build_backbone(config, V).double().eval()
    assert type(backbone) is EncoderBackbone and type(build_backbone(config_of(), V)) is not EncoderBackbone
    backbone.load_pretrained(model.state_dict(), "runs/pretrained")
    tokens, mask = add_ends(*texts())
    torch.testing.assert_close(
        backbone.read(tokens, mask)[mask], model.encoder_states(tokens, mask)[mask], rtol=0, atol=1e-12
    )
