"""Kneser–Ney estimation compared with a slow reference implementation."""

from collections import Counter, defaultdict
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqloom.classical.ngram import NGram, NGramConfig
from seqloom.classical.ngram import kneser_ney as module
from seqloom.classical.ngram.kneser_ney import FALLBACK_DISCOUNTS, estimate, estimate_discounts, kneser_ney
from seqloom.core.errors import DataError
from seqloom.core.protocols import DecodeState

BEGIN = -1
Gram = tuple[int, ...]


class Reference:
    """Chen and Goodman's equations with dictionaries and loops, one word at a time."""

    def __init__(self, documents: list[list[int]], order: int, vocabulary: int, min_count: int = 1) -> None:
        self.order, self.vocabulary = order, vocabulary
        self.seen: list[Counter[Gram]] = [Counter() for _ in range(order + 1)]
        for document in documents:
            sentence = [BEGIN, *document, 0]
            for k in range(1, order + 1):
                for i in range(len(sentence) - k + 1):
                    self.seen[k][tuple(sentence[i : i + k])] += 1
        orders = range(1, order + 1)
        self.counts = {k: self.adjusted(k) for k in orders}
        self.discounts = {k: self.discount(self.counts[k]) for k in orders}
        self.kept = {k: {g for g in self.counts[k] if k < 3 or self.seen[k][g] >= min_count} for k in orders}
        self.followers = defaultdict(list)
        for k in range(1, order + 1):
            for gram in self.counts[k]:
                self.followers[gram[:-1]].append(gram)

    def adjusted(self, k: int) -> dict[Gram, int]:
        counts = {}
        before = defaultdict(set)
        for gram in self.seen[k + 1] if k < self.order else ():
            before[gram[1:]].add(gram[0])
        for gram in self.seen[k]:
            if k == 1 and gram == (BEGIN,):
                continue
            if k == self.order or gram[0] == BEGIN:
                counts[gram] = self.seen[k][gram]
            else:
                counts[gram] = len(before[gram])
        return counts

    def discount(self, counts: dict[Gram, int]) -> tuple[float, float, float]:
        n1, n2, n3, n4 = (sum(c == j for c in counts.values()) for j in (1, 2, 3, 4))
        if 0 in (n1, n2, n3, n4):
            return FALLBACK_DISCOUNTS
        y = n1 / (n1 + 2 * n2)
        discounts = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
        return discounts if min(discounts) > 0 else FALLBACK_DISCOUNTS

    def prob(self, word: int, context: Gram) -> float:
        k = len(context) + 1
        lower = self.prob(word, context[1:]) if context else 1 / self.vocabulary
        followers = self.followers[context]
        total = sum(self.counts[k][gram] for gram in followers)
        if total == 0:
            return lower
        direct = free = 0.0
        for gram in followers:
            count = self.counts[k][gram]
            if gram not in self.kept[k]:
                free += count
                continue
            free += self.discounts[k][min(count, 3) - 1]
            if gram[-1] == word:
                direct = count - self.discounts[k][min(count, 3) - 1]
        return direct / total + free / total * lower


def join_documents(documents: list[list[int]]) -> np.ndarray:
    return np.array([token for document in documents for token in [*document, 0]])


def model_probs(model: NGram, context: Gram) -> list[float]:
    """Return p of every word after a context. Inside a document, the context follows an unseen word."""
    before = model.vocabulary if context[:1] == (BEGIN,) else model.vocabulary - 1
    ids = [before] * model.order + [token for token in context if token != BEGIN]
    state = DecodeState(torch.tensor([ids[len(ids) - (model.order - 1) :]], dtype=torch.int64))
    return model.step(torch.empty(1, 0, dtype=torch.int64), state).log_probs.exp()[0].tolist()


corpora = st.lists(st.lists(st.integers(1, 4), max_size=7), min_size=1, max_size=12)


def is_long_enough(documents: list[list[int]], order: int) -> bool:
    return sum(map(len, documents)) >= order and max(map(len, documents)) >= order - 2


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
@settings(max_examples=25, deadline=None)
@given(documents=corpora, min_count=st.sampled_from([1, 1, 2]))
def test_every_probability_matches_the_reference(order: int, documents: list[list[int]], min_count: int) -> None:
    vocabulary = 6  # word 5 never occurs
    if not is_long_enough(documents, order):
        return
    model = kneser_ney(join_documents(documents), NGramConfig(order=order, min_count=min_count), vocabulary)
    reference = Reference(documents, order, vocabulary, min_count)
    contexts = {gram[:-1] for k in range(1, order + 1) for gram in reference.seen[k]}
    contexts |= {(BEGIN, 5)[: order - 1], (5, 5, 5, 5)[: order - 1], (1, 5, 2, 3)[: order - 1]}
    for context in contexts:
        if any(token == 0 for token in context):
            continue  # a context cannot contain the end of a document
        expected = [reference.prob(word, context) for word in range(vocabulary)]
        assert model_probs(model, context) == pytest.approx(expected, abs=1e-12, rel=1e-10)


WORDS = 40


