"""The film reviews of SST-2 without their labels, and WikiText-2 beside them: what to pretrain on before SST-2."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpora import sst2, wikitext2
from seqloom.data.corpus import TextCorpus

SUMMARY = "SST-2's reviews without labels, and WikiText-2 in small letters (needs SEQLOOM_DATA)"
FORM = "text"


@config
class Config:
    corpus: Literal["sst2-text"] = "sst2-text"
    wikitext2: bool = True  # also its text, in small letters as the reviews are


def load(config: Config) -> TextCorpus:
    """A review is a document, and so is a paragraph of Wikipedia. Dev and test are reviews alone, those of SST-2; none
    of them stands in train."""
    splits = sst2.sentences()
    if config.wikitext2:
        lines = wikitext2.load(wikitext2.Config()).split("train")
        splits["train"] = [line.strip().lower() for line in lines if line.strip()] + splits["train"]
    return TextCorpus(
        name="sst2-text",
        licence="none stated by its sources; Wikipedia's text is CC BY-SA",
        description="Film reviews without labels" + (", and WikiText-2 in small letters" * config.wikitext2),
        splits=splits,
    )
