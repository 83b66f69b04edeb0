"""The predictor for models that answer questions about images.

model = seqloom.load("runs/dialogue-shapes")
(answer,) = model.ask("picture.png", "what colour is the circle?")
(answer,) = model.ask("picture.png", "what colour is the circle?", choices=["red", "blue"])
answer.text, answer.best.probability

dialogue = model.dialogue("picture.png")
dialogue.ask("what colour is the circle?")
dialogue.ask("what is left of it?")             the model reads the previous questions and answers
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rich.console import RenderableType

from seqloom.core.errors import DataError, UsageError
from seqloom.core.inputs import check_text, check_texts, iterate_texts
from seqloom.core.words import format_value
from seqloom.data.image_texts import Turn, dialogue_text, last_turns
from seqloom.predict.base import as_lines, predict_windows, ranked_fields, split_columns
from seqloom.predict.image_to_text import BATCH_SIZE, ImageQuery, ImageText, ImageToTextPredictor
from seqloom.predict.image_to_text_evaluation import ImageToTextEvaluation
from seqloom.predict.images import ImageInput, is_blank
from seqloom.predict.results import returns_list
from seqloom.tasks.vqa import VisualQuestionReport


class ImageQuestion(NamedTuple):
    """A question about an image. Without `choices`, the model writes the answer."""

    image: ImageInput
    question: str
    choices: tuple[str, ...] = ()
    history: tuple[Turn, ...] = ()  # the previous questions of the dialogue, with their answers


@dataclass(frozen=True)
class VisualAnswer(ImageText):
    """A question about an image and its answers, best first. With choices, the candidates are the choices."""

    text_name = "answer"
    query_name = "question"

    history: tuple[Turn, ...] = ()  # the previous questions and answers that the model read

    def to_line(self) -> str:
        """Return the answer; with choices, all choices and their probabilities, separated by tabs."""
        probabilities = [(each.text, each.probability) for each in self.candidates if each.probability is not None]
        return ranked_fields(probabilities) if probabilities else super().to_line()

    def to_json(self) -> dict[str, object]:
        turns = [{"question": question, "answer": answer} for question, answer in self.history]
        return {**super().to_json(), **({"history": turns} if turns else {})}

    def to_columns(self) -> dict[str, object]:
        probability = self.best.probability
        return {"answer": self.text, "probability": probability} if probability is not None else super().to_columns()


class VisualQuestionEvaluation(ImageToTextEvaluation):
    """The answers of a model to the questions of a split, with the accuracy for each question type."""

    answers_name = "answers"
    report: VisualQuestionReport

    def to_json(self) -> dict[str, object]:
        types = {name: vars(accuracy) for name, accuracy in self.report.by_type.items()}
        return {**super().to_json(), **({"by_type": types} if types else {})}

    def details(self) -> Iterator[RenderableType]:
        if self.report.by_type:
            yield "\naccuracy by question type"
        for name, each in self.report.by_type.items():
            yield f"  {name:22} {each.accuracy:9.4f}   of {each.questions:,}"


class VisualQuestionPredictor(ImageToTextPredictor[VisualAnswer]):
    """A trained model that answers questions about images."""

    description = "a model that answers questions about images"
    usage = "use `seqloom ask`"
    inputs = ("image", "question")
    prediction_class = VisualAnswer
    evaluation_class = VisualQuestionEvaluation

    @property
    def longest_history(self) -> int:
        """The number of previous questions that the model reads; 0 if it was trained without dialogues."""
        return int(self.run.data["history"])

    @returns_list
    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = BATCH_SIZE, window: int = 1024
    ) -> Iterator[VisualAnswer]:
        """Answer one question per line: an image, the question, and optionally choices, separated by tabs."""
        rows = split_columns(as_lines(lines), 2, "an image and a question, optionally followed by choices")
        questions = (ImageQuestion(image, question, tuple(choices)) for image, question, *choices in rows)
        return self.answer(questions, batch_size=batch_size, window=window, stream=True)

    @returns_list
    def ask(
        self,
        image: ImageInput,
        questions: str | Iterable[str],
        *,
        choices: Sequence[str] = (),
        history: Sequence[Turn] = (),
        attention: bool = False,
        batch_size: int = BATCH_SIZE,
        window: int = 1024,
        **options: Any,
    ) -> Iterator[VisualAnswer]:
        """Return the answer to each question about an image; the questions are independent of each other.

        With `choices`, the answer is the most probable choice. `history` contains the previous questions of a dialogue
        with their answers. The other arguments work as in `write`.
        """
        texts = iterate_texts([questions] if isinstance(questions, str) else questions, "questions")
        given, turns = tuple(check_texts(choices, "choices")), tuple(history)
        asked = (ImageQuestion(image, text, given, turns) for text in texts)
        return self.answer(asked, attention=attention, batch_size=batch_size, window=window, stream=True, **options)

    @returns_list
    def answer(
        self,
        questions: Iterable[ImageQuestion],
        *,
        attention: bool = False,
        batch_size: int = BATCH_SIZE,
        window: int = 1024,
        **options: Any,
    ) -> Iterator[VisualAnswer]:
        """Return the answer to each question. The options work as in `write`."""
        search = self.decode_options(**options)
        checked = (self.check_question(number, question) for number, question in enumerate(questions, start=1))
        return predict_windows(
            checked, self._answer, batch_size=batch_size, window=window, search=search, attention=attention
        )

    def _answer(self, questions: Sequence[ImageQuestion], **options: Any) -> Iterator[VisualAnswer]:
        queries = [ImageQuery(each.image, self.text_of(each), each.choices) for each in questions]
        for each, answer in zip(questions, self._write(queries, **options), strict=True):
            yield replace(answer, query=each.question, history=tuple(last_turns(each.history, self.longest_history)))

    def check_question(self, number: int, question: ImageQuestion) -> ImageQuestion:
        """Raise an error if a question is blank or has unusable choices. A blank line has no image and no question."""
        text = check_text(question.question, "question").strip()
        if not text and not is_blank(question.image):
            raise DataError(f"Question {number:,} must not be blank.")
        choices = tuple(choice.strip() for choice in question.choices)
        if choices and (len(choices) < 2 or not all(choices) or len(set(choices)) < len(choices)):
            raise UsageError(f"Choices must be at least two different texts; got {format_value(list(choices))}.")
        return question._replace(question=text, choices=choices)

    def text_of(self, question: ImageQuestion) -> str:
        """Return the text that the model reads: the question after the last turns of its dialogue."""
        return dialogue_text(last_turns(question.history, self.longest_history), question.question)

    def dialogue(self, image: ImageInput) -> "Dialogue":
        """Start a dialogue about an image."""
        return Dialogue(self, image)


class Dialogue:
    """A dialogue about an image. The model reads each question after the previous questions and its own answers."""

    def __init__(self, model: VisualQuestionPredictor, image: ImageInput) -> None:
        self.model, self.image = model, image
        self.turns: list[Turn] = []

    def ask(self, question: str, **options: Any) -> VisualAnswer:
        """Return the answer to a question. The options work as in `VisualQuestionPredictor.ask`."""
        (answer,) = self.model.ask(self.image, question, history=self.turns, **options)
        self.turns.append((answer.query, answer.text))
        return answer
