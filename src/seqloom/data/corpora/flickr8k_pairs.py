"""Pairs of Flickr8k captions of the same picture or of different pictures, with a similarity score."""

import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Ge, Le
from seqloom.core.errors import DataError
from seqloom.data.corpus import SPLITS, Corpus, version_of
from seqloom.data.examples import SentencePairExample
from seqloom.data.flickr8k import LICENCE, read_captions, read_split

SUMMARY = "Flickr8k: pairs of captions of the same picture (5) or of two pictures (0) (needs SEQLOOM_DATA)"
FORM = "sentence-pair"
SAME, OTHER = "5", "0"  # the scale of STS-B: 5 for equivalent texts, 0 for unrelated texts


@config
class Config:
    corpus: Literal["flickr8k-pairs"] = "flickr8k-pairs"
    # number of pairs of captions of each image; the same number of pairs with a caption of another image is added
    pairs: Annotated[int, Ge(1), Le(10)] = 2
    seed: int = 0  # seed of the pairs; independent of the training seed


def load(config: Config) -> Corpus[SentencePairExample]:
    """Load the pairs. Pictures are assigned to splits, so each caption occurs in only one split."""
    captions = read_captions()
    splits = {split: _pairs(config, split, captions) for split in SPLITS}
    return Corpus(
        name="flickr8k-pairs",
        version=f"{version_of(splits)} seed {config.seed}",
        licence=LICENCE,
        description=f"pairs of captions: {SAME} for the same picture, {OTHER} for two pictures; split by picture",
        splits=splits,
    )


def _pairs(config: Config, split: str, captions: Mapping[str, Sequence[str]]) -> list[SentencePairExample]:
    pictures = [name for name in read_split(split) if len(captions.get(name, ())) > 1]
    if len(pictures) < 2:
        raise DataError(f"The {split} part of Flickr8k must have at least two pictures; got {len(pictures)}.")
    draws, examples = random.Random(f"{config.seed} {split}"), []
    for name in pictures:
        pairs = list(combinations(captions[name], 2))
        count = min(config.pairs, len(pairs))
        examples += [SentencePairExample.of(*pair, SAME) for pair in draws.sample(pairs, count)]
        for _ in range(count):
            other = name
            while other == name:
                other = draws.choice(pictures)
            examples.append(SentencePairExample.of(draws.choice(captions[name]), draws.choice(captions[other]), OTHER))
    return examples
