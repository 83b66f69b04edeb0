"""Fused kernels on a GPU: equality with the plain loop, flattened weights, and no synchronization."""

import copy
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.device_sync import forbid_device_sync
from tests.nn.run_layer import run

from seqloom.core.tree import leaves
from seqloom.nn.bidirectional import BidirectionalStack
from seqloom.nn.cells import CELLS
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
def test_fused_kernel_matches_plain_loop(stack, masked):
    x = inputs()
    mask = torch.rand(B, T, device="cuda") < 0.6 if masked else None
    results = []
    for fused in (True, False):
        outputs, state = run(stack, x, None, mask, fused=fused)
        loss = outputs.square().sum() + sum(leaf.sum() for leaf in leaves(state))
        results.append([outputs, *leaves(state), *torch.autograd.grad(loss, [x, *stack.parameters()])])
    torch.testing.assert_close(*results, atol=1e-10, rtol=0)


def test_weights_remain_flattened_when_moved_copied_and_loaded(stack):
    x = inputs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = stack(x)[0]
        for other in (copy.deepcopy(stack), copy.deepcopy(stack).cpu().cuda()):
            other.load_state_dict(stack.state_dict())
            torch.testing.assert_close(other(x)[0], expected)
            assert len({p.untyped_storage().data_ptr() for p in other.layers[0].parameters()}) == 1


def test_threads_flatten_weights_once(stack):
    with torch.no_grad():
        x, expected = inputs(), None
        for _ in range(20):
            fresh = copy.deepcopy(stack)
            for weight in fresh.parameters():
                weight.data = weight.data.clone()  # the weight is no longer flattened
            with warnings.catch_warnings(), ThreadPoolExecutor(8) as pool:
                warnings.simplefilter("error")
                result = [outputs for outputs, _ in pool.map(lambda _, layer=fresh: layer(x, None), range(8))]
            expected = result[0] if expected is None else expected
            for outputs_of_thread in result:
                assert torch.equal(outputs_of_thread, expected)


def test_optimizer_step_updates_the_flattened_weights(stack):
    stack(inputs())
    before = stack.layers[0].cell.weight_x.detach().clone()
    optimizer = torch.optim.SGD(stack.parameters(), lr=0.1)
    stack(inputs())[0].sum().backward()
    optimizer.step()
    assert not torch.equal(stack.layers[0].cell.weight_x, before)
    x = inputs()
    torch.testing.assert_close(stack(x)[0], run(stack, x, fused=False)[0])


def test_unmasked_pass_needs_no_device_synchronization(stack):
    x, state = inputs(), stack.initial_state(B)
    stack(x, state)
    with forbid_device_sync():
        outputs, _ = stack(x, state)
        outputs.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("masked", [False, True])
def test_mixed_precision_continues_from_its_state(stack, dtype, masked):
    stack = stack.float()
    x = inputs().float()
    mask = torch.rand(B, T, device="cuda") < 0.6 if masked else None
    with warnings.catch_warnings(), torch.autocast("cuda", dtype):
        warnings.simplefilter("error")
        first, state = stack(x, None, mask)
        second, _ = stack(x, state, mask)
    second.float().sum().backward()
    plain, after = run(stack, x, None, mask, fused=False)
    again, _ = run(stack, x, after, mask, fused=False)
    torch.testing.assert_close(first.float(), plain, atol=0.03, rtol=0)
    torch.testing.assert_close(second.float(), again, atol=0.03, rtol=0)


def test_gradients_work_in_evaluation_mode(stack):
    x = inputs()
    stack.eval()(x)[0].sum().backward()
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("masked", [False, True])
def test_fused_weight_dropout_matches_plain_loop_without_warnings(stack, masked) -> None:
    for layer in stack.layers:
        layer.weight_dropout = 0.5
    x = inputs()
    mask = torch.rand(B, T, device="cuda") < 0.6 if masked else None
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # cuDNN warns about weights that are not flattened
        for fused in (True, False):
            torch.manual_seed(7)  # the same weights are dropped
            outputs, state = run(stack, x, None, mask, fused=fused)
            loss = outputs.square().sum() + sum(leaf.sum() for leaf in leaves(state))
            results.append([outputs, *leaves(state), *torch.autograd.grad(loss, [x, *stack.parameters()])])
    torch.testing.assert_close(*results, atol=1e-10, rtol=0)
    assert not torch.equal(stack(x)[0], stack.eval()(x)[0])


def test_weight_dropout_needs_no_device_synchronization(stack) -> None:
    for layer in stack.layers:
        layer.weight_dropout = 0.5
    x, state = inputs(), stack.initial_state(B)
    stack(x, state)
    with forbid_device_sync():
        outputs, _ = stack(x, state)
        outputs.sum().backward()


