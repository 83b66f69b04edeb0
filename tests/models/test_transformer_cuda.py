"""The Transformer on a GPU: equality with the CPU, no synchronization, rows of padding, and decoding."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.device_sync import forbid_device_sync
from tests.models.small_seq2seq import some_batch, source_of
from tests.models.small_transformer import SWITCHES, transformer

from seqloom.core.tree import to_device
from seqloom.decoding.beam import BeamConfig, beam_search

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.fixture(params=SWITCHES)
def model(request):
    return transformer(**SWITCHES[request.param])


def batch_with_empty_row():
    """Return three pairs and a row of padding."""
    return {key: F.pad(values, (0, 0, 0, 1)) for key, values in some_batch().items()}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_gradients_match_cpu_results(model, smoothing):
    batch, gpu_model = batch_with_empty_row(), copy.deepcopy(model).cuda()
    value, count = model.loss(batch, smoothing)
    other, counted = gpu_model.loss(to_device(batch, "cuda"), smoothing)
    value.backward()
    other.backward()
    torch.testing.assert_close((other.cpu(), counted.cpu()), (value, count), atol=1e-10, rtol=0)
    gradients = [[p.grad.cpu() for p in each_model.parameters()] for each_model in (model, gpu_model)]
    torch.testing.assert_close(*gradients, atol=1e-9, rtol=0)
    torch.testing.assert_close(gpu_model.attention(to_device(batch, "cuda")).cpu(), model.attention(batch))


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_are_finite_in_every_precision(model, precision):
    """The precision determines the fused kernel. Every kernel must support a row of padding."""
    model, batch = model.float().cuda().train(), to_device(batch_with_empty_row(), "cuda")
    expected = model.eval().loss(batch)[0]
    with torch.autocast("cuda", precision, enabled=precision != torch.float32):
        value, _ = model.loss(batch)
    value.backward()
    assert value.dtype == torch.float32
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    torch.testing.assert_close(value, expected, atol=0.1, rtol=0)


@pytest.mark.parametrize("name", ["2017", "today", "learned", "windowed"])
def test_loss_needs_no_device_synchronization(name):
    model, batch = transformer(**SWITCHES[name]).float().cuda().train(), to_device(some_batch(), "cuda")
    model.loss(batch)[0].backward()  # the first call may synchronize
    with forbid_device_sync():
        model.loss(batch, 0.1, consistency=1.0)[0].backward()


@torch.no_grad()
def test_step_needs_no_device_synchronization():
    model, batch = transformer().float().cuda(), to_device(some_batch(), "cuda")
    state = model.start(source_of(batch))
    state = model.step(batch["inputs"][:, :1], state).state
    with forbid_device_sync():
        model.step(batch["inputs"][:, 1:2], state)


def test_beam_search_gives_the_same_results_as_on_the_cpu(model):
    source = source_of(some_batch())
    options = BeamConfig(beam=4, n_best=3, max_length=12)
    cpu_results = beam_search(model, options=options, end=0, source=source, attention=True)
    gpu_results = beam_search(model.cuda(), options=options, end=0, source=to_device(source, "cuda"), attention=True)
    for expected, actual in zip(cpu_results, gpu_results, strict=True):
        assert [hypothesis.tokens for hypothesis in expected] == [hypothesis.tokens for hypothesis in actual]
        for left, right in zip(expected, actual, strict=True):
            assert left.score == pytest.approx(right.score, abs=1e-8)
            torch.testing.assert_close(left.attention, right.attention)
