"""No pairs: what a translator was trained on that was imported, and not trained here."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import SPLITS, Corpus
from seqloom.data.examples import ParallelExample

SUMMARY = "no pairs: in runs of translators that `seqloom import-hf` made, trained elsewhere"
FORM = "parallel"
ABSENT = (
    "the model was imported, not trained here. Give pairs of your own (--source FILE --reference FILE), or begin a "
    "training with it (init.from=RUN)."
)


@config
class Config:
    corpus: Literal["imported-pairs"] = "imported-pairs"
    directory: str = ""  # the name of the directory that the model came from
    source: str = ""  # language tags, such as en and pt-BR, where they are known
    target: str = ""


def load(config: Config) -> Corpus[ParallelExample]:
    return Corpus(
        name="imported-pairs",
        version=config.directory or "unknown",
        licence="see where the model came from",
        description="no pairs",
        languages=(config.source, config.target),
        splits={},
        absent=dict.fromkeys(SPLITS, ABSENT),
    )
