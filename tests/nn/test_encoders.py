"""Encoders of every kind: padding, receptive fields, final states and options."""

from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import build
from seqloom.core.errors import UsageError
from seqloom.nn.bidirectional import BidirectionalStack
from seqloom.nn.cells import CELLS
from seqloom.nn.encoders import AnyEncoderConfig, Encoder, RecurrentEncoderConfig, Windows
from seqloom.nn.masks import reversal_indices
from seqloom.nn.recurrent import Stack

ENCODERS: dict[str, Any] = {of.kind: of for of in get_args(AnyEncoderConfig)}
D = 6
LENGTHS = (4, 1, 0, 6, 3)
KINDS: dict[str, dict[str, Any]] = {
    "recurrent": {"kind": "recurrent", "hidden": 4, "layers": 2},
    "recurrent-one-way": {"kind": "recurrent", "cell": "gru", "hidden": 4, "layers": 2, "bidirectional": False},
    "recurrent-apart": {"kind": "recurrent", "hidden": 4, "layers": 2, "depth": "apart", "combine": "mix"},
    "convolution": {"kind": "convolution", "widths": [1, 2, 3, 5], "filters": 3, "layers": 2},
    "transformer": {"kind": "transformer", "d_model": 8, "heads": 2},
    "transformer-2017": {"kind": "transformer", "d_model": 6, "heads": 3, "norm_first": False, "layers": 1},
    "transformer-rotary": {"kind": "transformer", "d_model": 8, "heads": 2, "positions": {"kind": "rotary"}},
}


def config_of(options: dict[str, Any]) -> Any:
    return build(ENCODERS[options["kind"]], options)


def build_encoder(**options: Any) -> Any:
    torch.manual_seed(0)
    return config_of(options).build(D).double().eval()


@pytest.fixture(params=KINDS)
def encoder(request) -> Encoder:
    return build_encoder(**KINDS[request.param])


def sequences(lengths: tuple[int, ...] = LENGTHS) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    return torch.randn(*mask.shape, D, dtype=torch.float64), mask


def real_states(h: Tensor, mask: Tensor) -> Tensor:
    return h.masked_fill(~mask.unsqueeze(2), 0)


def test_single_row_gives_the_same_result_as_in_a_batch(encoder) -> None:
    x, mask = sequences()
    h, ends = encoder.read(x, mask)
    assert h.shape == (*mask.shape, encoder.output_size) and ends.shape == (len(mask), encoder.output_size)
    assert torch.equal(encoder(x, mask), h)
    assert not ends[2].any()  # the row is empty
    for row, length in enumerate(LENGTHS):
        if length:
            alone, end = encoder.read(x[row : row + 1, :length], mask[row : row + 1, :length])
            torch.testing.assert_close(alone[0], h[row, :length], atol=1e-10, rtol=0)
            torch.testing.assert_close(end[0], ends[row], atol=1e-10, rtol=0)


def test_padding_has_no_effect(encoder) -> None:
    x, mask = sequences()
    h, ends = encoder.read(x, mask)
    other = torch.where(mask.unsqueeze(2), x, 1e3).requires_grad_()
    again, same = encoder.read(other, mask)
    torch.testing.assert_close((real_states(again, mask), same), (real_states(h, mask), ends), atol=1e-10, rtol=0)
    (gradient,) = torch.autograd.grad(real_states(again, mask).square().sum() + same.square().sum(), other)
    assert not gradient[~mask].any() and gradient[mask].any(dim=1).all()
    more = F.pad(mask, (0, 5))
    wider, same = encoder.read(F.pad(x, (0, 0, 0, 5), value=-7.0), more)
    torch.testing.assert_close(
        (real_states(wider, more)[:, : x.shape[1]], same), (real_states(h, mask), ends), atol=1e-10, rtol=0
    )


def test_outputs_depend_on_the_order(encoder) -> None:
    x, mask = sequences((5,))
    assert not torch.allclose(encoder(x.flip(1), mask).flip(1), encoder(x, mask))


