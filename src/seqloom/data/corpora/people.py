"""Sentences with persons and places: "Pankaj lives in Munich", made from templates and faker's names.

A name, a place or a template of one split stands in no other. No word of a name or a place of dev or test that has four
letters or more stands in one of train, but for words such as Saint and North. `assets/people.txt` holds the templates.
"""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError
from seqloom.core.iob import OUTSIDE, spans_of
from seqloom.data.cldr.kinds import Dice
from seqloom.data.corpora.names import (
    faker_version,
    family_names,
    fold,
    given_names,
    places,
    require_faker,
    split_of,
)
from seqloom.data.corpus import SPLITS, Corpus
from seqloom.data.corpus_config import GeneratedConfig
from seqloom.data.examples import Span, TokenClassificationExample
from seqloom.data.files import read_asset

SUMMARY = "sentences with persons and places, from templates and faker's names; no download"
FORM = "token-classification"
VERSION = "1"  # of what is drawn here; a change of it is a new version
RESERVED = {"pankaj", "munich"}  # in no split: the example everyone tries is new to every model
MAX_TRIES = 5  # a template that gives nothing new in so many draws is left for another
MAX_PLACES = 300  # of a longer list every so-manieth is taken
JOINTS = (" and ", ", but ", ", while ", "; ", ", so ", " because ", " when ")
_LISTING = {"and", "e", "y", "in"}
_SLOT = re.compile(r"\{(\w+)\}")


@config
class Config(GeneratedConfig):
    corpus: Literal["people"] = "people"
    train: PositiveInt = 15_000  # sentences
    dev: PositiveInt = 1_000
    test: PositiveInt = 2_000


def load(config: Config) -> Corpus[TokenClassificationExample]:
    """Names, places and templates of dev and test are new: what was learned by heart is of no use there."""
    require_faker("people")
    drawing = Drawing(config.seed)
    corpus = Corpus(
        name="people",
        version=f"{VERSION} {faker_version()} seed {config.seed}",
        licence="MIT (faker's lists); the templates are seqloom's",
        description="persons (PER) and places (LOC)",
        splits={split: drawing.take(split, count) for split, count in config.counts().items()},
    )
    templates = [f"{count_templates(split)} for {split}" for split in SPLITS]
    hardness = (
        f"in sentences from templates ({', '.join(templates)}); names, places and templates of dev and test are new, "
        f"and {corpus.new_words('test'):.0%} of test's words never occur in train"
    )
    return replace(corpus, description=f"{corpus.description} {hardness}")


def count_templates(split: str) -> int:
    templates = read_asset("people.txt")
    return len(templates[f"clause {split}"]) + len(templates[f"whole {split}"])


