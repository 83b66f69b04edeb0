"""Family names of eighteen languages, as the PyTorch tutorial has them."""

from collections.abc import Iterator
from typing import Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.data.corpus import SPLITS, Corpus, HoldoutConfig, version_of
from seqloom.data.examples import TextClassificationExample
from seqloom.data.files import DataSet, read_asset, read_lines
from seqloom.data.splits import divide, hold_out_evenly

SUMMARY = "17,500 family names of 18 languages, half of them Russian (needs SEQLOOM_DATA)"
FORM = "text-classification"
SOURCE = DataSet("names", "https://github.com/spro/practical-pytorch, data/names (MIT)")
LANGUAGES = read_asset("names.txt")["names-18"]


@config
class Config(HoldoutConfig):  # fractions of the names of each language
    corpus: Literal["names-18"] = "names-18"
    ambiguous: Literal["keep", "drop"] = "keep"  # names that several languages have; keep: with each of its labels
    seed: int = 0  # decides which names are held out

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if min(self.dev_fraction, self.test_fraction) == 0:
            yield "dev_fraction and test_fraction must be more than 0"


def load(config: Config) -> Corpus[TextClassificationExample]:
    """Each name once in a language; all its languages are in one split, so that none is known beforehand."""
    lines = {language: _names(language) for language in LANGUAGES}
    languages_of: dict[str, list[str]] = {}
    for language, names in lines.items():
        for name in dict.fromkeys(names):
            languages_of.setdefault(name, []).append(language)
    shared = [name for name, languages in languages_of.items() if len(languages) > 1]
    kept = {n: ls for n, ls in languages_of.items() if config.ambiguous == "keep" or len(ls) == 1}
    examples = [TextClassificationExample(name, language) for name, languages in kept.items() for language in languages]
    shares = {"dev": config.dev_fraction, "test": config.test_fraction}
    groups = [f"{config.seed}/{example.text}" for example in examples]
    chosen = hold_out_evenly(groups, [example.label for example in examples], shares)
    splits = divide(examples, chosen, SPLITS)
    if not all(splits.values()):
        raise DataError(f"There are too few names to hold any out: {len(examples)}. Check the files below names/.")
    return Corpus(
        name="names-18",
        version=f"{version_of(splits)} seed {config.seed}",
        licence="MIT (practical-pytorch)",
        description="family names of 18 languages; each name once in a language, and in one split only",
        splits=splits,
        notes=_notes(config, sum(map(len, lines.values())), languages_of, shared, splits["test"]),
    )


def _notes(
    config: Config,
    lines: int,
    languages_of: dict[str, list[str]],
    shared: list[str],
    test: list[TextClassificationExample],
) -> tuple[str, ...]:
    pairs = sum(map(len, languages_of.values()))
    found = [f"{lines - pairs:,} of {lines:,} lines repeat a name of the same language and were left out"]
    if config.ambiguous == "drop":
        return (*found, f"{len(shared):,} names that several languages have were left out")
    best = len({example.text for example in test}) / len(test)
    several = f"{len(shared):,} of {len(languages_of):,} names are in several languages"
    return (*found, f"{several}: no model can have more than {best:.1%} of test right")


def _names(language: str) -> list[str]:
    lines = read_lines(SOURCE.file(f"names/{language}.txt"))
    return [name for line in lines if (name := " ".join(line.split()))]
