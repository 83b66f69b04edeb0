"""SQuAD 1.1: questions about Wikipedia articles, with answers in the text."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpora.squad_files import read_squad
from seqloom.data.corpus import Corpus
from seqloom.data.examples import QuestionAnsweringExample
from seqloom.data.files import DataSet
from seqloom.data.splits import divide, hold_out

SUMMARY = "SQuAD 1.1: 10,570 or 98,000 questions about Wikipedia articles (needs SEQLOOM_DATA)"
FORM = "question-answering"
SOURCE = DataSet("SQuAD", "https://rajpurkar.github.io/SQuAD-explorer (CC BY-SA 4.0)")
DEV, TEST = 0.1, 0.2  # fractions of the questions; articles are not divided


@config
class Config:
    corpus: Literal["squad"] = "squad"
    # dev: use only dev-v1.1, split by article; all: train on train-v1.1 and test on dev-v1.1
    parts: Literal["dev", "all"] = "dev"


def load(config: Config) -> Corpus[QuestionAnsweringExample]:
    """Load the questions; each article occurs in only one split.

    Results with parts=dev are not comparable to published results: the test split is a fifth of dev-v1.1, and train is
    part of the remainder.
    """
    questions, notes = read_squad(SOURCE.file("squad/dev-v1.1.json.gz"))
    if config.parts == "dev":
        splits = _divide(questions, {"dev": DEV, "test": TEST})
        origin = "dev-v1.1 divided by article: 70 % train, 10 % dev, 20 % test; not the published test set"
    else:
        train, train_notes = read_squad(SOURCE.file("squad/train-v1.1.json.gz"))
        splits, notes = {**_divide(train, {"dev": DEV / 2}), "test": questions}, train_notes + notes
        origin = "train-v1.1, with 5 % of it as dev, divided by article; test is dev-v1.1"
    return Corpus(
        name="squad",
        licence="CC BY-SA 4.0",
        description=f"SQuAD 1.1, {origin}",
        splits=splits,
        notes=tuple(notes),
    )


def _divide(
    questions: list[QuestionAnsweringExample], fractions: dict[str, float]
) -> dict[str, list[QuestionAnsweringExample]]:
    sizes = {name: round(fraction * len(questions)) for name, fraction in fractions.items()}
    return divide(questions, hold_out([question.title for question in questions], sizes), ("train", *fractions))
