"""Interpolated modified Kneser–Ney smoothing (Chen and Goodman, 1998).

For a context h and a word w, with h' the context without its first word:

    p(w | h) = (c(h w) − D(c(h w))) / Σ_v c(h v)  +  γ(h) p(w | h')
    γ(h)     = Σ_v D(c(h v)) / Σ_v c(h v)

The unigrams back off to the uniform distribution 1/V, so no word has probability 0. V includes the
end of a document, which is predicted like a word, but not `<s>`, which is never predicted.

In the highest order, c is the number of occurrences of h w. In lower orders, c is the number of
distinct words that precede h w: c(h w) = |{v : v h w occurs}|. An n-gram that begins with `<s>` has
no preceding word and keeps its number of occurrences.

D has separate values for counts of one, two, and three or more, computed from n_1 … n_4, the number of
n-grams of the order with c = 1 … 4:

    Y = n_1 / (n_1 + 2 n_2)    D_1 = 1 − 2Y n_2/n_1    D_2 = 2 − 3Y n_3/n_2    D_3+ = 3 − 4Y n_4/n_3

In small or unusual texts, one of n_1 … n_4 may be 0, or a D may lie outside (0, c]. This happens, for example,
in a text of letters, in which almost every letter occurs after every other. The order then uses D = 0.5, 1, 1.5, and
`NGram.fallback` is set.

With `min_count` m, n-grams of three or more words with fewer than m occurrences are removed after
counting. The probability of removed n-grams is added to γ(h), so that distributions still sum to 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from seqloom.classical.ngram import NGram, NGramConfig, Table
from seqloom.core import END
from seqloom.core.errors import DataError
from seqloom.core.protocols import Estimate

FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
FIRST_PRUNED_ORDER = 3  # the lowest order that `min_count` applies to

Ints = NDArray[np.int64]
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class NGramCounts:
    """The n-grams of one order, sorted by key: prefix · (V+1) + last word."""

    keys: Ints  # (n,)
    prefix: Ints  # (n,) row of the n-gram without its last word, in the next lower order
    suffix: Ints  # (n,) row of the n-gram without its first word, in the next lower order
    occurrences: Ints  # (n,) number of occurrences in the text
    initial: NDArray[np.bool_]  # (n,) whether the n-gram begins with <s>


def kneser_ney(stream: NDArray[np.integer], config: NGramConfig, vocabulary: int) -> NGram:
    """Estimate a model from a text; `estimate` yields the individual steps."""
    *_, last = estimate(stream, config, vocabulary)
    assert isinstance(last.model, NGram), "the last estimate contains the model"
    return last.model


def estimate(stream: NDArray[np.integer], config: NGramConfig, vocabulary: int) -> Iterator[Estimate]:
    """Count each order, then smooth each order; the last of these 2·order steps returns the model.

    `stream` contains token ids, with 0 after each document.
    """
    order, total = config.order, 2 * config.order
    check_length(stream, order)
    counts: list[NGramCounts] = []
    for level in count_orders(stream, order, vocabulary):
        counts.append(level)
        yield Estimate(len(counts), total, None, {"order": len(counts), "ngrams": len(level.keys)})
    model = config.build(vocabulary)
    # Prune by occurrences, not by c: the prefix and suffix of a kept n-gram occur at least as often, so they are kept.
    kept = [
        level.occurrences >= (config.min_count if k >= FIRST_PRUNED_ORDER else 0)
        for k, level in enumerate(counts, start=1)
    ]
    smoothed: list[tuple[Reals, Reals]] = []
    for k in range(1, order + 1):
        adjusted = adjusted_counts(counts, k, vocabulary)
        discounts, fallback = estimate_discounts(adjusted)
        model.discounts[k - 1], model.fallback[k - 1] = torch.from_numpy(discounts), fallback
        below = smoothed[-1][0] if smoothed else np.full(1, 1 / vocabulary)
        smoothed.append(smooth(counts[k - 1], adjusted, kept[k - 1], discounts, below))
        if k == order:
            model.tables = build_tables(counts, kept, smoothed, vocabulary + 1)
        values = {f"discount_{j}": float(value) for j, value in enumerate(discounts, start=1)}
        finished = model if k == order else None
        yield Estimate(order + k, total, finished, {"order": k, "fallback": float(fallback), **values})


# --- counting -------------------------------------------------------------------------------------------------------


def count_orders(stream: NDArray[np.integer], order: int, vocabulary: int) -> Iterator[NGramCounts]:
    """Count the n-grams of order 1, 2 … `order`."""
    sequence, offset = insert_boundaries(stream, vocabulary)
    width = vocabulary + 1
    occurrences = np.bincount(sequence, minlength=width)
    none = np.zeros(width, dtype=np.int64)
    level = NGramCounts(np.arange(width), none, none, occurrences, np.arange(width) == vocabulary)
    yield level
    rows = sequence  # for each token, the row of the n-gram of the current order that ends at the token
    for k in range(2, order + 1):
        ends = np.flatnonzero(offset >= k - 1)
        keys, inverse, occurrences = np.unique(
            rows[ends - 1] * width + sequence[ends], return_inverse=True, return_counts=True
        )
        suffix = np.empty(len(keys), dtype=np.int64)
        suffix[inverse] = rows[ends]
        prefix = keys // width
        level = NGramCounts(keys, prefix, suffix, occurrences, level.initial[prefix])
        yield level
        rows = np.full(len(sequence), -1)
        rows[ends] = inverse


def insert_boundaries(stream: NDArray[np.integer], vocabulary: int) -> tuple[Ints, Ints]:
    """Insert `<s>` before each document; also return the distance of each token from its `<s>`."""
    stream = np.asarray(stream, dtype=np.int64)
    if not 0 <= stream.min() <= stream.max() < vocabulary:
        raise DataError(
            f"Token ids must be between 0 and {vocabulary - 1}; got {stream.min()} to {stream.max()}. "
            "Encode the text with the tokenizer of the model."
        )
    starts = np.flatnonzero(np.concatenate([[END], stream[:-1]]) == END)
    sequence = np.insert(stream, starts, vocabulary)
    starts = starts + np.arange(len(starts))
    lengths = np.diff(starts, append=len(sequence))
    return sequence, np.arange(len(sequence)) - np.repeat(starts, lengths)


def check_length(stream: NDArray[np.integer], order: int) -> None:
    """Raise `DataError` unless the text has an n-gram of the highest order: `<s>`, order−2 tokens and document end."""
    ends = np.flatnonzero(np.append(np.asarray(stream), END) == END)
    lengths = np.diff(ends, prepend=-1) - 1
    if len(stream) and lengths.sum() >= order and lengths.max() >= order - 2:
        return
    raise DataError(
        f"An n-gram model of order {order} needs at least {order} tokens and a document of at least "
        f"{max(order - 2, 1)} tokens; the training text has {lengths.sum()} tokens, and its longest document has "
        f"{lengths.max()}. "
        "Use more text, or lower model.order."
    )


def adjusted_counts(counts: list[NGramCounts], order: int, vocabulary: int) -> Ints:
    """Return c for one order: the number of occurrences, or in lower orders of distinct preceding words."""
    level = counts[order - 1]
    if order == len(counts):
        adjusted = level.occurrences.copy()
    else:
        preceding = np.bincount(counts[order].suffix, minlength=len(level.keys))
        adjusted = np.where(level.initial, level.occurrences, preceding)
    if order == 1:
        adjusted[vocabulary] = 0  # <s> is never predicted
    return adjusted


# --- smoothing ------------------------------------------------------------------------------------------------------


def estimate_discounts(adjusted: Ints) -> tuple[Reals, bool]:
    """Return D_1, D_2 and D_3+ of one order, and whether they are the fallback values."""
    n = np.bincount(np.minimum(adjusted, 5), minlength=6).astype(np.float64)  # n[j]: number of n-grams with c = j
    if n[1:5].all():
        y = n[1] / (n[1] + 2 * n[2])
        discounts = np.array([j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3)])
        if (discounts > 0).all():
            return discounts, False
    return np.array(FALLBACK_DISCOUNTS), True


def smooth(
    level: NGramCounts, adjusted: Ints, kept: NDArray[np.bool_], discounts: Reals, below: Reals
) -> tuple[Reals, Reals]:
    """Smooth one order, given the probabilities `below` of the next lower order.

    Return p (n,) of the n-grams and γ of each context, which is an n-gram of the next lower order.
    """
    prefix = level.prefix
    discount = np.concatenate([[0.0], discounts])[np.minimum(adjusted, 3)]
    total = np.bincount(prefix, weights=adjusted, minlength=len(below))
    freed = np.bincount(prefix, weights=np.where(kept, discount, adjusted), minlength=len(below))
    gamma = np.divide(freed, total, out=np.ones(len(below)), where=total > 0)
    prob = (adjusted - discount) / total[prefix] + gamma[prefix] * below[level.suffix]
    return prob, gamma


def build_tables(
    counts: list[NGramCounts], kept: list[NDArray[np.bool_]], smoothed: list[tuple[Reals, Reals]], width: int
) -> list[Table]:
    """Build the tables of the model: the kept n-grams, with the γ of the next higher order as backoff."""
    tables = []
    renumbered = np.zeros(1, dtype=np.int64)
    for k, (level, keeps) in enumerate(zip(counts, kept, strict=True)):
        log_prob = np.log(smoothed[k][0][keeps])
        keys = level.keys[keeps]
        if k == 0:
            log_prob[-1] = -np.inf
        else:
            keys = renumbered[level.prefix[keeps]] * width + keys % width
        backoff = np.log(smoothed[k + 1][1][keeps]) if k + 1 < len(counts) else np.empty(0)
        tables.append(Table(*(torch.from_numpy(array) for array in (keys, log_prob, backoff))))
        renumbered = np.cumsum(keeps) - 1
    return tables
