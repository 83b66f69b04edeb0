"""Word vector training compiled with numba (extra `fast`).

The kernels implement the equations of `negative_sampling` and `glove` sequentially: each training example uses the
vectors that the previous example updated. The kernels release the GIL, so threads run in parallel and update the same
vectors without locks (Hogwild). If two threads update the same word simultaneously, one step may be lost.

Import this module only if numba is installed; `trainer` checks this.
"""

import math

import numpy as np

from seqloom.classical.word_vectors.negative_sampling import FIRST, GAMMA, SECOND
from seqloom.core.device import compile_nogil

LOSS_INTERVAL = 16  # number of examples per measured loss; logarithms are slow, and training does not need them
_GAMMA, _FIRST, _SECOND = np.uint64(GAMMA), np.uint64(FIRST), np.uint64(SECOND)
_HIGH, _LOW, _27, _30, _31 = (np.uint64(number) for number in (32, 0xFFFFFF, 27, 30, 31))
_ONE, _ZERO, _UNIT = np.float32(1), np.float32(0), np.float32(1 / (1 << 24))
# These flags allow reordered sums, which vector instructions require.
compiled = compile_nogil(fastmath={"contract", "reassoc", "nsz", "arcp"})


@compiled
def draw_noise(seed, n, threshold, alias):  # type: ignore[no-untyped-def]
    """Draw noise word n of a seed; see `negative_sampling.Noise`."""
    x = seed + np.uint64(n + 1) * _GAMMA
    x = (x ^ (x >> _30)) * _FIRST
    x = (x ^ (x >> _27)) * _SECOND
    x = x ^ (x >> _31)
    column = np.int64(((x >> _HIGH) * np.uint64(len(threshold))) >> _HIGH)
    return column if np.float32(np.int64(x & _LOW)) * _UNIT < threshold[column] else alias[column]


@compiled
def predict(x, e, contexts, target, number, candidates, threshold, alias, seed, rate):  # type: ignore[no-untyped-def]
    """Compute e = Σ g_w u_w and u_w ← u_w + g_w x over the target and its negatives; return the measured loss."""
    width, negatives, loss = len(x), len(candidates) - 1, 0.0
    for d in range(width):
        e[d] = _ZERO
    for k in range(negatives + 1):
        w = target if k == 0 else draw_noise(seed, number * negatives + k - 1, threshold, alias)
        is_duplicate = False
        for other in range(k):
            is_duplicate |= candidates[other] == w
        candidates[k] = w
        if is_duplicate:
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
        if number % LOSS_INTERVAL == 0:
            loss += math.log1p(math.exp(-abs(score))) + max(float(-score if k == 0 else score), 0.0)
    return loss


@compiled
def skipgram(vectors, contexts, words, documents, reach, threshold, alias, negatives, seed, rate):  # type: ignore[no-untyped-def]
    """Train on all examples of a block; return the measured losses and the number of examples."""
    e, candidates = np.empty(vectors.shape[1], np.float32), np.empty(negatives + 1, np.int64)
    number, loss = 0, 0.0
    for i in range(len(words)):
        v = vectors[words[i]]
        for j in range(max(0, i - reach[i]), min(len(words), i + reach[i] + 1)):
            if j == i or documents[j] != documents[i]:
                continue
            loss += predict(v, e, contexts, words[j], number, candidates, threshold, alias, seed, rate)
            for d in range(len(e)):
                v[d] += e[d]
            number += 1
    return loss, number


@compiled
def cbow(vectors, contexts, words, documents, reach, threshold, alias, negatives, seed, rate):  # type: ignore[no-untyped-def]
    """Train as in `skipgram`, but predict each word from the mean of its neighbours."""
    width = vectors.shape[1]
    x, e, candidates = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(negatives + 1, np.int64)
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
        loss += predict(x, e, contexts, words[i], number, candidates, threshold, alias, seed, rate)
        for j in range(left, right):
            if j != i and documents[j] == documents[i]:
                v = vectors[words[j]]
                for d in range(width):
                    v[d] += e[d]
        number += 1
    return loss, number


@compiled
def glove(v, u, b, c, vv, uu, bb, cc, rows, columns, logs, weights, rate):  # type: ignore[no-untyped-def]
    """Run an AdaGrad step for each pair of a block; vv, uu, bb and cc are the sums of squares of v, u, b and c."""
    loss = 0.0
    for n in range(len(rows)):
        i, j = rows[n], columns[n]
        x, y, xx, yy = v[i], u[j], vv[i], uu[j]
        o = b[i] + c[j] - logs[n]
        for d in range(len(x)):
            o += x[d] * y[d]
        loss += 0.5 * weights[n] * o * o
        g = rate * weights[n] * o
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
