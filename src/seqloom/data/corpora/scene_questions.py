"""Questions about scenes: a few sentences, a question, and the words that answer it."""

from collections.abc import Iterator
from typing import Literal

from seqloom.config import config
from seqloom.data.answers import Answer, Question
from seqloom.data.corpus import SPLITS, Corpus
from seqloom.data.scenes import QUESTIONS, SLOTS, Drawing

SUMMARY = "questions about scenes of a few sentences, answers in the text; no download"
FORM = "answers"
VERSION = 1  # of the words and sentences


@config
class Config:
    corpus: Literal["scene-questions"] = "scene-questions"
    scenes: int = 3  # sentences of a text; each is about other people
    questions: int = 2  # about each text
    train: int = 12_000  # questions
    dev: int = 500
    test: int = 1_000
    seed: int = 0  # decides the scenes, not how a model is trained on them

    def problems(self) -> Iterator[str]:
        if not 1 <= self.scenes <= 8:
            yield f"scenes must be from 1 to 8, got {self.scenes}"
        if not 1 <= self.questions <= len(SLOTS):
            yield f"questions must be from 1 to {len(SLOTS)}, got {self.questions}"
        if min(self.train, self.dev, self.test) < 1:
            yield "train, dev and test must each be at least 1"


def load(config: Config) -> Corpus[Question]:
    """Nothing but how the words are put together is new in dev and test; no scene is told twice."""
    drawing = Drawing(config.seed)
    splits = {split: _questions(config, split, drawing) for split in SPLITS}
    return Corpus(
        name="scene-questions",
        version=f"scenes {VERSION} seed {config.seed}",
        licence="none needed: made by seqloom",
        description=f"who did what, where, when and with whom: questions on texts of {config.scenes} sentences",
        splits=splits,
    )


def _questions(config: Config, split: str, drawing: Drawing) -> list[Question]:
    found: list[Question] = []
    wanted = int(getattr(config, split))
    while len(found) < wanted:
        scenes = drawing.scenes(config.scenes)
        told = [scene.parts(drawing.telling()) for scene in scenes]
        context = " ".join(text for text, _ in told)
        starts = [sum(len(text) + 1 for text, _ in told[:place]) for place in range(len(told))]
        for slot in drawing.draws.sample(SLOTS, config.questions):
            place = drawing.draws.randrange(len(scenes))
            question = scenes[place].told(drawing.draws.choice(QUESTIONS[slot]))
            start, end = (starts[place] + border for border in told[place][1][slot])
            found.append(Question(context, question, (Answer(context[start:end], start),), f"{split}-{len(found) + 1}"))
    return found[:wanted]
