"""What is subtracted from a value of a series before it is modelled."""

from typing import Literal

Difference = Literal["none", "step", "season"]


def lag_of(difference: Difference | None, season: int) -> int:
    """How many steps back lies what is subtracted; 0 for nothing. None is a season, or one step where there is none."""
    return season if difference is None else {"none": 0, "step": 1, "season": season}[difference]
