"""The captions of Multi30k, two languages or three side by side, none said to be another's translation."""

from collections.abc import Iterator
from typing import Literal

from seqloom.config import config
from seqloom.data.corpora.multi30k import SOURCE, Language, Test
from seqloom.data.corpus import SPLITS, TextCorpus
from seqloom.data.files import read_lines

SUMMARY = "Multi30k's captions as text of several languages, to pretrain on (needs SEQLOOM_DATA)"
FORM = "text"


@config
class Config:
    corpus: Literal["multi30k-text"] = "multi30k-text"
    languages: tuple[Language, ...] = ("en", "de")  # whose captions are read
    test: Test = "test_2016_flickr"  # which of its three test sets

    def problems(self) -> Iterator[str]:
        if not self.languages or len(set(self.languages)) < len(self.languages):
            yield f"languages must be one or several, each once; got {list(self.languages)}"


def load(config: Config) -> TextCorpus:
    """A caption is a document; all of one language stand before those of the next, and none in two splits."""
    splits: dict[str, list[str]] = {}
    for split, name in (("dev", "val"), ("test", config.test), ("train", "train")):  # what is held out goes first
        seen = {text for texts in splits.values() for text in texts}
        found = [text for one in config.languages for text in _captions(name, one)]
        splits[split] = [text for text in dict.fromkeys(found) if text not in seen]
    splits = {split: splits[split] for split in SPLITS}
    return TextCorpus(
        name="multi30k-text",
        licence="research and education, not for commerce (its source names no licence file)",
        description=f"Captions of Multi30k in {', '.join(config.languages)}; each is a document",
        splits=splits,
    )


def _captions(name: str, language: str) -> list[str]:
    lines = read_lines(SOURCE.file(f"multi30k/{name}.{language}.gz"))
    return [line.strip() for line in lines if line.strip()]
