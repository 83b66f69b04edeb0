"""How long the documents of a stream are."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Lengths:
    """Of documents, in tokens, END not counted."""

    shortest: int
    median: int
    most: int  # 95 % are no longer than this
    longest: int


def lengths(stream: Any, end: int) -> Lengths:
    """Every document is followed by END, which no text contains: so the stream itself says how long they are."""
    return spread(np.diff(np.flatnonzero(stream == end), prepend=-1) - 1)


def spread(found: Any) -> Lengths:
    """Of the lengths themselves (N,)."""
    if not len(found):
        return Lengths(0, 0, 0, 0)
    quantile = [int(np.quantile(found, share, method="lower")) for share in (0, 0.5, 0.95, 1)]
    return Lengths(*quantile)
