"""Attention scores between a state s and the vectors h_1 … h_S that it may attend to.

The docstring of each score begins with its equation; `seqloom list attention` prints them all. To add a score, add a
file to this folder with a subclass of `Score` that has a `name`; `SCORES` then contains this score.
"""

from seqloom.core.operations import subclasses_by_name
from seqloom.core.words import did_you_mean
from seqloom.nn.scores.standard import (
    DEFAULT_LOCATION_WIDTH,
    DEFAULT_MAX_LENGTH,
    Additive,
    Cosine,
    DotProduct,
    General,
    LocationScore,
    ScaledDotProduct,
    Score,
)

__all__ = [
    "DEFAULT_LOCATION_WIDTH",
    "DEFAULT_MAX_LENGTH",
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
    """Return the score class with this name. The error for an unknown name suggests similar names."""
    if name in SCORES:
        return SCORES[name]
    raise ValueError(f"no score is called {name!r}: {did_you_mean(name, SCORES)}")
