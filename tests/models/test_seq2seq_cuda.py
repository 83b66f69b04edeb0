"""The recurrent encoder–decoder on a GPU: equality with the CPU, precision of the loss, and decoding."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from seqloom.core.protocols import DecodeState
from seqloom.core.tree import select_rows, to_device
from seqloom.models.recurrent_seq2seq import AttentionConfig, RecurrentSeq2SeqConfig

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
V = 11
KINDS: dict[str, dict[str, Any]] = {
    "start": {"attention": None, "cell": "lstm", "decoder_layers": 2, "reverse": True},
    "every": {"attention": None, "context": "every"},
    "luong": {"attention": AttentionConfig(), "cell": "lstm", "decoder_layers": 2, "encoder_layers": 2},
    "feeding": {"attention": AttentionConfig(input_feeding=True, coverage=True, score="cosine")},
    "bahdanau": {"attention": AttentionConfig(order="bahdanau", score="additive"), "cell": "gru-cho"},
}


@pytest.fixture(params=KINDS)
def seq2seq(request):
    torch.manual_seed(0)
    return RecurrentSeq2SeqConfig(hidden=8, **KINDS[request.param]).build(V).double()


def some_batch():
    """Return three pairs and a row of padding."""
    sources, targets = (
        torch.arange(5) < torch.tensor(lengths).unsqueeze(1) for lengths in ((5, 2, 4, 0), (3, 5, 1, 0))
    )
    tokens = torch.randint(V, (4, 5))
    return {
        "source": torch.randint(V, (4, 5)),
        "source_mask": sources,
        "inputs": F.pad(tokens, (1, -1)),
        "targets": tokens,
        "target_mask": targets,
    }


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_gradients_match_cpu_results(seq2seq, smoothing):
    """The CPU selects the real positions. The GPU computes all positions and masks padding."""
    batch, gpu_model = some_batch(), copy.deepcopy(seq2seq).cuda()
    value, count = seq2seq.loss(batch, smoothing)
    other, counted = gpu_model.loss(to_device(batch, "cuda"), smoothing)
    value.backward()
    other.backward()
    torch.testing.assert_close((other.cpu(), counted.cpu()), (value, count), atol=1e-10, rtol=0)
    gradients = [[p.grad.cpu() for p in model.parameters()] for model in (seq2seq, gpu_model)]
    torch.testing.assert_close(*gradients, atol=1e-9, rtol=0)
    torch.testing.assert_close(
        gpu_model.target_log_probs(to_device(batch, "cuda")).cpu(), seq2seq.target_log_probs(batch)
    )


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_autocast_returns_a_single_precision_loss(seq2seq, precision):
    seq2seq, batch = seq2seq.float().cuda(), to_device(some_batch(), "cuda")
    expected = seq2seq.loss(batch)[0]
    with torch.autocast("cuda", precision):
        value, _ = seq2seq.loss(batch)
        state = seq2seq.start({"tokens": batch["source"], "mask": batch["source_mask"]})
        output = seq2seq.step(batch["inputs"], state, batch["target_mask"])
    value.backward()
    assert value.dtype == output.log_probs.dtype == torch.float32
    assert all(parameter.grad.isfinite().all() for parameter in seq2seq.parameters())
    torch.testing.assert_close(value, expected, atol=0.05, rtol=0)


def test_hypotheses_share_their_memory(seq2seq):
    seq2seq, batch = seq2seq.eval().cuda(), to_device(some_batch(), "cuda")
    state = seq2seq.start({"tokens": batch["source"], "mask": batch["source_mask"]})
    rows = torch.arange(4, device="cuda").repeat_interleave(3)
    tokens = torch.randint(V, (12, 1), device="cuda")
    shared = seq2seq.step(tokens, DecodeState(select_rows(state.hidden, rows), state.memory))
    copied = seq2seq.step(tokens, DecodeState(select_rows(state.hidden, rows), select_rows(state.memory, rows)))
    torch.testing.assert_close(shared.log_probs, copied.log_probs, atol=1e-10, rtol=0)
