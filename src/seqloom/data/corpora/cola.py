"""CoLA, the Corpus of Linguistic Acceptability: whether a sentence is English, as linguists judged it."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import Corpus, version_of
from seqloom.data.folder import DataSet
from seqloom.data.holdout import held_out_evenly
from seqloom.data.labelled import Labelled
from seqloom.data.readers import read_columns

SUMMARY = "CoLA: 9,600 sentences that are English or are not, by linguists (needs SEQLOOM_DATA)"
FORM = "labelled"
SOURCE = DataSet("CoLA", "https://nyu-mll.github.io/CoLA (glue/CoLA; no licence is stated for the sentences)")
LABELS = {"0": "unacceptable", "1": "acceptable"}
DEV = 0.1  # of the training sentences


@config
class Config:
    corpus: Literal["cola"] = "cola"


def load(config: Config) -> Corpus[Labelled]:
    """GLUE keeps the labels of its test part: its dev part is test here, and dev is cut from train."""
    train, test = (_read(split) for split in ("train", "dev"))
    asked = {example.text for example in test}
    rest = [example for example in train if example.text not in asked]
    chosen = held_out_evenly([e.text for e in rest], [e.label for e in rest], {"dev": DEV})
    splits = {
        "train": [example for example, split in zip(rest, chosen, strict=True) if split == "train"],
        "dev": [example for example, split in zip(rest, chosen, strict=True) if split == "dev"],
        "test": test,
    }
    out = len(train) - len(rest)
    return Corpus(
        name="cola",
        version=version_of(splits),
        licence="none stated by its source",
        description="Corpus of Linguistic Acceptability; test is GLUE's dev part, dev a tenth of its train part",
        splits=splits,
        notes=(f"{out:,} of {len(train):,} training sentences stand in test too and were left out",) if out else (),
    )


def _read(split: str) -> list[Labelled]:
    _, rows = read_columns(SOURCE.file(f"glue/CoLA/{split}.tsv.gz"), (2, 4))  # source, label, star, sentence
    return [Labelled(text.strip(), LABELS[label.strip()]) for label, text in rows if text.strip()]
