"""The table of weights: exporting inverts importing."""

from typing import Any

import pytest
import torch

from seqloom.core.errors import CheckpointError
from seqloom.exchange.weights import (
    IDENTITY,
    TRANSPOSE,
    Fused,
    LeadingRows,
    RotaryHalves,
    TokenRows,
    WeightEntry,
    find_uncovered,
    map_layers,
    read_tensors,
    rename_tensors,
    weight,
    write_tensors,
)
from seqloom.nn.positions import Rotary

CONVERSIONS: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "same": (IDENTITY, [(3, 4)]),
    "transposed": (TRANSPOSE, [(3, 4)]),
    "joined": (Fused(3), [(5,), (5,), (5,)]),
    "joined across": (Fused(3, dim=1, transposed=True), [(5, 4), (5, 4), (5, 4)]),
    "rows": (TokenRows([2, 0, 1, 3], 4), [(4, 5)]),
    "rows of a bias": (TokenRows([2, 0], 4), [(2,)]),
    "leading": (LeadingRows(2), [(3, 4)]),
    "halves": (RotaryHalves(3), [(12, 5)]),
    "halves of a bias": (RotaryHalves(3), [(12,)]),
}


def some(shapes: list[tuple[int, ...]]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversions_round_trip(name: str) -> None:
    how, shapes = CONVERSIONS[name]
    ours = some(shapes)
    theirs = how.write(ours)
    assert all(torch.equal(a, b) for a, b in zip(how.read(theirs), ours, strict=True))
    empty = how.write(tuple(torch.empty(shape, device="meta") for shape in shapes))
    assert [tensor.shape for tensor in empty] == [tensor.shape for tensor in theirs]


def test_token_rows_follow_order() -> None:
    ours = torch.arange(3.0)
    (theirs,) = TokenRows([3, 0, 2], 4, fill=-7.0).write((ours,))
    assert theirs.tolist() == [1.0, -7.0, 2.0, 0.0]


def test_rotary_halves_match_adjacent_pairs() -> None:
    """The rotation of adjacent pairs and the rotation of halves give the same values in another order."""
    N, d = 3, 6
    (weights,) = some([(N * d, 5)])
    x = some([(1, 4, 5)])[0]
    (halves,) = RotaryHalves(N).write((weights,))
    side, apart = ((x @ w.t()).view(1, 4, N, d) for w in (weights, halves))
    places = torch.arange(4)
    turned = Rotary("interleaved")(side, places), Rotary("halves")(apart, places)
    products = [torch.einsum("btnd,bsnd->bnts", one, one) for one in turned]
    torch.testing.assert_close(*products)
    with pytest.raises(AssertionError):  # control
        torch.testing.assert_close(products[0], torch.einsum("btnd,bsnd->bnts", *turned))


TABLE = [
    weight("a.weight", "x.weight", TRANSPOSE),
    WeightEntry(("q", "k"), ("qk",), Fused(2)),
    weight("b", "y", optional=True),
    weight("e", "emb", shared=("out",), copies=("head",)),
]
OURS = {"a.weight": (2, 3), "q": (2,), "k": (2,), "b": (4,), "e": (5,), "out": (5,)}
SHAPES = {name: torch.empty(shape, device="meta") for name, shape in OURS.items()}


def theirs(**changes: Any) -> dict[str, torch.Tensor]:
    found = {"x.weight": torch.ones(3, 2), "qk": torch.arange(4.0), "y": torch.ones(4), "emb": torch.ones(5)}
    return {name: tensor for name, tensor in {**found, **changes}.items() if tensor is not None}


def test_table_round_trips() -> None:
    found, missing = read_tensors(TABLE, theirs(), SHAPES, "here")
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == OURS
    assert missing == []
    assert found["out"] is found["e"]
    assert all(torch.equal(tensor, theirs()[name]) for name, tensor in write_tensors(TABLE, found).items())
    assert find_uncovered(TABLE, [*OURS, "more"]) == ["more"]


def test_optional_tensors_may_be_missing() -> None:
    found, missing = read_tensors(TABLE, theirs(y=None), SHAPES, "here")
    assert missing == ["b"]
    assert "b" not in found


def test_all_mismatches_are_reported() -> None:
    wrong = theirs(qk=torch.ones(3), emb=None, extra=torch.ones(2, 2), y=torch.ones(()))
    with pytest.raises(CheckpointError) as error:
        read_tensors(TABLE, wrong, SHAPES, "here")
    assert str(error.value).split("\n") == [
        "The weights of here do not match its config.json (4 mismatches):",
        "  qk must be 4; it is 3",
        "  y must be 4; it is scalar",
        "  emb (5) is missing",
        "  extra (2×2) is not a tensor of the model",
    ]


def test_quantized_weights_are_rejected() -> None:
    with pytest.raises(CheckpointError, match="qk must be floating-point, not quantized; it is int8"):
        read_tensors(TABLE, theirs(qk=torch.ones(4, dtype=torch.int8)), SHAPES, "here")


def test_copies_must_be_equal() -> None:
    read_tensors(TABLE, theirs(head=torch.ones(5)), SHAPES, "here")
    with pytest.raises(CheckpointError, match="head must equal emb"):
        read_tensors(TABLE, theirs(head=torch.zeros(5)), SHAPES, "here")


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_nonfinite_tensors_are_reported(wrong: float) -> None:
    spoilt = torch.ones(3, 2)
    spoilt[1, 0] = wrong
    ones = torch.full((5,), wrong)
    with pytest.raises(CheckpointError) as error:
        read_tensors(TABLE, theirs(**{"x.weight": spoilt}, emb=ones, head=ones.clone()), SHAPES, "here")
    assert str(error.value).split("\n") == [
        "The weights of here must be finite; 2 tensors have NaN or infinity. Use another checkpoint:",
        "  x.weight: 1 of 6",
        "  emb: 5 of 5",
    ]


def test_half_precision_overflow_is_reported() -> None:
    read_tensors(TABLE, theirs(y=torch.full((4,), 65504.0, dtype=torch.float16)), SHAPES, "here")
    with pytest.raises(CheckpointError, match="y: 4 of 4"):
        read_tensors(TABLE, theirs(y=torch.full((4,), 1e300, dtype=torch.float64)), SHAPES, "here")


def test_unused_rows_may_be_nonfinite() -> None:
    table = [weight("b", "y", TokenRows([2, 0], 4))]
    read_tensors(table, {"y": torch.tensor([1.0, -torch.inf, 2.0, torch.nan])}, {"b": torch.empty(2)}, "here")


def test_old_names_of_norms_are_renamed() -> None:
    one, two = torch.ones(1), torch.zeros(1)
    old = {"m.LayerNorm.gamma": one, "m.LayerNorm.beta": two, "LayerNorm.gamma": one, "gamma": one, "m.gamma": one}
    assert list(rename_tensors(old, "", ())) == [
        "m.LayerNorm.weight",
        "m.LayerNorm.bias",
        "LayerNorm.weight",
        "gamma",
        "m.gamma",
    ]
    both = {"m.LayerNorm.gamma": one, "m.LayerNorm.weight": two}  # one of the two names is then unknown
    assert rename_tensors(both, "", ()) == both


def test_prefix_is_added_to_backbone() -> None:
    one = torch.ones(1)
    assert rename_tensors({"a": one, "b.mask": one}, "model.", (r"model\.b\.mask",)) == {"model.a": one}
    assert rename_tensors({"model.a": one, "head": one}, "model.", ()) == {"model.a": one, "head": one}
    assert rename_tensors({"a": one}, "", ("b",)) == {"a": one}


def test_map_layers_numbers_the_names_of_each_layer() -> None:
    found = map_layers("mine", "theirs", 2, {"up": "fc"}, ("weight",))
    assert [(one.ours, one.theirs) for one in found] == [
        (("mine.0.up.weight",), ("theirs.0.fc.weight",)),
        (("mine.1.up.weight",), ("theirs.1.fc.weight",)),
    ]
