"""Examples with texts, with one class for each form of corpus.

text-classification    a text and its label                        TextClassificationExample
multi-label            a text and any number of labels             MultiLabelExample
token-classification   a sentence with a tag for each word         TokenClassificationExample
sentence-pair          two texts with a label or a score           SentencePairExample
multiple-choice        a text with options, one of them correct    MultipleChoiceExample
question-answering     a question whose answer is a span of a text QuestionAnsweringExample
parallel               a sentence and its translation              ParallelExample
instructions           an instruction and the answer to it         Instruction
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self, TypeVar

from seqloom.core.errors import DataError
from seqloom.core.iob import extract_spans, marks_spans
from seqloom.core.words import format_count, format_value, shorten
from seqloom.data.corpus import Corpus, Example, TextCounts, by_count

Span = tuple[int, int]  # start and end (exclusive) in characters
Link = tuple[Span, Span]  # a span of the source and the span of the target that translates it
MAX_SINGLETON_FRACTION = 0.5  # maximum fraction of labels with one example; a larger one suggests the wrong column


# --- text classification ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextClassificationExample(Example):
    """A text and its label, such as a sentiment, a topic or a language."""

    form: ClassVar = "text-classification"
    text_fields: ClassVar[tuple[str, ...]] = ("text",)
    label_field = "label"
    counts_repeats = True

    text: str
    label: str

    @classmethod
    def check(cls, corpus: Corpus[Self]) -> Corpus[Self]:
        return check_labels(corpus)


@dataclass(frozen=True)
class MultiLabelExample(TextClassificationExample):
    """A text and any number of labels. `label` joins them."""

    form: ClassVar = "multi-label"

    label_set: tuple[str, ...] = ()  # distinct labels, sorted

    @classmethod
    def of(cls, text: str, labels: Iterable[str]) -> "MultiLabelExample":
        label_set = tuple(sorted(set(labels)))
        return cls(text, ", ".join(label_set), label_set)

    def labels(self) -> Sequence[str]:
        return self.label_set

    def parts(self) -> Sequence[str]:
        return self.text, str(len(self.label_set)), *self.label_set

    @classmethod
    def check(cls, corpus: Corpus[Self]) -> Corpus[Self]:
        """Return the corpus with notes on its labels; raise DataError if no training example has a label."""
        train = corpus.split("train")
        if not corpus.labels:
            raise DataError(f"The corpus {corpus.name} must have labels, but no training example has one.")
        notes = []
        for split in corpus.splits:
            if unseen := corpus.unseen_labels(split):
                number = format_count(sum(unseen.values()), f"{split} label is", f"{split} labels are")
                notes.append(f"{number} not in train ({shorten(', '.join(unseen), 60)}): they count as missed")
        if empty := sum(not example.label_set for example in train):
            notes.append(f"{empty:,} of the {len(train):,} training examples have no label")
        if max(len(example.label_set) for example in train) == 1:
            notes.append("no training example has several labels; check data.label and data.label_separator")
        return replace(corpus, notes=(*corpus.notes, *notes))


ExampleT = TypeVar("ExampleT", bound=Example)


def check_labels(corpus: Corpus[ExampleT]) -> Corpus[ExampleT]:
    """Return the corpus with notes on labels that cannot be learned; raise DataError if there is only one label."""
    refuse_single_label(corpus, "examples")
    notes = list(note_unseen_labels(corpus, ("example has a label", "examples have labels")))
    counts = corpus.label_counts("train")
    singletons = sum(count == 1 for count in counts.values())
    if singletons > MAX_SINGLETON_FRACTION * len(counts) and len(counts) > 2:
        notes.append(f"{singletons:,} of the {len(counts):,} labels have only one training example; check data.label")
    return replace(corpus, notes=(*corpus.notes, *notes))


def refuse_single_label(corpus: Corpus[Example], unit: str) -> None:
    if len(corpus.labels) < 2:
        raise DataError(
            f"The corpus {corpus.name} must have at least two labels, but all its training {unit} have the label "
            f"{format_value(corpus.labels[0])}. Add examples with other labels, or check the column of the labels."
        )


def note_unseen_labels(corpus: Corpus[Example], subject: tuple[str, str]) -> Iterator[str]:
    """Yield a note for each split with labels that are not in train; `subject` (singular, plural) starts the note."""
    for split in corpus.splits:
        if counts := corpus.unseen_labels(split):
            number, labels = sum(counts.values()), ", ".join(counts)
            they = "it counts" if number == 1 else "they count"
            truncated = labels if len(labels) <= 60 else f"{labels[:59]}…"
            yield f"{number:,} {split} {subject[number > 1]} not in train ({truncated}): {they} as wrong"


def rarest_labels(examples: Sequence[Example]) -> list[str]:
    """Return, for each example, its label that is rarest in all examples, or "" if the example has no labels.

    If the examples with the same returned label are divided evenly, all labels are divided approximately evenly.
    """
    counts = Counter(label for example in examples for label in example.labels())
    return [min(example.labels(), key=lambda label: (counts[label], label), default="") for example in examples]


def sample_fraction(examples: Sequence[ExampleT], fraction: float, seed: int) -> list[ExampleT]:
    """Sample a fraction of the examples of each label, at least one, and keep their order.

    A hash of the seed and the texts selects the examples, so that a smaller sample is a subset of a larger sample.
    """
    positions: dict[tuple[str, ...], list[int]] = {}
    for position, example in enumerate(examples):
        positions.setdefault(tuple(example.labels()), []).append(position)
    sampled: set[int] = set()
    for members in positions.values():
        keys = {n: hashlib.sha256("/".join([str(seed), *examples[n].texts()]).encode()).digest() for n in members}
        members.sort(key=keys.__getitem__)
        sampled.update(members[: max(1, round(fraction * len(members)))])
    return [example for position, example in enumerate(examples) if position in sampled]


# --- token classification ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenClassificationExample(Example):
    """A sentence with a tag for each word, its original text, and the span of each word in the text.

    Entities are encoded in IOB2 (`B-PER I-PER O`), regardless of the scheme of the files.
    """

    form: ClassVar = "token-classification"
    text_fields: ClassVar[tuple[str, ...]] = ("text",)

    words: tuple[str, ...]
    tags: tuple[str, ...]
    text: str
    spans: tuple[Span, ...]

    @classmethod
    def of(cls, words: Sequence[str], tags: Sequence[str]) -> "TokenClassificationExample":
        """Create a sentence that has no original text: the words are joined by spaces."""
        from seqloom.text.word_spans import join_words  # imported here, so listing corpora imports no tokenizers

        text, spans = join_words(words)
        return cls(tuple(words), tuple(tags), text, tuple(spans))

    def parts(self) -> Sequence[str]:
        return *self.words, "", *self.tags, ""

    def labels(self) -> Sequence[str]:
        return self.tags

    @staticmethod
    def sort_labels(labels: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(set(labels)))

    @classmethod
    def all_words(cls, examples: Sequence[Self]) -> list[str]:
        return [word for sentence in examples for word in sentence.words]

    @classmethod
    def sizes(cls, corpus: Corpus[Self], split: str) -> dict[str, int]:
        """Return the numbers of sentences, words, tags and, if the tags mark spans, spans."""
        sentences = corpus.split(split)
        sizes = {
            "sentences": len(sentences),
            "words": sum(len(sentence.words) for sentence in sentences),
            "tags": len({tag for sentence in sentences for tag in sentence.tags}),
        }
        return {**sizes, "spans": sum(tag_counts(corpus, split).values())} if has_spans(corpus) else sizes

    @classmethod
    def check(cls, corpus: Corpus[Self]) -> Corpus[Self]:
        """Return the corpus with notes on tags that cannot be learned; raise DataError if there is only one tag."""
        if len(corpus.labels) < 2:
            raise DataError(
                f"The corpus {corpus.name} must have at least two tags, but every word of train has the tag "
                f"{format_value(corpus.labels[0])}. Check the column of the tags."
            )
        notes = note_unseen_labels(corpus, ("word has a tag", "words have tags"))
        return replace(corpus, notes=(*corpus.notes, *notes))


def has_spans(corpus: Corpus[TokenClassificationExample]) -> bool:
    """Return whether the tags mark spans of words, such as entities, instead of classifying single words."""
    return marks_spans(corpus.labels)


def tag_counts(corpus: Corpus[TokenClassificationExample], split: str) -> dict[str, int]:
    """Return the number of spans of each type if tags mark spans, otherwise the number of words with each tag."""
    if has_spans(corpus):
        return by_count(span.type for sentence in corpus.split(split) for span in extract_spans(sentence.tags))
    return corpus.label_counts(split)


# --- sentence pairs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SentencePairExample(TextClassificationExample):
    """Two texts with a label, such as entailment or similarity. `text` joins both texts.

    Labels that are all numbers can also be used as scores.
    """

    form: ClassVar = "sentence-pair"
    unit = "pairs"
    text_fields = ("first", "second")

    first: str = ""
    second: str = ""

    @classmethod
    def of(cls, first: str, second: str, label: str) -> "SentencePairExample":
        return cls(f"{first}\n{second}", label, first, second)

    def version_content(self) -> bytes:
        return TextClassificationExample(self.text, self.label).content()

    @classmethod
    def check(cls, corpus: Corpus[Self]) -> Corpus[Self]:
        """Return the corpus unchanged: its labels may be scores, so the task checks them."""
        return corpus


def scores_of(corpus: Corpus[SentencePairExample], split: str) -> list[float]:
    """Return the labels as numbers; raise DataError at the first label that is not a number."""
    scores = []
    for number, pair in enumerate(corpus.split(split), start=1):
        try:
            score = float(pair.label)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise DataError(
                f"With target=score, every label must be a number, but pair {number:,} of {split} has "
                f"{format_value(pair.label)}. Set target=class, or set data.label to the column of the scores."
            )
        scores.append(score)
    return scores


# --- multiple choice --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MultipleChoiceExample(Example):
    """A text and several continuations, or a question and several answers, of which one is correct."""

    form: ClassVar = "multiple-choice"

    text: str
    options: tuple[str, ...]
    answer: int  # the index of the correct option

    def texts(self) -> Sequence[str]:
        return self.text, *self.options

    def parts(self) -> Sequence[str]:
        return self.text, str(len(self.options)), *self.options, str(self.answer)

    @classmethod
    def sizes(cls, corpus: Corpus[Self], split: str) -> dict[str, int]:
        options = sum(len(choice.options) for choice in corpus.split(split))
        return {"examples": len(corpus.split(split)), "options": options, **super().sizes(corpus, split)}


# --- question answering -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """A span of a context: its text and the position of its first character."""

    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True)
class QuestionAnsweringExample(Example):
    """A question about a context, and the answers of several annotators, all of which are correct."""

    form: ClassVar = "question-answering"
    unit = "questions"
    text_fields = ("context", "question")

    context: str
    question: str
    answers: tuple[Answer, ...]  # at least one answer
    id: str = ""
    title: str = ""  # title of the article that contains the context

    @property
    def answer(self) -> Answer:
        """The most frequent answer, which is the training target. A tie selects the first answer."""
        return Counter(self.answers).most_common(1)[0][0]

    def parts(self) -> Sequence[str]:
        answers = [part for answer in self.answers for part in (answer.text, str(answer.start))]
        return self.id, self.context, self.question, str(len(self.answers)), *answers

    @classmethod
    def sizes(cls, corpus: Corpus[Self], split: str) -> dict[str, int]:
        contexts = len({question.context for question in corpus.split(split)})
        return {"questions": len(corpus.split(split)), "contexts": contexts, **super().sizes(corpus, split)}


# --- parallel sentences -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ParallelExample(Example):
    """A sentence and its translation, each on one line."""

    form: ClassVar = "parallel"
    text_fields = ("source", "target")

    source: str
    target: str
    kind: str = ""  # the kind of phrase, if the corpus provides it
    links: tuple[Link, ...] = ()  # the alignment, if the corpus provides it

    @classmethod
    def sizes(cls, corpus: Corpus[Self], split: str) -> dict[str, int]:
        """Return the numbers of pairs, words and characters of both sides, without sentence ends."""
        sides = side_counts(corpus.split(split))
        sizes = {"pairs": sides["source"].documents}
        for side, counts in sides.items():
            sizes[f"{side}_words"] = counts.words - counts.documents
            sizes[f"{side}_characters"] = counts.characters - counts.documents
        return sizes


def side_counts(pairs: Sequence[ParallelExample]) -> dict[str, TextCounts]:
    """Return the counts of both sides; `documents` is the number of pairs."""
    return {
        "source": TextCounts.of([pair.source for pair in pairs]),
        "target": TextCounts.of([pair.target for pair in pairs]),
    }


# --- instructions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instruction(Example):
    """An instruction, its input (often empty), and the expected output."""

    form: ClassVar = "instructions"

    instruction: str
    input: str
    output: str

    def texts(self) -> Sequence[str]:
        return [text for text in self.parts() if text]

    def parts(self) -> Sequence[str]:
        return self.instruction, self.input, self.output
