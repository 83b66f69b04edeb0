"""Claims about scenes: a few sentences, and a claim that is true or false."""

from collections.abc import Iterator
from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import SPLITS, Corpus
from seqloom.data.matched import Matched
from seqloom.data.scenes import CLAIMS, SLOTS, Drawing, Scene

SUMMARY = "scenes of a few sentences and claims about them, true or false; no download"
FORM = "matched"
VERSION = 1  # of the words and sentences


@config
class Config:
    corpus: Literal["scene-claims"] = "scene-claims"
    scenes: int = 2  # sentences of the first text; each is about other people
    train: int = 12_000  # pairs
    dev: int = 500
    test: int = 1_000
    seed: int = 0  # decides the scenes, not how a model is trained on them

    def problems(self) -> Iterator[str]:
        if not 1 <= self.scenes <= 8:
            yield f"scenes must be from 1 to 8, got {self.scenes}"
        if min(self.train, self.dev, self.test) < 2:
            yield "train, dev and test must each be at least 2"


def load(config: Config) -> Corpus[Matched]:
    """Half of the claims are false. Of several scenes they say of one what is true of another: no word gives them away.
    Of one alone they say something that is not there."""
    drawing = Drawing(config.seed)
    splits = {
        split: [_pair(config, drawing, true=number % 2 == 0) for number in range(getattr(config, split))]
        for split in SPLITS
    }
    return Corpus(
        name="scene-claims",
        version=f"scenes {VERSION} seed {config.seed}",
        licence="none needed: made by seqloom",
        description=f"who did what, where, when and with whom: claims about {config.scenes} sentences, half are true",
        splits=splits,
    )


def _pair(config: Config, drawing: Drawing, true: bool) -> Matched:
    scenes = drawing.scenes(config.scenes)
    told = " ".join(scene.told(drawing.telling()) for scene in scenes)
    slot, about = drawing.draws.choice(SLOTS), drawing.draws.choice(scenes)
    claimed = about if true else about.changed(slot, _elsewhere(drawing, scenes, about, slot))
    return Matched.of(told, claimed.told(drawing.draws.choice(CLAIMS[slot])), "true" if true else "false")


def _elsewhere(drawing: Drawing, scenes: list[Scene], about: Scene, slot: str) -> str:
    """What another of the scenes has there, or, of one alone, any other value."""
    others = [str(getattr(scene, slot)) for scene in scenes if scene is not about]
    return (
        drawing.draws.choice(others) if others else drawing.other(slot, {about.who, about.whom, getattr(about, slot)})
    )
