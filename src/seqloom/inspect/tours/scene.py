"""Where an attention of a walk takes place: which tokens attend to which, and which of them is followed."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from seqloom.inspect.tours.blocks import Looked
from seqloom.inspect.tours.panels import Link, quoted
from seqloom.inspect.views.alignment import CROSS_ATTENTION, SELF_ATTENTION, AxisTitles


class Scene(NamedTuple):
    """Where an attention takes place, and what is followed in it."""

    key: str  # before the keys of the stages
    chapter: str
    where: str  # "encoder layer 1 of 2, head 2 of 4"
    asks: Sequence[str]  # tokens that ask
    answers: Sequence[str]  # tokens that are asked
    row: int  # the one of `asks` that is followed
    head: int  # from 0
    numbers: int
    layer: int = 1
    causal: bool = False
    links: Sequence[Link] = ()
    produced: Sequence[str] = ()  # of cross-attention: the token that each of `asks` produces

    @property
    def of_source(self) -> bool:
        """Whether the source is asked, and not the same text."""
        return bool(self.produced)

    @property
    def rows(self) -> list[str]:
        """Labels of the rows of a map, as `axes` says."""
        return [quoted(token) for token in self.produced or self.asks]

    @property
    def axes(self) -> AxisTitles:
        return CROSS_ATTENTION if self.of_source else SELF_ATTENTION

    @property
    def name(self) -> str:
        return quoted(self.asks[self.row])

    def seen(self, looked: Looked) -> list[int]:
        """The places that the followed token may look at."""
        return [int(place) for place in torch.isfinite(looked.scores[self.head, self.row]).nonzero()]

    def names(self, places: Sequence[int]) -> list[str]:
        return [quoted(self.answers[place]) for place in places]
