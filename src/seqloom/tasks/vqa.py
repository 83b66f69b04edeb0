"""Visual question answering: a model reads an image and a question, and writes the answer.

The model reads the vectors of the image, followed by those of the text. In a dialogue, the text starts with the
previous questions and their correct answers; `history` limits their number. The loss is −log p of the answer. The
metrics are defined in `seqloom.evaluate.visual_questions`; the accuracy on multiple-choice questions compares log p of
all choices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from seqloom.config import config
from seqloom.config.constraints import Ge, Le, NonNegativeInt, PositiveInt
from seqloom.core import Json
from seqloom.core.device import device_of
from seqloom.core.tree import to_device
from seqloom.data.batching import Array
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.image_texts import DescribedExample, VisualQuestion, dialogue_text, last_turns
from seqloom.decoding.beam import BeamConfig
from seqloom.decoding.choices import score_choices
from seqloom.decoding.rules import MAX_LENGTH_PENALTY
from seqloom.evaluate.visual_questions import (
    TypeAccuracy,
    accuracy_by_type,
    compare_answers,
    score_answers,
)
from seqloom.evaluate.written_texts import WrittenText, WrittenTextReport
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.image_to_text_base import ImageToTextRecipe, ImageToTextTask


@config
class AnswerSearchConfig(BeamConfig):
    """Search settings for short answers."""

    beam: PositiveInt = 1  # beam size: number of hypotheses for each question; 1 is greedy search
    # α: log p of an answer or a choice is divided by length^α
    length_penalty: Annotated[float, Ge(0), Le(MAX_LENGTH_PENALTY)] = 0.0
    min_length: NonNegativeInt = 1  # minimum number of tokens before END


@config
class Recipe(ImageToTextRecipe):
    task: Literal["vqa"] = "vqa"
    data: CorpusConfig[VisualQuestion]
    history: NonNegativeInt | None = None  # number of previous questions that the model reads; null: all
    decode: AnswerSearchConfig = AnswerSearchConfig()  # default search settings
    # dev metric that selects the best checkpoint
    monitor: Literal["loss", "accuracy", "follow_up_accuracy"] = "accuracy"


@dataclass(frozen=True)
class VisualQuestionReport(WrittenTextReport):
    """The evaluation of answers."""

    by_type: dict[str, TypeAccuracy]

    def to_dict(self) -> dict[str, Json]:
        types: dict[str, Json] = {name: vars(accuracy) for name, accuracy in self.by_type.items()}
        return {**super().to_dict(), **({"by_type": types} if types else {})}


class Task(ImageToTextTask[Recipe]):
    corpus: Corpus[VisualQuestion]
    reads_texts = True
    measured_on = "questions about images"

    def source_text(self, example: DescribedExample) -> str:
        assert isinstance(example, VisualQuestion)
        return dialogue_text(last_turns(example.history, self.recipe.history), example.question)

    def describe_data(self) -> dict[str, Json]:
        """Return the description of the data, with the maximum number of previous questions that the model reads."""
        turns = (len(last_turns(example.history, self.recipe.history)) for example in self.corpus.split("train"))
        return {**super().describe_data(), "history": max(turns)}

    # --- evaluation -------------------------------------------------------------------------------------------------

    def score(self, lines: Sequence[WrittenText]) -> dict[str, float]:
        return score_answers(are_correct(lines), [question.needs_history for question in questions_of(lines)])

    def report(self, model: Any, split: str, decode: BeamConfig | None = None) -> VisualQuestionReport:
        """Answer each question, and choose an answer of each multiple-choice question."""
        options = decode or self.recipe.decode
        report = super().report(model, split, options)
        metrics = report.metrics | self.measure_choices(model, split, options.length_penalty)
        types = [question.question_type for question in questions_of(report.lines)]
        by_type = accuracy_by_type(are_correct(report.lines), types)
        return VisualQuestionReport(metrics, report.decoding, report.lines, by_type)

    def measure_choices(self, model: Any, split: str, length_penalty: float) -> dict[str, float]:
        """Return the accuracy on multiple-choice questions, or no metric without such questions."""
        examples, device = self.corpus.split(split), device_of(model)
        members = np.array([index for index, example in enumerate(examples) if example.choices], dtype=np.int64)
        if not len(members):
            return {}

        def choose(part: Array) -> list[str]:
            batch = to_device(self.source_batch(split, part), device)
            choices = [[self.tokenizer.encode(choice) for choice in examples[index].choices] for index in part]
            source = {"tokens": batch["source"], "mask": batch["source_mask"]}
            scored = score_choices(model, choices, source=source, end=self.tokenizer.end, length_penalty=length_penalty)
            return [
                max(zip(row, examples[index].choices, strict=True), key=lambda pair: pair[0].score)[1]
                for row, index in zip(scored, part, strict=True)
            ]

        chosen = [choice for part in self.parts(members) for choice in choose(part)]
        is_correct = compare_answers(chosen, [examples[index].answers for index in members])
        return {"choice_accuracy": sum(is_correct) / len(is_correct)}


def are_correct(lines: Sequence[WrittenText]) -> list[bool]:
    """Return whether each written answer is exact."""
    return compare_answers([line.text for line in lines], [line.example.target_texts for line in lines])


def questions_of(lines: Sequence[WrittenText]) -> list[VisualQuestion]:
    return [line.example for line in lines if isinstance(line.example, VisualQuestion)]


INFO = TaskInfo(
    name="vqa",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.visual_questions:VisualQuestionPredictor",
    command='ask {run} picture.png "what colour is the circle?"',
    pipeline_tag="visual-question-answering",
    metric="accuracy",
    examples="questions",
    example="picture.png\twhat colour is the circle?",
    views=("alignment",),
)
