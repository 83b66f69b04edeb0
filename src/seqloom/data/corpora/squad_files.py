"""The user's own questions with answers in a text: JSON in SQuAD's form."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import Corpus
from seqloom.data.corpus_config import FileConfig
from seqloom.data.examples import QuestionAnsweringExample
from seqloom.data.file_corpus import Read, load_files
from seqloom.data.files import expand_home
from seqloom.data.squad import Missing, read_squad

SUMMARY = "one's own questions whose answers stand in a text: JSON in SQuAD's form"
FORM = "question-answering"
MIN_ARTICLES = 5  # for each split: with fewer, one article may be most of it


@config
class Config(FileConfig):
    corpus: Literal["squad-files"] = "squad-files"
    train: str  # a .json file in SQuAD's form, which may be .gz
    missing: Missing = "skip"  # an answer that is not in its context: leave the question out and count it, or refuse


def load(config: Config) -> Corpus[QuestionAnsweringExample]:
    """Whole articles are held out where there are enough of them, else whole contexts."""

    def read(split: str, file: str) -> Read[QuestionAnsweringExample]:
        found = read_squad(expand_home(Path(file)), config.missing)
        return found.questions, found.notes(file)

    return load_files(
        config,
        read,
        description=f"{config.train}: questions and where their answers stand",
        groups=articles_or_contexts,
        repeats=("contexts", lambda question: question.context),
    )


def articles_or_contexts(questions: Sequence[QuestionAnsweringExample], held_out: int) -> list[str]:
    articles = [question.title or question.context for question in questions]
    enough = len(set(articles)) >= MIN_ARTICLES * (held_out + 1)
    return articles if enough else [question.context for question in questions]
