"""CoLA, the Corpus of Linguistic Acceptability: whether a sentence is English, as linguists judged it."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import Corpus
from seqloom.data.examples import TextClassificationExample
from seqloom.data.files import DataSet
from seqloom.data.splits import split_glue
from seqloom.data.tables import read_columns

SUMMARY = "CoLA: 9,600 sentences that are English or are not, by linguists (needs SEQLOOM_DATA)"
FORM = "text-classification"
SOURCE = DataSet("CoLA", "https://nyu-mll.github.io/CoLA (glue/CoLA; no licence is stated for the sentences)")
LABELS = {"0": "unacceptable", "1": "acceptable"}


@config
class Config:
    corpus: Literal["cola"] = "cola"


def load(config: Config) -> Corpus[TextClassificationExample]:
    train, test = (_read(split) for split in ("train", "dev"))
    splits, notes = split_glue(train, test, lambda example: example.text, "sentences stand in test too")
    return Corpus(
        name="cola",
        licence="none stated by its source",
        description="Corpus of Linguistic Acceptability; test is GLUE's dev part, dev a tenth of its train part",
        splits=splits,
        notes=notes,
    )


def _read(split: str) -> list[TextClassificationExample]:
    _, rows = read_columns(SOURCE.file(f"glue/CoLA/{split}.tsv.gz"), (2, 4))  # source, label, star, sentence
    return [TextClassificationExample(text.strip(), LABELS[label.strip()]) for label, text in rows if text.strip()]
