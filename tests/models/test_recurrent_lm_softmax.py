"""The recurrent language model with every output layer."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from seqloom.config import build
from seqloom.core.errors import UsageError
from seqloom.models.recurrent_lm import RecurrentLMConfig

V, B, T = 11, 3, 6
SOFTMAXES: dict[str, dict[str, Any]] = {
    "full": {"kind": "full"},
    "adaptive": {"kind": "adaptive", "cutoffs": [3, 7], "factor": 2.0},
    "sampled": {"kind": "sampled", "samples": 4},
    "blackout": {"kind": "sampled", "sampler": "blackout", "samples": 4},
}


def model(softmax: dict[str, Any], **options: Any) -> Any:
    torch.manual_seed(0)
    config = build(RecurrentLMConfig, {"hidden": 8, "layers": 2, "softmax": softmax, **options})
    return config.build(V).double().eval()


def tokens(seed: int = 1) -> torch.Tensor:
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(seed))


def exactly(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=0)


@pytest.fixture(params=SOFTMAXES)
def softmax(request: pytest.FixtureRequest) -> dict[str, Any]:
    return SOFTMAXES[request.param]


def test_forward_step_and_score_agree(softmax: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    lm, inputs, targets = model(softmax), tokens(), tokens(2)
    whole = lm(inputs)[0].log_softmax(-1)
    exactly(whole.exp().sum(-1), torch.ones(B, T, dtype=torch.float64))
    monkeypatch.setattr("seqloom.nn.softmax.SCORED_POSITIONS", 4)  # pieces have different sizes
    scores, _ = lm.score(inputs, targets, lm.start(rows=B))
    exactly(scores, whole.gather(2, targets.unsqueeze(2)).squeeze(2))
    state = lm.start(rows=B)
    for t in range(T):
        output = lm.step(inputs[:, t : t + 1], state)
        exactly(output.log_probs, whole[:, t])
        state = output.state


def test_loss_is_exact_without_sampling_and_returns_the_state(softmax: dict[str, Any]) -> None:
    lm, inputs, targets = model(softmax), tokens(), tokens(2)
    exact = -lm.score(inputs, targets, lm.start(rows=B))[0].mean()
    value, state = lm.loss(inputs, targets)
    exactly(state, lm.read(inputs)[1])
    if softmax["kind"] == "sampled":
        assert abs(value - exact) > 1e-3
    else:
        exactly(value, exact)
    later, _ = lm.loss(inputs, targets, state)
    assert not torch.allclose(later, value)


def test_eight_examples_are_memorized(softmax: dict[str, Any]) -> None:
    lm = model(softmax, hidden=48, layers=1).float().train()
    sequences = torch.randint(1, V, (8, 10), generator=torch.Generator().manual_seed(0))
    sequences[:, 0] = torch.arange(8)
    lm.set_counts(torch.bincount(sequences.flatten(), minlength=V))
    inputs, targets = sequences[:, :-1], sequences[:, 1:]
    optimizer = torch.optim.Adam(lm.parameters(), lr=2e-2)
    for _ in range(10):
        for _ in range(25):
            optimizer.zero_grad()
            lm.loss(inputs, targets)[0].backward()
            torch.nn.utils.clip_grad_norm_(lm.parameters(), 1.0)
            optimizer.step()
        if (loss := -lm.score(inputs, targets, lm.start(rows=8))[0].mean()) < 0.03:
            break
    assert loss < 0.03


def test_default_output_layer_is_the_full_softmax() -> None:
    lm = RecurrentLMConfig(hidden=8).build(V).double()
    assert {"output.weight", "output.bias"} == {name for name in lm.state_dict() if name.startswith("output")}
    value, _ = lm.loss(tokens(), tokens(2))
    exactly(value, F.cross_entropy(lm(tokens())[0].flatten(0, 1), tokens(2).flatten()))


@pytest.mark.parametrize("kind", ["full", "sampled"])
def test_tied_embeddings_are_one_matrix(kind: str) -> None:
    lm = model(SOFTMAXES[kind], tied=True, init=0.05)
    assert lm.output.weight is lm.embed.weight
    assert lm.embed.weight.abs().max() <= 0.05
    other = model(SOFTMAXES[kind], tied=True)
    other.load_state_dict(lm.state_dict())
    exactly(other(tokens())[0], lm(tokens())[0])


@pytest.mark.parametrize("kind", ["full", "sampled"])
def test_tied_embeddings_of_another_size_are_projected(kind: str) -> None:
    lm = model(SOFTMAXES[kind], tied=True, hidden=12, embedding=5, init=0.05).eval()
    assert lm.output.weight is lm.embed.weight and lm.embed.weight.shape == (V, 5)
    assert lm.project.weight.abs().max() <= 0.05
    hidden, _ = lm.stack(lm.embed(tokens()))
    logits = hidden @ lm.project.weight.T @ lm.embed.weight.T + lm.output.bias
    exactly(lm(tokens())[0], logits)
    scores, _ = lm.score(tokens(), tokens(2), lm.start(rows=len(tokens())))
    exactly(scores, logits.log_softmax(-1).gather(-1, tokens(2).unsqueeze(-1)).squeeze(-1))
    exactly(lm.step(tokens(), lm.start(rows=len(tokens()))).log_probs, logits[:, -1].log_softmax(-1))


def test_tied_embeddings_with_several_output_matrices_are_rejected() -> None:
    with pytest.raises(UsageError, match=r"tied needs one output matrix for all tokens.*softmax\.kind to full"):
        model(SOFTMAXES["adaptive"], tied=True)


def test_init_range_applies_to_every_parameter() -> None:
    lm = model(SOFTMAXES["adaptive"], init=0.05, forget_bias=0.0, cell="lstm")
    for name, parameter in lm.named_parameters():
        if name != "output.head.bias":  # the initial biases of the clusters are the logarithms of their sizes
            assert 0.02 < parameter.abs().max() <= 0.05, name


def test_counts_are_set_and_saved_with_the_weights() -> None:
    lm, plain = model(SOFTMAXES["blackout"]), model(SOFTMAXES["blackout"])
    lm.set_counts(torch.arange(V))
    assert lm.output.proposal[10] > lm.output.proposal[2] > lm.output.proposal[1]
    plain.load_state_dict(lm.state_dict())
    exactly(plain.output.proposal, lm.output.proposal)
    model(SOFTMAXES["full"]).set_counts(torch.arange(V))  # the call has no effect and raises no error
