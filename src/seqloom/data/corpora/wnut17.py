"""WNUT-17: emerging and rare entities in tweets, comments and forum posts."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpora.conll import parse_tags, read_conll
from seqloom.data.corpus import Corpus
from seqloom.data.examples import TokenClassificationExample
from seqloom.data.files import DataSet

SUMMARY = "WNUT-17: 5,700 tweets and comments with emerging and rare entities (needs SEQLOOM_DATA)"
FORM = "token-classification"
SOURCE = DataSet("WNUT-17", "https://github.com/leondz/emerging_entities_17 (CC BY 4.0)")
FILES = {"train": "wnut17train.conll.gz", "dev": "emerging.dev.conll.gz", "test": "emerging.test.annotated.gz"}


@config
class Config:
    corpus: Literal["wnut17"] = "wnut17"


def load(config: Config) -> Corpus[TokenClassificationExample]:
    splits = {}
    for split, name in FILES.items():
        path = SOURCE.file(f"wnut17/{name}")
        splits[split], _ = parse_tags(read_conll(path), "IOB2", "refuse", str(path))
    return Corpus(
        name="wnut17",
        licence="CC BY 4.0",
        description="WNUT-17, emerging and rare entities: person, location, group, corporation, product, creative work",
        splits=splits,
    )
