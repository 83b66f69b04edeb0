"""A corpus without text, for the runs of imported models."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import SPLITS, TextCorpus

SUMMARY = "no text: the corpus of models imported with `seqloom import-hf`"
FORM = "text"
ABSENT = (
    "the model was imported, so its training data is not available. Evaluate your own text (seqloom evaluate RUN "
    "FILE), or train a model that starts from it (init.from=RUN)."
)


@config
class Config:
    corpus: Literal["imported"] = "imported"
    directory: str = ""  # name of the directory of the imported model


def load(config: Config) -> TextCorpus:
    return TextCorpus(
        name="imported",
        version=config.directory or "unknown",
        licence="see the source of the model",
        description="no text",
        splits={},
        absent=dict.fromkeys(SPLITS, ABSENT),
    )
