"""Names of persons and where they are from, out of faker's lists: Zofia Kowalczyk is Polish."""

import random
import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any, Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError, ResourceError
from seqloom.data.cldr.kinds import Dice
from seqloom.data.corpus import Corpus
from seqloom.data.corpus_config import GeneratedConfig
from seqloom.data.examples import TextClassificationExample
from seqloom.data.files import read_asset
from seqloom.data.holdout import split_of_group

SUMMARY = "names of persons in Latin letters, of 24 origins, from faker's lists; no download"
FORM = "text-classification"
DRAWING = "1"  # of what is drawn here; a change of it is a new version
MAX_TRIES = 1000  # draws without a new name before an origin is used up
LOCALES = dict(line.split() for line in read_asset("names.txt")["names"])  # of each origin, as faker calls it

GIVEN = ("first_names", "first_names_male", "first_names_female", "first_names_nonbinary")
FAMILY = ("last_names", "last_names_male", "last_names_female", "unisex_last_names", "male_last_names")
MAX_NAME_WORDS = 3  # words of a name
HELD_OUT = {"test": 0.15, "dev": 0.10}  # shares of the names
_NAME = re.compile(r"[^\W\d_]+(?:[-' ][^\W\d_]+)*")


@config
class Config(GeneratedConfig):
    corpus: Literal["names"] = "names"
    train: PositiveInt = 12_000  # names, as many of each origin
    dev: PositiveInt = 1_200
    test: PositiveInt = 2_400

    def problems(self) -> Iterator[str]:
        if min(self.train, self.dev, self.test) < len(LOCALES):
            yield f"train, dev and test must each be at least {len(LOCALES)}: a name of each origin"


def load(config: Config) -> Corpus[TextClassificationExample]:
    """No given or family name of dev or test is one of train's: what an origin sounds like must be learned."""
    require_faker("names")
    drawing = _Drawing(config.seed)
    splits = {split: drawing.take(split, count) for split, count in config.counts().items()}
    return Corpus(
        name="names",
        version=f"{DRAWING} {faker_version()} seed {config.seed}",
        licence="MIT (faker)",
        description=f"given and family names of {len(LOCALES)} origins; no name of dev or test stands in train",
        splits=splits,
    )


class _Drawing:
    """Draws names, each once: most in full, some given or family names alone that only one origin has."""

    def __init__(self, seed: int) -> None:
        self.dice = Dice(random.Random(f"names/{DRAWING}/{seed}").random)
        self.seen: set[str] = set()
        self.owners: dict[str, set[str]] = {}  # which origins have a name, by its letters
        self.lists: dict[tuple[str, str, str], list[str]] = {}  # by split, origin and kind
        for origin, locale in LOCALES.items():
            for kind, names in (("given", given_names(locale)), ("family", family_names(locale))):
                for name in names:
                    self.owners.setdefault(fold(name), set()).add(origin)
                    self.lists.setdefault((split_of(seed, name), origin, kind), []).append(name)

    def take(self, split: str, count: int) -> list[TextClassificationExample]:
        """In turn from every origin, so that all have as many, but for one."""
        origins = list(LOCALES)
        return [
            TextClassificationExample(self._new(split, origins[n % len(origins)]), origins[n % len(origins)])
            for n in range(count)
        ]

    def _new(self, split: str, origin: str) -> str:
        for _ in range(MAX_TRIES):
            name = self._draw(split, origin)
            if name is not None and name not in self.seen:
                self.seen.add(name)
                return name
        raise DataError(f"data.{split} is more than the {origin} names that can be made. Ask for fewer.")

    def _draw(self, split: str, origin: str) -> str | None:
        form = self.dice.uniform()
        given, family = (self.dice.one_of(self.lists[split, origin, kind]) for kind in ("given", "family"))
        if form < 0.7:
            return f"{given} {family}"
        name = given if form < 0.85 else family
        return name if len(self.owners[fold(name)]) == 1 else None


# --- faker's lists ----------------------------------------------------------------------------------------------------


def require_faker(corpus: str) -> None:
    try:
        import faker  # noqa: F401
    except ModuleNotFoundError as error:
        raise ResourceError(f"The corpus {corpus} needs faker: pip install 'seqloom[corpora]'.") from error


def faker_version() -> str:
    import faker

    return f"faker {faker.VERSION}"


@cache
def given_names(locale: str) -> tuple[str, ...]:
    return _listed("person", locale, GIVEN)


@cache
def family_names(locale: str) -> tuple[str, ...]:
    return _listed("person", locale, FAMILY)


@cache
def places(locale: str, kind: str) -> tuple[str, ...]:
    """`kind`: cities, countries, states, as faker calls its lists."""
    return _listed("address", locale, (kind,))


@cache
def split_of(seed: int, name: str) -> str:
    """The split whose names this one is among. It goes by its longest word: New York with York, O'Hara with Ohara."""
    word = max(fold(name).split(), key=len)
    return split_of_group(f"{seed}/{word}".encode(), HELD_OUT)


@cache
def fold(name: str) -> str:
    """Without accents, apostrophes, hyphens and capitals."""
    letters = (letter for letter in unicodedata.normalize("NFD", name) if unicodedata.category(letter) != "Mn")
    return "".join(letters).replace("'", "").replace("-", " ").casefold()


def _listed(provider: str, locale: str, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """The lists themselves, not what faker draws from them: that differs from one version to the next."""
    lists = import_module(f"faker.providers.{provider}.{locale}").Provider
    found = (_text(entry) for kind in kinds for entry in getattr(lists, kind, ()))
    return tuple(sorted({name for name in found if _usable(name)}))


def _text(entry: Any) -> str:
    """Some lists have (code, name)."""
    name = entry[-1] if isinstance(entry, tuple) else entry
    return " ".join(unicodedata.normalize("NFC", str(name)).replace("\u2019", "'").split())


def _usable(name: str) -> bool:
    """A few words in Latin letters that begins with a capital, or a particle before one: van Dijk."""
    latin = all(unicodedata.name(letter, "").startswith("LATIN") for letter in name if letter.isalpha())
    words = name.split()
    return latin and len(words) <= MAX_NAME_WORDS and _NAME.fullmatch(name) is not None and words[-1][0].isupper()
