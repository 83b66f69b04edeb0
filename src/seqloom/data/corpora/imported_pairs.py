"""A corpus without pairs, for the runs of imported translation models."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import SPLITS, Corpus
from seqloom.data.examples import ParallelExample

SUMMARY = "no pairs: the corpus of translation models imported with `seqloom import-hf`"
FORM = "parallel"
ABSENT = (
    "the model was imported, so its training data is not available. Provide your own pairs (--source FILE "
    "--reference FILE), or train a model that starts from it (init.from=RUN)."
)


@config
class Config:
    corpus: Literal["imported-pairs"] = "imported-pairs"
    directory: str = ""  # name of the directory of the imported model
    source: str = ""  # language tag of the source, such as en or pt-BR, if known
    target: str = ""


def load(config: Config) -> Corpus[ParallelExample]:
    return Corpus(
        name="imported-pairs",
        version=config.directory or "unknown",
        licence="see the source of the model",
        description="no pairs",
        languages=(config.source, config.target),
        splits={},
        absent=dict.fromkeys(SPLITS, ABSENT),
    )
