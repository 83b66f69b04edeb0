"""CoLA, the Corpus of Linguistic Acceptability: sentences that linguists judged acceptable or unacceptable."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import Corpus
from seqloom.data.examples import TextClassificationExample
from seqloom.data.files import DataSet
from seqloom.data.splits import glue_corpus
from seqloom.data.tables import read_columns

SUMMARY = "CoLA: 9,600 sentences, grammatically acceptable or not (needs SEQLOOM_DATA)"
FORM = "text-classification"
SOURCE = DataSet("CoLA", "https://nyu-mll.github.io/CoLA (glue/CoLA; no licence is stated for the sentences)")
LABELS = {"0": "unacceptable", "1": "acceptable"}


@config
class Config:
    corpus: Literal["cola"] = "cola"


def load(config: Config) -> Corpus[TextClassificationExample]:
    def read(part: str) -> list[TextClassificationExample]:
        _, rows = read_columns(SOURCE.file(f"glue/CoLA/{part}.tsv.gz"), (2, 4))  # source, label, star, sentence
        return [TextClassificationExample(text.strip(), LABELS[label.strip()]) for label, text in rows if text.strip()]

    title, note = "Corpus of Linguistic Acceptability", "sentences also occur in test"
    return glue_corpus("cola", title, read, lambda example: example.text, note)
