"""No text: what a model was trained on that was imported, and not trained here."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import SPLITS, TextCorpus

SUMMARY = "no text: in runs that `seqloom import-hf` made, whose models were trained elsewhere"
FORM = "text"
ABSENT = (
    "the model was imported, not trained here. Evaluate a text of your own (--text FILE), or begin a training with it "
    "(init.from=RUN)."
)


@config
class Config:
    corpus: Literal["imported"] = "imported"
    directory: str = ""  # the name of the directory that the model came from


def load(config: Config) -> TextCorpus:
    return TextCorpus(
        name="imported",
        version=config.directory or "unknown",
        licence="see where the model came from",
        description="no text",
        splits={},
        absent=dict.fromkeys(SPLITS, ABSENT),
    )
