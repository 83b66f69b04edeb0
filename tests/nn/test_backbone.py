"""The Transformer backbone of GPT and BERT: packed documents, padding, positions and initialization."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.nn.torch_layers import exactly, randomize
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.nn.backbone import BackboneOptions, TransformerBackbone, document_positions
from seqloom.nn.cache import empty_state
from seqloom.nn.positions import PositionsConfig

V, D = 13, 12
LENGTHS = [4, 1, 5, 2]  # lengths of the documents in a row
BORDERS = [0, 4, 5, 10, 12]
SHAPES: dict[str, dict[str, Any]] = {
    "learned": {},
    "post-norm": {"norm_first": False, "embed_norm": True},
    "sinusoidal": {"positions": PositionsConfig(), "embed_scale": True, "norm": "rms"},
    "rotary": {"positions": PositionsConfig(kind="rotary"), "kv_heads": 1, "bias": False, "activation": "swiglu"},
    "no positions": {"positions": PositionsConfig(kind="none")},
}


@pytest.fixture(params=[(name, causal) for name in SHAPES for causal in (True, False)], ids=str)
def backbone(request: Any) -> TransformerBackbone:
    name, causal = request.param
    return make(causal=causal, **SHAPES[name])


def make(*, causal: bool = True, segments: int = 0, **shape: Any) -> TransformerBackbone:
    torch.manual_seed(0)
    shape = {"d_model": D, "heads": 3, "layers": 2, "d_ff": 16, "dropout": 0.0, **shape}
    backbone: TransformerBackbone = randomize(
        TransformerBackbone(BackboneOptions(**shape), V, causal=causal, segments=segments)
    ).eval()
    return backbone


def some_tokens(*shape: int) -> Tensor:
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(1))


def documents(rows: int = 1) -> Tensor:
    """Return a document number for each document, in any order."""
    return torch.tensor([7, 3, 9, 0]).repeat_interleave(torch.tensor(LENGTHS)).expand(rows, -1)


# --- documents in one row -------------------------------------------------------------------------------------------


def test_packed_document_gives_the_same_results_as_a_separate_document(backbone: TransformerBackbone) -> None:
    tokens = some_tokens(2, 12)
    packed = backbone.read(tokens, documents=documents(2))
    for first, last in pairwise(BORDERS):
        exactly(packed[:, first:last], backbone.read(tokens[:, first:last]))
    if backbone.shape.positions.kind != "none" or backbone.causal:
        assert (packed[:, 5:] - backbone.read(tokens)[:, 5:]).abs().max() > 0.01  # negative control


@pytest.mark.parametrize("changed", range(4))
def test_packed_documents_are_independent(backbone: TransformerBackbone, changed: int) -> None:
    first, last = BORDERS[changed : changed + 2]
    tokens = some_tokens(1, 12)
    other = tokens.clone()
    other[:, first:last] = (other[:, first:last] + 1) % V
    before, after = (backbone.read(row, documents=documents()) for row in (tokens, other))
    same = torch.ones(12, dtype=torch.bool)
    same[first:last] = False
    assert torch.equal(before[:, same], after[:, same])
    assert (before[:, ~same] != after[:, ~same]).any(dim=-1).all()


def test_other_documents_have_no_gradient(backbone: TransformerBackbone) -> None:
    x = torch.randn(1, 12, D, dtype=torch.float64, requires_grad=True)
    _, scope = backbone.embed_tokens(some_tokens(1, 12), None, None, documents())
    h = backbone.norm(backbone.blocks(x, scope).x)
    h[:, 5:10].square().sum().backward()
    has_gradient = x.grad.abs().sum(dim=(0, 2)) > 0  # type: ignore[union-attr]
    assert has_gradient.tolist() == [5 <= position < 10 for position in range(12)]


def test_positions_restart_in_each_document() -> None:
    result = document_positions(torch.tensor([[7, 7, 7, 3, 0, 0], [1, 1, 1, 1, 1, 1], [0, 1, 2, 3, 4, 4]]))
    assert result.tolist() == [[0, 1, 2, 0, 0, 1], [0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 0, 1]]


def test_packed_row_may_exceed_the_learned_positions() -> None:
    backbone = make(positions=PositionsConfig(kind="learned", max_length=5))
    assert backbone.read(some_tokens(1, 12), documents=documents()).shape == (1, 12, D)
    with pytest.raises(UsageError, match="has 5 positions, but a text has 12 tokens"):
        backbone.read(some_tokens(1, 12))


# --- padding --------------------------------------------------------------------------------------------------------


def test_padding_has_no_effect(backbone: TransformerBackbone) -> None:
    tokens, mask = some_tokens(3, 6), torch.arange(6) < torch.tensor([[6], [2], [4]])
    together = backbone.read(tokens, mask)
    for row, length in enumerate((6, 2, 4)):
        exactly(together[row, :length], backbone.read(tokens[row : row + 1, :length])[0])
    assert torch.equal(backbone.read(tokens.where(mask, 3), mask)[mask], together[mask])


def test_padding_after_packed_documents_has_no_effect(backbone: TransformerBackbone) -> None:
    tokens, mask = some_tokens(1, 12), (torch.arange(12) < 11).unsqueeze(0)
    packed = backbone.read(tokens, mask, documents=documents())
    exactly(packed[:, :10], backbone.read(tokens, documents=documents())[:, :10])
    exactly(packed[:, 10:11], backbone.read(tokens[:, 10:11]))


def test_only_padding_may_exceed_the_learned_positions() -> None:
    backbone = make(positions=PositionsConfig(kind="learned", max_length=5))
    mask = (torch.arange(7) < 5).unsqueeze(0)
    exactly(backbone.read(some_tokens(1, 7), mask)[:, :5], backbone.read(some_tokens(1, 7)[:, :5]))


# --- attention ------------------------------------------------------------------------------------------------------


def test_attention_weights_respect_the_mask(backbone: TransformerBackbone) -> None:
    tokens, mask = some_tokens(1, 12), (torch.arange(12) < 11).unsqueeze(0)
    layers = backbone.attentions(tokens, mask, documents=documents())
    same = documents()[0].unsqueeze(1) == documents()[0]
    allowed = same.tril() if backbone.causal else same & mask
    assert len(layers) == 2
    for layer in layers:
        assert layer.shape == (1, 3, 12, 12)
        assert not layer[:, :, ~allowed].any() and not layer[:, :, 11].any()
        exactly(layer[:, :, :11].sum(dim=-1), torch.ones(1, 3, 11, dtype=torch.float64))
        assert (layer[:, :, :11][:, :, allowed[:11]] > 0).all()


def test_segments_change_the_states() -> None:
    backbone = make(causal=False, segments=2)
    tokens, segments = some_tokens(1, 6), torch.tensor([[0, 0, 0, 1, 1, 1]])
    assert not torch.allclose(backbone.read(tokens, segments=segments), backbone.read(tokens))
    exactly(backbone.read(tokens), backbone.read(tokens, segments=torch.zeros_like(segments)))


# --- step by step ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_reading_in_chunks_is_equivalent_to_reading_in_one_call(name: str) -> None:
    backbone, tokens = make(**SHAPES[name]), some_tokens(3, 9)
    known, caches, parts = empty_state(), backbone.blocks.empty_caches(3), []
    for piece in tokens.split([3, 1, 1, 4], dim=1):
        h, known, caches = backbone.advance(piece, known, caches)
        parts.append(h)
    exactly(torch.cat(parts, dim=1), backbone.read(tokens))


# --- initialization and options -------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm_first", [True, False])
def test_initial_weights_have_the_expected_scale(norm_first: bool) -> None:
    torch.manual_seed(0)
    backbone = TransformerBackbone(
        BackboneOptions(d_model=64, layers=8, norm_first=norm_first), 100, causal=True, segments=2
    )
    summed = 0.02 / (math.sqrt(16) if norm_first else 1)
    for name, parameter in backbone.named_parameters():
        if name.endswith("norm.weight"):
            assert (parameter == 1).all()
        elif name.endswith("bias"):
            assert not parameter.any()
        else:
            expected = summed if name.endswith(("out.weight", "down.weight")) else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.15), name


def test_layer_groups_contain_all_parameters_in_order() -> None:
    backbone = make(segments=2, embed_norm=True)
    groups, names = backbone.layer_groups(), {id(parameter): name for name, parameter in backbone.named_parameters()}
    result = [{names[id(parameter)].split(".")[0] for parameter in group} for group in groups]
    assert result == [{"embedded"}, {"blocks"}, {"blocks", "norm"}]
    listed = [id(parameter) for group in groups for parameter in group]
    assert sorted(listed) == sorted(names)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"d_model": 10, "heads": 3, "layers": 0, "init": 0.0},
            ["layers must be", "init must be", "divisible by heads"],
        ),
        ({"dropout": 1.0, "attention_dropout": -0.1}, ["dropout must be", "attention_dropout must be"]),
        ({"norm": "none", "embed_norm": True, "d_ff": 0}, ["embed_norm needs a norm", "d_ff must be"]),
        ({"d_model": 9, "heads": 3, "positions": PositionsConfig(kind="rotary")}, ["rotary positions need an even"]),
    ],
)
def test_all_problems_are_reported(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match=words[0]) as caught:
        BackboneOptions(**options)
    assert all(word in str(caught.value) for word in words)
