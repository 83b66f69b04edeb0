import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqloom.config import build
from seqloom.core.errors import UsageError
from seqloom.nn.positions import Learned, PositionsConfig, Rotary, Sinusoidal, sinusoid_table


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize(("width", "base"), [(8, 10000.0), (2, 10000.0), (14, 50.0)])
def test_sinusoids_match_the_formula(width, base, layout):
    """PE(pos, 2i) = sin(pos / base^(2i/d)), PE(pos, 2i+1) = cos(pos / base^(2i/d))."""
    table = sinusoid_table(60, width, layout, base)
    for position in (0, 1, 7, 59):
        for i in range(width // 2):
            angle = position / base ** (2 * i / width)
            sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, width // 2 + i)
            assert table[position, sine].item() == pytest.approx(math.sin(angle), abs=1e-7)
            assert table[position, cosine].item() == pytest.approx(math.cos(angle), abs=1e-7)


def test_sinusoids_of_given_positions_match_the_table():
    module = Sinusoidal(16)
    positions = torch.tensor([[3, 0, 900], [1, 1, 2]])
    torch.testing.assert_close(module(positions), sinusoid_table(901, 16)[positions], atol=1e-4, rtol=0)
    exact = module(positions, like=torch.zeros((), dtype=torch.float64))
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact.float(), sinusoid_table(901, 16)[positions], atol=1e-7, rtol=0)
    assert not list(module.parameters()) and not list(module.buffers())


def test_shifted_sinusoids_are_a_rotation():
    """PE(pos + k) is a linear function of PE(pos) that does not depend on pos."""
    table = sinusoid_table(40, 8).double()
    shift = torch.linalg.lstsq(table[:-5], table[5:]).solution
    torch.testing.assert_close(table[:-5] @ shift, table[5:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@given(a=st.integers(0, 500), b=st.integers(0, 500), shift=st.integers(0, 500))
def test_rotary_products_depend_only_on_relative_positions(layout, a, b, shift):
    torch.manual_seed(0)
    rotary, (q, k) = Rotary(layout), torch.randn(2, 1, 1, 2, 6, dtype=torch.float64)

    def product(*positions):
        turned = (rotary(x, torch.tensor([position])) for x, position in zip((q, k), positions, strict=True))
        return torch.linalg.vecdot(*turned)

    torch.testing.assert_close(product(a, b), product(a + shift, b + shift), atol=1e-9, rtol=0)
    if a != b:
        assert not torch.allclose(product(a, b), product(a, a), atol=1e-9)


def test_rotary_rotates_each_pair_by_its_angle():
    x = torch.tensor([1.0, 0.0, 0.0, 2.0], dtype=torch.float64).reshape(1, 1, 1, 4).expand(1, 2, 1, 4)
    slow = 3 / 100.0**0.5
    turned = Rotary(base=100.0)(x, torch.tensor([0, 3]))[0, :, 0]
    torch.testing.assert_close(turned[0], x[0, 0, 0])
    expected = [math.cos(3), math.sin(3), -2 * math.sin(slow), 2 * math.cos(slow)]
    torch.testing.assert_close(turned[1], torch.tensor(expected, dtype=torch.float64))


def test_rotary_layouts_are_permutations():
    x, positions = torch.randn(2, 5, 3, 8), torch.arange(10).view(2, 5)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    torch.testing.assert_close(
        Rotary("halves")(x[..., order], positions), Rotary("interleaved")(x, positions)[..., order]
    )


def test_learned_positions_are_embedding_rows():
    module = Learned(4, 6)
    assert torch.equal(module(torch.tensor([[5, 0]])), module.weight[[5, 0]].unsqueeze(0))


def test_text_longer_than_learned_positions_is_rejected():
    x, positions = torch.zeros(2, 9, 4), torch.arange(9)
    assert Sinusoidal(4).add_to(x, positions, 900, torch.tensor([900]), "source").shape == x.shape
    learned = Learned(4, 8)
    learned.add_to(x, positions, 9, torch.tensor([8, 3]), "source")  # only padding exceeds the number of positions
    with pytest.raises(UsageError, match=r"has 8 positions, but a source has 9 tokens.*larger model\.positions\.max"):
        learned.add_to(x, positions, 9, torch.tensor([3, 9]), "source")


def test_incompatible_options_are_rejected():
    with pytest.raises(UsageError) as error:
        build(PositionsConfig, {"kind": "none", "layout": "halves", "max_length": 0, "base": 0.5})
    for problem in (
        "layout applies only to sinusoidal and rotary positions; remove it for 'none'",
        "base applies only to sinusoidal and rotary",
        "max_length applies only to learned positions",
        "max_length: must be at least 1; got 0",
        "base: must be greater than 1.0; got 0.5",
    ):
        assert problem in str(error.value)
    assert PositionsConfig(kind="learned").longest == 512
    assert PositionsConfig(kind="learned", max_length=7).longest == 7
    assert PositionsConfig(kind="rotary", base=500000.0).longest is None
