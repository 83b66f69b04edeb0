"""The captions of Multi30k as plain text in several languages, without their alignment."""

from collections.abc import Iterator
from typing import Literal

from seqloom.config import config
from seqloom.data.corpora.multi30k import SOURCE, Language, Test
from seqloom.data.corpus import SPLITS, TextCorpus
from seqloom.data.files import read_lines

SUMMARY = "Multi30k captions as text in several languages, for pretraining (needs SEQLOOM_DATA)"
FORM = "text"


@config
class Config:
    corpus: Literal["multi30k-text"] = "multi30k-text"
    languages: tuple[Language, ...] = ("en", "de")  # languages of the captions
    test: Test = "test_2016_flickr"  # name of the test set

    def problems(self) -> Iterator[str]:
        if not self.languages or len(set(self.languages)) < len(self.languages):
            yield f"languages must be at least one language, without repetitions; got {list(self.languages)}"


def load(config: Config) -> TextCorpus:
    """Load each caption as a document, language by language; each caption occurs in only one split."""
    splits: dict[str, list[str]] = {}
    for split, name in (("dev", "val"), ("test", config.test), ("train", "train")):  # dev and test take precedence
        seen = {text for texts in splits.values() for text in texts}
        files = [SOURCE.file(f"multi30k/{name}.{language}.gz") for language in config.languages]
        captions = [line.strip() for file in files for line in read_lines(file) if line.strip()]
        splits[split] = [text for text in dict.fromkeys(captions) if text not in seen]
    splits = {split: splits[split] for split in SPLITS}
    return TextCorpus(
        name="multi30k-text",
        licence="research and education, not commercial use (the source has no licence file)",
        description=f"Multi30k captions in {', '.join(config.languages)}; each is a document",
        splits=splits,
    )
