"""RTE, recognising textual entailment: whether the second text follows from the first."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpus import Corpus
from seqloom.data.folder import DataSet
from seqloom.data.holdout import held_out_evenly
from seqloom.data.matched import Matched, version_of_pairs
from seqloom.data.readers import read_columns

SUMMARY = "RTE: 2,770 pairs of texts, does the second follow from the first? (needs SEQLOOM_DATA)"
FORM = "matched"
SOURCE = DataSet("RTE", "https://gluebenchmark.com/tasks (glue/RTE; no licence is stated)")
DEV = 0.1  # of the training pairs


@config
class Config:
    corpus: Literal["rte"] = "rte"


def load(config: Config) -> Corpus[Matched]:
    """GLUE keeps the labels of its test part: its dev part is test here, and dev is cut from train, whole first texts
    at a time, so that none of them stands in two splits."""
    train, test = (_read(split) for split in ("train", "dev"))
    asked = {pair.first for pair in test}
    rest = [pair for pair in train if pair.first not in asked]
    chosen = held_out_evenly([pair.first for pair in rest], [pair.label for pair in rest], {"dev": DEV})
    splits = {
        "train": [pair for pair, split in zip(rest, chosen, strict=True) if split == "train"],
        "dev": [pair for pair, split in zip(rest, chosen, strict=True) if split == "dev"],
        "test": test,
    }
    out = len(train) - len(rest)
    return Corpus(
        name="rte",
        version=version_of_pairs(splits),
        licence="none stated by its source",
        description="Recognising textual entailment; test is GLUE's dev part, dev a tenth of its train part",
        splits=splits,
        notes=(f"{out:,} of {len(train):,} training pairs share their first text with test and were left out",)
        if out
        else (),
    )


def _read(split: str) -> list[Matched]:
    _, rows = read_columns(SOURCE.file(f"glue/RTE/{split}.tsv.gz"), ("sentence1", "sentence2", "label"))
    return [Matched.of(first.strip(), second.strip(), label.strip()) for first, second, label in rows]
