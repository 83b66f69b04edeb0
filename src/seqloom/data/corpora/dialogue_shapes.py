"""Dialogues about pictures of coloured shapes. Combinations of shape and colour in dev and test are unseen."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Ge, Le, PositiveInt
from seqloom.data.corpus import Corpus, GeneratedConfig, version_of

if TYPE_CHECKING:
    from seqloom.data.image_texts import VisualQuestion

SUMMARY = "dialogues about pictures of coloured shapes, in which questions refer back; no download"
FORM = "visual-question-answering"


@config
class Config(GeneratedConfig):
    corpus: Literal["dialogue-shapes"] = "dialogue-shapes"
    train: PositiveInt = 4000  # number of pictures, each with a dialogue
    dev: PositiveInt = 300
    test: PositiveInt = 500
    turns: Annotated[int, Ge(1), Le(10)] = 5  # number of questions about a picture
    min_objects: Annotated[int, Ge(1), Le(9)] = 2  # minimum number of objects in a picture
    max_objects: Annotated[int, Ge(1), Le(9)] = 4
    side: Annotated[int, Ge(16), Le(512)] = 48  # height and width of a picture in pixels

    def problems(self) -> Iterator[str]:
        if self.max_objects < self.min_objects:
            yield f"max_objects must be at least min_objects ({self.min_objects}); got {self.max_objects}"


def load(config: Config) -> "Corpus[VisualQuestion]":
    """Render the pictures and draw a dialogue about each picture. Every question is an example."""
    from seqloom.data.dialogues import draw_dialogue
    from seqloom.data.generated import Dice
    from seqloom.data.image_texts import Turn, VisualQuestion
    from seqloom.data.shapes import draw_scenes, scene_image

    def take(split: str, count: int) -> list[VisualQuestion]:
        dice = Dice(f"dialogue-shapes/{config.seed}/{split}")
        examples: list[VisualQuestion] = []
        scenes = draw_scenes(split, config.seed, objects=(config.min_objects, config.max_objects))
        for number, scene in enumerate(islice(scenes, count), start=1):
            image = scene_image(scene, f"{split} {number}", config.side)
            history: tuple[Turn, ...] = ()
            for turn in draw_dialogue(scene, dice, config.turns):
                answers, choices = (turn.answer,), tuple(turn.choices)
                examples.append(
                    VisualQuestion(image, turn.question, answers, turn.kind, choices, history, turn.needs_history)
                )
                history += ((turn.question, turn.answer),)
        return examples

    splits = config.draw(take)
    return Corpus(
        name="dialogue-shapes",
        version=f"{version_of(splits)} seed {config.seed}",
        description=f"dialogues about coloured shapes in pictures of {config.side} × {config.side} pixels",
        splits=splits,
    )