class Drawing:
    """The names and places of each split, and sentences made of them that were not drawn before."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = Dice(random.Random(f"people/{VERSION}/{seed}").random)
        self.seen: set[str] = set()
        self.known: set[str] = set()  # words of train's names and places: no other split has them
        self.templates = read_asset("people.txt")
        self.particles = set(self.templates["words of many names"])
        locales, lists = self.templates["locales of names"], self.templates["lists of places"]
        sources: dict[str, Sequence[Sequence[str]]] = {
            "given": [given_names(locale) for locale in locales],
            "family": [family_names(locale) for locale in locales],
            "place": [self.templates["places"], *map(_place_list, lists)],
            "both": [self.templates["names that are places"]],
        }
        self.names: dict[tuple[str, str], list[list[str]]] = {}  # by split and kind, a list for each locale
        for split in SPLITS:
            for kind, lists_of_kind in sources.items():
                self.names[split, kind] = [own for names in lists_of_kind if (own := self._own(split, names))]
            if split == "train":
                every = (name for lists in self.names.values() for names in lists for name in names)
                self.known = {word for name in every for word in self._words(name)}

    def _own(self, split: str, names: Iterable[str]) -> list[str]:
        """Those of a split."""
        return [
            name
            for name in names
            if split_of(self.seed, name) == split
            and self._words(name).isdisjoint(RESERVED)
            and self._words(name).isdisjoint(self.known)
        ]

    def _words(self, name: str) -> set[str]:
        """The words that tell one name from another."""
        return {word for word in fold(name).split() if len(word) >= 4} - self.particles

    def take(self, split: str, count: int) -> list[TokenClassificationExample]:
        found: list[TokenClassificationExample] = []
        idle = 0
        while len(found) < count:
            sentence = self._new(split)
            idle = 0 if sentence else idle + 1
            if idle > 20:
                raise DataError(f"data.{split} must be no more than the {len(found):,} sentences that could be drawn.")
            if sentence:
                found.append(sentence)
        return found

    def _new(self, split: str) -> TokenClassificationExample | None:
        template, capital = self._template(split), self.dice.uniform() < 0.92
        for _ in range(MAX_TRIES):
            sentence = self._filled(split, template, capital)
            if sentence is not None and sentence.text not in self.seen:
                self.seen.add(sentence.text)
                return sentence
        return None

    # --- a sentence -------------------------------------------------------------------------------------------------

    def _template(self, split: str) -> str:
        """A sentence with slots: a fifth stand alone by nature, half are one clause, the others are put together."""
        if self.dice.uniform() < 0.2:
            return self._spelled_out(self.dice.one_of(self.templates[f"whole {split}"]))
        clauses, form = self.templates[f"clause {split}"], self.dice.uniform()
        clause = self.dice.one_of(clauses)
        if form < 0.17:
            clause = f"{self._one_of('lead')} {clause}"
        elif form < 0.32:
            clause = f"{clause} {self._one_of('addition')}".replace(" ,", ",")
        elif form < 0.52:
            clause = f"{clause}{self.dice.one_of(JOINTS)}{self.dice.one_of(clauses)}"
        return self._spelled_out(clause + "." * (self.dice.uniform() < 0.85))

    def _one_of(self, section: str) -> str:
        return self.dice.one_of(self.templates[section])

    def _spelled_out(self, template: str) -> str:
        """With one person, or more, for {who}; an explanation's last comma goes where another mark follows."""
        for slot, one, others in (("{who}", "{per}", "who"), ("{where}", "{loc}", "where")):
            while slot in template:
                said = one if self.dice.uniform() < 0.6 else self._one_of(others)
                template = template.replace(slot, said, 1)
        return re.sub(r",(?=[.?!;,]|$)", "", template)

    def _filled(self, split: str, template: str, capital: bool) -> TokenClassificationExample | None:
        text, entities = "", list[tuple[str, Span]]()
        for place, part in enumerate(_SLOT.split(template)):
            said, kind = (part, "") if place % 2 == 0 else self._slot(split, part)
            if kind:
                entities.append((kind, (len(text), len(text) + len(said))))
            text += said
        if capital and not (entities and entities[0][1][0] == 0):  # what is a name keeps its own letters
            text = text[0].upper() + text[1:]
        return _tagged(text, entities)

    def _slot(self, split: str, slot: str) -> tuple[str, str]:
        """What is said, and what it is."""
        if f"filler {slot}" in self.templates:
            return self._one_of(f"filler {slot}"), ""
        if slot == "loc":
            return self._place(split), "LOC"
        return self._person(split, slot), "PER"

    def _place(self, split: str) -> str:
        form, lists = self.dice.uniform(), self.names[split, "place"]
        if form < 0.06:
            return self.dice.one_of(self.names[split, "both"][0])
        return self.dice.one_of(lists[0] if form < 0.3 else self.dice.one_of(lists[1:]))

    def _person(self, split: str, slot: str) -> str:
        """Both names are of one locale, mostly: lists without any of the split are left out, so places may differ."""
        place, form = self.dice.uniform(), self.dice.uniform()
        given, family = self._name(split, "given", place), self._name(split, "family", place)
        if slot == "last":
            return family
        if slot == "first" or (slot == "per" and form < 0.4):
            return given
        if form < 0.8:
            return f"{given} {family}"
        if form < 0.87:
            return f"{given} {self._initial(split)} {family}"
        if form < 0.94:
            return f"{given[0]}. {self._initial(split) + ' ' if form < 0.9 else ''}{family}"
        if form < 0.97:
            return f"{given} {self._name(split, 'given', place)} {family}"
        return f"{given} {family}-{self._name(split, 'family', self.dice.uniform())}"

    def _name(self, split: str, kind: str, place: float) -> str:
        if self.dice.uniform() < (0.07 if kind == "given" else 0.04):
            return self.dice.one_of(self.names[split, "both"][0])
        lists = self.names[split, kind]
        return self.dice.one_of(lists[int(place * len(lists))])

    def _initial(self, split: str) -> str:
        return f"{self._name(split, 'given', self.dice.uniform())[0]}."


def _place_list(name: str) -> list[str]:
    """Without Antigua and Barbuda, which nobody could tell from a list of two."""
    locale, kind = name.split(".")
    found = [place for place in places(locale, kind) if not _LISTING & set(place.lower().split())]
    return found[:: max(1, len(found) // MAX_PLACES)]


def _tagged(text: str, entities: Iterable[tuple[str, Span]]) -> TokenClassificationExample | None:
    """The sentence in words; None if an entity does not begin and end where words do."""
    from seqloom.text.word_spans import word_spans

    spans = word_spans(text)
    begins, ends = ({span[side] for span in spans} for side in (0, 1))
    if any(start not in begins or end not in ends for _, (start, end) in entities):
        return None
    tags = [_tag(span, entities) for span in spans]
    return TokenClassificationExample(tuple(text[a:b] for a, b in spans), tuple(tags), text, tuple(spans))


def _tag(word: Span, entities: Iterable[tuple[str, Span]]) -> str:
    for kind, (start, end) in entities:
        if start <= word[0] < end:
            return f"{'B' if word[0] == start else 'I'}-{kind}"
    return OUTSIDE


def entities_of(sentences: Iterable[TokenClassificationExample]) -> Iterator[tuple[str, str]]:
    """Every person and place: PER or LOC, and its text."""
    for sentence in sentences:
        for span in spans_of(sentence.tags):
            start, end = sentence.spans[span.start][0], sentence.spans[span.end - 1][1]
            yield span.type, sentence.text[start:end]
