"""Entailment: a few sentences about scenes, and a claim that is true or false."""

from typing import Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Ge, Le
from seqloom.data.corpus import Corpus, GeneratedConfig
from seqloom.data.examples import SentencePairExample
from seqloom.data.generated import CLAIMS, SLOTS, SceneDrawing, scene_corpus

SUMMARY = "scenes of a few sentences and claims about them, true or false; no download"
FORM = "sentence-pair"
TwoOrMore = Annotated[int, Ge(2)]


@config
class Config(GeneratedConfig):
    corpus: Literal["scene-claims"] = "scene-claims"
    scenes: Annotated[int, Ge(1), Le(8)] = 2  # number of sentences in the first text, each about different people
    train: TwoOrMore = 12_000  # number of training pairs
    dev: TwoOrMore = 500
    test: TwoOrMore = 1_000


def load(config: Config) -> Corpus[SentencePairExample]:
    """Generate pairs, half of them with a false claim.

    With several scenes, a false claim mixes values of two scenes, so that single words do not reveal that it is false.
    With one scene, a false claim contains a value that is not in the text.
    """
    description = f"who did what, where, when and with whom: claims about {config.scenes} sentences, half of them true"
    return scene_corpus(
        config,
        description,
        lambda drawing, _, count: [draw_pair(config, drawing, number % 2 == 0) for number in range(count)],
    )


def draw_pair(config: Config, drawing: SceneDrawing, is_true: bool) -> SentencePairExample:
    scenes = drawing.draw_scenes(config.scenes)
    text = " ".join(scene.tell(drawing.draw_telling()) for scene in scenes)
    slot, scene = drawing.draws.choice(SLOTS), drawing.draws.choice(scenes)
    claimed = scene
    if not is_true:
        others = [other.value(slot) for other in scenes if other is not scene]
        excluded = {scene.who, scene.whom, scene.value(slot)}
        claimed = scene.with_value(slot, drawing.draws.choice(others) if others else drawing.draw_value(slot, excluded))
    claim = claimed.tell(drawing.draws.choice(CLAIMS[slot]))
    return SentencePairExample.of(text, claim, "true" if is_true else "false")
