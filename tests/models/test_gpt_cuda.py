"""GPT on a GPU: equality with the CPU, including packed documents and texts longer than the context."""

from typing import Any

import pytest
import torch
from tests.models.test_gpt import KINDS, V, model, some_tokens

from seqloom.core.protocols import DecodeState
from seqloom.core.tree import to_device

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1, 2], [0, 1, 2, 3, 4, 5], [7, 7, 7, 7, 7, 7]])


def close(result: Any, expected: Any) -> None:
    torch.testing.assert_close(result.cpu(), expected, atol=1e-9, rtol=0)


@pytest.fixture(params=KINDS)
def both(request: Any) -> Any:
    return model(**KINDS[request.param]), model(**KINDS[request.param]).cuda()


@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["joined", "apart"])
def test_loss_and_gradients_match_cpu_results(both: Any, documents: Any) -> None:
    cpu_model, gpu_model = both
    inputs, targets = some_tokens(), some_tokens()
    for each_model, device in ((cpu_model, "cpu"), (gpu_model, "cuda")):
        device_documents = None if documents is None else documents.to(device)
        value, _ = each_model.loss(inputs.to(device), targets.to(device), documents=device_documents)
        value.backward()
        each_model.value = value.detach()
    close(gpu_model.value, cpu_model.value)
    for actual, expected in zip(gpu_model.parameters(), cpu_model.parameters(), strict=True):
        close(actual.grad, expected.grad)


def test_packed_documents_are_independent(both: Any) -> None:
    _, gpt = both
    tokens, documents = some_tokens().cuda(), DOCUMENTS.cuda()
    other = tokens.clone()
    other[0, :2] = (other[0, :2] + 1) % V
    before, after = gpt(tokens, documents), gpt(other, documents)
    assert torch.equal(before[0, 2:], after[0, 2:]) and not torch.equal(before[0, :2], after[0, :2])


@torch.no_grad()
def test_scores_and_steps_beyond_the_context_match_cpu_results(both: Any) -> None:
    cpu_model, gpu_model = both
    tokens, mask = some_tokens(steps=15), torch.arange(15) < torch.tensor([[15], [4], [9]])
    scores = [
        each_model.score(tokens.to(device), tokens.to(device), each_model.start(rows=3), mask.to(device))[0]
        for each_model, device in ((cpu_model, "cpu"), (gpu_model, "cuda"))
    ]
    close(scores[1], scores[0])
    states: list[DecodeState] = [cpu_model.start(rows=3), gpu_model.start(rows=3)]
    for t in range(15):
        first = cpu_model.step(tokens[:, t : t + 1], states[0])
        second = gpu_model.step(tokens[:, t : t + 1].cuda(), to_device(states[1], "cuda"))
        close(second.log_probs, first.log_probs)
        states = [first.state, second.state]


@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["joined", "apart"])
def test_half_precision_training_reduces_the_loss(both: Any, documents: Any) -> None:
    gpt = both[1].float().train()
    inputs, targets = some_tokens().cuda(), some_tokens().cuda()
    device_documents = None if documents is None else documents.cuda()
    optimizer, losses = torch.optim.Adam(gpt.parameters(), lr=1e-2), []
    for _ in range(60):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            value, _ = gpt.loss(inputs, targets, documents=device_documents)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < 0.7 * losses[0]
