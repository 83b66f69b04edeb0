"""What a recipe can say of how a series is read, and what cannot be right about it. Needs no numbers, and no numpy."""

from collections.abc import Iterator, Sequence
from typing import Literal

from seqloom.data.tables import Column

Fill = Literal["mask", "previous", "season"]  # what a model sees in place of a missing value
Gaps = Literal["insert", "ignore"]  # a missing row is a step of missing values, or nothing


def fraction_problems(dev: float, test: float) -> Iterator[str]:
    if min(dev, test) < 0 or dev + test >= 1:
        yield "dev_fraction and test_fraction must be at least 0 and together less than 1"


def season_problems(season: int | None) -> Iterator[str]:
    if season is not None and season < 1:
        yield f"season must be at least 1, got {season}"


def column_problems(time: Column | None, columns: Sequence[Column] | None) -> Iterator[str]:
    """What cannot be right about columns asked for, whatever the file holds."""
    asked = [one for one in (time, *(columns or ())) if one is not None]
    if columns is not None and not columns:
        yield "columns must name one at least, or be null for all that hold numbers"
    if any(isinstance(column, int) and column < 1 for column in asked):
        yield f"columns are counted from 1, got {asked}"
    if len(set(asked)) < len(asked):
        yield f"time and columns must be different columns, got {asked}"
