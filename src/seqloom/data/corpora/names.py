"""Names of persons and their origins, from the lists of faker. Zofia Kowalczyk, for example, is a Polish name."""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError, ResourceError
from seqloom.data.corpus import Corpus, GeneratedConfig
from seqloom.data.examples import TextClassificationExample
from seqloom.data.files import read_asset
from seqloom.data.generated import Dice
from seqloom.data.splits import split_of_group

SUMMARY = "names of persons in Latin letters from 24 origins, from the lists of faker; no download"
FORM = "text-classification"
DRAWING_VERSION = "1"  # increase this number when a change of this module alters the names
MAX_TRIES = 1000  # an origin is exhausted after this many draws without a new name
LOCALES = dict(line.split() for line in read_asset("names.txt")["names"])  # the faker locale of each origin

KINDS = {  # the lists in faker for each kind of name
    "given": ("first_names", "first_names_male", "first_names_female", "first_names_nonbinary"),
    "family": ("last_names", "last_names_male", "last_names_female", "unisex_last_names", "male_last_names"),
}
MAX_NAME_WORDS = 3
HELD_OUT = {"test": 0.15, "dev": 0.10}  # fractions of the names
_NAME = re.compile(r"[^\W\d_]+(?:[-' ][^\W\d_]+)*")


@config
class Config(GeneratedConfig):
    corpus: Literal["names"] = "names"
    train: PositiveInt = 12_000  # number of training names, the same number for each origin
    dev: PositiveInt = 1_200
    test: PositiveInt = 2_400

    def problems(self) -> Iterator[str]:
        if min(self.train, self.dev, self.test) < len(LOCALES):
            yield f"train, dev and test must each be at least {len(LOCALES)}, a name for each origin"


def load(config: Config) -> Corpus[TextClassificationExample]:
    """Generate names; given and family names of dev and test do not occur in train, so memorization does not help."""
    require_faker("names")
    return Corpus(
        name="names",
        version=f"{DRAWING_VERSION} {faker_version()} seed {config.seed}",
        licence="MIT (faker)",
        description=f"given and family names of {len(LOCALES)} origins; no name of dev or test occurs in train",
        splits=config.draw(NameDrawing(config.seed).take),
    )


class NameDrawing:
    """A generator of distinct names: most are full names, some are given or family names unique to an origin."""

    def __init__(self, seed: int) -> None:
        self.dice = Dice(f"names/{DRAWING_VERSION}/{seed}")
        self.seen: set[str] = set()
        self.origins: dict[str, set[str]] = {}  # origins of each folded name
        self.lists: dict[tuple[str, str, str], list[str]] = {}  # names by split, origin and kind
        for origin, locale in LOCALES.items():
            for kind in KINDS:
                for name in faker_names(locale, kind):
                    self.origins.setdefault(fold(name), set()).add(origin)
                    self.lists.setdefault((split_of(seed, name), origin, kind), []).append(name)

    def take(self, split: str, count: int) -> list[TextClassificationExample]:
        """Return names, cycling through the origins, so that their counts differ by at most one."""
        examples, origins = [], list(LOCALES)
        for number in range(count):
            origin = origins[number % len(origins)]
            for _ in range(MAX_TRIES):
                name = self._draw(split, origin)
                if name is not None and name not in self.seen:
                    break
            else:
                raise DataError(f"data.{split} exceeds the number of {origin} names that can be drawn. Lower it.")
            self.seen.add(name)
            examples.append(TextClassificationExample(name, origin))
        return examples

    def _draw(self, split: str, origin: str) -> str | None:
        form = self.dice.uniform()
        given, family = (self.dice.one_of(self.lists[split, origin, kind]) for kind in KINDS)
        if form < 0.7:
            return f"{given} {family}"
        name = given if form < 0.85 else family
        return name if len(self.origins[fold(name)]) == 1 else None


# --- the lists of faker -----------------------------------------------------------------------------------------------


def require_faker(corpus: str) -> None:
    try:
        import faker  # noqa: F401
    except ModuleNotFoundError as error:
        raise ResourceError(f"The corpus {corpus} needs faker: pip install 'seqloom[corpora]'.") from error


def faker_version() -> str:
    import faker

    return f"faker {faker.VERSION}"


@cache
def faker_names(locale: str, kind: str) -> tuple[str, ...]:
    """Return given names, family names, or the places of a list in faker: cities, countries, states.

    The lists are read directly, because random draws differ between versions of faker. Only names of
    a few words in Latin letters are returned; the last word starts with a capital: van Dijk.
    """
    provider = "person" if kind in KINDS else "address"
    lists = import_module(f"faker.providers.{provider}.{locale}").Provider
    names = set[str]()
    for entry in (entry for key in KINDS.get(kind, (kind,)) for entry in getattr(lists, key, ())):
        text = str(entry[-1] if isinstance(entry, tuple) else entry)  # some lists contain (code, name)
        name = " ".join(unicodedata.normalize("NFC", text).replace("\u2019", "'").split())
        is_latin = all(unicodedata.name(letter, "").startswith("LATIN") for letter in name if letter.isalpha())
        words = name.split()
        if is_latin and len(words) <= MAX_NAME_WORDS and _NAME.fullmatch(name) and words[-1][0].isupper():
            names.add(name)
    return tuple(sorted(names))


@cache
def split_of(seed: int, name: str) -> str:
    """Return the split of a name. The longest word of the name determines the split.

    New York is in the split of York, and O'Hara in the split of Ohara.
    """
    word = max(fold(name).split(), key=len)
    return split_of_group(f"{seed}/{word}".encode(), HELD_OUT)


@cache
def fold(name: str) -> str:
    """Remove accents, apostrophes, hyphens and case from a name."""
    letters = (letter for letter in unicodedata.normalize("NFD", name) if unicodedata.category(letter) != "Mn")
    return "".join(letters).replace("'", "").replace("-", " ").casefold()
