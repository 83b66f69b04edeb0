"""NaN and infinity at padding do not change any output at a real position or any gradient."""

from functools import partial
from typing import Any

import pytest
import torch
from tests.nn.run_layer import run

from seqloom.accel.recurrence import numba_steps
from seqloom.accel.recurrence.steps import steps_name
from seqloom.core.tree import leaves
from seqloom.models.classifier import SeriesClassifierConfig
from seqloom.models.forecaster import RecurrentForecasterConfig
from seqloom.nn.attention import Attention
from seqloom.nn.bidirectional import BidirectionalStack
from seqloom.nn.cells import CELLS
from seqloom.nn.crf import LinearChainCRF
from seqloom.nn.encoders import ConvolutionEncoderConfig, RecurrentEncoderConfig, TransformerEncoderConfig, Windows
from seqloom.nn.mixers import MIXERS, make_mixer
from seqloom.nn.pooling import POOLINGS, Bag
from seqloom.nn.positions import PositionsConfig
from seqloom.nn.recurrent import Recurrent, Stack, input_sizes
from seqloom.nn.scores import SCORES
from seqloom.nn.softmax import IGNORE_INDEX, linear_cross_entropy

B, D, H = 4, 4, 6
STEPS = (1, 2, 3, 7, 20)  # the implementation depends on the number of steps


def with_garbage(x, real):
    """Return x with NaN, infinities and huge numbers where `real` is False."""
    kinds = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e38], dtype=x.dtype)
    return x.where(real, kinds.repeat(x.numel())[: x.numel()].view(x.shape))


