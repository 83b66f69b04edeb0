"""The sentences of the lectures that seqloom accompanies."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import TextCorpus
from seqloom.data.files import read_asset

SUMMARY = "the sentences of the lectures on sequence models, one per document; no download"
FORM = "text"


@config
class Config:
    corpus: Literal["lecture"] = "lecture"


def load(config: Config) -> TextCorpus:
    """Load the sentences. They are examples and not training data, so dev and test have only one sentence each."""
    sections = read_asset("lecture.txt")
    dev, test = sections["held out"]
    return TextCorpus(
        name="lecture",
        licence="none needed: short sentences",
        description="sentences of lectures on sequence models",
        splits={"train": list(sections["sentences"]), "dev": [dev], "test": [test]},
    )