@pytest.mark.parametrize("depth", ["each", "apart"])
@pytest.mark.parametrize("masked", [False, True])
def test_bidirectional_fused_kernel_matches_plain_loop(depth, masked) -> None:
    torch.manual_seed(0)
    both = BidirectionalStack(CELLS["lstm"], D, H, 2, combine="mix", depth=depth).double().cuda()
    x = inputs()
    mask = torch.rand(B, T, device="cuda") < 0.6 if masked else None
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for fused in (True, False):
            outputs, _ = run(both, x, None, mask, fused=fused)
            results.append([outputs, *torch.autograd.grad(outputs.square().sum(), [x, *both.parameters()])])
    torch.testing.assert_close(*results, atol=1e-10, rtol=0)


# Sequence kernels: cells without a cuDNN kernel, and padding in CUDA graphs.

WHOLE: dict[str, tuple[str, dict[str, str]]] = {
    **{name: (name, {}) for name in ("gru-cho", "mut1", "mut2", "mut3")},
    "elman-sigmoid": ("elman", {"activation": "sigmoid"}),
}


@pytest.fixture(params=WHOLE)
def sequence_stack(request):
    torch.manual_seed(0)
    name, options = WHOLE[request.param]
    return Stack([CELLS[name](D, H, **options), CELLS[name](H, H, **options)]).cuda()


def outputs_and_gradients(stack, x, state, mask, fused):
    outputs, after = run(stack, x, state, mask, fused=fused)
    loss = outputs.square().sum() + sum(leaf.sum() for leaf in leaves(after))
    expected = [x, *leaves(state), *stack.parameters()]
    result = [outputs, *leaves(after), *torch.autograd.grad(loss, expected)]
    return [tensor.detach() for tensor in result]


def some_state(stack, dtype=torch.float64):
    return tuple(
        {key: torch.randn_like(leaf, dtype=dtype).requires_grad_() for key, leaf in layer.items()}
        for layer in stack.initial_state(B)
    )


@pytest.mark.parametrize("masked", [False, True])
def test_sequence_kernels_match_the_plain_loop(sequence_stack, masked):
    stack, x = sequence_stack.double(), inputs()
    state = some_state(stack)
    mask = torch.rand(B, T, device="cuda") < 0.6 if masked else None
    results = [outputs_and_gradients(stack, x, state, mask, fused) for fused in (True, False)]
    torch.testing.assert_close(*results, atol=1e-10, rtol=0)


@pytest.mark.parametrize("masked", [False, True])
def test_sequence_kernels_in_mixed_precision_are_close_to_the_plain_loop(sequence_stack, masked):
    """The error equals that of the plain loop, and the state is in float32."""
    x, state = inputs().float().detach().requires_grad_(), some_state(sequence_stack, torch.float32)
    mask = torch.rand(B, T, device="cuda") < 0.6 if masked else None
    expected = outputs_and_gradients(sequence_stack, x, state, mask, False)
    with torch.autocast("cuda", torch.bfloat16):
        got = outputs_and_gradients(sequence_stack, x, state, mask, True)
    assert got[0].dtype == got[1].dtype == torch.float32
    for actual, exact in zip(got, expected, strict=True):
        torch.testing.assert_close(actual / exact.abs().max(), exact / exact.abs().max(), atol=0.05, rtol=0)


def test_sequence_kernels_need_no_device_synchronization(sequence_stack):
    x, state = inputs().float(), sequence_stack.initial_state(B)
    mask = torch.rand(B, T, device="cuda") < 0.6
    sequence_stack(x, state, mask)[0].sum().backward()
    with forbid_device_sync():
        sequence_stack(x, state, mask)[0].sum().backward()


def test_padding_needs_no_device_synchronization_in_training(stack):
    x, state, mask = inputs(), stack.initial_state(B), torch.rand(B, T, device="cuda") < 0.6
    stack(x, state, mask)[0].sum().backward()
    with forbid_device_sync():
        stack(x, state, mask)[0].sum().backward()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_cuda_graph_step_matches_the_eager_step(name, masked):
    """cuDNN kernels do not support padding during the capture of a CUDA graph."""
    torch.manual_seed(0)
    stack = Stack([CELLS[name](D, H)]).double().cuda()
    x, state = inputs(), some_state(stack)
    mask = torch.rand(B, T, device="cuda") < 0.6 if masked else None
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            outputs_and_gradients(stack, x, state, mask, True)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        got = outputs_and_gradients(stack, x, state, mask, True)
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
        if mask is not None:
            mask.copy_(torch.rand(B, T, device="cuda") < 0.6)
    graph.replay()
    torch.testing.assert_close(got, outputs_and_gradients(stack, x, state, mask, False), atol=1e-10, rtol=0)
