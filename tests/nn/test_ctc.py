"""CTC: values and gradients against enumeration and against torch, and the best alignment."""

import math
from collections import defaultdict
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom import accel
from seqloom.decoding.ctc import ctc_search, merge_labels
from seqloom.nn.ctc import best_alignment, ctc_log_likelihood


def random_log_probs(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).log_softmax(dim=-1)


def enumerate_texts(log_probs: Tensor) -> dict[tuple[int, ...], float]:
    """Return p(y | x) of every text, summed over all alignments of frames (S, V)."""
    totals: dict[tuple[int, ...], float] = defaultdict(float)
    for labels in product(range(log_probs.shape[1]), repeat=log_probs.shape[0]):
        path = sum(float(frame[label]) for frame, label in zip(log_probs, labels, strict=True))
        totals[merge_labels(labels)] += math.exp(path)
    return totals


def pad(texts: list[tuple[int, ...]], length: int) -> tuple[Tensor, Tensor]:
    rows = [[*text, *[0] * (length - len(text))] for text in texts]
    mask = torch.tensor([[position < len(text) for position in range(length)] for text in texts])
    return torch.tensor(rows, dtype=torch.long).reshape(len(texts), length), mask


def test_likelihoods_match_the_enumeration_of_all_alignments() -> None:
    log_probs = random_log_probs(5, 4)
    totals = enumerate_texts(log_probs)
    assert sum(totals.values()) == pytest.approx(1)
    texts = list(totals)
    assert {(), (1,), (1, 1), (2, 2, 2), (1, 2, 3, 1, 2)} <= set(texts)
    targets, mask = pad(texts, 5)
    rows = log_probs.expand(len(texts), -1, -1)
    values = ctc_log_likelihood.definition(rows, torch.ones(len(texts), 5, dtype=torch.bool), targets, mask)
    assert values.exp().tolist() == pytest.approx([totals[text] for text in texts], abs=1e-12)


