"""Mixtures of language models: probabilities, states and beam search."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from seqloom.classical.ngram import NGramConfig
from seqloom.classical.ngram.kneser_ney import estimate
from seqloom.core.errors import UsageError
from seqloom.core.protocols import CausalLanguageModel, DecodeState, StepOutput, select
from seqloom.core.tree import clone
from seqloom.decoding.generate import generate
from seqloom.decoding.mixture import Mixture, mix, normalize_weights
from seqloom.decoding.processors import SamplingConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig

V, B, T = 9, 3, 6


def lstm(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return RecurrentLMConfig(hidden=8, init=0.8).build(V).double().eval()


def trigram() -> Any:
    torch.manual_seed(7)
    stream = torch.randint(V, (400,)).numpy()
    *_, last = estimate(stream, NGramConfig(order=3), V)
    return last.model


@pytest.fixture
def parts() -> list[Any]:
    return [lstm(), trigram()]


def tokens(rows: int = B, steps: int = T, seed: int = 3) -> Tensor:
    return torch.randint(V, (rows, steps), generator=torch.Generator().manual_seed(seed))


def assert_exactly(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=0)


def test_mixture_is_a_normalized_language_model(parts: list[Any]) -> None:
    mixture = Mixture(parts, [0.3, 0.7])
    assert isinstance(mixture, CausalLanguageModel)
    output = mixture.step(tokens(), mixture.start(rows=B))
    assert output.log_probs.shape == (B, V)
    assert_exactly(output.log_probs.exp().sum(1), torch.ones(B, dtype=torch.float64))
    assert mixture.device == torch.device("cpu")


def test_step_is_the_weighted_sum(parts: list[Any]) -> None:
    mixture = Mixture(parts, [0.3, 0.7])
    output = mixture.step(tokens(), mixture.start(rows=B))
    a, b = (part.step(tokens(), part.start(rows=B)).log_probs.exp() for part in parts)
    assert_exactly(output.log_probs, (0.3 * a + 0.7 * b).log())
    assert not torch.allclose(output.log_probs, (0.7 * a + 0.3 * b).log())


def test_score_is_the_weighted_sum_and_keeps_both_states(parts: list[Any]) -> None:
    mixture = Mixture(parts, [0.3, 0.7])
    inputs, targets = tokens(), tokens(seed=4)
    scores, state = mixture.score(inputs, targets, mixture.start(rows=B))
    a, b = (part.score(inputs, targets, part.start(rows=B))[0].exp() for part in parts)
    assert_exactly(scores, (0.3 * a + 0.7 * b).log())
    pieces, carried = [], mixture.start(rows=B)
    for t in range(T):
        piece, carried = mixture.score(inputs[:, t : t + 1], targets[:, t : t + 1], carried)
        pieces.append(piece)
    assert_exactly(torch.cat(pieces, dim=1), scores)
    assert_exactly(carried.hidden, state.hidden)


def test_masks_and_reordering_reach_all_models(parts: list[Any]) -> None:
    mixture = Mixture(parts, [0.5, 0.5])
    prompt, rows = tokens(), torch.tensor([2, 0])
    mask = torch.ones_like(prompt, dtype=torch.bool)
    mask[2, :4] = False
    state = mixture.step(prompt, mixture.start(rows=B), mask).state
    reordered = mixture.step(tokens(2, 1), select(clone(state), rows, rows)).log_probs
    alone = mixture.step(prompt[2:, 4:], mixture.start(rows=1)).state
    assert_exactly(reordered[:1], mixture.step(tokens(2, 1)[:1], alone).log_probs)


def test_weights_of_one_and_zero_select_a_model(parts: list[Any]) -> None:
    inputs = tokens()
    for weights, part in (([1.0, 0.0], parts[0]), ([0.0, 1.0], parts[1])):
        actual = Mixture(parts, weights).score(inputs, inputs, Mixture(parts, weights).start(rows=B))[0]
        assert_exactly(actual.double(), part.score(inputs, inputs, part.start(rows=B))[0].double())


def test_generation_from_identical_models_matches_that_of_one_model(parts: list[Any]) -> None:
    prompt = torch.zeros(2, 1, dtype=torch.long)
    options = SamplingConfig()
    mixture = [s.tokens for s in generate(Mixture(parts, [0.5, 0.5]), prompt, options=options, max_tokens=12, end=0)]
    only = [
        s.tokens for s in generate(Mixture([parts[0]] * 2, [0.5, 0.5]), prompt, options=options, max_tokens=12, end=0)
    ]
    part = [s.tokens for s in generate(parts[0], prompt, options=options, max_tokens=12, end=0)]
    assert torch.equal(torch.stack(only), torch.stack(part))
    assert not torch.equal(torch.stack(mixture)[: len(part)], torch.stack(part)[: len(mixture)])


def test_mix_promotes_precision_and_handles_impossible_tokens() -> None:
    single = torch.tensor([1.0, 0.0, 0.0]).log()
    double = torch.tensor([0.25, 0.5, 0.0], dtype=torch.float64).log()
    actual = mix([single, double], [0.5, 0.5])
    assert actual.dtype == torch.float64
    assert_exactly(actual.exp(), torch.tensor([0.625, 0.25, 0.0], dtype=torch.float64))


@dataclass
class WithMemory:
    """A model with a source memory that the mixture must pass on."""

    scale: float

    def start(self, source: Any = None, rows: int | None = None) -> DecodeState:
        return DecodeState(torch.zeros(len(source), 1), source)

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        return StepOutput((self.scale * state.memory).log_softmax(-1), state)

    def score(self, inputs: Tensor, targets: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        raise NotImplementedError


def test_source_memory_is_shared_by_hypotheses() -> None:
    source = torch.randn(2, V, dtype=torch.float64)
    mixture = Mixture([WithMemory(1.0), WithMemory(-1.0)], [0.5, 0.5])
    state = select(mixture.start(source), torch.tensor([1]), torch.tensor([1]))
    assert_exactly(
        mixture.step(tokens(1, 1), state).log_probs, ((source[1:].softmax(-1) + (-source[1:]).softmax(-1)) / 2).log()
    )


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([0.5], "one weight for each of the 2 models; got 1: 0.5"),
        ([0.5, 0.3, 0.2], "got 3"),
        ([1.5, -0.5], "at least 0; got 1.5, -0.5"),
        ([float("nan"), 1.0], "at least 0; got nan, 1"),
        ([0.6, 0.6], "must sum to 1; got 0.6, 0.6 with sum 1.2"),
        ([0.0, 0.0], "with sum 0"),
    ],
)
def test_invalid_weights_are_rejected(weights: list[float], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        normalize_weights(weights, 2)


def test_rounded_weights_are_normalized() -> None:
    assert sum(normalize_weights([0.33333, 0.33333, 0.33333], 3)) == pytest.approx(1, abs=1e-15)