def test_dropout_is_active_only_in_training(encoder) -> None:
    x, mask = sequences()
    assert torch.equal(encoder(x, mask), encoder(x, mask))


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "recurrent", "layers": 2, "dropout": 0.5},
        {"kind": "recurrent", "weight_dropout": 0.5},
        {"kind": "recurrent", "layers": 2, "dropout": 0.5, "variational_dropout": True, "bidirectional": False},
        {"kind": "convolution", "layers": 2, "dropout": 0.5},
        {"kind": "transformer", "d_model": 8},
    ],
)
def test_dropout_changes_training_outputs(options) -> None:
    encoder, (x, mask) = build_encoder(**options).train(), sequences()
    assert not torch.equal(encoder(x, mask), encoder(x, mask))


def test_only_unidirectional_encoders_are_causal() -> None:
    x, mask = sequences((6,))
    for bidirectional in (False, True):
        encoder = build_encoder(kind="recurrent", hidden=4, bidirectional=bidirectional)
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(encoder(x, mask)[0, 2].sum(), x)
        has_gradient = gradient[0].any(dim=1).tolist()
        assert has_gradient == ([True] * 6 if bidirectional else [True] * 3 + [False] * 3)


def test_convolution_reads_positions_within_its_width() -> None:
    x, mask = sequences((9,))
    x.requires_grad_()
    for width, positions in ((1, [4]), (2, [4, 5]), (3, [3, 4, 5]), (4, [3, 4, 5, 6]), (5, [2, 3, 4, 5, 6])):
        encoder = build_encoder(kind="convolution", widths=[width], filters=8)
        (gradient,) = torch.autograd.grad(encoder(x, mask)[0, 4].sum(), x)
        assert gradient[0].any(dim=1).nonzero().flatten().tolist() == positions


