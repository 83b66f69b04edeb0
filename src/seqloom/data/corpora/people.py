"""Sentences with persons and places: "Pankaj lives in Munich", made from templates and faker's names.

A name, a place or a template of one split stands in no other. No word of a name or a place of dev
or test that has four letters or more stands in one of train, but for words such as Saint and North.
`assets/people.txt` holds the templates.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError
from seqloom.core.iob import OUTSIDE, spans_of
from seqloom.data.corpora.names import faker_names, faker_version, fold, require_faker, split_of
from seqloom.data.corpus import SPLITS, Corpus, GeneratedConfig
from seqloom.data.examples import Span, TokenClassificationExample
from seqloom.data.files import read_asset
from seqloom.data.generated import Dice

SUMMARY = "sentences with persons and places, from templates and faker's names; no download"
FORM = "token-classification"
VERSION = "1"  # of what is drawn here; a change of it is a new version
RESERVED = {"pankaj", "munich"}  # in no split: the example everyone tries is new to every model
MAX_TRIES = 5  # a template that gives nothing new in so many draws is left for another
MAX_IDLE = 20  # templates in a row that give nothing new: the split is used up
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
    drawing = SentenceDrawing(config.seed)
    corpus = Corpus(
        name="people",
        version=f"{VERSION} {faker_version()} seed {config.seed}",
        licence="MIT (faker's lists); the templates are seqloom's",
        description="persons (PER) and places (LOC)",
        splits=config.draw(drawing.take),
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


class SentenceDrawing:
    """The names and places of each split, and sentences made of them that were not drawn before."""

    def __init__(self, seed: int) -> None:
        self.dice = Dice(f"people/{VERSION}/{seed}")
        self.seen: set[str] = set()
        self.templates = read_asset("people.txt")
        particles, locales = set(self.templates["words of many names"]), self.templates["locales of names"]
        sources: dict[str, list[Sequence[str]]] = {
            "given": [faker_names(locale, "given") for locale in locales],
            "family": [faker_names(locale, "family") for locale in locales],
            "place": [self.templates["places"]],
            "both": [self.templates["names that are places"]],
        }
        for locale, _, kind in (name.partition(".") for name in self.templates["lists of places"]):
            # without Antigua and Barbuda, which nobody could tell from a list of two
            places = [place for place in faker_names(locale, kind) if not _LISTING & set(place.lower().split())]
            sources["place"].append(places[:: max(1, len(places) // MAX_PLACES)])

        def telling_words(name: str) -> set[str]:
            return {word for word in fold(name).split() if len(word) >= 4} - particles

        known = set[str]()  # words of train's names and places: no other split has them
        self.names: dict[tuple[str, str], list[list[str]]] = {}  # by split and kind, a list for each locale
        for split in SPLITS:
            taken = RESERVED | known
            for kind, lists in sources.items():
                chosen = (
                    [name for name in names if split_of(seed, name) == split and telling_words(name).isdisjoint(taken)]
                    for names in lists
                )
                self.names[split, kind] = [names for names in chosen if names]
            if split == "train":
                every = (name for lists in self.names.values() for names in lists for name in names)
                known = {word for name in every for word in telling_words(name)}

    def take(self, split: str, count: int) -> list[TokenClassificationExample]:
        """Draw the sentences of a split; a template that gives nothing new is left for another."""
        sentences: list[TokenClassificationExample] = []
        idle = 0
        while len(sentences) < count:
            template, capital = self._template(split), self.dice.uniform() < 0.92
            for _ in range(MAX_TRIES):
                sentence = self._fill(split, template, capital)
                if sentence is not None and sentence.text not in self.seen:
                    self.seen.add(sentence.text)
                    sentences.append(sentence)
                    idle = 0
                    break
            else:
                idle += 1
            if idle > MAX_IDLE:
                raise DataError(
                    f"data.{split} must be no more than the {len(sentences):,} sentences that could be drawn."
                )
        return sentences

    # --- a sentence -------------------------------------------------------------------------------------------------

    def _one_of(self, section: str) -> str:
        return self.dice.one_of(self.templates[section])

    def _template(self, split: str) -> str:
        """Draw a sentence with slots: a fifth stand alone by nature, half are one clause, the others are put together.

        One person, or more, stand for {who}; an explanation's last comma goes where another mark
        follows.
        """
        if self.dice.uniform() < 0.2:
            template = self._one_of(f"whole {split}")
        else:
            form = self.dice.uniform()
            template = self._one_of(f"clause {split}")
            if form < 0.17:
                template = f"{self._one_of('lead')} {template}"
            elif form < 0.32:
                template = f"{template} {self._one_of('addition')}".replace(" ,", ",")
            elif form < 0.52:
                template = f"{template}{self.dice.one_of(JOINTS)}{self._one_of(f'clause {split}')}"
            template += "." * (self.dice.uniform() < 0.85)
        for slot, one, others in (("{who}", "{per}", "who"), ("{where}", "{loc}", "where")):
            while slot in template:
                filled = one if self.dice.uniform() < 0.6 else self._one_of(others)
                template = template.replace(slot, filled, 1)
        return re.sub(r",(?=[.?!;,]|$)", "", template)

    def _fill(self, split: str, template: str, capital: bool) -> TokenClassificationExample | None:
        """Return the sentence in words; None if an entity does not begin and end where words do."""
        from seqloom.text.word_spans import word_spans

        text, entities = "", list[tuple[str, Span]]()
        for place, part in enumerate(_SLOT.split(template)):
            kind, words = "", part
            if place % 2 and f"filler {part}" in self.templates:
                words = self._one_of(f"filler {part}")
            elif place % 2:
                kind, words = ("LOC", self._place(split)) if part == "loc" else ("PER", self._person(split, part))
                entities.append((kind, (len(text), len(text) + len(words))))
            text += words
        if capital and not (entities and entities[0][1][0] == 0):  # what is a name keeps its own letters
            text = text[0].upper() + text[1:]
        spans = word_spans(text)
        tags = [OUTSIDE] * len(spans)
        begins, ends = ({span[side]: place for place, span in enumerate(spans)} for side in (0, 1))
        for kind, (start, end) in entities:
            if start not in begins or end not in ends:
                return None
            first, last = begins[start], ends[end]
            tags[first : last + 1] = [f"B-{kind}", *[f"I-{kind}"] * (last - first)]
        return TokenClassificationExample(tuple(text[a:b] for a, b in spans), tuple(tags), text, tuple(spans))

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


def entities_of(sentences: Iterable[TokenClassificationExample]) -> Iterator[tuple[str, str]]:
    """Yield every person and place: PER or LOC, and its text."""
    for sentence in sentences:
        for span in spans_of(sentence.tags):
            start, end = sentence.spans[span.start][0], sentence.spans[span.end - 1][1]
            yield span.type, sentence.text[start:end]
