"""How good choices are: the share that is right, beside what guessing would give, and −log p of the right ones."""

from collections.abc import Sequence

import numpy as np

from seqloom.core.errors import DataError
from seqloom.evaluate.figures import Figures
from seqloom.evaluate.intervals import wilson


def report(expected: Sequence[int], log_probs: Sequence[Sequence[float]]) -> Figures:
    """Measure choices: `log_probs` has, for each example, log p of every option it has."""
    if len(expected) != len(log_probs) or not expected:
        raise DataError(
            f"There must be as many answers as examples, and at least one: got {len(log_probs)} and {len(expected)}."
        )
    right = sum(int(np.argmax(own)) == place for place, own in zip(expected, log_probs, strict=True))
    return Figures(
        metrics={
            "accuracy": right / len(expected),
            "chance": float(np.mean([1 / len(own) for own in log_probs])),
            "loss": -float(np.mean([own[place] for place, own in zip(expected, log_probs, strict=True)])),
        },
        intervals={"accuracy": wilson(right, len(expected))},
    )
