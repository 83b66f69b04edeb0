import json
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from seqloom.core.protocols import DecodeState, select
from seqloom.core.tree import GrowingBuffer, Tree, clone, detach, leaves, pack, select_rows, to_device, tree_map, unpack

ROWS = 3
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
plain = st.none() | st.booleans() | numbers | st.text(max_size=5)


@st.composite
def tensors(draw: Any) -> Tensor:
    width = draw(st.integers(0, 2))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16]))
    return torch.arange(ROWS * width).reshape(ROWS, width).to(dtype)


growing = st.builds(GrowingBuffer, tensors(), st.just(torch.tensor([0, 1, 2])))
trees = st.recursive(
    plain | tensors() | growing,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def are_equal(a: Tree, b: Tree) -> bool:
    """Return whether two trees are equal in structure, types and every bit of every tensor."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, GrowingBuffer):
        return are_equal(a.buffer, b.buffer) and are_equal(a.length, b.length)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(are_equal, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(are_equal(a[key], b[key]) for key in a)
    return bool(a == b)


@given(trees)
def test_packed_tree_round_trips_through_json(tree: Tree) -> None:
    skeleton, named = pack(tree)
    assert are_equal(unpack(json.loads(json.dumps(skeleton)), named), tree)
    assert all(a is b for a, b in zip(named.values(), leaves(tree), strict=True))


def test_pack_distinguishes_types_that_json_merges() -> None:
    values: list[Tree] = [(), [], {}, {"tensor": "leaf0"}, {"value": 1}, (1,), [1], None, "leaf0"]
    for value in values:
        assert are_equal(unpack(json.loads(json.dumps(pack(value)[0])), {}), value)


@given(trees)
def test_clone_shares_no_memory(tree: Tree) -> None:
    before = unpack(*pack(tree_map(lambda leaf: leaf.clone(), tree)))
    copy = clone(tree)
    assert are_equal(copy, tree)
    for leaf in leaves(copy):
        leaf.fill_(1)
    assert are_equal(tree, before)


@given(trees, st.lists(st.integers(0, ROWS - 1), max_size=5))
def test_select_rows_applies_to_every_leaf(tree: Tree, rows: list[int]) -> None:
    chosen = select_rows(tree, torch.tensor(rows, dtype=torch.long))
    for old, new in zip(leaves(tree), leaves(chosen), strict=True):
        assert torch.equal(new, old[rows])


def test_select_reorders_hypotheses_and_sources_separately() -> None:
    state = DecodeState({"h": torch.arange(4)}, (torch.arange(2), None))
    chosen = select(state, torch.tensor([3, 3, 0]), torch.tensor([1]))
    assert chosen.hidden["h"].tolist() == [3, 3, 0]
    assert chosen.memory[0].tolist() == [1]
    assert chosen.memory[1] is None
    assert select(DecodeState(torch.arange(2)), torch.tensor([1]), torch.tensor([0])).memory is None


def test_detach_keeps_values() -> None:
    weight = torch.ones(2, requires_grad=True)
    tree: Tree = {"h": weight * 2, "n": 3}
    detached = detach(tree)
    assert not detached["h"].requires_grad
    assert detached["n"] == 3
    assert torch.equal(detached["h"], tree["h"])
    assert tree["h"].requires_grad


def test_leaves_have_fixed_order_and_move_together() -> None:
    a, b, c = torch.zeros(1), torch.ones(1), torch.tensor([1])
    tree = {"z": a, "a": [GrowingBuffer(b, c), None]}
    assert [id(leaf) for leaf in leaves(tree)] == [id(a), id(b), id(c)]
    assert {leaf.device.type for leaf in leaves(to_device(tree, "meta"))} == {"meta"}
