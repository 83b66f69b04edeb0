"""Sentences with a tag for each word: parts of speech, named entities; in splits that do not overlap.

Entities are tags of spans in IOB2 (`B-PER I-PER O`), whatever the files had. A sentence also keeps its text as it was
written, and where in it each word stands, so that what is found can be pointed at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from seqloom.core.errors import DataError
from seqloom.core.iob import marks_spans, spans_of
from seqloom.core.words import shown
from seqloom.data.corpus import content_version, digest, find_split
from seqloom.data.labelled import by_count, new_share
from seqloom.data.parallel import Span


@dataclass(frozen=True)
class Tagged:
    words: tuple[str, ...]
    tags: tuple[str, ...]
    text: str  # the sentence as it was written
    spans: tuple[Span, ...]  # the place of each word in it

    @classmethod
    def of(cls, words: Sequence[str], tags: Sequence[str]) -> "Tagged":
        """A sentence of which only the words are known: a space stands between any two."""
        from seqloom.text.word_spans import join_words  # here, so that corpora can be listed without the tokenizers

        text, spans = join_words(words)
        return cls(tuple(words), tuple(tags), text, tuple(spans))


@dataclass(frozen=True)
class TaggedCorpus:
    name: str
    version: str  # of the source: two versions are never the same data
    licence: str
    description: str
    splits: Mapping[str, Sequence[Tagged]]
    absent: Mapping[str, str] = field(default_factory=dict)  # why a split is not there
    notes: tuple[str, ...] = ()  # what a person should know of how it was read: tags repaired, say

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """What a model can say: the tags of train, sorted."""
        return tuple(sorted({tag for sentence in self.split("train") for tag in sentence.tags}))

    @cached_property
    def has_spans(self) -> bool:
        """Whether the tags mark spans of words (entities); otherwise each word has a tag of its own (its class)."""
        return marks_spans(self.tags)

    def split(self, name: str) -> Sequence[Tagged]:
        """The sentences of a split, or DataError with the reason there are none."""
        found: Sequence[Tagged] = find_split(self, name)
        return found

    def tag_counts(self, split: str) -> dict[str, int]:
        """How many words have each tag, or where tags mark spans, how many spans there are of each type."""
        if self.has_spans:
            return by_count(span.type for sentence in self.split(split) for span in spans_of(sentence.tags))
        return by_count(tag for sentence in self.split(split) for tag in sentence.tags)

    def unseen_tags(self, split: str) -> dict[str, int]:
        """The tags of a split that train never has, and how many words have them: they count as wrong."""
        return by_count(tag for sentence in self.split(split) for tag in sentence.tags if tag not in self.tags)

    def sizes(self, split: str) -> dict[str, int]:
        """Sentences, words, tags, and spans where the tags mark them."""
        sentences = self.split(split)
        found = {
            "sentences": len(sentences),
            "words": sum(len(sentence.words) for sentence in sentences),
            "tags": len({tag for sentence in sentences for tag in sentence.tags}),
        }
        return {**found, "spans": sum(self.tag_counts(split).values())} if self.has_spans else found

    def new_words(self, split: str) -> float:
        """The share of a split's words, repeated ones too, that never occur in train: how hard it is."""
        return new_share(*([w for sentence in self.split(name) for w in sentence.words] for name in (split, "train")))

    def fingerprint(self) -> dict[str, str]:
        """sha256 of each split: words, tags and the borders between sentences."""
        return {name: digest(_texts(sentences)) for name, sentences in self.splits.items()}


def checked_tags(corpus: TaggedCorpus) -> TaggedCorpus:
    """The same with a note on tags that cannot be learned; DataError if there is nothing to tell apart."""
    if len(corpus.tags) < 2:
        raise DataError(
            f"The corpus {corpus.name} must have at least two tags to tell apart, but every word of train has "
            f"{shown(corpus.tags[0])}. Check which column holds the tags."
        )
    notes = []
    for split in corpus.splits:
        if unseen := corpus.unseen_tags(split):
            words = sum(unseen.values())
            have, they = ("word has a tag", "it counts") if words == 1 else ("words have tags", "they count")
            notes.append(f"{words:,} {split} {have} that train never has ({', '.join(unseen)}): {they} as wrong")
    return replace(corpus, notes=(*corpus.notes, *notes))


def version_of(splits: Mapping[str, Sequence[Tagged]]) -> str:
    """The version of sentences that come without one: their words and tags."""
    return content_version(*map(_texts, splits.values()))


def _texts(sentences: Sequence[Tagged]) -> list[str]:
    return [part for sentence in sentences for part in (*sentence.words, "", *sentence.tags, "")]
