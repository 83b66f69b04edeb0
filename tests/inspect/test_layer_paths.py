"""Chains of operations and paths of gradients in graphs and layers for which the results are known."""

from collections.abc import Callable

import pytest
import torch

from seqloom.inspect.views import layers as layer_paths
from seqloom.inspect.views.layers import chain, longest_chain, path
from seqloom.nn.mixers import MIXERS, Mixer, make_mixer

WIDTH = 4


def maker(kind: str, **options: int | str) -> Callable[[int], Mixer]:
    return lambda depth: make_mixer(kind, WIDTH, 1, depth=depth, **options)  # type: ignore[arg-type]


def test_chain_length_is_the_longest_dependency_rather_than_the_operation_count() -> None:
    x = torch.ones(3).requires_grad_()
    assert longest_chain(x.exp()) == 1
    assert longest_chain(x.exp().sin().cos()) == 3
    short, long = x.exp(), x.sin().cos().tanh()
    assert longest_chain(short + long) == 4
    side_by_side = torch.stack([x.exp() for _ in range(10)])
    assert longest_chain(side_by_side) == 2
    waiting = x
    for _ in range(5000):  # deeper than the recursion limit of Python
        waiting = waiting * 2
    assert longest_chain(waiting) == 5000


@pytest.mark.parametrize("kind", [kind for kind in MIXERS if kind != "recurrent"])
def test_chain_length_of_a_parallel_layer_is_constant(kind: str) -> None:
    lengths = {chain(maker(kind)(0), WIDTH, n) for n in (40, 72, 328)}  # the last block has equal padding
    assert len(lengths) == 1


@pytest.mark.parametrize("cell", ["lstm", "gru", "mut1"])
def test_chain_length_of_a_recurrent_layer_grows_with_each_step(cell: str) -> None:
    short, long, longer = (chain(maker("recurrent", cell=cell)(0), WIDTH, n) for n in (10, 20, 40))
    assert longer - long == 2 * (long - short) >= 20


@pytest.mark.parametrize("kind", MIXERS)
@pytest.mark.parametrize("n", [1, 2, 9, 33, 34, 70])
def test_measured_path_matches_theory(kind: str, n: int) -> None:
    make = maker(kind)
    assert path(make, WIDTH, n) == make(0).path_length(n)


@pytest.mark.parametrize(
    ("kind", "options", "n", "expected"),
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
def test_known_layers_have_expected_path_lengths(
    kind: str, options: dict[str, int | str], n: int, expected: int
) -> None:
    assert path(maker(kind, **options), WIDTH, n) == expected


def test_path_of_restricted_layer_is_detected() -> None:
    """A layer with a smaller receptive field than declared is detected."""

    def restricted(depth: int) -> Mixer:
        mixer = make_mixer("convolution", WIDTH, 1)
        with torch.no_grad():
            mixer.weight[:, :, 0] = 0  # type: ignore[operator]
        return mixer

    short = make_mixer("convolution", WIDTH, 1).path_length(9)
    layer_paths.MAX_PATH_SECONDS, usual = 0.2, layer_paths.MAX_PATH_SECONDS
    try:
        assert short == 8 and path(restricted, WIDTH, 9) is None, "y_9 depends on the right side only, never on x_1"
    finally:
        layer_paths.MAX_PATH_SECONDS = usual


def test_gradient_does_not_vanish_over_many_layers() -> None:
    """39 layers that scale the gradient by 1e-12 each would make it vanish if its values were not replaced."""

    def scaled_down(depth: int) -> Mixer:
        mixer = make_mixer("convolution", WIDTH, 1)
        with torch.no_grad():
            mixer.weight.mul_(1e-12)  # type: ignore[operator]
        return mixer

    assert path(scaled_down, WIDTH, 40) == 39


def test_cell_without_memory_has_no_path() -> None:
    def forgetful(depth: int) -> Mixer:
        mixer = make_mixer("recurrent", WIDTH, 1, cell="elman")
        with torch.no_grad():
            mixer.layer.forwards.cell.weight_h.zero_()  # type: ignore[union-attr, operator]
        return mixer

    assert path(forgetful, WIDTH, 1) == 1
    assert path(forgetful, WIDTH, 2) is None
