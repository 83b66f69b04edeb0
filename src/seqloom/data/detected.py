"""What `detect` recognized in the files of the user."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seqloom.data.table_profile import ColumnProfile

SPLIT_NAMES = {"train": "train", "training": "train", "dev": "dev", "valid": "dev", "validation": "dev", "val": "dev"}
SPLIT_NAMES |= {"test": "test", "testing": "test", "eval": "test"}


@dataclass(frozen=True)
class Detected:
    """The recognized task of files, and the corpus config that reads them."""

    task: str
    data: Mapping[str, object]  # the section `data` of a recipe
    reason: str  # explanation, such as: texts in the column "body", labels in the column "class"
    alternatives: Sequence[str] = ()  # other columns that may be meant: of labels, or the languages in the other order


@dataclass(frozen=True)
class ChosenColumns:
    """The columns of a table that the user named."""

    inputs: Sequence[ColumnProfile] = ()
    label: ColumnProfile | None = None

    @property
    def first_input(self) -> ColumnProfile | None:
        return self.inputs[0] if self.inputs else None
