"""How much to trust each of several language models: the weights of their mixture under which a text is likeliest.

    maximise   L(λ) = 1/N Σ_t log Σ_i λ_i p_i(x_t | x_<t)

Expectation–maximisation asks how much of each token's probability came from model i, and takes the average for its new
weight; L never falls:

    λ_i ← λ_i g_i,    g_i = 1/N Σ_t p_i(x_t) / Σ_j λ_j p_j(x_t)

L is concave, so there is one summit, and max_i g_i − 1 bounds how far below it L(λ) still lies.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from seqloom.core.errors import DataError
from seqloom.decoding.mixture import mix

PRECISION = 1e-7  # nats per token that the weights found may fall short of the best
MOST_ROUNDS = 5000


def best_weights(log_probs: Sequence[Tensor]) -> list[float]:
    """λ from what each model thought of every token of a text, (N,) each."""
    thought = torch.stack([own.double() for own in log_probs])  # (M, N)
    if bool((thought.amax(dim=0) == -torch.inf).any()):
        raise DataError("No weights make this text possible: all of the models give one of its tokens no chance.")
    weights = thought.new_full((len(thought),), 1 / len(thought))
    for _ in range(MOST_ROUNDS):
        gains = (thought - mix(list(thought), weights.tolist())).exp().mean(dim=1)  # (M,)
        weights = weights * gains
        if gains.max() < 1 + PRECISION:
            break
    return [float(weight) for weight in weights / weights.sum()]
