"""Questions about a text whose answers stand in it, word for word; in splits that share no text.

An answer is a piece of the context: its text and the character it begins at. Several people may have answered one
question differently; any of their answers is right, and the one most of them gave is what a model learns.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from seqloom.data.corpus import Corpus, Example


@dataclass(frozen=True)
class Answer:
    text: str
    start: int  # of its characters in the context

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True)
class Question(Example):
    form: ClassVar = "answers"

    context: str
    question: str
    answers: tuple[Answer, ...]  # at least one
    id: str = ""
    title: str = ""  # of what the context is taken from

    @property
    def answer(self) -> Answer:
        """The one most people gave, of equally frequent ones the first."""
        return Counter(self.answers).most_common(1)[0][0]

    def texts(self) -> Sequence[str]:
        return self.context, self.question

    def parts(self) -> Sequence[str]:
        given = [part for answer in self.answers for part in (answer.text, str(answer.start))]
        return self.id, self.context, self.question, str(len(self.answers)), *given

    @classmethod
    def sizes(cls, corpus: Corpus[Self], split: str) -> dict[str, int]:
        questions, sizes = corpus.split(split), super().sizes(corpus, split)
        contexts = len({question.context for question in questions})
        counts = {"questions": len(questions), "contexts": contexts}
        return {**counts, "words": sizes["words"], "characters": sizes["characters"]}
