"""Chains of operations and paths of gradients, against graphs and layers whose answers are known."""

from collections.abc import Callable

import pytest
import torch

from seqloom.inspect.views import layers as layer_paths
from seqloom.inspect.views.layers import chain, longest_chain, path
from seqloom.nn.attention import Mixer
from seqloom.nn.mixers import MIXERS, make_mixer

WIDTH = 4


def maker(kind: str, **options: int | str) -> Callable[[int], Mixer]:
    return lambda depth: make_mixer(kind, WIDTH, 1, depth=depth, **options)  # type: ignore[arg-type]


def test_a_chain_is_the_longest_way_not_the_number_of_operations() -> None:
    x = torch.ones(3).requires_grad_()
    assert longest_chain(x.exp()) == 1
    assert longest_chain(x.exp().sin().cos()) == 3
    short, long = x.exp(), x.sin().cos().tanh()
    assert longest_chain(short + long) == 4
    side_by_side = torch.stack([x.exp() for _ in range(10)])
    assert longest_chain(side_by_side) == 2
    waiting = x
    for _ in range(5000):  # deeper than Python could recurse
        waiting = waiting * 2
    assert longest_chain(waiting) == 5000


@pytest.mark.parametrize("kind", [kind for kind in MIXERS if kind != "recurrent"])
def test_the_chain_of_a_parallel_layer_does_not_grow(kind: str) -> None:
    found = {chain(maker(kind)(0), WIDTH, n) for n in (40, 72, 328)}  # each leaves as much of its last block free
    assert len(found) == 1


@pytest.mark.parametrize("cell", ["lstm", "gru", "mut1"])
def test_the_chain_of_a_recurrent_layer_grows_by_the_step(cell: str) -> None:
    short, long, longer = (chain(maker("recurrent", cell=cell)(0), WIDTH, n) for n in (10, 20, 40))
    assert longer - long == 2 * (long - short) >= 20


@pytest.mark.parametrize("kind", MIXERS)
@pytest.mark.parametrize("n", [1, 2, 9, 33, 34, 70])
def test_the_path_found_is_the_path_in_theory(kind: str, n: int) -> None:
    make = maker(kind)
    assert path(make, WIDTH, n) == make(0).path_length(n)


@pytest.mark.parametrize(
    ("kind", "options", "n", "wanted"),
    [
        ("windowed", {"window": 3}, 31, 10),
        ("windowed", {"window": 3}, 32, 11),
        ("convolution", {"kernel": 7}, 31, 10),
        ("convolution", {"kernel": 7}, 32, 11),
        ("dilated", {"kernel": 3}, 64, 6),
        ("dilated", {"kernel": 3}, 65, 7),
        ("dilated", {"kernel": 5}, 81, 4),
        ("dilated", {"kernel": 5}, 82, 5),
        ("recurrent", {"cell": "gru"}, 19, 19),
        ("recurrent", {"cell": "elman"}, 19, 19),
    ],
)
def test_paths_by_hand(kind: str, options: dict[str, int | str], n: int, wanted: int) -> None:
    assert path(maker(kind, **options), WIDTH, n) == wanted


def test_a_path_is_measured_not_recited() -> None:
    """A layer that sees less than it says is found out."""

    def lame(depth: int) -> Mixer:
        mixer = make_mixer("convolution", WIDTH, 1)
        with torch.no_grad():
            mixer.weight[:, :, 0] = 0  # type: ignore[operator]
        return mixer

    short = make_mixer("convolution", WIDTH, 1).path_length(9)
    layer_paths.MAX_PATH_SECONDS, usual = 0.2, layer_paths.MAX_PATH_SECONDS
    try:
        assert short == 8 and path(lame, WIDTH, 9) is None, "it hears the right side only, and y_9 never hears of x_1"
    finally:
        layer_paths.MAX_PATH_SECONDS = usual


def test_no_number_of_layers_makes_a_gradient_vanish() -> None:
    """39 layers that each take it down by twelve powers of ten leave nothing, were it not drawn anew after each."""

    def faint(depth: int) -> Mixer:
        mixer = make_mixer("convolution", WIDTH, 1)
        with torch.no_grad():
            mixer.weight.mul_(1e-12)  # type: ignore[operator]
        return mixer

    assert path(faint, WIDTH, 40) == 39


def test_a_cell_that_forgets_has_no_path() -> None:
    def forgetful(depth: int) -> Mixer:
        mixer = make_mixer("recurrent", WIDTH, 1, cell="elman")
        with torch.no_grad():
            mixer.layer.forwards.cell.weight_h.zero_()  # type: ignore[union-attr, operator]
        return mixer

    assert path(forgetful, WIDTH, 1) == 1
    assert path(forgetful, WIDTH, 2) is None
