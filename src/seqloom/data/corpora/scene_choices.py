"""Multiple choice: a scene and several claims about it, of which one is true."""

from typing import Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Ge, Le, PositiveInt
from seqloom.data.corpus import Corpus, GeneratedConfig
from seqloom.data.examples import MultipleChoiceExample
from seqloom.data.generated import CLAIMS, SLOTS, SceneDrawing, scene_corpus

SUMMARY = "a scene and several claims about it, one of them true; no download"
FORM = "multiple-choice"
MAX_OPTIONS = 8  # every slot has at least this many values that are not in the scene


@config
class Config(GeneratedConfig):
    corpus: Literal["scene-choices"] = "scene-choices"
    options: Annotated[int, Ge(2), Le(MAX_OPTIONS)] = 4  # number of claims to choose from
    train: PositiveInt = 6_000  # number of training scenes
    dev: PositiveInt = 500
    test: PositiveInt = 1_000


def load(config: Config) -> Corpus[MultipleChoiceExample]:
    """Generate different scenes, with claims that differ in one slot."""
    description = f"who did what, where, when and with whom: choose the true claim among {config.options}"
    return scene_corpus(
        config, description, lambda drawing, _, count: [draw_choice(config, drawing) for _ in range(count)]
    )


def draw_choice(config: Config, drawing: SceneDrawing) -> MultipleChoiceExample:
    scene, slot = drawing.draw_scene(), drawing.draws.choice(SLOTS)
    template = drawing.draws.choice(CLAIMS[slot])
    values = [scene.value(slot)]
    while len(values) < config.options:
        values.append(drawing.draw_value(slot, {scene.who, scene.whom, *values}))
    options = [scene.with_value(slot, value).tell(template) for value in values]
    answer = options[0]
    drawing.draws.shuffle(options)
    return MultipleChoiceExample(scene.tell(drawing.draw_telling()), tuple(options), options.index(answer))
