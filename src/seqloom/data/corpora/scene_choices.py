"""A scene and several claims about it, of which one is true."""

from collections.abc import Iterator
from typing import Literal

from seqloom.config import config
from seqloom.data.choices import Choice
from seqloom.data.corpus import SPLITS, Corpus
from seqloom.data.scenes import CLAIMS, SLOTS, Drawing

SUMMARY = "a scene and claims about it, of which one is true; no download"
FORM = "choices"
VERSION = 1  # of the words and sentences
MOST = 8  # options: every slot has so many values besides those of the scene


@config
class Config:
    corpus: Literal["scene-choices"] = "scene-choices"
    options: int = 4  # claims to choose from
    train: int = 6_000  # scenes
    dev: int = 500
    test: int = 1_000
    seed: int = 0  # decides the scenes, not how a model is trained on them

    def problems(self) -> Iterator[str]:
        if not 2 <= self.options <= MOST:
            yield f"options must be from 2 to {MOST}, got {self.options}"
        if min(self.train, self.dev, self.test) < 1:
            yield "train, dev and test must each be at least 1"


def load(config: Config) -> Corpus[Choice]:
    """The claims say the same but for one thing; no scene is told twice."""
    drawing = Drawing(config.seed)
    splits = {split: [_choice(config, drawing) for _ in range(getattr(config, split))] for split in SPLITS}
    return Corpus(
        name="scene-choices",
        version=f"scenes {VERSION} seed {config.seed}",
        licence="none needed: made by seqloom",
        description=f"who did what, where, when and with whom: which of {config.options} claims is true",
        splits=splits,
    )


def _choice(config: Config, drawing: Drawing) -> Choice:
    scene, slot = drawing.scene(), drawing.draws.choice(SLOTS)
    template = drawing.draws.choice(CLAIMS[slot])
    values = [str(getattr(scene, slot))]
    while len(values) < config.options:
        values.append(drawing.other(slot, {scene.who, scene.whom, *values}))
    options = [scene.changed(slot, value).told(template) for value in values]
    right = options[0]
    drawing.draws.shuffle(options)
    return Choice(scene.told(drawing.telling()), tuple(options), options.index(right))
