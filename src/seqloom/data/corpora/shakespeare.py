"""Tiny Shakespeare: 1.1 million characters of plays, a common corpus for character models."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import TextCorpus, version_of
from seqloom.data.files import DataSet, read_nonblank

SUMMARY = "Tiny Shakespeare: 1.1M characters of plays; train and dev only (needs SEQLOOM_DATA)"
FORM = "text"
SOURCE = DataSet("Tiny Shakespeare", "https://github.com/karpathy/char-rnn, data/tinyshakespeare/input.txt (MIT)")


@config
class Config:
    corpus: Literal["shakespeare"] = "shakespeare"


def load(config: Config) -> TextCorpus:
    """Load one document per split: the first 90 % of the characters, and the last 10 %, as is customary."""
    text = read_nonblank(SOURCE.file("tinyshakespeare/input.txt.gz"))
    border = int(len(text) * 0.9)
    return TextCorpus(
        name="shakespeare",
        version=version_of({"text": [text]}),
        licence="MIT",
        description="Tiny Shakespeare; the last 10 % is the dev split",
        splits={"train": [text[:border]], "dev": [text[border:]]},
        absent={"test": "the last 10 % of the text is dev, as in published results. Evaluate on dev."},
    )
