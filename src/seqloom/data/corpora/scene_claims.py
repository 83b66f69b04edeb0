"""Claims about scenes: a few sentences, and a claim that is true or false."""

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
    scenes: Annotated[int, Ge(1), Le(8)] = 2  # sentences of the first text; each is about other people
    train: TwoOrMore = 12_000  # pairs
    dev: TwoOrMore = 500
    test: TwoOrMore = 1_000


def load(config: Config) -> Corpus[SentencePairExample]:
    """Half of the claims are false. Of several scenes they say of one what is true of another: no word gives them away.
    Of one alone they say something that is not there."""
    description = f"who did what, where, when and with whom: claims about {config.scenes} sentences, half are true"
    return scene_corpus(
        config,
        description,
        lambda drawing, _, count: [draw_pair(config, drawing, number % 2 == 0) for number in range(count)],
    )


def draw_pair(config: Config, drawing: SceneDrawing, is_true: bool) -> SentencePairExample:
    scenes = drawing.scenes(config.scenes)
    told = " ".join(scene.tell(drawing.telling()) for scene in scenes)
    slot, about = drawing.draws.choice(SLOTS), drawing.draws.choice(scenes)
    claimed = about
    if not is_true:  # what another scene has there, or of one scene alone any other value
        others = [scene.value(slot) for scene in scenes if scene is not about]
        taken = {about.who, about.whom, about.value(slot)}
        claimed = about.with_value(slot, drawing.draws.choice(others) if others else drawing.other(slot, taken))
    claim = claimed.tell(drawing.draws.choice(CLAIMS[slot]))
    return SentencePairExample.of(told, claim, "true" if is_true else "false")
