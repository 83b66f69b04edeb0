"""Two scenes and how much alike they are: in how many of who, what, where, when and with whom they agree."""

from collections.abc import Iterator
from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import SPLITS, Corpus
from seqloom.data.matched import Matched
from seqloom.data.scenes import SLOTS, Drawing

SUMMARY = "two scenes and how much alike they are, from 0 to 5; no download"
FORM = "matched"
VERSION = 1  # of the words and sentences


@config
class Config:
    corpus: Literal["scene-likeness"] = "scene-likeness"
    train: int = 12_000  # pairs
    dev: int = 500
    test: int = 1_000
    seed: int = 0  # decides the scenes, not how a model is trained on them

    def problems(self) -> Iterator[str]:
        if min(self.train, self.dev, self.test) < 2:
            yield "train, dev and test must each be at least 2"


def load(config: Config) -> Corpus[Matched]:
    """Both are told in ways of their own, so the order of the words says little."""
    drawing = Drawing(config.seed)
    splits = {
        split: [_pair(drawing, number % (len(SLOTS) + 1)) for number in range(getattr(config, split))]
        for split in SPLITS
    }
    return Corpus(
        name="scene-likeness",
        version=f"scenes {VERSION} seed {config.seed}",
        licence="none needed: made by seqloom",
        description="two scenes: in how many of who, what, where, when and with whom they agree",
        splits=splits,
    )


def _pair(drawing: Drawing, alike: int) -> Matched:
    one = drawing.scene()
    other = drawing.scene([one])
    for slot in drawing.draws.sample(SLOTS, alike):
        other = other.changed(slot, getattr(one, slot))
    telling = drawing.telling()
    return Matched.of(one.told(telling), other.told(drawing.telling(but=telling)), str(one.shared(other)))
