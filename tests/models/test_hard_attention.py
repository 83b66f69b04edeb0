"""Hard attention: the REINFORCE gradient against the exact gradient, and the parts of the loss."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.models.small_seq2seq import exactly, model, some_batch
from torch import Tensor

from seqloom.config import ConfigError
from seqloom.core.errors import UsageError
from seqloom.models.hard_attention import HardAttentionConfig, draw_gumbel, hard_attention_loss
from seqloom.models.recurrent_seq2seq import AttentionConfig
from seqloom.models.seq2seq import Batch, HiddenState, Memory
from seqloom.nn.attention import chosen_positions
from seqloom.recipes import read_recipe

MODELS: dict[str, dict[str, Any]] = {
    "luong": {"attention": {"order": "luong"}},
    "luong-feeding": {"attention": {"input_feeding": True, "score": "dot"}, "cell": "lstm"},
    "bahdanau": {"attention": {"order": "bahdanau", "score": "additive"}, "decoder_layers": 2},
}
EACH_MODEL = pytest.mark.parametrize("options", MODELS.values(), ids=MODELS.keys())
ONLY_HARD = HardAttentionConfig(mix=1.0, reinforce=1.0, entropy=0.0)


def one_text(seed: int = 3) -> Batch:
    torch.manual_seed(seed)
    return some_batch(sources=(3,), targets=(3,), source=4, target=4)


def force(positions: tuple[int, ...], batch: Batch) -> Tensor:
    """Return Gumbel values for which the decoder reads these positions, and position 0 for padding of the target."""
    gumbel = torch.zeros(1, batch["inputs"].shape[1], batch["source_mask"].shape[1])
    for t, position in enumerate(positions):
        gumbel[0, t, position] = 1e6
    return gumbel


def sequences(seq2seq: Any, batch: Batch) -> Iterator[tuple[tuple[int, ...], Tensor, Tensor]]:
    """Yield every sequence of positions with its probability and log p of the text, by single steps.

    A mask with one position makes soft attention read this position.
    """
    memory: Memory = seq2seq.encode(batch["source"], batch["source_mask"])
    real = int(batch["source_mask"].sum()), int(batch["target_mask"].sum())
    for positions in itertools.product(range(real[0]), repeat=real[1]):
        hidden: HiddenState = seq2seq.initial_hidden(memory)
        probability, log_p = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for t, position in enumerate(positions):
            token = batch["inputs"][:, t : t + 1]
            weights = seq2seq.decode(token, hidden, memory)[1]
            only = torch.zeros_like(memory["mask"])
            only[0, position] = True
            r, _, hidden, _ = seq2seq.decode(token, hidden, {**memory, "mask": only})
            probability = probability * weights[0, 0, position]
            log_p = log_p + seq2seq.output(r[0, 0]).log_softmax(dim=0)[batch["targets"][0, t]]
        yield positions, probability, log_p


def gradients(seq2seq: Any, value: Tensor) -> list[Tensor]:
    found = torch.autograd.grad(value, list(seq2seq.parameters()), allow_unused=True, retain_graph=True)
    pairs = zip(found, seq2seq.parameters(), strict=True)
    return [torch.zeros_like(parameter) if grad is None else grad for grad, parameter in pairs]


def expected_gradients(seq2seq: Any, batch: Batch, config: HardAttentionConfig) -> list[Tensor]:
    """Return the gradient of the loss, averaged over all sequences of positions with their probabilities."""
    total = [torch.zeros_like(parameter) for parameter in seq2seq.parameters()]
    for positions, probability, _ in sequences(seq2seq, batch):
        value, count = hard_attention_loss(seq2seq, batch, force(positions, batch), config)
        for mean, gradient in zip(total, gradients(seq2seq, value * count), strict=True):
            mean += probability.detach() * gradient
    return total


@EACH_MODEL
def test_expected_gradient_matches_the_gradient_of_the_expectation(options: dict[str, Any]) -> None:
    seq2seq, batch = model(**options), one_text()
    found = expected_gradients(seq2seq, batch, ONLY_HARD)
    terms = list(sequences(seq2seq, batch))
    exactly(torch.stack([probability for _, probability, _ in terms]).sum(), torch.ones((), dtype=torch.float64))
    exact = gradients(seq2seq, -torch.stack([probability * log_p for _, probability, log_p in terms]).sum())
    assert any(gradient.abs().max() > 1e-3 for gradient in exact)
    for actual, expected in zip(found, exact, strict=True):
        exactly(actual, expected)


@EACH_MODEL
def test_gradient_without_reinforce_is_not_exact(options: dict[str, Any]) -> None:
    """Control: without the second term, the weights of the attention score have no gradient."""
    seq2seq, batch = model(**options), one_text()
    exact = expected_gradients(seq2seq, batch, ONLY_HARD)
    without = expected_gradients(seq2seq, batch, HardAttentionConfig(mix=1.0, reinforce=0.0, entropy=0.0))
    assert max((a - b).abs().max().item() for a, b in zip(exact, without, strict=True)) > 1e-4


def test_bound_is_above_the_negative_log_likelihood() -> None:
    terms = list(sequences(model(**MODELS["bahdanau"]), one_text()))
    likelihood = torch.stack([probability * log_p.exp() for _, probability, log_p in terms]).sum().log()
    assert torch.stack([probability * log_p for _, probability, log_p in terms]).sum() < likelihood


@EACH_MODEL
def test_loss_mixes_hard_and_soft_attention(options: dict[str, Any]) -> None:
    torch.manual_seed(4)
    seq2seq, batch = model(**options), some_batch()
    gumbel = draw_gumbel(batch)
    hard, count = hard_attention_loss(seq2seq, batch, gumbel, ONLY_HARD, 0.1, 0.5)
    config = HardAttentionConfig(mix=0.25, reinforce=1.0, entropy=0.0)
    mixed, _ = hard_attention_loss(seq2seq, batch, gumbel, config, 0.1, 0.5)
    soft, soft_count = seq2seq.loss(batch, 0.1, doubly_stochastic=0.5)
    assert count == soft_count == int(batch["target_mask"].sum())
    exactly(mixed, 0.25 * hard + 0.75 * soft)
    assert abs(hard - soft) > 1e-4


def test_entropy_is_subtracted_from_the_loss() -> None:
    torch.manual_seed(4)
    seq2seq, batch = model(**MODELS["luong"]), some_batch()
    gumbel, weights = draw_gumbel(batch), seq2seq.attention(batch)  # order luong: the weights do not depend on a
    values = [
        hard_attention_loss(seq2seq, batch, gumbel, HardAttentionConfig(mix=1.0, entropy=eta))[0] for eta in (0.0, 2.0)
    ]
    entropy = -(weights * weights.clamp(min=1e-300).log()).sum()
    exactly((values[0] - values[1]) * batch["target_mask"].sum(), 2 * entropy)


def test_entropy_of_a_certain_position_has_a_finite_gradient() -> None:
    seq2seq, batch = model(**MODELS["luong"]), some_batch()
    with torch.no_grad():
        for parameter in seq2seq.attend.score.parameters():
            parameter.mul_(1e6)
    hard_attention_loss(seq2seq, batch, draw_gumbel(batch), HardAttentionConfig())[0].backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in seq2seq.parameters())


def test_positions_are_sampled_with_the_attention_weights() -> None:
    torch.manual_seed(5)
    batch = {"inputs": torch.zeros(20_000, 1), "source_mask": torch.ones(1, 4)}
    weights = torch.tensor([0.5, 0.2, 0.0, 0.3])
    positions = chosen_positions(weights, draw_gumbel(batch)).flatten()
    torch.testing.assert_close(positions.bincount(minlength=4) / len(positions), weights, atol=0.015, rtol=0)


def test_only_training_samples_positions() -> None:
    options = {"order": "bahdanau", "score": "additive", "hard": HardAttentionConfig()}
    torch.manual_seed(6)
    seq2seq, batch = model(attention=options), some_batch()
    soft = model(attention={"order": "bahdanau", "score": "additive"})
    soft.load_state_dict(seq2seq.state_dict())
    exactly(seq2seq.loss(batch)[0], soft.loss(batch)[0])
    exactly(seq2seq.target_log_probs(batch), soft.target_log_probs(batch))
    seq2seq.train()
    first, second = (seq2seq.loss(batch)[0].item() for _ in range(2))
    torch.manual_seed(7)
    third = seq2seq.loss(batch)[0].item()
    torch.manual_seed(7)
    assert third == seq2seq.loss(batch)[0].item() and len({first, second, third}) == 3


def test_padding_does_not_change_the_loss() -> None:
    torch.manual_seed(8)
    seq2seq, batch = model(**MODELS["bahdanau"]), some_batch()
    gumbel = draw_gumbel(batch)
    expected = hard_attention_loss(seq2seq, batch, gumbel, HardAttentionConfig())[0]
    padding = ~batch["target_mask"]
    changed = {**batch, "inputs": torch.where(padding, 9, batch["inputs"]), "targets": batch["targets"] + 0}
    changed["targets"][padding] = 5
    other = torch.where(padding.unsqueeze(2) | ~batch["source_mask"].unsqueeze(1), 50.0, gumbel)
    exactly(hard_attention_loss(seq2seq, changed, other, HardAttentionConfig())[0], expected)


def test_consistency_needs_soft_attention() -> None:
    seq2seq = model(attention={"hard": HardAttentionConfig()}).train()
    with pytest.raises(ValueError, match="consistency needs soft attention"):
        seq2seq.loss(some_batch(), consistency=1.0)


@pytest.mark.parametrize("mix", [0.0, 1.5])
def test_invalid_mixing_weights_are_rejected(mix: float) -> None:
    with pytest.raises(ConfigError, match="mix must be"):
        AttentionConfig(hard=HardAttentionConfig(mix=mix))


def test_translation_with_consistency_needs_soft_attention() -> None:
    with pytest.raises(UsageError, match=r"needs soft attention: set loss\.consistency to 0, or model\.attention"):
        read_recipe("translate-cldr", ["loss.consistency=1", "model.attention.hard={}"])