def test_convolution_matches_its_equation() -> None:
    """Compute y_t = ReLU(Σ_i W_i x_{t+i} + b) position by position; x is 0 outside the sequence."""
    torch.manual_seed(0)
    windows, (x, mask) = Windows(D, 3, [2, 3]).double(), sequences()
    expected = torch.zeros(*mask.shape, 6, dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        for t in range(length):
            for part, (layer, width) in enumerate(zip(windows.layers, (2, 3), strict=True)):
                assert isinstance(layer, nn.Conv1d) and layer.bias is not None
                y = layer.bias.clone()
                for k in range(width):
                    position = t + k - (width - 1) // 2
                    if 0 <= position < length:
                        y = y + layer.weight[:, :, k] @ x[row, position]
                expected[row, t, 3 * part : 3 * part + 3] = y.relu()
    torch.testing.assert_close(windows(x, mask), expected, atol=1e-10, rtol=0)


# --- padding without synchronization ----------------------------------------------------------------------------------


def assert_same_results(stack: Any, masked: Any, x: Tensor, mask: Tensor) -> None:
    """Compare outputs, final states and all gradients."""
    results = []
    for outputs, ends in (stack.read(x, mask), masked()):
        value = outputs.square().sum() + (3 * ends).sin().sum()
        results.append([outputs, ends, *torch.autograd.grad(value, [x, *stack.parameters()])])
    torch.testing.assert_close(*results, atol=1e-10, rtol=0)


@pytest.mark.parametrize("combine", ["concat", "sum", "mix"])
@pytest.mark.parametrize("depth", ["each", "apart"])
@pytest.mark.parametrize("cell", CELLS)
def test_reading_padding_is_equivalent_to_masking_it(cell, depth, combine) -> None:
    torch.manual_seed(0)
    stack = BidirectionalStack(CELLS[cell], D, 4, 2, depth=depth, combine=combine).double()
    x, mask = sequences()

    def masked() -> tuple[Tensor, Tensor]:
        outputs, state = stack(x, mask=mask)
        return outputs, stack.ends(state).masked_fill(~mask.any(dim=1, keepdim=True), 0)

    assert_same_results(stack, masked, x.requires_grad_(), mask)


@pytest.mark.parametrize("connections", ["none", "residual", "highway", "dense"])
@pytest.mark.parametrize("cell", CELLS)
def test_reading_padding_is_equivalent_to_masking_it_in_one_direction(cell, connections) -> None:
    torch.manual_seed(0)
    widths = [D, D + 4 if connections == "dense" else 4]
    stack = Stack([CELLS[cell](width, 4) for width in widths], connections=connections).double()
    x, mask = sequences()

    def masked() -> tuple[Tensor, Tensor]:
        outputs = stack(x, mask=mask)[0]
        last = [outputs[row, length - 1] if length else torch.zeros(4).double() for row, length in enumerate(LENGTHS)]
        return outputs, torch.stack(last)

    assert_same_results(stack, masked, x.requires_grad_(), mask)


def test_reversing_twice_is_the_identity() -> None:
    _, mask = sequences()
    order = reversal_indices(mask)
    assert order.tolist()[0] == [3, 2, 1, 0, 4, 5] and order.tolist()[2] == [0, 1, 2, 3, 4, 5]
    assert torch.equal(order.gather(1, order), torch.arange(6).expand_as(order))


def test_weight_dropout_applies_to_both_directions() -> None:
    config = RecurrentEncoderConfig(hidden=4, weight_dropout=0.9)
    encoder, (x, mask) = config.build(D).double(), sequences()
    first, second = (encoder(x, mask) for _ in range(2))
    for half in (slice(0, 4), slice(4, 8)):
        assert not torch.equal(first[..., half], second[..., half])


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "recurrent", "hidden": 0, "weight_dropout": 1.0}, "hidden: must be at least 1"),
        ({"kind": "recurrent", "hidden": 0, "weight_dropout": 1.0}, "weight_dropout: must be less than 1"),
        ({"kind": "recurrent", "bidirectional": False, "combine": "sum"}, "need bidirectional=true"),
        ({"kind": "recurrent", "cell": "lsmt"}, "did you mean lstm"),
        ({"kind": "convolution", "widths": []}, "widths must be"),
        ({"kind": "convolution", "widths": [3, 3], "filters": 0, "layers": 0}, "widths must be"),
        ({"kind": "convolution", "widths": [3, 3], "filters": 0, "layers": 0}, "layers: must be at least 1"),
        ({"kind": "convolution", "widths": [3, 3], "filters": 0, "layers": 0}, "filters: must be at least 1"),
        ({"kind": "convolution", "widths": [3, 0], "dropout": 1.5}, "widths must be"),
        ({"kind": "convolution", "widths": [3, 0], "dropout": 1.5}, "dropout: must be less than 1"),
        ({"kind": "transformer", "heads": 3}, "divisible by heads"),
        ({"kind": "transformer", "layers": 0, "attention_dropout": 1.0}, "attention_dropout: must be"),
        ({"kind": "transformer", "d_model": 7, "heads": 1}, "even d_model"),
    ],
)
def test_invalid_settings_are_rejected(options, words) -> None:
    with pytest.raises(UsageError, match=words):
        config_of(options)


def test_text_longer_than_learned_positions_is_rejected() -> None:
    encoder = build_encoder(kind="transformer", d_model=8, positions={"kind": "learned", "max_length": 4})
    assert encoder.config.longest == 4 and build_encoder(kind="transformer").config.longest is None
    x, mask = sequences((6, 2))
    with pytest.raises(UsageError, match=r"4 positions.*6 tokens.*model\.encoder\.positions\.max_length"):
        encoder(x, mask)
    short = F.pad(mask[:, :4], (0, 2))  # padding is not counted
    torch.testing.assert_close(encoder(x, short)[:, :4], encoder(x[:, :4], mask[:, :4]), atol=1e-10, rtol=0)


def test_notes_describe_projections_and_ineffective_options() -> None:
    assert build_encoder(kind="recurrent", cell="mut1").notes()
    assert "variational_dropout has no effect" in build_encoder(kind="recurrent", variational_dropout=True).notes()[0]
    assert build_encoder(kind="convolution").notes() == []
    notes = build_encoder(kind="transformer", positions={"kind": "none"}).notes()
    assert "set of tokens" in notes[0] and "projects its inputs from 6" in notes[1]
