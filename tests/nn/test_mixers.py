"""Layers that are interchangeable in an encoder: each against its definition, and all against one contract."""

import math
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.nn.running import run
from torch.utils.flop_counter import FlopCounterMode

from seqloom import accel
from seqloom.nn import mixers
from seqloom.nn.attention import Mixer, MultiHeadAttention, SelfAttention, masked_softmax
from seqloom.nn.mixers import (
    MIXERS,
    Convolution,
    DilatedConvolution,
    RecurrentMixer,
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
    for parameter in mixer.parameters():  # biases too, so that every part is heard
        torch.nn.init.uniform_(parameter, -0.7, 0.7)
    return mixer.double().eval()


def some(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def padded(lengths: tuple[int, ...], width: int) -> torch.Tensor:
    return torch.arange(width) < torch.tensor(lengths).unsqueeze(1)


def exactly(actual: Any, wanted: Any) -> None:
    torch.testing.assert_close(actual, wanted, atol=1e-10, rtol=0)


def gradients(mixer: Mixer, x: torch.Tensor, y: torch.Tensor, weigh: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad((y * weigh).sum(), [x, *mixer.parameters()]))


# --- the contract, for every kind -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MIXERS)
def test_a_row_alone_is_the_row_in_a_batch_whatever_stands_at_padding(kind: str) -> None:
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
    (found,) = torch.autograd.grad((y * mask.unsqueeze(-1)).square().sum(), x)
    assert (found[~mask] == 0).all() and (found[mask] != 0).all()


@pytest.mark.parametrize("kind", MIXERS)
def test_gradients_are_right(kind: str) -> None:
    mixer, mask = make(kind), padded((5, 3), 5)
    x = some(2, 5, D).requires_grad_()
    parameters = list(mixer.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: mixer(x, mask)[0][mask], (x, *parameters), fast_mode=True)


@pytest.mark.parametrize("kind", MIXERS)
def test_weights_are_attentions_alone_and_change_nothing(kind: str) -> None:
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
def test_the_shape_stays_however_short(kind: str, length: int) -> None:
    y, _ = make(kind)(some(2, length, D))
    assert y.shape == (2, length, D)


@pytest.mark.parametrize("kind", MIXERS)
def test_every_place_hears_both_sides_and_not_only_itself(kind: str) -> None:
    mixer, x = make(kind, depth=0), some(1, 5, D).requires_grad_()
    (found,) = torch.autograd.grad(mixer(x)[0][0, 2].sum(), x)
    heard = found[0].abs().sum(dim=-1) > 0
    assert heard[1:4].all()


def reached(stack: list[Mixer], n: int) -> torch.Tensor:
    """Which of n places a gradient of the last one comes to through a stack of layers, the lowest first."""
    x = some(1, n, D).requires_grad_()
    y = x
    for mixer in stack:
        y = mixer(y)[0]
    (found,) = torch.autograd.grad(y[0, -1].sum(), x)
    return found[0].abs().sum(dim=-1) > 0


@pytest.mark.parametrize("kind", ["self-attention", "windowed", "convolution", "dilated"])
@pytest.mark.parametrize("n", [1, 2, 4, 5, 6, 9, 14, 15])
def test_the_path_is_as_long_as_it_says_and_no_shorter(kind: str, n: int) -> None:
    """By stacking layers and asking for ∂y_n/∂x_1."""
    length = make(kind).path_length(n)
    assert reached([make(kind, depth=depth) for depth in range(length)], n)[0]
    if length > 1:
        assert not reached([make(kind, depth=depth) for depth in range(length - 1)], n)[0]


def test_a_stack_of_dilated_layers_leads_from_every_place_to_every_other() -> None:
    """For any kernel; and the control: were places k^depth apart, some ways would lead beyond the ends."""
    for kernel in (3, 5):
        for n in range(1, 30):
            length = make("dilated", kernel=kernel).path_length(n)
            assert reached([make("dilated", depth=depth, kernel=kernel) for depth in range(length)], n).all()
    stack = [make("dilated", depth=depth) for depth in range(5)]
    for depth, mixer in enumerate(stack):
        assert isinstance(mixer, DilatedConvolution)
        mixer.dilation = 3**depth
    assert not reached(stack, 6)[0]


def test_lengths_of_paths_at_the_sizes_of_the_table() -> None:
    found = {
        kind: make_mixer(kind, 8, 2, window=32, kernel=3 if kind in ("convolution", "dilated") else None)
        for kind in MIXERS
    }
    paths = {kind: mixer.path_length(4096) for kind, mixer in found.items()}
    assert paths == {"self-attention": 1, "windowed": 128, "recurrent": 4096, "convolution": 4095, "dilated": 12}
    assert make_mixer("convolution", 8, 2, kernel=5).path_length(4096) == math.ceil(4095 / 2)
    assert make_mixer("dilated", 8, 2, kernel=5).path_length(4096) == 8


@pytest.mark.parametrize("kind", MIXERS)
@pytest.mark.parametrize("n", [5, 40])
def test_multiplications_are_those_that_are_done(kind: str, n: int) -> None:
    """torch counts them as they happen; its counter sees neither fused recurrence nor fused attention."""
    mixer = make(kind)
    with FlopCounterMode(display=False) as counter, accel.disabled():
        mixer(some(1, n, D), weights=True)
    # A convolution is counted as if nothing were beyond the ends, and so is this.
    assert counter.get_total_flops() == 2 * mixer.multiplications(n)


# --- windowed self-attention ------------------------------------------------------------------------------------------


def banded(mixer: WindowedSelfAttention, x: torch.Tensor, mask: torch.Tensor | None) -> tuple[Any, Any]:
    """The definition: full attention, with a mask that shows each place its neighbours only."""
    place = torch.arange(x.shape[1])
    near = (place.unsqueeze(1) - place).abs() <= mixer.reach
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
def test_windowed_is_masked_full_attention(
    length: int, reach: int, block: int, kv_heads: int, rotary: bool, cut: int
) -> None:
    """Outputs, weights and all gradients, for any length, window and size of block, padding included."""
    torch.manual_seed(2)
    attention = MultiHeadAttention(D, HEADS, kv_heads, rotary=Rotary() if rotary else None)
    mixer = WindowedSelfAttention(attention.double(), reach).eval()
    x = some(2, length, D).requires_grad_()
    mask = padded((length, max(1, length - cut)), length)
    wanted, weights = banded(mixer, x, mask)
    usual = mixers.BLOCK
    mixers.BLOCK = block
    try:
        found, _ = mixer(x, mask)
        openly, local = mixer(x, mask, weights=True)
    finally:
        mixers.BLOCK = usual
    exactly(found, wanted)
    exactly(openly, wanted)
    exactly(local, weights)
    weigh = some(2, length, D, seed=3)
    expected = gradients(mixer, x, wanted, weigh)
    for actual in (found, openly):
        for one, other in zip(gradients(mixer, x, actual, weigh), expected, strict=True):
            exactly(one, other)


def test_a_window_over_everything_is_self_attention() -> None:
    windowed = make("windowed", window=50)
    assert isinstance(windowed, WindowedSelfAttention)
    full, x = SelfAttention(windowed.attention), some(2, 40, D)
    exactly(windowed(x)[0], full(x)[0])


def largest(mixer: Mixer, n: int) -> int:
    """The numbers of the largest tensor that any operation makes, forwards and backwards."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    most = 0

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
            nonlocal most
            made = function(*arguments, **(options or {}))
            sizes = [
                leaf.untyped_storage().nbytes() // leaf.element_size()
                for leaf in tree_leaves(made)
                if isinstance(leaf, torch.Tensor)
            ]
            most = max([most, *sizes])
            return made

    x = some(1, n, D).requires_grad_()
    with Look():
        mixer(x)[0].sum().backward()
    return most


def test_windowed_never_makes_anything_that_grows_with_the_square() -> None:
    mixer = make("windowed", window=4)
    assert largest(mixer, 2048) == 2 * largest(mixer, 1024) < 2048 * (mixers.BLOCK + 8) * HEADS * 2
    assert isinstance(mixer, WindowedSelfAttention)
    openly = lambda x: mixer.attention(x, weights=True)  # noqa: E731
    assert largest(openly, 256) == HEADS * 256**2, "the control: attention in the open does"  # type: ignore[arg-type]


# --- convolution ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("n", [1, 4, 11])
def test_convolution_is_its_sum(kernel: int, depth: int, n: int) -> None:
    """Place by place, for dilations longer than the sequence too."""
    mixer = make("dilated", kernel=kernel, depth=depth)
    assert isinstance(mixer, DilatedConvolution) and mixer.dilation == (kernel // 2 + 1) ** depth
    x, mask = some(2, n, D), padded((n, max(1, n - 3)), n)
    found, _ = mixer(x, mask)
    for row in range(2):
        for t in range(n):
            wanted = mixer.bias.detach().clone() if mixer.bias is not None else torch.zeros(D)
            for j in range(-(kernel // 2), kernel // 2 + 1):
                place = t + mixer.dilation * j
                if 0 <= place < n and mask[row, place]:
                    wanted = wanted + mixer.weight[:, :, j + kernel // 2] @ x[row, place]
            exactly(found[row, t], wanted)


def test_what_a_stack_of_dilated_layers_hears() -> None:
    """With kernel 3, L layers hear 2^L − 1 places on either side, all of them and no other; undilated ones L."""
    n = 61
    for layers, heard in ((1, 3), (2, 7), (3, 15), (4, 31)):
        for kind, width in (("dilated", heard), ("convolution", 2 * layers + 1)):
            x = some(1, n, D).requires_grad_()
            y = x
            for depth in range(layers):
                y = make(kind, depth=depth)(y)[0]
            (found,) = torch.autograd.grad(y[0, n // 2].sum(), x)
            places = found[0].abs().sum(dim=-1).nonzero().flatten()
            assert places.tolist() == list(range(n // 2 - width // 2, n // 2 + width // 2 + 1))


def test_the_plain_convolution_does_not_care_how_deep_it_lies() -> None:
    mixer = make("convolution", depth=3)
    assert isinstance(mixer, Convolution) and mixer.dilation == 1


# --- recurrent --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["lstm", "gru", "elman", "mut1"])
def test_recurrent_is_its_cell_from_each_end(cell: str) -> None:
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


def test_the_plain_loop_of_the_recurrent_layer_is_its_kernel() -> None:
    mixer, x, mask = make("recurrent"), some(2, 6, D), padded((6, 4), 6)
    exactly(run(mixer, x, mask, fused=False)[0], mixer(x, mask)[0])


# --- what each passes on, and what is refused -------------------------------------------------------------------------


def test_options_of_attention_reach_it() -> None:
    options = {"kv_heads": 1, "bias": False, "scale": False, "dropout": 0.25, "rotary": Rotary()}
    for kind in ("self-attention", "windowed"):
        attention = make_mixer(kind, D, HEADS, **options).attention  # type: ignore[arg-type]
        assert isinstance(attention, MultiHeadAttention)
        assert (attention.kv_heads, attention.scale, attention.dropout) == (1, 1.0, 0.25)
        assert attention.rotary is options["rotary"] and attention.q.bias is None
    assert make_mixer("convolution", D, HEADS, bias=False).bias is None


def test_the_scores_of_self_attention_are_the_papers() -> None:
    """softmax(QKᵀ/√d_k)V W^O from the matrices, head by head."""
    mixer, x = make("self-attention"), some(1, 5, D)
    assert isinstance(mixer, SelfAttention)
    part = mixer.attention
    heads = []
    for head in range(HEADS):
        rows = slice(head * D // HEADS, (head + 1) * D // HEADS)
        q, k, v = (x[0] @ one.weight[rows].T + one.bias[rows] for one in (part.q, part.k, part.v))
        heads.append(masked_softmax(q @ k.T / math.sqrt(D / HEADS), torch.ones(5, 5, dtype=torch.bool)) @ v)
    exactly(mixer(x)[0][0], torch.cat(heads, dim=-1) @ part.out.weight.T + part.out.bias)


def test_notes_come_from_the_cell() -> None:
    assert make("recurrent", cell="mut1").notes() == ["MUT1 projects its input from 8 to 4 dimensions first (W_xp)"]
    assert make("convolution").notes() == []


def test_an_unknown_layer_is_answered_with_the_nearest() -> None:
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
                "window is an option of windowed layers only; remove it for 'self-attention'",
                "kernel is an option of convolution and dilated layers only",
                "cell is an option of recurrent layers only",
            ],
        ),
        ({"kind": "windowed", "kernel": 4}, ["kernel is an option of"]),
    ],
)
def test_all_problems_of_a_choice_are_told(choice: dict[str, Any], words: list[str]) -> None:
    found = list(mixer_problems(**{"d_model": 8, **choice}))
    assert len(found) == len(words)
    for problem, word in zip(found, words, strict=True):
        assert word in problem


def test_a_right_choice_has_no_problems() -> None:
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
def test_what_cannot_be_made_is_not(kind: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_mixer(**{"kind": kind, "d_model": 8, "heads": 2, **options})


def test_dilated_layers_may_be_as_deep_as_one_likes() -> None:
    deep, plain = make("dilated", depth=100), make("dilated", depth=3)
    assert isinstance(deep, DilatedConvolution) and deep.dilation == mixers.MAX_DILATION
    assert deep(some(1, 9, D))[0].isfinite().all()
    assert "is limited to" in deep.notes()[0] and plain.notes() == []


def test_the_kinds_are_known_alike_everywhere() -> None:
    from seqloom.cli.measurements import KINDS

    assert KINDS.split(",") == list(MIXERS) == list(get_args(mixers.MixerKind))
    for kind, layer in MIXERS.items():
        shown = make(kind)(some(1, 5, D), weights=True)[1]
        assert layer.attends == (shown is not None), kind
