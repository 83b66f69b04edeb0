"""Multi30k: thirty thousand image captions in English, German and French."""

from collections.abc import Iterator
from typing import Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Gt, Le
from seqloom.data.corpus import Corpus
from seqloom.data.examples import ParallelExample, sample_fraction
from seqloom.data.files import DataSet, read_parallel

SUMMARY = "Multi30k: 29,000 captions in English, German and French (needs SEQLOOM_DATA)"
FORM = "parallel"
SOURCE = DataSet(
    "Multi30k",
    "https://github.com/multi30k/dataset, data/task1/raw (for research and education, not for commercial use)",
)
Language = Literal["en", "de", "fr"]
Test = Literal["test_2016_flickr", "test_2017_flickr", "test_2017_mscoco"]


@config
class Config:
    corpus: Literal["multi30k"] = "multi30k"
    source: Language = "en"
    target: Language = "de"
    test: Test = "test_2016_flickr"  # name of the test set
    lowercase: bool = False  # convert both sides to lower case
    fraction: Annotated[float, Gt(0), Le(1)] = 1.0  # fraction of the training pairs to use
    seed: int = 0  # seed of the selection if fraction < 1

    def problems(self) -> Iterator[str]:
        if self.source == self.target:
            yield f"source and target must be different languages; got {self.source} twice"


def load(config: Config) -> Corpus[ParallelExample]:
    files = {"train": "train", "dev": "val", "test": config.test}
    splits = {split: _pairs(config, name) for split, name in files.items()}
    notes: tuple[str, ...] = ()
    if config.fraction < 1:
        train, splits["train"] = splits["train"], sample_fraction(splits["train"], config.fraction, config.seed)
        notes = (f"{len(splits['train']):,} of {len(train):,} training pairs are used (data.fraction)",)
    return Corpus(
        name="multi30k",
        licence="research and education, not commercial use (the source has no licence file)",
        description=f"Multi30k, {config.source} to {config.target}, {config.test}",
        languages=(config.source, config.target),
        splits=splits,
        notes=notes,
    )


def _pairs(config: Config, name: str) -> list[ParallelExample]:
    both = read_parallel(
        *(SOURCE.file(f"multi30k/{name}.{language}.gz") for language in (config.source, config.target))
    )
    texts = [[line.lower() if config.lowercase else line for line in lines] for lines in both]
    return [ParallelExample(source.strip(), target.strip()) for source, target in zip(*texts, strict=True)]
