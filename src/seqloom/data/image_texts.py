"""Examples with an image, a text to read, and texts to write.

A caption has no text to read. A model reads a question about an image after the previous questions and answers of its
dialogue, if any: question | answer | question | answer | question.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from seqloom.data.corpus import Corpus, Example, frame
from seqloom.data.images import Image

Turn = tuple[str, str]  # a question and its answer
SEPARATOR = " | "  # between the texts of a dialogue


class DescribedExample(Example):
    """The base class of examples with texts that a model writes, and optionally a text that a model reads."""

    @property
    def source_text(self) -> str:
        """The text that a model reads beside the image, or "" without such a text."""
        return ""

    @property
    def target_texts(self) -> Sequence[str]:
        """The correct texts, at least one."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """The name of the image or clip, for display."""
        raise NotImplementedError

    def texts(self) -> Sequence[str]:
        return [text for text in (self.source_text, *self.target_texts) if text]


@dataclass(frozen=True)
class ImageTextExample(DescribedExample):
    """The base class of examples with an image and texts."""

    unit: ClassVar = "images"

    image: Image

    @property
    def text(self) -> str:
        return self.image.name

    def content(self) -> bytes:
        return b"".join(map(frame, (self.image.sha256, self.source_text, *self.target_texts)))


@dataclass(frozen=True)
class CaptionedImage(ImageTextExample):
    """An image and its captions; each caption is an independent description of the image."""

    form: ClassVar = "image-captioning"

    captions: tuple[str, ...]

    @property
    def target_texts(self) -> Sequence[str]:
        return self.captions

    @classmethod
    def sizes(cls, corpus: "Corpus[CaptionedImage]", split: str) -> dict[str, int]:
        examples = corpus.split(split)
        captions = [caption for example in examples for caption in example.captions]
        words = sum(len(caption.split()) for caption in captions)
        return {"images": len(examples), "captions": len(captions), "words": words}


def dialogue_text(history: Sequence[Turn], question: str) -> str:
    """Return the text that a model reads: the previous questions and answers, and the question."""
    return SEPARATOR.join([text for turn in history for text in turn] + [question])


def last_turns(history: Sequence[Turn], limit: int | None) -> Sequence[Turn]:
    """Return the last `limit` turns of a dialogue, or all turns without a limit."""
    return history if limit is None else history[max(0, len(history) - limit) :]


@dataclass(frozen=True)
class VisualQuestion(ImageTextExample):
    """A question about an image, and its answers. Every answer is correct."""

    form: ClassVar = "visual-question-answering"
    unit: ClassVar = "questions"

    question: str
    answers: tuple[str, ...]
    question_type: str = ""  # such as "colour", or "" if it is unknown
    choices: tuple[str, ...] = ()  # the possible answers of a multiple-choice question
    history: tuple[Turn, ...] = ()  # the previous questions of the dialogue, with their answers
    needs_history: bool = False  # whether the answer depends on the history

    @property
    def source_text(self) -> str:
        return dialogue_text(self.history, self.question)

    @property
    def target_texts(self) -> Sequence[str]:
        return self.answers

    def content(self) -> bytes:
        return super().content() + b"".join(map(frame, (self.question_type, *self.choices)))

    @classmethod
    def sizes(cls, corpus: "Corpus[VisualQuestion]", split: str) -> dict[str, int]:
        examples = corpus.split(split)
        images = len({example.image.sha256 for example in examples})
        words = sum(len(text.split()) for example in examples for text in (example.question, *example.answers))
        follow_ups = sum(example.needs_history for example in examples)
        return {
            "questions": len(examples),
            "images": images,
            **({"follow_ups": follow_ups} if follow_ups else {}),
            "words": words,
        }
