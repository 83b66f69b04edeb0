"""Questions about scenes: a few sentences, a question, and the words that answer it."""

from typing import Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Ge, Le, PositiveInt
from seqloom.data.corpus import Corpus, GeneratedConfig
from seqloom.data.examples import Answer, QuestionAnsweringExample
from seqloom.data.generated import QUESTIONS, SLOTS, SceneDrawing, scene_corpus

SUMMARY = "questions about scenes of a few sentences, answers in the text; no download"
FORM = "question-answering"


@config
class Config(GeneratedConfig):
    corpus: Literal["scene-questions"] = "scene-questions"
    scenes: Annotated[int, Ge(1), Le(8)] = 3  # sentences of a text; each is about other people
    questions: Annotated[int, Ge(1), Le(len(SLOTS))] = 2  # about each text
    train: PositiveInt = 12_000  # questions
    dev: PositiveInt = 500
    test: PositiveInt = 1_000


def load(config: Config) -> Corpus[QuestionAnsweringExample]:
    """Nothing but how the words are put together is new in dev and test; no scene is told twice."""
    description = f"who did what, where, when and with whom: questions on texts of {config.scenes} sentences"
    return scene_corpus(
        config, description, lambda drawing, split, count: draw_questions(config, drawing, split, count)
    )


def draw_questions(config: Config, drawing: SceneDrawing, split: str, count: int) -> list[QuestionAnsweringExample]:
    found: list[QuestionAnsweringExample] = []
    while len(found) < count:
        scenes = drawing.scenes(config.scenes)
        told = [scene.parts(drawing.telling()) for scene in scenes]
        context = " ".join(text for text, _ in told)
        starts = [sum(len(text) + 1 for text, _ in told[:index]) for index in range(len(told))]
        for slot in drawing.draws.sample(SLOTS, config.questions):
            index = drawing.draws.randrange(len(scenes))
            question = scenes[index].tell(drawing.draws.choice(QUESTIONS[slot]))
            start, end = (starts[index] + border for border in told[index][1][slot])
            answers, name = (Answer(context[start:end], start),), f"{split}-{len(found) + 1}"
            found.append(QuestionAnsweringExample(context, question, answers, name))
    return found[:count]
