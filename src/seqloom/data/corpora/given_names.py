"""Given names and all their origins, from the lists of faker. Anna, for example, is a Czech, Danish and Dutch name."""

from typing import ClassVar, Literal

from seqloom.config import config
from seqloom.data.corpora.names import LOCALES, faker_names, faker_version, fold, require_faker, split_of
from seqloom.data.corpus import SPLITS, Corpus
from seqloom.data.examples import MultiLabelExample

SUMMARY = "given names in Latin letters with their origins, from faker; several labels, no download"
FORM = "multi-label"
VERSION = "1"  # increase this number when a change of this module alters the names


@config
class Config:
    corpus: Literal["given-names"] = "given-names"
    seed: int = 0  # seed of the splits

    multi_label: ClassVar = True


def load(config: Config) -> Corpus[MultiLabelExample]:
    """Load all names; spellings that differ only in accents have the same origins and the same split."""
    require_faker("given-names")
    origins: dict[str, set[str]] = {}  # origins of each folded name
    spellings = set[str]()
    for origin, locale in LOCALES.items():
        for name in faker_names(locale, "given"):
            spellings.add(name)
            origins.setdefault(fold(name), set()).add(origin)
    splits: dict[str, list[MultiLabelExample]] = {split: [] for split in SPLITS}
    for name in sorted(spellings):
        splits[split_of(config.seed, name)].append(MultiLabelExample.of(name, origins[fold(name)]))
    return Corpus(
        name="given-names",
        version=f"{VERSION} {faker_version()} seed {config.seed}",
        licence="MIT (faker)",
        description=f"given names with all their origins, of {len(LOCALES)}; no name of dev or test occurs in train",
        splits=splits,
    )
