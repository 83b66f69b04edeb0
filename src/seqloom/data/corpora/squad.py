"""SQuAD 1.1: questions on Wikipedia articles, whose answers stand in the text."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpora.squad_files import read_squad
from seqloom.data.corpus import Corpus
from seqloom.data.examples import QuestionAnsweringExample
from seqloom.data.files import DataSet
from seqloom.data.splits import divide, hold_out

SUMMARY = "SQuAD 1.1: questions on Wikipedia, answers in the text; 10,570, or 98,000 (needs SEQLOOM_DATA)"
FORM = "question-answering"
SOURCE = DataSet("SQuAD", "https://rajpurkar.github.io/SQuAD-explorer (CC BY-SA 4.0)")
DEV, TEST = 0.1, 0.2  # of the questions, whole articles at a time


@config
class Config:
    corpus: Literal["squad"] = "squad"
    parts: Literal["dev", "all"] = "dev"  # dev: dev-v1.1 alone, shared out; all: train-v1.1 too, and dev-v1.1 is test


def load(config: Config) -> Corpus[QuestionAnsweringExample]:
    """No article stands in two splits. Figures of parts=dev are not to be compared with published ones: they are of a
    fifth of dev-v1.1, after training on the rest of it."""
    known, notes = read_squad(SOURCE.file("squad/dev-v1.1.json.gz"))
    if config.parts == "dev":
        splits = _divide(known, {"dev": DEV, "test": TEST})
        own = "dev-v1.1 shared out by article: trained on 7 of 10 questions, tested on 2; not the published test"
    else:
        train, more = read_squad(SOURCE.file("squad/train-v1.1.json.gz"))
        splits, notes = {**_divide(train, {"dev": DEV / 2}), "test": known}, more + notes
        own = "train-v1.1, a twentieth of it dev by article; test is dev-v1.1"
    return Corpus(
        name="squad",
        licence="CC BY-SA 4.0",
        description=f"SQuAD 1.1, {own}",
        splits=splits,
        notes=tuple(notes),
    )


def _divide(
    questions: list[QuestionAnsweringExample], shares: dict[str, float]
) -> dict[str, list[QuestionAnsweringExample]]:
    sizes = {name: round(share * len(questions)) for name, share in shares.items()}
    return divide(questions, hold_out([question.title for question in questions], sizes), ("train", *shares))
