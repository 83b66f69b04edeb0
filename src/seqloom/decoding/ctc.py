"""Search with CTC: the best alignment, and prefix beam search.

    greedy         B(argmax p_1, …, argmax p_S), the text of the most probable alignment
    prefix beam    p(prefix) = p_∅(prefix) + p_y(prefix): alignments that end with a blank, and with the last token;
                   frame t, with the probability p_t(y) of each token y, changes them to

                   p_∅(l)  ← (p_∅(l) + p_y(l)) · p_t(∅)
                   p_y(l)  ← p_y(l) · p_t(last token of l) + p_y of shorter prefixes that are extended to l
                   p_y(ly) ← (p_∅(l) + p_y(l)) · p_t(y), but p_∅(l) · p_t(y) if y is the last token of l

After each frame, the `beam` best prefixes are kept. A language model adds its score to each prefix; see
`seqloom.decoding.fusion`. All computations are in log space.
"""

from collections.abc import Collection, Sequence
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.core.progress import check_cancelled
from seqloom.decoding.fusion import FusedLanguageModel, PrefixScores
from seqloom.decoding.rules import Hypothesis

BLANK = 0  # the id of ∅, as in `seqloom.nn.ctc`
CANDIDATES = 20  # maximum number of tokens that extend a prefix at a frame
Prefix = tuple[int, ...]
Probabilities = tuple[float, float]  # log p_∅ and log p_y of a prefix


def ctc_search(
    log_probs: Tensor,
    mask: Tensor,
    *,
    beam: int,
    n_best: int = 1,
    banned: Collection[int] = (),
    language_model: FusedLanguageModel | None = None,
) -> list[list[Hypothesis]]:
    """Return the best texts of each row of log_probs (B, S, V), best first.

    Without a language model, a beam of 1 is greedy search.
    """
    scores = None if language_model is None else PrefixScores(language_model)
    allowed = log_probs.double().cpu().clone()
    allowed[:, :, sorted(set(banned) - {BLANK})] = -torch.inf
    hypotheses = []
    for row, length in zip(allowed.numpy(), mask.sum(dim=1).tolist(), strict=True):
        check_cancelled()
        if beam == 1 and scores is None:
            prefix, log_prob = greedy(row[:length])
            found = [(prefix, log_prob, log_prob)]
        else:
            found = prefix_beam_search(row[:length], beam, scores)
        hypotheses.append(
            [Hypothesis(list(prefix), True, log_prob, score, []) for prefix, log_prob, score in found[:n_best]]
        )
    return hypotheses


def greedy(log_probs: NDArray[np.float64]) -> tuple[Prefix, float]:
    """Return the text of the most probable alignment of frames (S, V), and log p of this alignment."""
    best = log_probs.argmax(axis=1) if len(log_probs) else np.zeros(0, dtype=int)
    return merge_labels(best.tolist()), float(log_probs.max(axis=1).sum()) if len(log_probs) else 0.0


def merge_labels(labels: Sequence[int]) -> Prefix:
    """Return the text of an alignment: repeated labels are merged, then blanks are removed."""
    return tuple(label for label, _ in groupby(labels) if label != BLANK)


def prefix_beam_search(
    log_probs: NDArray[np.float64], beam: int, scores: PrefixScores | None = None
) -> list[tuple[Prefix, float, float]]:
    """Return the best texts of frames (S, V) with their log-probabilities and scores, best first.

    The score of a text is its log-probability, to which `scores` add the score of a language model.
    """

    def rank(item: tuple[Prefix, Sequence[float]]) -> tuple[float, Prefix]:
        prefix, (blank, label) = item
        return -float(np.logaddexp(blank, label)) - (scores.score(prefix) if scores is not None else 0.0), prefix

    beams: dict[Prefix, Probabilities] = {(): (0.0, -np.inf)}
    count = min(CANDIDATES, log_probs.shape[1])
    for frame in log_probs:
        tokens = [token for token in np.argsort(-frame, kind="stable")[:count].tolist() if token != BLANK]
        extended: dict[Prefix, list[float]] = {}

        def add(prefix: Prefix, ends: int, value: float, extended: dict[Prefix, list[float]] = extended) -> None:
            both = extended.setdefault(prefix, [-np.inf, -np.inf])
            both[ends] = np.logaddexp(both[ends], value)

        for prefix, (blank, label) in beams.items():
            total = np.logaddexp(blank, label)
            add(prefix, 0, total + frame[BLANK])
            if prefix:
                add(prefix, 1, label + frame[prefix[-1]])
            for token in tokens:
                add((*prefix, token), 1, (blank if prefix[-1:] == (token,) else total) + frame[token])
        beams = {prefix: (both[0], both[1]) for prefix, both in sorted(extended.items(), key=rank)[:beam]}
    texts = [(prefix, float(np.logaddexp(*both))) for prefix, both in beams.items()]
    if scores is None:
        return [(prefix, log_prob, log_prob) for prefix, log_prob in texts]
    scored = [(prefix, log_prob, log_prob + scores.score_end(prefix)) for prefix, log_prob in texts]
    return sorted(scored, key=lambda text: (-text[2], text[0]))