def large_corpus() -> list[list[int]]:
    """Draw a skewed corpus that has all counts of counts, so that no order uses the default discounts."""
    random = np.random.default_rng(0)
    return [list(np.minimum(random.geometric(0.12, random.integers(1, 12)), WORDS - 2)) for _ in range(1500)]


def differences(order: int) -> list[float]:
    documents = large_corpus()
    model = kneser_ney(join_documents(documents), NGramConfig(order=order), WORDS)
    reference = Reference(documents, order, WORDS)
    return [
        abs(found - reference.prob(word, context))
        for context in product((1, 2, 3), repeat=order - 1)
        for word, found in enumerate(model_probs(model, context))
    ]


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_discounts_are_estimated_from_the_data(order: int) -> None:
    documents = large_corpus()
    model = kneser_ney(join_documents(documents), NGramConfig(order=order), WORDS)
    reference = Reference(documents, order, WORDS)
    assert model.discounts.tolist() == [pytest.approx(discount) for discount in reference.discounts.values()]
    assert model.fallback[1:].sum() == 0
    assert max(differences(order)) < 1e-12


def test_wrong_discount_changes_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the comparison above fails if one discount differs by 0.001."""

    def wrong(adjusted: np.ndarray) -> tuple[np.ndarray, bool]:
        discounts, fallback = estimate_discounts(adjusted)
        return discounts - [0, 1e-3, 0], fallback

    monkeypatch.setattr(module, "estimate_discounts", wrong)
    assert max(differences(3)) > 1e-6


def test_discounts_match_their_formula() -> None:
    counts = np.array([0] * 9 + [1] * 8 + [2] * 4 + [3] * 2 + [4] * 1 + [7] * 3)
    y = 8 / 16
    discounts, fallback = estimate_discounts(counts)
    assert discounts.tolist() == pytest.approx([1 - 2 * y * 4 / 8, 2 - 3 * y * 2 / 4, 3 - 4 * y * 1 / 2])
    assert not fallback


@pytest.mark.parametrize("counts", [[1, 1, 2, 3], [2, 3, 4], [1, 2, 3, 3, 3, 3, 3, 3, 4], []])
def test_discounts_fall_back_to_defaults(counts: list[int]) -> None:
    discounts, fallback = estimate_discounts(np.array(counts, dtype=np.int64))
    assert fallback
    assert discounts.tolist() == list(FALLBACK_DISCOUNTS)


def test_fallback_is_reported_and_stored() -> None:
    stages = list(estimate(np.array([1, 2, 0]), NGramConfig(order=2), 3))
    assert [stage.values.get("fallback") for stage in stages] == [None, None, 1.0, 1.0]
    model = stages[-1].model
    assert model is not None
    assert model.fallback.tolist() == [True, True]


def test_progress_counts_every_order_and_ends_with_the_model() -> None:
    stages = list(estimate(join_documents(large_corpus()), NGramConfig(order=3), WORDS))
    assert [stage.step for stage in stages] == [1, 2, 3, 4, 5, 6]
    assert {stage.total for stage in stages} == {6}
    assert [stage.model is None for stage in stages] == [True] * 5 + [False]
    model = stages[-1].model
    assert model is not None
    assert stages[2].values["ngrams"] == model.size()["3-grams"]
    assert {"order", "discount_1", "discount_2", "discount_3"} <= stages[-1].values.keys()


def test_min_count_removes_rare_ngrams_and_probabilities_still_sum_to_one() -> None:
    stream = join_documents(large_corpus())
    whole, pruned = (kneser_ney(stream, NGramConfig(order=4, min_count=m), WORDS) for m in (1, 3))
    assert whole.size()["2-grams"] == pruned.size()["2-grams"]
    assert whole.size()["4-grams"] > 2 * pruned.size()["4-grams"] > 0
    for context in product(range(1, 5), repeat=3):
        assert sum(model_probs(pruned, context)) == pytest.approx(1, abs=1e-12)


def test_text_without_final_end_is_an_unfinished_document() -> None:
    model = kneser_ney(np.array([1, 2, 0, 1, 2]), NGramConfig(order=2), 3)
    assert model.size()["2-grams"] == 3  # <s> 1, 1 2, 2 </s>


@pytest.mark.parametrize(
    ("stream", "order"), [([], 1), ([0, 0], 1), ([1, 2, 0], 3), ([1, 0] * 20, 4), ([1, 2, 3, 0], 5)]
)
def test_text_shorter_than_the_order_is_rejected(stream: list[int], order: int) -> None:
    with pytest.raises(DataError, match=r"order.*needs.*lower model\.order"):
        kneser_ney(np.array(stream, dtype=np.int64), NGramConfig(order=order), 5)


@pytest.mark.parametrize("stream", [[1, 2, 9, 0], [-1, 2, 1, 0]])
def test_ids_outside_the_vocabulary_are_rejected(stream: list[int]) -> None:
    with pytest.raises(DataError, match="must be between 0 and 4"):
        kneser_ney(np.array(stream), NGramConfig(order=2), 5)


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(ValueError, match="order must be at least 1"):
        NGramConfig(order=0)
    with pytest.raises(ValueError, match="min_count must be at least 1"):
        NGramConfig(min_count=0)
