"""Draws sentences with persons and places. A name, a place or a template of one split stands in no other.

More than that: no word of a name or a place of dev or test that has four letters or more stands in one of train, but
for words such as Saint and North.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from seqloom.core.errors import DataError
from seqloom.core.iob import OUTSIDE
from seqloom.data.cldr.kinds import Dice
from seqloom.data.corpus import SPLITS
from seqloom.data.faker_lists import family_names, folded, given_names, places, split_of
from seqloom.data.parallel import Span
from seqloom.data.people.fillers import FILLERS, PLACE_LIKE, PLACES
from seqloom.data.people.templates import ADDITIONS, CLAUSES, JOINTS, LEADS, WHERE, WHO, WHOLES
from seqloom.data.tagged import Tagged

VERSION = "1"  # of what is drawn here; a change of it is a new version
RESERVED = {"pankaj", "munich"}  # in no split: the example everyone tries is new to every model
TRIES = 5  # a template that gives nothing new in so many draws is left for another
LOCALES = (  # noqa: SIM905 (of the names; what stands twice is drawn twice as often)
    "en_US en_US en_GB en_IN en_IN en_KE cs_CZ da_DK de_DE de_DE es_ES es_MX et_EE fi_FI fr_FR fr_FR ga_IE hr_HR hu_HU "
    "id_ID it_IT lv_LV nl_NL no_NO pl_PL pt_BR sk_SK sl_SI sv_SE tr_TR tw_GH uz_UZ yo_NG zu_ZA"
).split()
LISTS = (  # noqa: SIM905 (of the places)
    "en.countries en.countries en_US.states en_GB.counties en_IE.counties en_CA.provinces en_AU.states en_PH.provinces "
    "en_IN.cities en_IN.cities cs_CZ.cities da_DK.cities de_AT.cities de_CH.cities de_DE.cities es_ES.states "
    "fi_FI.cities fr_DZ.cities fr_FR.regions hr_HR.cities id_ID.cities it_IT.cities nl_NL.cities pl_PL.cities "
    "pt_PT.cities ro_RO.cities sk_SK.cities sv_SE.cities"
).split()
LONG_LIST = 300  # of a longer list every so-manieth is taken
PARTICLES = (  # noqa: SIM905 (words of many names)
    "saint santa north south east west upper lower lake city county mount new nova nove terme bourg island islands "
    "republic central western eastern northern southern della dello degli velky velke velka dolni horni"
).split()
_LISTING = {"and", "e", "y", "in"}
_SLOT = re.compile(r"\{(\w+)\}")


class Drawing:
    """The names and places of each split, and sentences made of them that were not drawn before."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = Dice(random.Random(f"people/{VERSION}/{seed}").random)
        self.seen: set[str] = set()
        self.known: set[str] = set()  # words of train's names and places: no other split has them
        sources: dict[str, Callable[[], Iterable[Sequence[str]]]] = {
            "given": lambda: map(given_names, LOCALES),
            "family": lambda: map(family_names, LOCALES),
            "place": lambda: (PLACES, *map(_place_list, LISTS)),
            "both": lambda: (PLACE_LIKE,),
        }
        self.names: dict[tuple[str, str], list[list[str]]] = {}  # by split and kind, a list for each locale
        for split in SPLITS:
            for kind, lists in sources.items():
                self.names[split, kind] = [own for names in lists() if (own := self._own(split, names))]
            if split == "train":
                self.known = {
                    word for lists in self.names.values() for names in lists for name in names for word in _words(name)
                }

    def _own(self, split: str, names: Iterable[str]) -> list[str]:
        """Those of a split."""
        return [
            name
            for name in names
            if split_of(self.seed, name) == split and not RESERVED & _words(name) and not self.known & _words(name)
        ]

    def take(self, split: str, count: int) -> list[Tagged]:
        found: list[Tagged] = []
        idle = 0
        while len(found) < count:
            sentence = self._new(split)
            idle = 0 if sentence else idle + 1
            if idle > 20:
                raise DataError(f"data.{split} must be no more than the {len(found):,} sentences that could be drawn.")
            if sentence:
                found.append(sentence)
        return found

    def _new(self, split: str) -> Tagged | None:
        template, capital = self._template(split), self.dice.uniform() < 0.92
        for _ in range(TRIES):
            sentence = self._filled(split, template, capital)
            if sentence is not None and sentence.text not in self.seen:
                self.seen.add(sentence.text)
                return sentence
        return None

    # --- a sentence -------------------------------------------------------------------------------------------------

    def _template(self, split: str) -> str:
        """A sentence with slots: a fifth stand alone by nature, half are one clause, the others are put together."""
        if self.dice.uniform() < 0.2:
            return self._spelled_out(self.dice.one_of(WHOLES[split]))
        clauses, form = CLAUSES[split], self.dice.uniform()
        clause = self.dice.one_of(clauses)
        if form < 0.17:
            clause = f"{self.dice.one_of(LEADS)} {clause}"
        elif form < 0.32:
            clause = f"{clause} {self.dice.one_of(ADDITIONS)}".replace(" ,", ",")
        elif form < 0.52:
            clause = f"{clause}{self.dice.one_of(JOINTS)}{self.dice.one_of(clauses)}"
        return self._spelled_out(clause + "." * (self.dice.uniform() < 0.85))

    def _spelled_out(self, template: str) -> str:
        """With one person, or more, for {who}; an explanation's last comma goes where another mark follows."""
        for slot, one, others in (("{who}", "{per}", WHO), ("{where}", "{loc}", WHERE)):
            while slot in template:
                said = one if self.dice.uniform() < 0.6 else self.dice.one_of(others)
                template = template.replace(slot, said, 1)
        return re.sub(r",(?=[.?!;,]|$)", "", template)

    def _filled(self, split: str, template: str, capital: bool) -> Tagged | None:
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
        if slot in FILLERS:
            return self.dice.one_of(FILLERS[slot]), ""
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
    return found[:: max(1, len(found) // LONG_LIST)]


def _words(name: str) -> set[str]:
    """Those that tell one name from another."""
    return {word for word in folded(name).split() if len(word) >= 4}.difference(PARTICLES)


def _tagged(text: str, entities: Iterable[tuple[str, Span]]) -> Tagged | None:
    """The sentence in words; None if an entity does not begin and end where words do."""
    from seqloom.text.word_spans import word_spans

    spans = word_spans(text)
    begins, ends = ({span[side] for span in spans} for side in (0, 1))
    if any(start not in begins or end not in ends for _, (start, end) in entities):
        return None
    tags = [_tag(span, entities) for span in spans]
    return Tagged(tuple(text[a:b] for a, b in spans), tuple(tags), text, tuple(spans))


def _tag(word: Span, entities: Iterable[tuple[str, Span]]) -> str:
    for kind, (start, end) in entities:
        if start <= word[0] < end:
            return f"{'B' if word[0] == start else 'I'}-{kind}"
    return OUTSIDE


def entities_of(sentences: Iterable[Tagged]) -> Iterator[tuple[str, str]]:
    """Every person and place: PER or LOC, and its text."""
    from seqloom.core.iob import spans_of

    for sentence in sentences:
        for span in spans_of(sentence.tags):
            start, end = sentence.spans[span.start][0], sentence.spans[span.end - 1][1]
            yield span.type, sentence.text[start:end]
