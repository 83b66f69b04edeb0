"""RTE, Recognizing Textual Entailment: whether the second text follows from the first."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import Corpus
from seqloom.data.examples import SentencePairExample
from seqloom.data.files import DataSet
from seqloom.data.splits import glue_corpus
from seqloom.data.tables import read_columns

SUMMARY = "RTE: 2,770 pairs of texts; does the second follow from the first? (needs SEQLOOM_DATA)"
FORM = "sentence-pair"
SOURCE = DataSet("RTE", "https://gluebenchmark.com/tasks (glue/RTE; no licence is stated)")


@config
class Config:
    corpus: Literal["rte"] = "rte"


def load(config: Config) -> Corpus[SentencePairExample]:
    """Load the pairs; each first text occurs in only one split."""

    def read(part: str) -> list[SentencePairExample]:
        _, rows = read_columns(SOURCE.file(f"glue/RTE/{part}.tsv.gz"), ("sentence1", "sentence2", "label"))
        return [SentencePairExample.of(first.strip(), second.strip(), label.strip()) for first, second, label in rows]

    title, note = "Recognizing Textual Entailment", "pairs share their first text with test"
    return glue_corpus("rte", title, read, lambda pair: pair.first, note)