def batch_of_lengths() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows of unequal lengths, with repeated tokens, an empty text, and END after the text of a row."""
    log_probs = random_log_probs(5, 9, 6, seed=3)
    frames, texts = [9, 5, 7, 4, 3], [(1, 2, 2, 3), (4, 4), (5, 1, 5, 0), (), (2,)]
    mask = torch.arange(9) < torch.tensor(frames).unsqueeze(1)
    return log_probs, mask, *pad(texts, 4)


def torch_log_likelihood(log_probs: Tensor, mask: Tensor, targets: Tensor, target_mask: Tensor) -> Tensor:
    lengths = (target_mask & (targets != 0)).sum(dim=1)
    return -F.ctc_loss(log_probs.transpose(0, 1), targets, mask.sum(dim=1), lengths, reduction="none")


@pytest.mark.parametrize("use_definition", [True, False])
def test_values_and_gradients_match_those_of_torch(use_definition: bool) -> None:
    accel.install()
    log_probs, *rest = batch_of_lengths()
    compute: Any = ctc_log_likelihood.definition if use_definition else ctc_log_likelihood
    results = []
    for function in (compute, torch_log_likelihood):
        logits = log_probs.clone().requires_grad_()
        values = function(logits.log_softmax(dim=-1), *rest)
        values.mul(torch.arange(1, 6)).sum().backward()
        assert logits.grad is not None
        results.append((values.detach(), logits.grad))
    assert torch.allclose(results[0][0], results[1][0], atol=1e-10)
    assert torch.allclose(results[0][1], results[1][1], atol=1e-10)
    assert results[0][1][1, 5:].abs().max() == 0  # padding has no gradient


@pytest.mark.parametrize("use_definition", [True, False])
def test_text_without_an_alignment_has_probability_0_and_no_gradient(use_definition: bool) -> None:
    accel.install()
    compute: Any = ctc_log_likelihood.definition if use_definition else ctc_log_likelihood
    logits = random_log_probs(2, 3, 4).requires_grad_()
    targets, mask = pad([(1, 1, 2), (1, 2, 3)], 3)  # equal neighbours need a fourth frame
    values = compute(logits.log_softmax(dim=-1), torch.ones(2, 3, dtype=torch.bool), targets, mask)
    assert values[0].item() == -math.inf and math.isfinite(values[1].item())
    values.masked_fill(values.isneginf(), 0).sum().backward()
    assert logits.grad is not None
    assert logits.grad[0].abs().max() == 0 and logits.grad[1].abs().max() > 0


def test_gradients_are_finite_in_float32_over_many_frames() -> None:
    logits = (20 * torch.randn(2, 400, 30, generator=torch.Generator().manual_seed(1))).requires_grad_()
    targets = torch.randint(1, 30, (2, 50), generator=torch.Generator().manual_seed(2))
    mask = torch.ones(2, 400, dtype=torch.bool), torch.ones(2, 50, dtype=torch.bool)
    values = ctc_log_likelihood.definition(logits.log_softmax(dim=-1), mask[0], targets, mask[1])
    values.sum().backward()
    assert values.isfinite().all() and logits.grad is not None and logits.grad.isfinite().all()


def test_empty_rows_have_probability_1() -> None:
    log_probs, *_ = batch_of_lengths()
    targets, target_mask = pad([()] * 5, 1)
    values = ctc_log_likelihood.definition(log_probs, torch.zeros(5, 9, dtype=torch.bool), targets, target_mask)
    assert values.tolist() == [0.0] * 5


def test_best_alignment_matches_the_enumeration() -> None:
    for seed, text in enumerate([(1, 2), (1, 1), (3,), (2, 1, 2), ()]):
        log_probs = random_log_probs(5, 4, seed=seed)
        paths = [labels for labels in product(range(4), repeat=5) if merge_labels(labels) == text]
        scores = [sum(float(frame[label]) for frame, label in zip(log_probs, path, strict=True)) for path in paths]
        best = paths[max(range(len(paths)), key=scores.__getitem__)]
        owners, score = best_alignment(log_probs, torch.tensor(text, dtype=torch.long))
        assert score.item() == pytest.approx(max(scores))
        labels = [0 if owner < 0 else text[owner] for owner in owners.tolist()]
        assert tuple(labels) == best
        numbers = [owner for owner in owners.tolist() if owner >= 0]
        assert sorted(set(numbers)) == list(range(len(text))) and numbers == sorted(numbers)
    assert best_alignment(random_log_probs(2, 4), torch.tensor([1, 1]))[1].item() == -math.inf


# --- search -----------------------------------------------------------------------------------------------------------


def test_prefix_beam_search_matches_the_enumeration_with_a_large_beam() -> None:
    for seed in range(5):
        log_probs = random_log_probs(1, 5, 4, seed=seed)
        totals = sorted(enumerate_texts(log_probs[0]).items(), key=lambda item: -item[1])
        mask = torch.ones(1, 5, dtype=torch.bool)
        (found,) = ctc_search(log_probs, mask, beam=1000, n_best=20)
        assert [tuple(each.tokens) for each in found] == [text for text, _ in totals[:20]]
        assert [math.exp(each.log_prob) for each in found] == pytest.approx([p for _, p in totals[:20]])


def test_best_text_can_differ_from_the_best_alignment() -> None:
    """Control: ∅∅ is the best alignment, but more alignments, 1∅, ∅1 and 11, have the text 1."""
    log_probs = torch.tensor([[[0.6, 0.4], [0.6, 0.4]]], dtype=torch.float64).log()
    mask = torch.ones(1, 2, dtype=torch.bool)
    assert ctc_search(log_probs, mask, beam=1)[0][0].tokens == []
    (best,) = ctc_search(log_probs, mask, beam=2)[0]
    assert best.tokens == [1] and math.exp(best.log_prob) == pytest.approx(0.64)


def test_search_ignores_padding_and_never_writes_banned_tokens() -> None:
    log_probs = random_log_probs(2, 6, 5, seed=4)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    for beam in (1, 50):
        alone = ctc_search(log_probs[1:, :4], torch.ones(1, 4, dtype=torch.bool), beam=beam)[0][0]
        assert ctc_search(log_probs, mask, beam=beam)[1][0].tokens == alone.tokens
        texts = ctc_search(log_probs, mask, beam=beam, n_best=beam, banned=[2, 0])
        assert all(2 not in each.tokens for row in texts for each in row)
    assert ctc_search(log_probs[:, :0], mask[:, :0], beam=3)[0][0].tokens == []
