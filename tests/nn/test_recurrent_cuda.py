"""The fused kernels on a GPU: the same numbers, no warnings about scattered weights, and no waiting."""

import copy
import warnings

import pytest
import torch
from tests.waiting import no_waiting

from seqloom.core.tree import leaves
from seqloom.nn.bidirectional import BidirectionalStack
from seqloom.nn.cells import CELLS
from seqloom.nn.dropout import WeightDropout
from seqloom.nn.recurrent import Stack

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
VARIANTS = [("elman", {}), ("elman", {"activation": "relu"}), ("lstm", {}), ("gru", {})]
B, T, D, H = 4, 7, 3, 5


@pytest.fixture(params=VARIANTS, ids=["elman", "elman-relu", "lstm", "gru"])
def stack(request):
    torch.manual_seed(0)
    name, options = request.param
    return Stack([CELLS[name](D, H, **options), CELLS[name](H, H, **options)]).double().cuda()


def inputs():
    return torch.randn(B, T, D, dtype=torch.float64, device="cuda", requires_grad=True)


@pytest.mark.parametrize("masked", [False, True])
def test_fused_equals_plain_gradients_included(stack, masked):
    x = inputs()
    mask = torch.rand(B, T, device="cuda") < 0.6 if masked else None
    results = []
    for fused in (True, False):
        outputs, state = stack(x, None, mask, fused)
        loss = outputs.square().sum() + sum(leaf.sum() for leaf in leaves(state))
        results.append([outputs, *leaves(state), *torch.autograd.grad(loss, [x, *stack.parameters()])])
    torch.testing.assert_close(*results, atol=1e-10, rtol=0)


def test_weights_stay_in_one_piece_when_moved_copied_and_loaded(stack):
    x = inputs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wanted = stack(x)[0]
        for other in (copy.deepcopy(stack), copy.deepcopy(stack).cpu().cuda()):
            other.load_state_dict(stack.state_dict())
            torch.testing.assert_close(other(x)[0], wanted)
            assert len({p.untyped_storage().data_ptr() for p in other.layers[0].parameters()}) == 1


def test_a_step_of_the_optimizer_reaches_the_flattened_weights(stack):
    stack(inputs())
    before = stack.layers[0].cell.weight_x.detach().clone()
    optimizer = torch.optim.SGD(stack.parameters(), lr=0.1)
    stack(inputs())[0].sum().backward()
    optimizer.step()
    assert not torch.equal(stack.layers[0].cell.weight_x, before)
    x = inputs()
    torch.testing.assert_close(stack(x)[0], stack(x, fused=False)[0])


def test_nothing_waits_for_the_device_without_a_mask(stack):
    x, state = inputs(), stack.initial_state(B)
    stack(x, state)
    with no_waiting():
        outputs, _ = stack(x, state)
        outputs.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("masked", [False, True])
def test_mixed_precision_carries_its_own_state_on(stack, dtype, masked):
    stack = stack.float()
    x = inputs().float()
    mask = torch.rand(B, T, device="cuda") < 0.6 if masked else None
    with warnings.catch_warnings(), torch.autocast("cuda", dtype):
        warnings.simplefilter("error")
        first, state = stack(x, None, mask)
        second, _ = stack(x, state, mask)
    second.float().sum().backward()
    plain, after = stack(x, None, mask, fused=False)
    again, _ = stack(x, after, mask, fused=False)
    torch.testing.assert_close(first.float(), plain, atol=0.03, rtol=0)
    torch.testing.assert_close(second.float(), again, atol=0.03, rtol=0)


def test_gradients_can_be_had_in_evaluation_mode(stack):
    x = inputs()
    stack.eval()(x)[0].sum().backward()
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("masked", [False, True])
def test_weight_dropout_takes_the_kernels_without_a_warning_gradients_included(stack, masked) -> None:
    stack.weight_dropout = WeightDropout(0.5)
    x = inputs()
    mask = torch.rand(B, T, device="cuda") < 0.6 if masked else None
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # cuDNN complains about weights that are not in one piece
        for fused in (True, False):
            torch.manual_seed(7)  # the same weights are dropped
            outputs, state = stack(x, None, mask, fused)
            loss = outputs.square().sum() + sum(leaf.sum() for leaf in leaves(state))
            results.append([outputs, *leaves(state), *torch.autograd.grad(loss, [x, *stack.parameters()])])
    torch.testing.assert_close(*results, atol=1e-10, rtol=0)
    assert not torch.equal(stack(x)[0], stack.eval()(x)[0])


def test_weight_dropout_does_not_wait_for_the_device(stack) -> None:
    stack.weight_dropout = WeightDropout(0.5)
    x, state = inputs(), stack.initial_state(B)
    stack(x, state)
    with no_waiting():
        outputs, _ = stack(x, state)
        outputs.sum().backward()


@pytest.mark.parametrize("depth", ["each", "apart"])
@pytest.mark.parametrize("masked", [False, True])
def test_both_directions_on_a_gpu(depth, masked) -> None:
    torch.manual_seed(0)
    both = BidirectionalStack(CELLS["lstm"], D, H, 2, combine="mix", depth=depth).double().cuda()
    x = inputs()
    mask = torch.rand(B, T, device="cuda") < 0.6 if masked else None
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for fused in (True, False):
            outputs, _ = both(x, None, mask, fused)
            results.append([outputs, *torch.autograd.grad(outputs.square().sum(), [x, *both.parameters()])])
    torch.testing.assert_close(*results, atol=1e-10, rtol=0)
