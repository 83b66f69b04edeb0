"""Options that corpora share: fractions held out, files, numbers of generated examples, how a series is read."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from seqloom.config import config
from seqloom.config.constraints import Fraction, PositiveInt
from seqloom.data.corpus import SPLITS
from seqloom.data.files import locate_file

Fill = Literal["mask", "previous", "season"]  # what a model sees in place of a missing value
Gaps = Literal["insert", "ignore"]  # a missing row is a step of missing values, or nothing


@config
class HoldoutConfig:
    """How much of the data is held out for dev and test."""

    corpus: str
    dev_fraction: Fraction = 0.1  # 0 for no such split
    test_fraction: Fraction = 0.1

    def problems(self) -> Iterator[str]:
        if self.dev_fraction + self.test_fraction >= 1:
            yield "dev_fraction and test_fraction must together be less than 1"


@config
class FilesConfig(HoldoutConfig):
    """Base class for configs that name files of the user, a file or two for each key in `file_keys`."""

    file_keys: ClassVar[tuple[str, ...]] = SPLITS

    def files(self) -> dict[str, tuple[str, ...]]:
        """Return the files by key; keys without any are left out."""
        given = {key: getattr(self, key) for key in self.file_keys}
        return {key: (value,) if isinstance(value, str) else value for key, value in given.items() if value is not None}

    def locate(self, recipe_folder: Path) -> Self:
        """Return the same with absolute paths. What is not in the current folder may lie beside the recipe."""
        found: dict[str, Any] = {}
        for key, files in self.files().items():
            paths = tuple(locate_file(file, recipe_folder) for file in files)
            found[key] = paths[0] if isinstance(getattr(self, key), str) else paths
        return replace(self, **found)


@config
class FileConfig(FilesConfig):
    """A file for train, and for dev and test either a file or a fraction that is held out from train."""

    train: str
    dev: str | None = None  # the same kind of file; without it, dev_fraction is held out from train
    test: str | None = None  # likewise


@config
class GeneratedConfig:
    """How many examples of each split are generated."""

    corpus: str
    train: PositiveInt
    dev: PositiveInt
    test: PositiveInt
    seed: int = 0  # decides the examples, not how a model is trained on them

    def counts(self) -> dict[str, int]:
        return {"train": self.train, "dev": self.dev, "test": self.test}


@config
class SeriesConfig(HoldoutConfig):
    """How a series is read; dev is what comes before test, and test what comes last."""

    season: PositiveInt | None = None  # steps after which values repeat; null is what is known or the times suggest
    gaps: Gaps | None = None  # insert: missing rows are missing values; ignore: a row is a step; null: by their share
    fill: Fill = "mask"  # missing values: mask leaves them out; previous, season: models see made-up ones
    dev_fraction: Fraction = 0.15  # of the steps
    test_fraction: Fraction = 0.15
