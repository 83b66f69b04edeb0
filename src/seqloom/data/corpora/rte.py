"""RTE, recognising textual entailment: whether the second text follows from the first."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import Corpus
from seqloom.data.examples import SentencePairExample
from seqloom.data.files import DataSet
from seqloom.data.splits import split_glue
from seqloom.data.tables import read_columns

SUMMARY = "RTE: 2,770 pairs of texts, does the second follow from the first? (needs SEQLOOM_DATA)"
FORM = "sentence-pair"
SOURCE = DataSet("RTE", "https://gluebenchmark.com/tasks (glue/RTE; no licence is stated)")


@config
class Config:
    corpus: Literal["rte"] = "rte"


def load(config: Config) -> Corpus[SentencePairExample]:
    """No first text stands in two splits."""
    train, test = (_read(split) for split in ("train", "dev"))
    splits, notes = split_glue(train, test, lambda pair: pair.first, "pairs share their first text with test")
    return Corpus(
        name="rte",
        licence="none stated by its source",
        description="Recognising textual entailment; test is GLUE's dev part, dev a tenth of its train part",
        splits=splits,
        notes=notes,
    )


def _read(split: str) -> list[SentencePairExample]:
    _, rows = read_columns(SOURCE.file(f"glue/RTE/{split}.tsv.gz"), ("sentence1", "sentence2", "label"))
    return [SentencePairExample.of(first.strip(), second.strip(), label.strip()) for first, second, label in rows]
