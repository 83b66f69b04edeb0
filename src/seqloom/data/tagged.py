"""Sentences with a tag for each word: parts of speech, named entities; in splits that do not overlap.

Entities are tags of spans in IOB2 (`B-PER I-PER O`), whatever the files had. A sentence also keeps its text as it was
written, and where in it each word stands, so that what is found can be pointed at.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from seqloom.core.errors import DataError
from seqloom.core.iob import marks_spans, spans_of
from seqloom.core.words import shown
from seqloom.data.corpus import Corpus, Example, by_count
from seqloom.data.parallel import Span


@dataclass(frozen=True)
class Tagged(Example):
    form: ClassVar = "tagged"

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

    def parts(self) -> Sequence[str]:
        return *self.words, "", *self.tags, ""

    def texts(self) -> Sequence[str]:
        return (self.text,)

    def labels(self) -> Sequence[str]:
        return self.tags

    @classmethod
    def all_words(cls, examples: Sequence["Tagged"]) -> list[str]:
        return [word for sentence in examples for word in sentence.words]

    @classmethod
    def sizes(cls, corpus: Corpus["Tagged"], split: str) -> dict[str, int]:
        """Return sentences, words, tags, and spans where the tags mark them."""
        sentences = corpus.split(split)
        sizes = {
            "sentences": len(sentences),
            "words": sum(len(sentence.words) for sentence in sentences),
            "tags": len({tag for sentence in sentences for tag in sentence.tags}),
        }
        return {**sizes, "spans": sum(tag_counts(corpus, split).values())} if has_spans(corpus) else sizes

    @classmethod
    def check(cls, corpus: Corpus["Tagged"]) -> Corpus["Tagged"]:
        return check_tags(corpus)


def has_spans(corpus: Corpus[Tagged]) -> bool:
    """Return whether the tags mark spans of words (entities), or each word has a tag of its own (its class)."""
    return marks_spans(corpus.labels)


def tag_counts(corpus: Corpus[Tagged], split: str) -> dict[str, int]:
    """Return the number of words with each tag, or where tags mark spans, the number of spans of each type."""
    if has_spans(corpus):
        return by_count(span.type for sentence in corpus.split(split) for span in spans_of(sentence.tags))
    return corpus.label_counts(split)


def check_tags(corpus: Corpus[Tagged]) -> Corpus[Tagged]:
    """The same with a note on tags that cannot be learned; DataError if there is nothing to tell apart."""
    if len(corpus.labels) < 2:
        raise DataError(
            f"The corpus {corpus.name} must have at least two tags to tell apart, but every word of train has "
            f"{shown(corpus.labels[0])}. Check which column holds the tags."
        )
    notes = []
    for split in corpus.splits:
        if unseen := corpus.unseen_labels(split):
            words = sum(unseen.values())
            have, they = ("word has a tag", "it counts") if words == 1 else ("words have tags", "they count")
            notes.append(f"{words:,} {split} {have} that train never has ({', '.join(unseen)}): {they} as wrong")
    return replace(corpus, notes=(*corpus.notes, *notes))
