"""CIDEr-D of captions (Vedantam, Zitnick and Parikh 2015): the similarity of n-grams weighted by their rarity.

    g_k(s)       = h_k(s) · log(N / max(1, d_k))          h_k(s) occurrences of the n-gram k in the caption s
    sim_n(c, r)  = exp(−(|c| − |r|)² / (2σ²)) · Σ_k min(g_k(c), g_k(r)) · g_k(r) / (‖g(c)‖ ‖g(r)‖)        k of length n
    CIDEr-D(c)   = 10 · mean_n mean_r sim_n(c, r)         n = 1 … 4, r over the references, σ = 6

N is the number of images, and d_k the number of images with k in one of their references, so a score depends on the set
of images that is evaluated. The similarity of a caption without n-grams is 0. |s| is the number of words. The result is
the mean over the captions times 100, as in publications that report 94.3 for COCO.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from seqloom.evaluate.bleu import ORDER, Ngram, Tokens

SIGMA, SCALE, PERCENT = 6.0, 10.0, 100.0


def cider_d(captions: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> float:
    """Return CIDEr-D of the words of captions, given the words of the references of each image (at least one)."""
    images = Counter[Ngram]()
    for texts in references:
        images.update({ngram for text in texts for order in range(1, ORDER + 1) for ngram in ngrams(text, order)})
    total = sum(score_caption(*pair, images, len(references)) for pair in zip(captions, references, strict=True))
    return PERCENT * total / len(captions)


def score_caption(caption: Tokens, references: Sequence[Tokens], images: Mapping[Ngram, int], count: int) -> float:
    """Return CIDEr-D of one caption. `images` contains d_k, and `count` is N."""
    similarities = [
        math.exp(-((len(caption) - len(reference)) ** 2) / (2 * SIGMA**2))
        * clipped_cosine(*(weights(text, order, images, count) for text in (caption, reference)))
        for order in range(1, ORDER + 1)
        for reference in references
    ]
    return SCALE * sum(similarities) / len(similarities)


def weights(text: Tokens, order: int, images: Mapping[Ngram, int], count: int) -> dict[Ngram, float]:
    """Return g_k of the n-grams of a text."""
    return {
        ngram: number * math.log(count / max(1, images[ngram]))
        for ngram, number in Counter(ngrams(text, order)).items()
    }


def clipped_cosine(caption: Mapping[Ngram, float], reference: Mapping[Ngram, float]) -> float:
    """Return the cosine of two vectors, with the values of the caption clipped to those of the reference."""
    product = sum(
        min(value, reference[ngram]) * reference[ngram] for ngram, value in caption.items() if ngram in reference
    )
    norms = math.hypot(*caption.values()) * math.hypot(*reference.values())
    return product / norms if norms else 0.0


def ngrams(text: Tokens, order: int) -> Iterator[Ngram]:
    return (tuple(text[start : start + order]) for start in range(len(text) - order + 1))
