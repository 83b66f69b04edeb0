"""Scores: how well a state s fits each of the vectors h_1 … h_S it may attend to.

    dot         s^T h_j
    scaled-dot  s^T h_j / √n,  n the width of s
    cosine      β · cos(s, h_j),  β learned
    general     s^T W h_j
    additive    v^T tanh(W [s; h_j])
    location    (W_a s)_j,  for j up to a stated length

Adding a score is one file in this folder with a subclass of `Score` that has a `name`; `SCORES`
finds it.
"""

from seqloom.core.operations import subclasses_by_name
from seqloom.core.words import did_you_mean
from seqloom.nn.scores.standard import (
    LOCATIONS,
    Additive,
    Cosine,
    DotProduct,
    General,
    LocationScore,
    ScaledDotProduct,
    Score,
)

__all__ = [
    "LOCATIONS",
    "SCORES",
    "Additive",
    "Cosine",
    "DotProduct",
    "General",
    "LocationScore",
    "ScaledDotProduct",
    "Score",
    "score_class",
]

SCORES: dict[str, type[Score]] = subclasses_by_name(Score, __name__, __path__)


def score_class(name: str) -> type[Score]:
    """Find a score by its name; the error for a wrong name suggests the right ones."""
    if name in SCORES:
        return SCORES[name]
    raise ValueError(f"no score is called {name!r}: {did_you_mean(name, SCORES)}")
