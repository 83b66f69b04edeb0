"""WikiText-2: two million words of Wikipedia articles, rare words <unk>."""

from typing import Literal

from seqloom.core.config import config
from seqloom.data.corpus import Corpus, content_version
from seqloom.data.folder import DataSet
from seqloom.data.readers import read_lines

SUMMARY = "WikiText-2: 2M words of Wikipedia, 33,278 different (needs SEQLOOM_DATA)"
FORM = "text"
SOURCE = DataSet(
    "WikiText-2",
    "https://github.com/pytorch/examples, word_language_model/data/wikitext-2 (no licence is stated for the text)",
)
FILES = {"train": "train", "dev": "valid", "test": "test"}


@config
class Config:
    corpus: Literal["wikitext2"] = "wikitext2"


def load(config: Config) -> Corpus:
    """Every line is a document, blank ones too: so the counts with line ends are the published ones."""
    splits = {split: read_lines(SOURCE.file(f"wikitext-2/{name}.txt.gz")) for split, name in FILES.items()}
    return Corpus(
        name="wikitext2",
        version=content_version(*splits.values()),
        licence="none stated by its source; Wikipedia's text is CC BY-SA",
        description="WikiText-2; a line is a document",
        splits=splits,
    )
