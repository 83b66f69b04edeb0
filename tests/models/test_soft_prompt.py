"""Soft prompts of frozen language models: predictions, training and state_dict."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from seqloom.core.protocols import CausalLanguageModel
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.decoding.generate import generate
from seqloom.decoding.processors import SamplingConfig
from seqloom.models.gpt import GPTConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig
from seqloom.models.soft_prompt import SoftPromptConfig, SoftPromptModel
from seqloom.nn.masks import AttentionScope
from seqloom.nn.positions import PositionsConfig

V, P = 9, 3
BACKBONES: dict[str, Any] = {
    "recurrent": RecurrentLMConfig(hidden=6, embedding=5, layers=2, tied=True, dropout=0.4, embedding_dropout=0.4),
    "gpt": GPTConfig(
        d_model=8, heads=2, layers=2, dropout=0.4, positions=PositionsConfig(kind="learned", max_length=16)
    ),
    "untied": GPTConfig(d_model=8, heads=2, layers=1, tied=False, positions=PositionsConfig(kind="rotary")),
}


def build_model(kind: str) -> SoftPromptModel:
    torch.manual_seed(3)
    model = SoftPromptConfig(length=P, backbone=BACKBONES[kind]).build(V).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.fixture(params=BACKBONES)
def model(request: pytest.FixtureRequest) -> SoftPromptModel:
    return build_model(request.param).eval()


def expected_log_probs(model: SoftPromptModel, tokens: list[int]) -> Tensor:
    """Return log p (T, V) after each token, with the prompt after the first token, without a cache or state."""
    frozen: Any = model.frozen
    embed = (frozen.backbone.embed if hasattr(frozen, "backbone") else frozen.embed).weight
    x = torch.cat([embed[tokens[:1]], model.prompt, embed[tokens[1:]]]).unsqueeze(0)
    if hasattr(frozen, "backbone"):
        positions = torch.arange(x.shape[1])
        x = frozen.backbone.embedded.embed_vectors(x, positions, x.shape[1], positions[-1:] + 1)
        h = frozen.backbone.norm(frozen.backbone.blocks(x, AttentionScope(is_causal=True)).x)
    else:
        h = frozen.project(frozen.stack(x)[0])
    return frozen.output.log_probs(h)[0, P:]


tokens_of = st.lists(st.integers(0, V - 1), min_size=1, max_size=6)


@pytest.mark.parametrize("kind", BACKBONES)
@given(rest=tokens_of)
def test_prompt_is_read_after_the_first_token(kind: str, rest: list[int]) -> None:
    model, row = build_model(kind).eval(), [0, *rest]
    expected = expected_log_probs(model, row)
    state = model.start(rows=1)
    for position, token in enumerate(row):  # token by token
        output = model.step(torch.tensor([[token]]), state)
        state = output.state
        torch.testing.assert_close(output.log_probs[0], expected[position], rtol=0, atol=1e-10)
    whole = model.step(torch.tensor([row]), model.start(rows=1))  # in one call
    torch.testing.assert_close(whole.log_probs[0], expected[-1], rtol=0, atol=1e-10)
    scores, _ = model.score(torch.tensor([row[:-1]]), torch.tensor([row[1:]]), model.start(rows=1))
    named = expected[:-1].gather(1, torch.tensor(row[1:]).unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(scores[0], named, rtol=0, atol=1e-10)


def test_padding_at_any_position_has_no_effect(model: SoftPromptModel) -> None:
    rows = torch.tensor([[4, 0, 2, 5, 7], [0, 3, 1, 1, 1], [0, 3, 8, 2, 6]])
    mask = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    alone = [row[real] for row, real in zip(rows, mask, strict=True)]
    log_probs = model.step(rows, model.start(rows=3), mask).log_probs
    targets = torch.tensor([[1, 2, 3, 4, 5]] * 3)
    scores, _ = model.score(rows, targets, model.start(rows=3), mask)
    for position, row in enumerate(alone):
        single = model.step(row.unsqueeze(0), model.start(rows=1)).log_probs
        torch.testing.assert_close(log_probs[position : position + 1], single, rtol=0, atol=1e-10)
        theirs, _ = model.score(row.unsqueeze(0), targets[position, mask[position]].unsqueeze(0), model.start(rows=1))
        torch.testing.assert_close(scores[position, mask[position]], theirs[0], rtol=0, atol=1e-10)
    assert bool((scores[~mask] == 0).all())


def test_only_the_prompt_is_trained(model: SoftPromptModel) -> None:
    model.train()
    assert not model.frozen.training  # so there is no dropout
    before = {name: tensor.clone() for name, tensor in model.frozen.state_dict().items()}
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.05)
    tokens, losses = torch.tensor([[0, 3, 4, 5], [0, 6, 7, 8]]), []
    for _ in range(20):
        scores, _ = model.score(tokens[:, :-1], tokens[:, 1:], model.start(rows=2))
        losses.append(-scores.mean())
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 1e-3
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["prompt"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.frozen.state_dict().items())


def test_gradient_matches_finite_differences(model: SoftPromptModel) -> None:
    tokens = torch.tensor([[0, 3, 4, 5]])

    def loss(prompt: Tensor) -> Tensor:
        with torch.no_grad():
            saved = model.prompt.clone()
        model.prompt.data = prompt.data
        total = model.score(tokens[:, :-1], tokens[:, 1:], model.start(rows=1))[0].sum()
        model.prompt.data = saved
        return total

    model.score(tokens[:, :-1], tokens[:, 1:], model.start(rows=1))[0].sum().backward()
    assert model.prompt.grad is not None
    for position in ((0, 0), (2, 4)):
        moved = torch.zeros_like(model.prompt)
        moved[position] = 1e-6
        with torch.no_grad():
            slope = (loss(model.prompt + moved) - loss(model.prompt - moved)) / 2e-6
        torch.testing.assert_close(model.prompt.grad[position], slope, rtol=1e-4, atol=1e-7)


def test_generation_and_beam_search_agree_with_score(model: SoftPromptModel) -> None:
    assert isinstance(model, CausalLanguageModel)
    prompt = torch.tensor([[0, 2]])
    steps = list(generate(model, prompt, options=SamplingConfig(temperature=0), max_tokens=5, end=0))
    greedy = [int(step.tokens[0]) for step in steps]
    (result,) = beam_search(model, prompt=torch.tensor([[2]]), options=BeamConfig(beam=1, max_length=6), end=0)
    assert result[0].tokens[1 : 1 + len(greedy)] == [token for token in greedy if token != 0]
    (several,) = beam_search(
        model, prompt=torch.tensor([[2]]), options=BeamConfig(beam=4, n_best=4, max_length=4), end=0
    )
    for hypothesis in several:  # the score of each hypothesis equals the result of `score`
        row = torch.tensor([[0, *hypothesis.tokens, *[0] * hypothesis.finished]])
        again, _ = model.score(row[:, :-1], row[:, 1:], model.start(rows=1))
        assert again.sum().item() == pytest.approx(hypothesis.log_prob, abs=1e-9)


def test_state_dict_contains_only_the_prompt(model: SoftPromptModel) -> None:
    assert set(model.state_dict()) == {"prompt"}
    other = SoftPromptConfig(length=P, backbone=model.config.backbone).build(V).double().eval()
    frozen = {f"frozen.{name}": tensor for name, tensor in model.frozen.state_dict().items()}
    other.load_state_dict({**model.state_dict(), **frozen})
    row = torch.tensor([[0, 3, 4]])
    same = [each_model.step(row, each_model.start(rows=1)).log_probs for each_model in (model, other)]
    torch.testing.assert_close(*same, rtol=0, atol=0)
    changed = {"prompt": torch.zeros_like(model.prompt)}
    other.load_state_dict(changed)  # the language model is unchanged
    assert bool((other.prompt == 0).all())
    theirs, ours = other.frozen.state_dict(), model.frozen.state_dict()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in ours.items())
    with pytest.raises(RuntimeError, match="size mismatch"):
        other.load_state_dict({"prompt": torch.zeros(P + 1, model.prompt.shape[1])})


def test_prompt_can_be_initialized_from_tokens(model: SoftPromptModel) -> None:
    """A prompt with the embeddings of tokens equals a written prompt."""
    model.init_from_tokens(torch.tensor([4, 7, 2]))
    frozen = model.frozen
    log_probs = model.step(torch.tensor([[0, 5]]), model.start(rows=1)).log_probs
    written = frozen.step(torch.tensor([[0, 4, 7, 2, 5]]), frozen.start(rows=1)).log_probs
    torch.testing.assert_close(log_probs, written, rtol=0, atol=1e-12)


def test_invalid_length_is_rejected() -> None:
    with pytest.raises(ValueError, match="length must be at least 1"):
        SoftPromptConfig(length=0)
    with pytest.raises(ValueError, match="at most 14"):
        SoftPromptConfig(length=15, backbone=BACKBONES["gpt"])
    assert SoftPromptConfig(length=4, backbone=BACKBONES["gpt"]).window == 12
    assert SoftPromptConfig(length=4, backbone=BACKBONES["recurrent"]).window is None
