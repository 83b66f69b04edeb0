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
    lines = 0
    languages_of: dict[str, list[str]] = {}
    for language in LANGUAGES:
        names = [name for line in read_lines(SOURCE.file(f"names/{language}.txt")) if (name := " ".join(line.split()))]
        lines += len(names)
        for name in dict.fromkeys(names):
            languages_of.setdefault(name, []).append(language)
    kept = {n: ls for n, ls in languages_of.items() if config.ambiguous == "keep" or len(ls) == 1}
    examples = [TextClassificationExample(name, language) for name, languages in kept.items() for language in languages]
    shares = {"dev": config.dev_fraction, "test": config.test_fraction}
    groups = [f"{config.seed}/{example.text}" for example in examples]
    chosen = hold_out_evenly(groups, [example.label for example in examples], shares)
    splits = divide(examples, chosen, SPLITS)
    if not all(splits.values()):
        raise DataError(f"There are too few names to hold any out: {len(examples)}. Check the files below names/.")
    repeated = lines - sum(map(len, languages_of.values()))
    shared = sum(len(languages) > 1 for languages in languages_of.values())
    note = f"{shared:,} names that several languages have were left out"
    if config.ambiguous == "keep":
        best = len({example.text for example in splits["test"]}) / len(splits["test"])
        several = f"{shared:,} of {len(languages_of):,} names are in several languages"
        note = f"{several}: no model can have more than {best:.1%} of test right"
    return Corpus(
        name="names-18",
        version=f"{version_of(splits)} seed {config.seed}",
        licence="MIT (practical-pytorch)",
        description="family names of 18 languages; each name once in a language, and in one split only",
        splits=splits,
        notes=(f"{repeated:,} of {lines:,} lines repeat a name of the same language and were left out", note),
    )
