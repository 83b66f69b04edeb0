"""Family names from eighteen languages, the data of the PyTorch tutorial."""

from collections.abc import Iterator
from typing import Literal

from seqloom.config import config
from seqloom.core.errors import DataError
from seqloom.data.corpus import SPLITS, Corpus, HoldoutConfig, version_of
from seqloom.data.examples import TextClassificationExample
from seqloom.data.files import DataSet, read_asset, read_lines
from seqloom.data.splits import divide, hold_out_evenly

SUMMARY = "17,500 family names from 18 languages, half of them Russian (needs SEQLOOM_DATA)"
FORM = "text-classification"
SOURCE = DataSet("names", "https://github.com/spro/practical-pytorch, data/names (MIT)")
LANGUAGES = read_asset("names.txt")["names-18"]


@config
class Config(HoldoutConfig):  # the fractions are fractions of each language's names
    corpus: Literal["names-18"] = "names-18"
    # names that occur in several languages: keep them with each of their labels, or drop them
    ambiguous: Literal["keep", "drop"] = "keep"
    seed: int = 0  # seed of the names that are held out

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if min(self.dev_fraction, self.test_fraction) == 0:
            yield "dev_fraction and test_fraction must be more than 0"


def load(config: Config) -> Corpus[TextClassificationExample]:
    """Load each name once per language; all examples of a name are in one split."""
    lines = 0
    languages_of: dict[str, list[str]] = {}
    for language in LANGUAGES:
        names = [name for line in read_lines(SOURCE.file(f"names/{language}.txt")) if (name := " ".join(line.split()))]
        lines += len(names)
        for name in dict.fromkeys(names):
            languages_of.setdefault(name, []).append(language)
    used = {n: ls for n, ls in languages_of.items() if config.ambiguous == "keep" or len(ls) == 1}
    examples = [TextClassificationExample(name, language) for name, languages in used.items() for language in languages]
    fractions = {"dev": config.dev_fraction, "test": config.test_fraction}
    groups = [f"{config.seed}/{example.text}" for example in examples]
    chosen = hold_out_evenly(groups, [example.label for example in examples], fractions)
    splits = divide(examples, chosen, SPLITS)
    if not all(splits.values()):
        raise DataError(f"{len(examples)} names are too few for dev and test. Check the files in names/.")
    repeated = lines - sum(map(len, languages_of.values()))
    ambiguous = sum(len(languages) > 1 for languages in languages_of.values())
    note = f"{ambiguous:,} names that occur in several languages were left out"
    if config.ambiguous == "keep":
        best = len({example.text for example in splits["test"]}) / len(splits["test"])
        note = (
            f"{ambiguous:,} of {len(languages_of):,} names occur in several languages, which limits accuracy on test "
            f"to {best:.1%}"
        )
    return Corpus(
        name="names-18",
        version=f"{version_of(splits)} seed {config.seed}",
        licence="MIT (practical-pytorch)",
        description="family names from 18 languages, each once per language and in only one split",
        splits=splits,
        notes=(f"{repeated:,} of {lines:,} lines repeat a name of the same language and were left out", note),
    )
