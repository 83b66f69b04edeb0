"""Metrics of captions with several references: BLEU-1 to BLEU-4, CIDEr-D, chrF, and exact matches.

As is customary for captions, BLEU and CIDEr-D compare words in lowercase, without punctuation; see `caption_words`. A
caption is an exact match if its words equal those of one of its references.
"""

import re
from collections.abc import Sequence
from typing import Any

from seqloom.evaluate.bleu import corpus_statistics
from seqloom.evaluate.cider import cider_d

References = Sequence[Sequence[str]]  # the references of each image, at least one
WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")  # letters and digits, with apostrophes and hyphens inside


def caption_words(text: str) -> list[str]:
    """Return the words of a caption in lowercase, without punctuation marks."""
    return WORD.findall(text.lower())


def score_captions(captions: Sequence[str], references: References) -> dict[str, float]:
    """Compute all metrics of captions: BLEU and chrF from 0 to 100, CIDEr-D, and the fraction of exact matches."""
    from sacrebleu.metrics.chrf import CHRF

    words = [caption_words(caption) for caption in captions]
    reference_words = [[caption_words(text) for text in texts] for texts in references]
    statistics = corpus_statistics(words, reference_words)
    exact = sum(caption in texts for caption, texts in zip(words, reference_words, strict=True))
    return {
        **{f"bleu_{order}": statistics.bleu(order) for order in (1, 2, 3, 4)},
        "cider_d": cider_d(words, reference_words),
        "chrf": CHRF().corpus_score(captions, reference_streams(references)).score,
        "exact_match": exact / len(captions),
    }


def reference_streams(references: References) -> list[Any]:
    """Return the references as sacrebleu expects them: list i contains reference i of each image, if it has one."""
    most = max(map(len, references))
    return [[texts[i] if i < len(texts) else None for texts in references] for i in range(most)]
