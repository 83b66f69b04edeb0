"""The steps of word vectors compiled for a CPU by numba (extra `fast`): the equations of `negative_sampling` and
`glove`, one prediction after the other, each from the vectors the one before it left.

The compiled loops hold no lock of Python's, so threads run side by side. They write into the same
vectors without asking each other (Hogwild): two rarely touch the same word at once, and then one
step may be lost.

Import this only where numba is installed: `trainer` asks.
"""

import math

import numpy as np

from seqloom.classical.word_vectors.negative_sampling import FIRST, GAMMA, SECOND
from seqloom.core.device import compiler

SEEN = 16  # the loss is that of every so many predictions: logarithms cost time and teach nothing
_GAMMA, _FIRST, _SECOND = np.uint64(GAMMA), np.uint64(FIRST), np.uint64(SECOND)
_HIGH, _LOW, _27, _30, _31 = (np.uint64(number) for number in (32, 0xFFFFFF, 27, 30, 31))
_ONE, _ZERO, _UNIT = np.float32(1), np.float32(0), np.float32(1 / (1 << 24))
# sums may be made in any order, which is what lets them be made eight or sixteen numbers at a time
compiled = compiler(fastmath={"contract", "reassoc", "nsz", "arcp"})


@compiled
def drawn(seed, n, share, alias):  # type: ignore[no-untyped-def]
    """Draw n of the seed from the noise: see `negative_sampling`."""
    x = seed + np.uint64(n + 1) * _GAMMA
    x = (x ^ (x >> _30)) * _FIRST
    x = (x ^ (x >> _27)) * _SECOND
    x = x ^ (x >> _31)
    column = np.int64(((x >> _HIGH) * np.uint64(len(share))) >> _HIGH)
    return column if np.float32(np.int64(x & _LOW)) * _UNIT < share[column] else alias[column]


@compiled
def predict(x, e, contexts, target, number, told, share, alias, seed, rate):  # type: ignore[no-untyped-def]
    """e = Σ g_w u_w and u_w ← u_w + g_w x for the word that is there and its negatives; the loss, where it is seen."""
    width, negatives, loss = len(x), len(told) - 1, 0.0
    for d in range(width):
        e[d] = _ZERO
    for k in range(negatives + 1):
        w = target if k == 0 else drawn(seed, number * negatives + k - 1, share, alias)
        again = False
        for other in range(k):
            again |= told[other] == w
        told[k] = w
        if again:
            continue
        u = contexts[w]
        score = _ZERO
        for d in range(width):
            score += x[d] * u[d]
        y = _ONE if k == 0 else _ZERO
        g = rate * (y - _ONE / (_ONE + np.float32(math.exp(-score))))
        for d in range(width):
            e[d] += g * u[d]
            u[d] += g * x[d]
        if number % SEEN == 0:
            loss += math.log1p(math.exp(-abs(score))) + max(float(-score if k == 0 else score), 0.0)
    return loss


@compiled
def skipgram(vectors, contexts, words, documents, reach, share, alias, negatives, seed, rate):  # type: ignore[no-untyped-def]
    """All predictions of a block; the loss of those that are seen, and how many predictions there are."""
    e, told = np.empty(vectors.shape[1], np.float32), np.empty(negatives + 1, np.int64)
    number, loss = 0, 0.0
    for i in range(len(words)):
        v = vectors[words[i]]
        for j in range(max(0, i - reach[i]), min(len(words), i + reach[i] + 1)):
            if j == i or documents[j] != documents[i]:
                continue
            loss += predict(v, e, contexts, words[j], number, told, share, alias, seed, rate)
            for d in range(len(e)):
                v[d] += e[d]
            number += 1
    return loss, number


@compiled
def cbow(vectors, contexts, words, documents, reach, share, alias, negatives, seed, rate):  # type: ignore[no-untyped-def]
    """As `skipgram`, but the mean of the neighbours is read and the word between them told."""
    width = vectors.shape[1]
    x, e, told = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(negatives + 1, np.int64)
    number, loss = 0, 0.0
    for i in range(len(words)):
        left, right, n = max(0, i - reach[i]), min(len(words), i + reach[i] + 1), 0
        for d in range(width):
            x[d] = _ZERO
        for j in range(left, right):
            if j != i and documents[j] == documents[i]:
                v = vectors[words[j]]
                for d in range(width):
                    x[d] += v[d]
                n += 1
        if n == 0:
            continue
        for d in range(width):
            x[d] /= np.float32(n)
        loss += predict(x, e, contexts, words[i], number, told, share, alias, seed, rate)
        for j in range(left, right):
            if j != i and documents[j] == documents[i]:
                v = vectors[words[j]]
                for d in range(width):
                    v[d] += e[d]
        number += 1
    return loss, number


@compiled
def glove(v, u, b, c, vv, uu, bb, cc, rows, columns, logs, weights, rate):  # type: ignore[no-untyped-def]
    """All pairs of a block, each a step of AdaGrad; a doubled letter is the sum of squares of its single one."""
    loss = 0.0
    for n in range(len(rows)):
        i, j = rows[n], columns[n]
        x, y, xx, yy = v[i], u[j], vv[i], uu[j]
        off = b[i] + c[j] - logs[n]
        for d in range(len(x)):
            off += x[d] * y[d]
        loss += 0.5 * weights[n] * off * off
        g = rate * weights[n] * off
        for d in range(len(x)):
            to_x, to_y = g * y[d], g * x[d]
            x[d] -= to_x / np.sqrt(xx[d])
            y[d] -= to_y / np.sqrt(yy[d])
            xx[d] += to_x * to_x
            yy[d] += to_y * to_y
        b[i] -= g / np.sqrt(bb[i])
        c[j] -= g / np.sqrt(cc[j])
        bb[i] += g * g
        cc[j] += g * g
    return loss, len(rows)
