"""Interchangeable encoder layers: each layer is compared with its definition, and all fulfil a common contract."""

import math
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.nn.run_layer import run
from torch.utils.flop_counter import FlopCounterMode

from seqloom import accel
from seqloom.nn import mixers
from seqloom.nn.attention import MultiHeadAttention, masked_softmax
from seqloom.nn.mixers import (
    MIXERS,
    ConvolutionMixer,
    DilatedConvolution,
    Mixer,
    RecurrentMixer,
    SelfAttention,
    WindowedSelfAttention,
    make_mixer,
    mixer_class,
    mixer_problems,
)
from seqloom.nn.positions import Rotary

D, HEADS = 8, 2
OPTIONS: dict[str, dict[str, Any]] = {"windowed": {"window": 2}}


def make(kind: str, width: int = D, depth: int = 1, **options: Any) -> Mixer:
    torch.manual_seed(1)
    mixer = make_mixer(kind, width, HEADS, depth=depth, **{**OPTIONS.get(kind, {}), **options})
    for parameter in mixer.parameters():  # biases are also set, so that every part has an effect
        torch.nn.init.uniform_(parameter, -0.7, 0.7)
    return mixer.double().eval()


def some(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def padded(lengths: tuple[int, ...], width: int) -> torch.Tensor:
    return torch.arange(width) < torch.tensor(lengths).unsqueeze(1)


def exactly(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=0)


def gradients(mixer: Mixer, x: torch.Tensor, y: torch.Tensor, weigh: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad((y * weigh).sum(), [x, *mixer.parameters()]))


# --- the contract, for every kind -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MIXERS)
def test_single_row_gives_the_same_result_as_in_a_batch(kind: str) -> None:
    mixer, mask = make(kind), padded((7, 3, 1), 9)
    x = some(3, 9, D)
    together, _ = mixer(torch.where(mask.unsqueeze(-1), x, 1e3), mask)
    for row, length in enumerate(mask.sum(dim=1).tolist()):
        alone, _ = mixer(x[row : row + 1, :length])
        exactly(together[row : row + 1, :length], alone)


@pytest.mark.parametrize("kind", MIXERS)
def test_padding_has_no_gradient(kind: str) -> None:
    mixer, mask = make(kind), padded((5, 2), 6)
    x = some(2, 6, D).requires_grad_()
    y, _ = mixer(x, mask)
    (result,) = torch.autograd.grad((y * mask.unsqueeze(-1)).square().sum(), x)
    assert (result[~mask] == 0).all() and (result[mask] != 0).all()


@pytest.mark.parametrize("kind", MIXERS)
def test_gradients_match_finite_differences(kind: str) -> None:
    mixer, mask = make(kind), padded((5, 3), 5)
    x = some(2, 5, D).requires_grad_()
    parameters = list(mixer.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: mixer(x, mask)[0][mask], (x, *parameters), fast_mode=True)


@pytest.mark.parametrize("kind", MIXERS)
def test_only_attention_returns_weights(kind: str) -> None:
    mixer, mask = make(kind), padded((7, 4), 7)
    x = some(2, 7, D)
    plain, none = mixer(x, mask)
    openly, weights = mixer(x, mask, weights=True)
    exactly(openly[mask], plain[mask])
    assert none is None
    assert (weights is not None) == (kind in ("self-attention", "windowed"))
    if weights is not None:
        assert weights.shape == (2, HEADS, 7, 7)
        exactly(weights[1, :, :4].sum(dim=-1), torch.ones(HEADS, 4, dtype=torch.float64))
        assert (weights[1, :, :, 4:] == 0).all()


@pytest.mark.parametrize("kind", MIXERS)
@pytest.mark.parametrize("length", [1, 2, 5])
def test_shape_is_kept_for_any_length(kind: str, length: int) -> None:
    y, _ = make(kind)(some(2, length, D))
    assert y.shape == (2, length, D)


@pytest.mark.parametrize("kind", MIXERS)
def test_every_position_reads_both_sides(kind: str) -> None:
    mixer, x = make(kind, depth=0), some(1, 5, D).requires_grad_()
    (result,) = torch.autograd.grad(mixer(x)[0][0, 2].sum(), x)
    has_gradient = result[0].abs().sum(dim=-1) > 0
    assert has_gradient[1:4].all()


def reachable_positions(stack: list[Mixer], n: int) -> torch.Tensor:
    """Return which of n positions the last position has a gradient for, through a stack of layers, lowest first."""
    x = some(1, n, D).requires_grad_()
    y = x
    for mixer in stack:
        y = mixer(y)[0]
    (result,) = torch.autograd.grad(y[0, -1].sum(), x)
    return result[0].abs().sum(dim=-1) > 0


@pytest.mark.parametrize("kind", ["self-attention", "windowed", "convolution", "dilated"])
@pytest.mark.parametrize("n", [1, 2, 4, 5, 6, 9, 14, 15])
def test_path_length_matches_the_formula(kind: str, n: int) -> None:
    """Stack layers, and test whether ∂y_n/∂x_1 is zero."""
    length = make(kind).path_length(n)
    assert reachable_positions([make(kind, depth=depth) for depth in range(length)], n)[0]
    if length > 1:
        assert not reachable_positions([make(kind, depth=depth) for depth in range(length - 1)], n)[0]


def test_dilated_stack_connects_all_positions() -> None:
    """The path exists for any kernel size.

    Negative control: with distances k^depth, some positions are not connected.
    """
    for kernel in (3, 5):
        for n in range(1, 30):
            length = make("dilated", kernel=kernel).path_length(n)
            assert reachable_positions(
                [make("dilated", depth=depth, kernel=kernel) for depth in range(length)], n
            ).all()
    stack = [make("dilated", depth=depth) for depth in range(5)]
    for depth, mixer in enumerate(stack):
        assert isinstance(mixer, DilatedConvolution)
        mixer.dilation = 3**depth
    assert not reachable_positions(stack, 6)[0]


def test_path_lengths_match_the_documented_table() -> None:
    result = {
        kind: make_mixer(kind, 8, 2, window=32, kernel=3 if kind in ("convolution", "dilated") else None)
        for kind in MIXERS
    }
    paths = {kind: mixer.path_length(4096) for kind, mixer in result.items()}
    assert paths == {"self-attention": 1, "windowed": 128, "recurrent": 4096, "convolution": 4095, "dilated": 12}
    assert make_mixer("convolution", 8, 2, kernel=5).path_length(4096) == math.ceil(4095 / 2)
    assert make_mixer("dilated", 8, 2, kernel=5).path_length(4096) == 8


@pytest.mark.parametrize("kind", MIXERS)
@pytest.mark.parametrize("n", [5, 40])
def test_multiplication_counts_match_the_torch_counter(kind: str, n: int) -> None:
    """The operation counter of torch does not support fused recurrence and fused attention."""
    mixer = make(kind)
    with FlopCounterMode(display=False) as counter, accel.disabled():
        mixer(some(1, n, D), weights=True)
    # Both counts include the products with zeros outside the sequence.
    assert counter.get_total_flops() == 2 * mixer.multiplications(n)


# --- windowed self-attention ------------------------------------------------------------------------------------------


def full_attention_with_band(
    mixer: WindowedSelfAttention, x: torch.Tensor, mask: torch.Tensor | None
) -> tuple[Any, Any]:
    """Compute the definition: full attention with a band mask."""
    position = torch.arange(x.shape[1])
    near = (position.unsqueeze(1) - position).abs() <= mixer.reach
    allowed = near if mask is None else near & mask[:, None, None, :]
    return mixer.attention(x, mask=allowed, weights=True)


@given(
    length=st.integers(1, 90),
    reach=st.integers(1, 45),
    block=st.integers(1, 40),
    kv_heads=st.sampled_from([1, 2]),
    rotary=st.booleans(),
    cut=st.integers(0, 89),
)
def test_windowed_attention_matches_masked_full_attention(
    length: int, reach: int, block: int, kv_heads: int, rotary: bool, cut: int
) -> None:
    """Compare outputs, weights and gradients for any length, window, block size and padding."""
    torch.manual_seed(2)
    attention = MultiHeadAttention(D, HEADS, kv_heads, rotary=Rotary() if rotary else None)
    mixer = WindowedSelfAttention(attention.double(), reach).eval()
    x = some(2, length, D).requires_grad_()
    mask = padded((length, max(1, length - cut)), length)
    wanted, weights = full_attention_with_band(mixer, x, mask)
    usual = mixers.BLOCK
    mixers.BLOCK = block
    try:
        result, _ = mixer(x, mask)
        plain, local = mixer(x, mask, weights=True)
    finally:
        mixers.BLOCK = usual
    exactly(result, wanted)
    exactly(plain, wanted)
    exactly(local, weights)
    weigh = some(2, length, D, seed=3)
    expected = gradients(mixer, x, wanted, weigh)
    for actual in (result, plain):
        for gradient, expected_gradient in zip(gradients(mixer, x, actual, weigh), expected, strict=True):
            exactly(gradient, expected_gradient)


def test_window_over_all_positions_is_equivalent_to_self_attention() -> None:
    windowed = make("windowed", window=50)
    assert isinstance(windowed, WindowedSelfAttention)
    full, x = SelfAttention(windowed.attention), some(2, 40, D)
    exactly(windowed(x)[0], full(x)[0])


def largest_tensor_size(mixer: Mixer, n: int) -> int:
    """Return the number of elements of the largest tensor in the forward and backward pass."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    most = 0

    class RecordSizes(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
            nonlocal most
            output = function(*arguments, **(options or {}))
            sizes = [
                leaf.untyped_storage().nbytes() // leaf.element_size()
                for leaf in tree_leaves(output)
                if isinstance(leaf, torch.Tensor)
            ]
            most = max([most, *sizes])
            return output

    x = some(1, n, D).requires_grad_()
    with RecordSizes():
        mixer(x)[0].sum().backward()
    return most


def test_memory_of_windowed_attention_is_linear_in_the_length() -> None:
    mixer = make("windowed", window=4)
    assert (
        largest_tensor_size(mixer, 2048) == 2 * largest_tensor_size(mixer, 1024) < 2048 * (mixers.BLOCK + 8) * HEADS * 2
    )
    assert isinstance(mixer, WindowedSelfAttention)
    plain = lambda x: mixer.attention(x, weights=True)  # noqa: E731
    assert largest_tensor_size(plain, 256) == HEADS * 256**2, "negative control: plain attention is quadratic"  # type: ignore[arg-type]


# --- convolution ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("n", [1, 4, 11])
def test_convolution_matches_its_equation(kernel: int, depth: int, n: int) -> None:
    """Compare position by position, also for dilations longer than the sequence."""
    mixer = make("dilated", kernel=kernel, depth=depth)
    assert isinstance(mixer, DilatedConvolution) and mixer.dilation == (kernel // 2 + 1) ** depth
    x, mask = some(2, n, D), padded((n, max(1, n - 3)), n)
    result, _ = mixer(x, mask)
    for row in range(2):
        for t in range(n):
            expected = mixer.bias.detach().clone() if mixer.bias is not None else torch.zeros(D)
            for j in range(-(kernel // 2), kernel // 2 + 1):
                position = t + mixer.dilation * j
                if 0 <= position < n and mask[row, position]:
                    expected = expected + mixer.weight[:, :, j + kernel // 2] @ x[row, position]
            exactly(result[row, t], expected)


def test_receptive_field_of_dilated_layers_grows_exponentially() -> None:
    """With kernel size 3, L dilated layers read 2^L − 1 positions on either side. Other layers read L positions."""
    n = 61
    for layers, receptive_field in ((1, 3), (2, 7), (3, 15), (4, 31)):
        for kind, width in (("dilated", receptive_field), ("convolution", 2 * layers + 1)):
            x = some(1, n, D).requires_grad_()
            y = x
            for depth in range(layers):
                y = make(kind, depth=depth)(y)[0]
            (result,) = torch.autograd.grad(y[0, n // 2].sum(), x)
            positions = result[0].abs().sum(dim=-1).nonzero().flatten()
            assert positions.tolist() == list(range(n // 2 - width // 2, n // 2 + width // 2 + 1))


def test_plain_convolution_is_independent_of_the_depth() -> None:
    mixer = make("convolution", depth=3)
    assert isinstance(mixer, ConvolutionMixer) and mixer.dilation == 1


# --- recurrent --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["lstm", "gru", "elman", "mut1"])
def test_recurrent_mixer_matches_its_cells_in_both_directions(cell: str) -> None:
    mixer, x = make("recurrent", cell=cell), some(1, 4, D)
    assert isinstance(mixer, RecurrentMixer)
    halves = []
    for direction, order in ((mixer.layer.forwards, [0, 1, 2, 3]), (mixer.layer.backwards, [3, 2, 1, 0])):
        state = direction.cell.initial_state(1)
        outputs = {}
        for t in order:
            state = direction.cell(x[:, t], state)
            outputs[t] = state["h"]
        halves.append(torch.stack([outputs[t] for t in range(4)], dim=1))
    exactly(mixer(x)[0], torch.cat(halves, dim=-1))


def test_recurrent_plain_loop_matches_the_kernel() -> None:
    mixer, x, mask = make("recurrent"), some(2, 6, D), padded((6, 4), 6)
    exactly(run(mixer, x, mask, fused=False)[0], mixer(x, mask)[0])


# --- options ----------------------------------------------------------------------------------------------------------


def test_options_are_passed_to_attention() -> None:
    options = {"kv_heads": 1, "bias": False, "scale": False, "dropout": 0.25, "rotary": Rotary()}
    for kind in ("self-attention", "windowed"):
        attention = make_mixer(kind, D, HEADS, **options).attention  # type: ignore[arg-type]
        assert isinstance(attention, MultiHeadAttention)
        assert (attention.kv_heads, attention.scale, attention.dropout) == (1, 1.0, 0.25)
        assert attention.rotary is options["rotary"] and attention.q.bias is None
    assert make_mixer("convolution", D, HEADS, bias=False).bias is None


def test_self_attention_matches_its_equation() -> None:
    """Compute softmax(QKᵀ/√d_k)V W^O head by head."""
    mixer, x = make("self-attention"), some(1, 5, D)
    assert isinstance(mixer, SelfAttention)
    part = mixer.attention
    heads = []
    for head in range(HEADS):
        rows = slice(head * D // HEADS, (head + 1) * D // HEADS)
        q, k, v = (x[0] @ projection.weight[rows].T + projection.bias[rows] for projection in (part.q, part.k, part.v))
        heads.append(masked_softmax(q @ k.T / math.sqrt(D / HEADS), torch.ones(5, 5, dtype=torch.bool)) @ v)
    exactly(mixer(x)[0][0], torch.cat(heads, dim=-1) @ part.out.weight.T + part.out.bias)


def test_notes_of_a_layer_include_those_of_its_cell() -> None:
    assert make("recurrent", cell="mut1").notes() == ["MUT1 projects its input from 8 to 4 dimensions first (W_xp)"]
    assert make("convolution").notes() == []


def test_error_for_an_unknown_layer_has_a_suggestion() -> None:
    with pytest.raises(ValueError, match="no layer is called 'windowd': did you mean windowed"):
        mixer_class("windowd")


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"kind": "windowed", "window": 0}, ["window must be at least 1; got 0"]),
        ({"kind": "convolution", "kernel": 4}, ["kernel must be odd and at least 3"]),
        ({"kind": "dilated", "kernel": 1}, ["kernel must be odd and at least 3"]),
        ({"kind": "recurrent", "d_model": 7}, ["needs an even d_model; got 7"]),
        (
            {"kind": "self-attention", "window": 3, "kernel": 3, "cell": "gru"},
            [
                "window applies only to windowed layers; remove it for 'self-attention'",
                "kernel applies only to convolution and dilated layers",
                "cell applies only to recurrent layers",
            ],
        ),
        ({"kind": "windowed", "kernel": 4}, ["kernel applies only to"]),
    ],
)
def test_all_problems_are_reported(choice: dict[str, Any], words: list[str]) -> None:
    result = list(mixer_problems(**{"d_model": 8, **choice}))
    assert len(result) == len(words)
    for problem, word in zip(result, words, strict=True):
        assert word in problem


def test_valid_options_have_no_problems() -> None:
    for kind in MIXERS:
        assert list(mixer_problems(kind, 8)) == []
    assert list(mixer_problems("recurrent", 8, cell="gru")) == []
    with pytest.raises(ValueError, match="no cell is called 'gruu': did you mean gru"):
        list(mixer_problems("recurrent", 8, cell="gruu"))


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("windowed", {"window": 0}, "window must be at least 1"),
        ("convolution", {"kernel": 2}, "kernel must be odd"),
        ("recurrent", {"d_model": 9}, "needs an even d_model; got 9"),
        ("self-attention", {"d_model": 9}, "divisible by heads"),
    ],
)
def test_invalid_options_are_rejected(kind: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_mixer(**{"kind": kind, "d_model": 8, "heads": 2, **options})


def test_dilated_layers_support_any_depth() -> None:
    deep, plain = make("dilated", depth=100), make("dilated", depth=3)
    assert isinstance(deep, DilatedConvolution) and deep.dilation == mixers.MAX_DILATION
    assert deep(some(1, 9, D))[0].isfinite().all()
    assert "is limited to" in deep.notes()[0] and plain.notes() == []


def test_command_line_lists_the_registered_kinds() -> None:
    from seqloom.cli.measurements import KINDS

    assert KINDS.split(",") == list(MIXERS) == list(get_args(mixers.MixerKind))
    for kind, layer in MIXERS.items():
        shown = make(kind)(some(1, 5, D), weights=True)[1]
        assert layer.attends == (shown is not None), kind
