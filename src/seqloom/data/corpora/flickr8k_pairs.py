"""Captions of Flickr8k two by two: of one picture, or of two different ones. How much alike are they?"""

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.core.words import shown
from seqloom.data.corpus import Corpus
from seqloom.data.folder import DataSet
from seqloom.data.matched import Matched, version_of_pairs
from seqloom.data.readers import read_lines

SUMMARY = "Flickr8k: pairs of captions, of the same picture (5) or of two (0) (needs SEQLOOM_DATA)"
FORM = "matched"
SOURCE = DataSet(
    "Flickr8k",
    "its authors (Hodosh, Young and Hockenmaier 2013), who ask to be cited; no licence is stated for the captions",
)
SPLITS = ("train", "dev", "test")
SAME, OTHER = "5", "0"  # as in STS-B, where 5 is the same and 0 nothing in common


@config
class Config:
    corpus: Literal["flickr8k-pairs"] = "flickr8k-pairs"
    pairs: int = 2  # of each picture: so many of two of its captions, and as many with another picture's
    seed: int = 0  # decides the pairs, not how a model is trained on them

    def problems(self) -> Iterator[str]:
        if not 1 <= self.pairs <= 10:
            yield f"pairs must be from 1 to 10, which is all there are of five captions; got {self.pairs}"


def load(config: Config) -> Corpus[Matched]:
    """The splits are those of the pictures, so no caption stands in two of them."""
    captions = _captions()
    splits = {split: _pairs(config, split, captions) for split in SPLITS}
    return Corpus(
        name="flickr8k-pairs",
        version=f"{version_of_pairs(splits)} seed {config.seed}",
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


def _pairs(config: Config, split: str, captions: Mapping[str, Sequence[str]]) -> list[Matched]:
    listed = [line.strip() for line in read_lines(SOURCE.file(f"flickr8k/Flickr_8k.{split}Images.txt.gz"))]
    pictures = [name for name in listed if len(captions.get(name, ())) > 1]
    if len(pictures) < 2:
        raise DataError(f"Flickr8k's {split} part must have two pictures with captions at least, got {len(pictures)}.")
    drawn, found = random.Random(f"{config.seed} {split}"), []
    for name in pictures:
        both = list(combinations(captions[name], 2))
        found += [Matched.of(*pair, SAME) for pair in drawn.sample(both, min(config.pairs, len(both)))]
        for _ in range(min(config.pairs, len(both))):
            other = name
            while other == name:
                other = drawn.choice(pictures)
            found.append(Matched.of(drawn.choice(captions[name]), drawn.choice(captions[other]), OTHER))
    return found
