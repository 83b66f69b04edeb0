"""Names of persons and where they are from, out of faker's lists: Zofia Kowalczyk is Polish."""

import random
from collections.abc import Iterator
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError
from seqloom.data.cldr.kinds import Dice
from seqloom.data.corpus import Corpus
from seqloom.data.corpus_config import GeneratedConfig
from seqloom.data.examples import TextClassificationExample
from seqloom.data.faker_lists import family_names, folded, given_names, require_faker, split_of, version
from seqloom.data.files import read_asset

SUMMARY = "names of persons in Latin letters, of 24 origins, from faker's lists; no download"
FORM = "text-classification"
DRAWING = "1"  # of what is drawn here; a change of it is a new version
TRIES = 1000  # draws without a new name before an origin is used up
LOCALES = dict(line.split() for line in read_asset("names.txt")["names"])  # of each origin, as faker calls it


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
        version=f"{DRAWING} {version()} seed {config.seed}",
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
                    self.owners.setdefault(folded(name), set()).add(origin)
                    self.lists.setdefault((split_of(seed, name), origin, kind), []).append(name)

    def take(self, split: str, count: int) -> list[TextClassificationExample]:
        """In turn from every origin, so that all have as many, but for one."""
        origins = list(LOCALES)
        return [
            TextClassificationExample(self._new(split, origins[n % len(origins)]), origins[n % len(origins)])
            for n in range(count)
        ]

    def _new(self, split: str, origin: str) -> str:
        for _ in range(TRIES):
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
        return name if len(self.owners[folded(name)]) == 1 else None
