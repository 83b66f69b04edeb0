"""Sentences with persons and places, such as "Pankaj lives in Munich", from templates and the names of faker.

Each name, place and template belongs to one split. Words of at least four letters in names and places of dev or test do
not occur in names and places of train, except common words such as Saint and North. The templates are in
`assets/people.txt`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.errors import DataError
from seqloom.core.iob import OUTSIDE, extract_spans
from seqloom.data.corpora.names import faker_names, faker_version, fold, require_faker, split_of
from seqloom.data.corpus import SPLITS, Corpus, GeneratedConfig
from seqloom.data.examples import Span, TokenClassificationExample
from seqloom.data.files import read_asset
from seqloom.data.generated import Dice

SUMMARY = "sentences with persons and places, from templates and the names of faker; no download"
FORM = "token-classification"
VERSION = "1"  # increase this number when a change of this module alters the sentences
RESERVED = {"pankaj", "munich"}  # excluded from all splits, so that the documentation's example is new to every model
MAX_TRIES = 5  # another template is used after this many draws without a new sentence
MAX_FAILED_TEMPLATES = 20  # after this many successive templates, a split is exhausted
MAX_PLACES = 300  # maximum number of places of a list; longer lists are subsampled evenly
CONJUNCTIONS = (" and ", ", but ", ", while ", "; ", ", so ", " because ", " when ")
_LIST_WORDS = {"and", "e", "y", "in"}
_SLOT = re.compile(r"\{(\w+)\}")


@config
class Config(GeneratedConfig):
    corpus: Literal["people"] = "people"
    train: PositiveInt = 15_000  # number of training sentences
    dev: PositiveInt = 1_000
    test: PositiveInt = 2_000


def load(config: Config) -> Corpus[TokenClassificationExample]:
    """Generate sentences; names, places and templates of dev and test are new, so that memorization does not help."""
    require_faker("people")
    drawing = SentenceDrawing(config.seed)
    corpus = Corpus(
        name="people",
        version=f"{VERSION} {faker_version()} seed {config.seed}",
        licence="MIT (the lists of faker); the templates belong to seqloom",
        description="persons (PER) and places (LOC)",
        splits=config.draw(drawing.take),
    )
    templates = [f"{count_templates(split)} for {split}" for split in SPLITS]
    details = (
        f"in sentences from templates ({', '.join(templates)}); names, places and templates of dev and test are new, "
        f"and {corpus.new_words('test'):.0%} of the words of test do not occur in train"
    )
    return replace(corpus, description=f"{corpus.description} {details}")


def count_templates(split: str) -> int:
    templates = read_asset("people.txt")
    return len(templates[f"clause {split}"]) + len(templates[f"whole {split}"])


class SentenceDrawing:
    """A generator of distinct sentences from the names, places and templates of each split."""

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
            # Exclude names such as Antigua and Barbuda, which looks like a list of two places.
            places = [place for place in faker_names(locale, kind) if not _LIST_WORDS & set(place.lower().split())]
            sources["place"].append(places[:: max(1, len(places) // MAX_PLACES)])

        def content_words(name: str) -> set[str]:
            return {word for word in fold(name).split() if len(word) >= 4} - particles

        train_words = set[str]()  # words of names and places of train, which are excluded from the other splits
        self.names: dict[tuple[str, str], list[list[str]]] = {}  # for each split and kind, one list per locale
        for split in SPLITS:
            used = RESERVED | train_words
            for kind, lists in sources.items():
                chosen = (
                    [name for name in names if split_of(seed, name) == split and content_words(name).isdisjoint(used)]
                    for names in lists
                )
                self.names[split, kind] = [names for names in chosen if names]
            if split == "train":
                train_names = (name for lists in self.names.values() for names in lists for name in names)
                train_words = {word for name in train_names for word in content_words(name)}

    def take(self, split: str, count: int) -> list[TokenClassificationExample]:
        """Draw the sentences of a split."""
        sentences: list[TokenClassificationExample] = []
        failed_templates = 0
        while len(sentences) < count:
            template, capitalize = self._template(split), self.dice.uniform() < 0.92
            for _ in range(MAX_TRIES):
                sentence = self._fill(split, template, capitalize)
                if sentence is not None and sentence.text not in self.seen:
                    self.seen.add(sentence.text)
                    sentences.append(sentence)
                    failed_templates = 0
                    break
            else:
                failed_templates += 1
            if failed_templates > MAX_FAILED_TEMPLATES:
                raise DataError(
                    f"data.{split} must be at most {len(sentences):,}, the number of different sentences that could be "
                    f"drawn; got {count:,}."
                )
        return sentences

    # --- a sentence -------------------------------------------------------------------------------------------------

    def _one_of(self, section: str) -> str:
        return self.dice.one_of(self.templates[section])

    def _template(self, split: str) -> str:
        """Draw a sentence with slots: a complete sentence, a clause, or a combination of clauses and phrases.

        {who} and {where} become one or several persons and places. A comma before another
        punctuation mark is removed.
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
                template = f"{template}{self.dice.one_of(CONJUNCTIONS)}{self._one_of(f'clause {split}')}"
            template += "." * (self.dice.uniform() < 0.85)
        for slot, single, several in (("{who}", "{per}", "who"), ("{where}", "{loc}", "where")):
            while slot in template:
                filler = single if self.dice.uniform() < 0.6 else self._one_of(several)
                template = template.replace(slot, filler, 1)
        return re.sub(r",(?=[.?!;,]|$)", "", template)

    def _fill(self, split: str, template: str, capitalize: bool) -> TokenClassificationExample | None:
        """Fill the slots of a sentence; return None if an entity does not start and end at word boundaries."""
        from seqloom.text.word_spans import word_spans

        text, entities = "", list[tuple[str, Span]]()
        for index, part in enumerate(_SLOT.split(template)):
            is_slot, words = index % 2 == 1, part
            if is_slot and f"filler {part}" in self.templates:
                words = self._one_of(f"filler {part}")
            elif is_slot:
                kind, words = ("LOC", self._place(split)) if part == "loc" else ("PER", self._person(split, part))
                entities.append((kind, (len(text), len(text) + len(words))))
            text += words
        if capitalize and not (entities and entities[0][1][0] == 0):  # names keep their case at the start of a sentence
            text = text[0].upper() + text[1:]
        spans = word_spans(text)
        tags = [OUTSIDE] * len(spans)
        starts, ends = ({span[side]: index for index, span in enumerate(spans)} for side in (0, 1))
        for kind, (start, end) in entities:
            if start not in starts or end not in ends:
                return None
            first, last = starts[start], ends[end]
            tags[first : last + 1] = [f"B-{kind}", *[f"I-{kind}"] * (last - first)]
        return TokenClassificationExample(tuple(text[a:b] for a, b in spans), tuple(tags), text, tuple(spans))

    def _place(self, split: str) -> str:
        form, lists = self.dice.uniform(), self.names[split, "place"]
        if form < 0.06:
            return self.dice.one_of(self.names[split, "both"][0])
        return self.dice.one_of(lists[0] if form < 0.3 else self.dice.one_of(lists[1:]))

    def _person(self, split: str, slot: str) -> str:
        """Draw a person; both names are usually from one locale, unless the locale has no names in the split."""
        locale, form = self.dice.uniform(), self.dice.uniform()
        given, family = self._name(split, "given", locale), self._name(split, "family", locale)
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
            return f"{given} {self._name(split, 'given', locale)} {family}"
        return f"{given} {family}-{self._name(split, 'family', self.dice.uniform())}"

    def _name(self, split: str, kind: str, locale: float) -> str:
        if self.dice.uniform() < (0.07 if kind == "given" else 0.04):
            return self.dice.one_of(self.names[split, "both"][0])
        lists = self.names[split, kind]
        return self.dice.one_of(lists[int(locale * len(lists))])

    def _initial(self, split: str) -> str:
        return f"{self._name(split, 'given', self.dice.uniform())[0]}."


def entities_of(sentences: Iterable[TokenClassificationExample]) -> Iterator[tuple[str, str]]:
    """Yield the type (PER or LOC) and text of every entity."""
    for sentence in sentences:
        for span in extract_spans(sentence.tags):
            start, end = sentence.spans[span.start][0], sentence.spans[span.end - 1][1]
            yield span.type, sentence.text[start:end]