def some_mask(steps, last=True):
    """Return a mask of rows of several lengths, one of which is 0. Without `last`, padding is at any position."""
    torch.manual_seed(5)
    if not last:
        return torch.rand(B, steps) < 0.5
    lengths = torch.tensor([steps, 0, (steps + 1) // 2, max(1, steps - 1)])
    return torch.arange(steps) < lengths.unsqueeze(1)


def results(module, compute, x):
    """Return the results of `compute` and the gradients of their squares for x and all parameters."""
    x = x.clone().requires_grad_()
    torch.manual_seed(3)  # for dropout
    outputs = list(compute(x))
    loss = sum(output.square().sum() for output in outputs)
    gradients = torch.autograd.grad(loss, [x, *module.parameters()], allow_unused=True, materialize_grads=True)
    return [*outputs, *gradients]


def assert_ignores(module, compute, mask, width=D, dtype=torch.float32):
    torch.manual_seed(1)
    clean = torch.randn(*mask.shape, width, dtype=dtype).masked_fill(~mask.unsqueeze(2), 0)
    filled = with_garbage(clean, mask.unsqueeze(2))
    wanted = results(module, compute, clean)
    assert all(tensor.isfinite().all() for tensor in wanted)
    assert any(tensor.any() for tensor in wanted) or not mask.any()
    for actual, expected in zip(results(module, compute, filled), wanted, strict=True):
        torch.testing.assert_close(actual, expected, atol=0, rtol=0)


# Recurrent layers with every cell and implementation.


@pytest.mark.parametrize("fused", [True, False], ids=["selected", "plain loop"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", CELLS)
def test_recurrent_layer_ignores_padding(name, dtype, fused):
    torch.manual_seed(0)
    layer = Recurrent(CELLS[name](D, H)).to(dtype)
    for steps in STEPS:
        for last in (True, False):
            mask = some_mask(steps, last)

            def compute(x, mask=mask):
                return leaves(run(layer, x, mask=mask, fused=fused))

            assert_ignores(layer, compute, mask, dtype=dtype)


@pytest.mark.skipif(numba_steps.library() is None, reason="needs numba, MKL and GNU's OpenMP")
@pytest.mark.parametrize("name", sorted({name for name in CELLS if steps_name(CELLS[name](1, 1)) is not None}))
def test_compiled_loops_ignore_padding(name, monkeypatch):
    monkeypatch.setattr(numba_steps, "MIN_STATE_ELEMENTS", 0)
    monkeypatch.setattr(numba_steps, "MIN_ROWS_PER_THREAD", 1)
    torch.manual_seed(0)
    layer, mask = Recurrent(CELLS[name](D, H)), some_mask(20)
    assert_ignores(layer, lambda x: leaves(layer(x, mask=mask)), mask)


@pytest.mark.parametrize("fused", [True, False], ids=["selected", "plain loop"])
@pytest.mark.parametrize("options", [{}, {"variational_dropout": True}, {"weight_dropout": 0.5}], ids=str)
@pytest.mark.parametrize("connections", ["none", "residual", "highway", "dense"])
def test_stack_ignores_padding(connections, options, fused):
    torch.manual_seed(0)
    widths = input_sizes(connections, D, H, layers=2)
    stack = Stack([CELLS["gru-cho"](width, H) for width in widths], 0.5, connections, **options)
    for mask in (some_mask(3), some_mask(7), some_mask(7, last=False)):

        def compute(x, mask=mask):
            return leaves(run(stack, x, mask=mask, fused=fused))

        assert_ignores(stack, compute, mask)
    mask = some_mask(7)
    assert_ignores(stack, lambda x: stack.read(x, mask), mask)


@pytest.mark.parametrize("depth", ["each", "apart"])
@pytest.mark.parametrize("combine", ["concat", "sum", "mix"])
@pytest.mark.parametrize("name", ["lstm", "mut1"])
def test_bidirectional_stack_ignores_padding(name, combine, depth):
    torch.manual_seed(0)
    stack = BidirectionalStack(
        CELLS[name], D, H, 2, combine=combine, depth=depth, dropout=0.5, variational_dropout=True
    )
    for steps in (3, 20):
        mask = some_mask(steps)
        ways = [partial(run, stack, mask=mask, fused=fused) for fused in (True, False)]
        for way in (*ways, partial(stack.read, mask=mask)):
            assert_ignores(stack, lambda x, way=way: leaves(way(x)), mask)


# Other layers that read vectors and a mask.


@pytest.mark.parametrize("name", SCORES)
def test_attention_ignores_padding(name):
    torch.manual_seed(0)
    attention, mask = Attention(SCORES[name](H, D)), some_mask(7)
    query = torch.randn(B, 3, H)
    assert_ignores(attention, lambda x: attention(query, attention.prepare(x, mask)), mask)


@pytest.mark.parametrize("name", POOLINGS)
def test_pooling_ignores_padding(name):
    torch.manual_seed(0)
    pooling, mask, ends = POOLINGS[name](D), some_mask(7), torch.randn(B, D)

    def compute(h):
        summary, weights = pooling(h, mask, ends + 0 * h.where(mask.unsqueeze(2), 0).sum())
        return [summary] if weights is None else [summary, weights]

    assert_ignores(pooling, compute, mask)


@pytest.mark.parametrize("weights", ["one-hot", "counts", "tf-idf", "mean"])
def test_bag_ignores_padding(weights):
    bag, mask, tokens = Bag(weights, 5), some_mask(7), torch.randint(0, 5, (B, 7))
    assert_ignores(bag, lambda x: [bag(x, tokens, mask)], mask)


def test_convolution_ignores_padding():
    torch.manual_seed(0)
    windows, mask = Windows(D, H, (2, 3)), some_mask(7)
    assert_ignores(windows, lambda x: [windows(x, mask)], mask)


@pytest.mark.parametrize("constrained", [True, False])
def test_crf_ignores_padding(constrained):
    torch.manual_seed(0)
    crf, mask, tags = LinearChainCRF(D), some_mask(7), torch.randint(0, D, (B, 7))
    torch.nn.init.normal_(crf.transitions)
    if constrained:
        crf.constrain(["O", "B-X", "I-X", "B-Y"])

    def compute(x):
        return crf.log_likelihood(x, tags, mask).clamp(min=-100), crf.marginals(x, mask), crf.log_partition(x, mask)

    assert_ignores(crf, compute, mask)
    clean = torch.randn(B, 7, D)
    wanted = crf.viterbi(clean, mask)
    for actual, expected in zip(crf.viterbi(with_garbage(clean, mask.unsqueeze(2)), mask), wanted, strict=True):
        assert torch.equal(actual, expected)


ENCODERS: dict[str, Any] = {
    "recurrent": RecurrentEncoderConfig(hidden=H, layers=2, dropout=0.5),
    "unidirectional": RecurrentEncoderConfig(hidden=H, bidirectional=False, cell="gru-cho"),
    "convolution": ConvolutionEncoderConfig(filters=3, widths=(2, 3), layers=2),
    "transformer": TransformerEncoderConfig(d_model=8, heads=2),
    "transformer, rotary": TransformerEncoderConfig(
        d_model=8, heads=2, norm_first=False, positions=PositionsConfig(kind="rotary"), attention_dropout=0.5
    ),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder_ignores_padding(name):
    torch.manual_seed(0)
    encoder = ENCODERS[name].build(D)
    for steps in (3, 20):  # attention has implementations for few and for many queries
        mask = some_mask(steps)

        def compute(x, mask=mask):
            h, ends = encoder.read(x, mask)
            return h.where(mask.unsqueeze(2), 0), ends

        assert_ignores(encoder, compute, mask)


@pytest.mark.parametrize("kind", [kind for kind in MIXERS if not MIXERS[kind].attends])
def test_mixer_ignores_padding(kind):
    torch.manual_seed(0)
    mixer = make_mixer(kind, D, 2)
    for steps in (3, 20):
        mask = some_mask(steps)

        def compute(x, mask=mask):
            return [mixer(x, mask)[0].where(mask.unsqueeze(2), 0)]

        assert_ignores(mixer, compute, mask)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_ignores_padding(smoothing):
    torch.manual_seed(0)
    output, mask = torch.nn.Linear(D, 9), some_mask(7)
    targets = torch.randint(0, 9, mask.shape).masked_fill(~mask, IGNORE_INDEX).flatten()

    def compute(h):
        return [linear_cross_entropy(h.flatten(0, 1), output.weight, output.bias, targets, smoothing)]

    assert_ignores(output, compute, mask)


# Series with missing values.


@pytest.mark.parametrize("difference", ["none", "step", "season"])
def test_forecaster_ignores_missing_values(difference):
    torch.manual_seed(0)
    model = RecurrentForecasterConfig(hidden=H, difference=difference, dropout=0.0).build(2, season=3)
    values, mask = torch.randn(B, 9, 2), torch.rand(B, 9, 2) < 0.7
    result = []
    for x in (values.where(mask, 0), with_garbage(values, mask)):
        model.zero_grad()
        loss, count = model.loss(x, mask)
        loss.backward()
        result.append(
            [loss.detach(), count, model.score(x, mask), *(parameter.grad for parameter in model.parameters())]
        )
    for actual, expected in zip(*reversed(result), strict=True):
        assert actual.isfinite().all() and torch.equal(actual, expected)


def test_series_classifier_ignores_padding():
    torch.manual_seed(0)
    model = SeriesClassifierConfig(encoder=RecurrentEncoderConfig(hidden=H)).build(2, 3)
    mask = some_mask(7)
    observed = (torch.rand(B, 7, 2) < 0.7) & mask.unsqueeze(2)
    values = torch.randn(B, 7, 2)
    result = []
    for x in (values.where(observed, 0), with_garbage(values, observed)):
        model.zero_grad()
        logits = model({"values": x, "observed": observed, "mask": mask})
        logits.square().sum().backward()
        result.append([logits.detach(), *(parameter.grad for parameter in model.parameters())])
    for actual, expected in zip(*reversed(result), strict=True):
        assert actual.isfinite().all() and torch.equal(actual, expected)
