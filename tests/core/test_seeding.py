import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqloom.core.device import derive_seed, make_generator, seed_step

paths = st.lists(st.integers(0, 10**6) | st.text(st.characters(categories=["L"]), min_size=1), max_size=3)


@given(st.integers(), paths)
def test_derived_seeds_fit_every_generator(seed: int, path: list[int | str]) -> None:
    derived = derive_seed(seed, *path)
    assert 0 <= derived < 2**63
    assert derived == derive_seed(seed, *path)
    torch.Generator().manual_seed(derived)


def test_derived_seeds_do_not_change_between_versions() -> None:
    """A run that is resumed with a later version must use the same random numbers."""
    assert derive_seed(1, "step", 0, 0) == 332971203732598461


def test_seeds_of_different_purposes_differ() -> None:
    seeds = {
        derive_seed(seed, name, step) for seed in range(5) for name in ("step", "order", "init") for step in range(200)
    }
    assert len(seeds) == 5 * 3 * 200
    assert len({derive_seed(1, 23), derive_seed(12, 3), derive_seed(1, 2, 3), derive_seed(123)}) == 4


@pytest.mark.parametrize("steps_before", [0, 1, 5])
def test_random_numbers_of_step_are_independent_of_earlier_steps(steps_before: int) -> None:
    seed_step(7, 3)
    expected = torch.rand(4)
    for step in range(steps_before):
        seed_step(7, step)
        torch.rand(step + 1)
    seed_step(7, 3)
    assert torch.equal(torch.rand(4), expected)


def test_steps_ranks_and_seeds_have_different_random_numbers() -> None:
    draws = set()
    for seed, step, rank in ((1, 0, 0), (1, 1, 0), (1, 0, 1), (2, 0, 0)):
        seed_step(seed, step, rank)
        draws.add(torch.rand(1).item())
    assert len(draws) == 4


def test_generator_does_not_affect_global_random_state() -> None:
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    order = make_generator(3, "order")
    assert torch.equal(torch.rand(3, generator=order), torch.rand(3, generator=make_generator(3, "order")))
    assert torch.equal(torch.rand(2), expected)
