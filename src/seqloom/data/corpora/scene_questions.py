"""Question answering: a few sentences about scenes, a question, and the answer in the text."""

from typing import Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Ge, Le, PositiveInt
from seqloom.data.corpus import Corpus, GeneratedConfig
from seqloom.data.examples import Answer, QuestionAnsweringExample
from seqloom.data.generated import QUESTIONS, SLOTS, SceneDrawing, scene_corpus

SUMMARY = "questions about a few sentences, with answers in the text; no download"
FORM = "question-answering"


@config
class Config(GeneratedConfig):
    corpus: Literal["scene-questions"] = "scene-questions"
    scenes: Annotated[int, Ge(1), Le(8)] = 3  # number of sentences in a text, each about different people
    questions: Annotated[int, Ge(1), Le(len(SLOTS))] = 2  # number of questions about each text
    train: PositiveInt = 12_000  # number of training questions
    dev: PositiveInt = 500
    test: PositiveInt = 1_000


def load(config: Config) -> Corpus[QuestionAnsweringExample]:
    """Generate questions about different scenes; dev and test combine the words of train in new ways."""
    description = f"who did what, where, when and with whom: questions about texts of {config.scenes} sentences"
    return scene_corpus(
        config, description, lambda drawing, split, count: draw_questions(config, drawing, split, count)
    )


def draw_questions(config: Config, drawing: SceneDrawing, split: str, count: int) -> list[QuestionAnsweringExample]:
    examples: list[QuestionAnsweringExample] = []
    while len(examples) < count:
        scenes = drawing.draw_scenes(config.scenes)
        sentences = [scene.fill_template(drawing.draw_telling()) for scene in scenes]
        context = " ".join(text for text, _ in sentences)
        starts = [sum(len(text) + 1 for text, _ in sentences[:index]) for index in range(len(sentences))]
        for slot in drawing.draws.sample(SLOTS, config.questions):
            index = drawing.draws.randrange(len(scenes))
            question = scenes[index].tell(drawing.draws.choice(QUESTIONS[slot]))
            start, end = (starts[index] + border for border in sentences[index][1][slot])
            answers, name = (Answer(context[start:end], start),), f"{split}-{len(examples) + 1}"
            examples.append(QuestionAnsweringExample(context, question, answers, name))
    return examples[:count]
