"""Scores of given outputs, among which a model chooses.

    score(c) = log p(c | x) / |c|^α             p(c | choices) = exp score(c) / Σ_c' exp score(c')

|c| is the number of tokens including END, and α is the length penalty. With α = 0, p(c | choices) is the conditional
probability of the output c, given that one of the choices is the output.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.core.protocols import Steppable, longest_target, select
from seqloom.core.tree import Tree
from seqloom.decoding.rules import Hypothesis

Tokens = Sequence[int]  # without END


@torch.no_grad()
def score_choices(
    model: Steppable,
    choices: Sequence[Sequence[Tokens]],
    *,
    source: Tree,
    end: int,
    length_penalty: float = 0.0,
    attention: bool = False,
) -> list[list[Hypothesis]]:
    """Return the choices of each source as hypotheses, in the given order.

    Every source needs at least one choice. The sources are encoded once, and all choices are read in parallel.
    """
    longest = max(len(tokens) + 1 for row in choices for tokens in row)
    maximum = longest_target(model)
    if maximum is not None and longest > maximum:
        raise UsageError(f"A choice must have at most {maximum} tokens including END, but one has {longest}.")
    state, k = model.start(source), max(map(len, choices))
    padded = [[*row, *[row[0]] * (k - len(row))] for row in choices]  # the same number of choices for each source
    device = source["mask"].device
    targets = torch.tensor([[*tokens, *[end] * (longest - len(tokens))] for row in padded for tokens in row])
    targets = targets.to(device)  # (B·k, T)
    sources = torch.arange(len(choices), device=device)
    state = select(state, sources.repeat_interleave(k), sources)
    inputs, scores, weights = torch.full_like(targets[:, :1], end), list[Tensor](), list[Tensor]()
    for step in range(longest):
        output = model.step(inputs, state)
        inputs, state = targets[:, step : step + 1], output.state
        scores.append(output.log_probs.gather(1, inputs))
        if attention and output.mean_attention is not None:
            weights.append(output.mean_attention)
    log_probs = torch.cat(scores, dim=1).double().view(-1, k, longest).tolist()
    maps = torch.stack(weights, dim=1).unflatten(0, (-1, k)).cpu() if weights else None  # (B, k, T, S)
    scored = []
    for b, row in enumerate(choices):
        hypotheses = []
        for i, tokens in enumerate(row):
            of_tokens = log_probs[b][i][: len(tokens) + 1]
            log_prob, attended = sum(of_tokens), None if maps is None else maps[b, i, : len(of_tokens)]
            score = log_prob / len(of_tokens) ** length_penalty
            hypotheses.append(Hypothesis(list(tokens), True, log_prob, score, of_tokens, attended))
        scored.append(hypotheses)
    return scored


def choice_probabilities(hypotheses: Sequence[Hypothesis]) -> list[float]:
    """Return p(c | choices) for each choice of a source."""
    scores = torch.tensor([hypothesis.score for hypothesis in hypotheses], dtype=torch.float64)
    probabilities: list[float] = scores.softmax(dim=0).tolist()
    return probabilities
