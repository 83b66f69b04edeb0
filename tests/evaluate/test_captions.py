"""Metrics of captions with several references."""

from typing import Any

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from seqloom.evaluate.captions import caption_words, score_captions

CAPTIONS = ["A dog runs on the grass .", "two men , talking", "a man's t-shirt"]
REFERENCES = [
    ["a brown dog runs on grass", "the dog is running on the green grass", "A dog!"],
    ["Two men talking."],
    ["a man's red t-shirt", "a man's shirt"],
]


def test_captions_are_lowercased_and_punctuation_is_removed() -> None:
    assert caption_words("A man's T-shirt , (red) !") == ["a", "man's", "t-shirt", "red"]
    assert caption_words("Zwei Hunde; 2 Bälle — Straße") == ["zwei", "hunde", "2", "bälle", "straße"]
    assert caption_words(" ... ") == []


def test_metrics_match_those_of_sacrebleu() -> None:
    scores = score_captions(CAPTIONS, REFERENCES)
    texts = [" ".join(caption_words(text)) for text in CAPTIONS]
    streams: Any = [
        [" ".join(caption_words(refs[i])) if i < len(refs) else None for refs in REFERENCES] for i in range(3)
    ]
    for order in (1, 2, 3, 4):
        metric = BLEU(tokenize="none", smooth_method="none", max_ngram_order=order)
        assert scores[f"bleu_{order}"] == pytest.approx(metric.corpus_score(texts, streams).score)
    originals: Any = [[refs[i] if i < len(refs) else None for refs in REFERENCES] for i in range(3)]
    assert scores["chrf"] == pytest.approx(CHRF().corpus_score(CAPTIONS, originals).score)
    assert 0 < scores["bleu_2"] < scores["bleu_1"]


def test_exact_match_needs_the_words_of_one_reference() -> None:
    assert score_captions(CAPTIONS, REFERENCES)["exact_match"] == pytest.approx(1 / 3)
    assert score_captions(["a b"], [["b a", "A, b."]])["exact_match"] == 1
