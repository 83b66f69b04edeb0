"""Captions of Flickr8k two by two: of one picture, or of two different ones. How much alike are they?"""

import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Ge, Le
from seqloom.core.errors import DataError
from seqloom.core.words import shown
from seqloom.data.corpus import SPLITS, Corpus, version_of
from seqloom.data.examples import SentencePairExample
from seqloom.data.files import DataSet, read_lines

SUMMARY = "Flickr8k: pairs of captions, of the same picture (5) or of two (0) (needs SEQLOOM_DATA)"
FORM = "sentence-pair"
SOURCE = DataSet(
    "Flickr8k",
    "its authors (Hodosh, Young and Hockenmaier 2013), who ask to be cited; no licence is stated for the captions",
)
SAME, OTHER = "5", "0"  # as in STS-B, where 5 is the same and 0 nothing in common


@config
class Config:
    corpus: Literal["flickr8k-pairs"] = "flickr8k-pairs"
    pairs: Annotated[int, Ge(1), Le(10)] = (
        2  # of each picture: so many of two of its captions, and as many with another picture's
    )
    seed: int = 0  # decides the pairs, not how a model is trained on them


def load(config: Config) -> Corpus[SentencePairExample]:
    """The splits are those of the pictures, so no caption stands in two of them."""
    captions = _captions()
    splits = {split: _pairs(config, split, captions) for split in SPLITS}
    return Corpus(
        name="flickr8k-pairs",
        version=f"{version_of(splits)} seed {config.seed}",
        licence="none stated; its authors ask to be cited",
        description=f"captions two by two: of one picture {SAME}, of two {OTHER}; split by picture",
        splits=splits,
    )


def _captions() -> dict[str, list[str]]:
    """The captions of each picture, in their order."""
    path = SOURCE.file("flickr8k/Flickr8k.token.txt.gz")
    found: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        name, tab, caption = line.partition("\t")
        picture, mark, _ = name.rpartition("#")
        if not (tab and mark):
            raise DataError(f"Line {number:,} of {path} must be PICTURE#NUMBER, a tab and a caption: {shown(line)}.")
        if caption.strip():
            found.setdefault(picture, []).append(caption.strip())
    return found


def _pairs(config: Config, split: str, captions: Mapping[str, Sequence[str]]) -> list[SentencePairExample]:
    listed = [line.strip() for line in read_lines(SOURCE.file(f"flickr8k/Flickr_8k.{split}Images.txt.gz"))]
    pictures = [name for name in listed if len(captions.get(name, ())) > 1]
    if len(pictures) < 2:
        raise DataError(f"Flickr8k's {split} part must have two pictures with captions at least, got {len(pictures)}.")
    drawn, found = random.Random(f"{config.seed} {split}"), []
    for name in pictures:
        both = list(combinations(captions[name], 2))
        found += [SentencePairExample.of(*pair, SAME) for pair in drawn.sample(both, min(config.pairs, len(both)))]
        for _ in range(min(config.pairs, len(both))):
            other = name
            while other == name:
                other = drawn.choice(pictures)
            found.append(SentencePairExample.of(drawn.choice(captions[name]), drawn.choice(captions[other]), OTHER))
    return found
