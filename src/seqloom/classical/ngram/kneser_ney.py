"""Interpolated modified Kneser–Ney smoothing (Chen and Goodman, 1998).

For a context h and a word w, with h' the context without its first word:

    p(w | h) = (c(h w) − D(c(h w))) / Σ_v c(h v)  +  γ(h) p(w | h')
    γ(h)     = Σ_v D(c(h v)) / Σ_v c(h v)

and below the single words stands 1/V for every word of the vocabulary, so that no word is
impossible. V counts the end of a document, which is predicted like a word, and not `<s>`, which
never is.

c is how often h w was seen in the highest order, and below it in how many different words it was
seen to continue: c(h w) = |{v : v h w was seen}|. What begins with `<s>` has no word before it and
keeps its plain count.

D takes one value for counts of one, of two, and of three and more, from n_1 … n_4, the number of
n-grams of that order with c = 1 … 4:

    Y = n_1 / (n_1 + 2 n_2)    D_1 = 1 − 2Y n_2/n_1    D_2 = 2 − 3Y n_3/n_2    D_3+ = 3 − 4Y n_4/n_3

Small or odd texts (letters, of which each has followed many others) may lack one of n_1 … n_4, or
give a D outside (0, c]. The order then takes D = 0.5, 1, 1.5 and `NGram.fallback` says so.

With `min_count` m, n-grams of three words and more that were seen fewer than m times are left out
of the table after counting; their share of the probability goes to γ(h), so that everything still
sums to one.
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

FALLBACK = (0.5, 1.0, 1.5)
FIRST_PRUNED = 3  # the lowest order min_count applies to

Ints = NDArray[np.int64]
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class NGramCounts:
    """The n-grams of one order, sorted by key: place of the first words in the order below · (V+1) + last word."""

    keys: Ints  # (n,)
    prefix: Ints  # (n,) place, in the order below, of the n-gram without its last word
    suffix: Ints  # (n,) place, in the order below, of the n-gram without its first word
    seen: Ints  # (n,) occurrences in the text
    initial: NDArray[np.bool_]  # (n,) begins with <s>


def kneser_ney(stream: NDArray[np.integer], config: NGramConfig, vocabulary: int) -> NGram:
    """The model of a text, at once; `estimate` does the same step by step."""
    *_, last = estimate(stream, config, vocabulary)
    assert isinstance(last.model, NGram), "an estimation ends with its model"
    return last.model


def estimate(stream: NDArray[np.integer], config: NGramConfig, vocabulary: int) -> Iterator[Estimate]:
    """Count each order, then smooth each order; the last of these 2·order stages carries the model.

    `stream` are token ids, each document followed by 0.
    """
    order, total = config.order, 2 * config.order
    check_length(stream, order)
    counts: list[NGramCounts] = []
    for level in count_orders(stream, order, vocabulary):
        counts.append(level)
        yield Estimate(len(counts), total, None, {"order": len(counts), "ngrams": len(level.keys)})
    model = config.build(vocabulary)
    # occurrences decide, not c: what begins or ends a kept n-gram occurs at least as often, so it is kept too
    kept = [level.seen >= (config.min_count if k >= FIRST_PRUNED else 0) for k, level in enumerate(counts, start=1)]
    smoothed: list[tuple[Reals, Reals]] = []
    for k in range(1, order + 1):
        adjusted = adjusted_counts(counts, k, vocabulary)
        discounts, fallback = discounts_of(adjusted)
        model.discounts[k - 1], model.fallback[k - 1] = torch.from_numpy(discounts), fallback
        below = smoothed[-1][0] if smoothed else np.full(1, 1 / vocabulary)
        smoothed.append(smooth(counts[k - 1], adjusted, kept[k - 1], discounts, below))
        if k == order:
            model.tables = tables_of(counts, kept, smoothed, vocabulary + 1)
        named = {f"discount_{j}": float(value) for j, value in enumerate(discounts, start=1)}
        done = model if k == order else None
        yield Estimate(order + k, total, done, {"order": k, "fallback": float(fallback), **named})


# --- counting -------------------------------------------------------------------------------------------------------


def count_orders(stream: NDArray[np.integer], order: int, vocabulary: int) -> Iterator[NGramCounts]:
    """Count the n-grams of order 1, 2 … `order`."""
    sequence, offset = documents(stream, vocabulary)
    width = vocabulary + 1
    seen = np.bincount(sequence, minlength=width)
    none = np.zeros(width, dtype=np.int64)
    level = NGramCounts(np.arange(width), none, none, seen, np.arange(width) == vocabulary)
    yield level
    place = sequence  # of the n-gram of the order at hand that ends at each token
    for k in range(2, order + 1):
        ends = np.flatnonzero(offset >= k - 1)
        keys, inverse, seen = np.unique(
            place[ends - 1] * width + sequence[ends], return_inverse=True, return_counts=True
        )
        suffix = np.empty(len(keys), dtype=np.int64)
        suffix[inverse] = place[ends]
        prefix = keys // width
        level = NGramCounts(keys, prefix, suffix, seen, level.initial[prefix])
        yield level
        place = np.full(len(sequence), -1)
        place[ends] = inverse


def documents(stream: NDArray[np.integer], vocabulary: int) -> tuple[Ints, Ints]:
    """The stream with `<s>` before each document, and how far each token is from that `<s>`."""
    stream = np.asarray(stream, dtype=np.int64)
    if not 0 <= stream.min() <= stream.max() < vocabulary:
        raise DataError(
            f"Token ids must lie in 0 … {vocabulary - 1}; the training text has {stream.min()} … {stream.max()}. "
            "Encode it with the tokenizer the model is built for."
        )
    starts = np.flatnonzero(np.concatenate([[END], stream[:-1]]) == END)
    sequence = np.insert(stream, starts, vocabulary)
    starts = starts + np.arange(len(starts))
    lengths = np.diff(starts, append=len(sequence))
    return sequence, np.arange(len(sequence)) - np.repeat(starts, lengths)


def check_length(stream: NDArray[np.integer], order: int) -> None:
    """There must be an n-gram of the highest order: `<s>`, order−2 tokens and the end of a document, at least."""
    ends = np.flatnonzero(np.append(np.asarray(stream), END) == END)
    lengths = np.diff(ends, prepend=-1) - 1
    if len(stream) and lengths.sum() >= order and lengths.max() >= order - 2:
        return
    raise DataError(
        f"An n-gram model of order {order} needs a text of at least {order} tokens, and in it a document of at least "
        f"{max(order - 2, 1)}; the training text has {lengths.sum()}, its longest document {lengths.max()}. "
        "Give it more text, or lower model.order."
    )


def adjusted_counts(counts: list[NGramCounts], order: int, vocabulary: int) -> Ints:
    """c of the equations for one order: occurrences in the highest, different words continued below it."""
    level = counts[order - 1]
    if order == len(counts):
        adjusted = level.seen.copy()
    else:
        continued = np.bincount(counts[order].suffix, minlength=len(level.keys))
        adjusted = np.where(level.initial, level.seen, continued)
    if order == 1:
        adjusted[vocabulary] = 0  # <s> is given, never predicted
    return adjusted


# --- smoothing ------------------------------------------------------------------------------------------------------


def discounts_of(adjusted: Ints) -> tuple[Reals, bool]:
    """D_1, D_2, D_3+ of one order, and whether they are the fallback."""
    n = np.bincount(np.minimum(adjusted, 5), minlength=6).astype(np.float64)  # n[j]: how many n-grams have c = j
    if n[1:5].all():
        y = n[1] / (n[1] + 2 * n[2])
        discounts = np.array([j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3)])
        if (discounts > 0).all():
            return discounts, False
    return np.array(FALLBACK), True


def smooth(
    level: NGramCounts, adjusted: Ints, kept: NDArray[np.bool_], discounts: Reals, below: Reals
) -> tuple[Reals, Reals]:
    """The equations above, for one order; `below` are the probabilities of the order below, by place.

    Return p (n,) of its n-grams, and γ of each context of the order below.
    """
    prefix = level.prefix
    taken = np.concatenate([[0.0], discounts])[np.minimum(adjusted, 3)]
    total = np.bincount(prefix, weights=adjusted, minlength=len(below))
    left = np.bincount(prefix, weights=np.where(kept, taken, adjusted), minlength=len(below))
    gamma = np.divide(left, total, out=np.ones(len(below)), where=total > 0)
    prob = (adjusted - taken) / total[prefix] + gamma[prefix] * below[level.suffix]
    return prob, gamma


def tables_of(
    counts: list[NGramCounts], kept: list[NDArray[np.bool_]], smoothed: list[tuple[Reals, Reals]], width: int
) -> list[Table]:
    """The tables of the model: the kept n-grams, with the γ of the order above as their backoff."""
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
