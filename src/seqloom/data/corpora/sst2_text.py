"""The film reviews of SST-2 without labels, together with WikiText-2, for pretraining."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpora import sst2, wikitext2
from seqloom.data.corpus import TextCorpus

SUMMARY = "SST-2 reviews without labels and lowercased WikiText-2, for pretraining (needs SEQLOOM_DATA)"
FORM = "text"


@config
class Config:
    corpus: Literal["sst2-text"] = "sst2-text"
    wikitext2: bool = True  # also train on WikiText-2, in lower case like the reviews


def load(config: Config) -> TextCorpus:
    """Load each review and each paragraph of WikiText-2 as a document; dev and test contain only reviews."""
    splits = sst2.sentences()
    if config.wikitext2:
        lines = wikitext2.load(wikitext2.Config()).split("train")
        splits["train"] = [line.strip().lower() for line in lines if line.strip()] + splits["train"]
    return TextCorpus(
        name="sst2-text",
        licence="none stated by its sources; Wikipedia's text is CC BY-SA",
        description="Film reviews without labels" + (", and lowercased WikiText-2" * config.wikitext2),
        splits=splits,
    )
