"""Taggers in use: lines in, what each of their words is, in their order."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from seqloom.core.iob import marks_spans, spans_of
from seqloom.core.tree import to_device
from seqloom.data.examples import TokenClassificationExample
from seqloom.data.reading import Piece, SentenceReader
from seqloom.data.spellings import SpelledBatches
from seqloom.evaluate.tagging import TagReport
from seqloom.inspect.views.alignment import one_line
from seqloom.inspect.views.heads import Read
from seqloom.inspect.views.tag_paths import TagPaths, how, joined, lattice_of
from seqloom.predict.batching import alike, answered
from seqloom.predict.classifier import Understanding
from seqloom.tasks.classify import spellings_of
from seqloom.tasks.tag import sentence_reader
from seqloom.text.spans import Span, token_spans
from seqloom.text.word_spans import join_words, word_spans


@dataclass(frozen=True)
class TaggedWord:
    text: str
    start: int  # where it stands in the line
    end: int
    tag: str
    probability: float  # of the tag, whatever those of the other words


@dataclass(frozen=True)
class Entity:
    """Several words, or one, that are one thing together: a person, a place."""

    text: str  # as it stands in the line
    start: int
    end: int
    label: str
    probability: float  # the least of those of its words' tags


@dataclass(frozen=True)
class TaggedLine:
    """A line and what its words are."""

    text: str  # as it came
    words: list[TaggedWord] = field(default_factory=list)
    entities: list[Entity] | None = None  # None where the tags mark no spans
    pieces: int = 0  # in how many the line was read; more than one only if it was too long
    unknown: tuple[str, ...] = ()  # pieces of the line the vocabulary does not have

    @property
    def marked(self) -> str:
        """The line with its tags: Pankaj:PER lives in [New Delhi]:LOC. Where tags mark no spans: lives:VERB in:ADP."""
        if self.entities is None:
            return " ".join(f"{word.text}:{word.tag}" for word in self.words)
        made, before = "", 0
        for entity in self.entities:
            several = any(letter.isspace() for letter in entity.text)
            shown = f"[{entity.text}]" if several else entity.text
            made, before = f"{made}{self.text[before : entity.start]}{shown}:{entity.label}", entity.end
        return made + self.text[before:]


class Tagger(Understanding):
    """A trained tagger."""

    what = "a tagger"
    used_by = "`seqloom tag` uses it"

    @property
    def tags(self) -> list[str]:
        return self.run.labels

    def tag(
        self, lines: str | Iterable[str], *, spaces: bool = False, batch_size: int = 128, window: int = 1024
    ) -> Iterator[TaggedLine]:
        """Tag lines: exactly one answer for each, in their order; a blank line stays blank.

        Words and punctuation are told apart as `seqloom.text.word_spans` does; with `spaces`, words are what stands
        between white space. `window` lines are read at a time, and those of like length `batch_size` at a time; with
        window=1 every line is answered before the next is read.
        """
        return answered(
            lines, lambda some: self._answer(some, batch_size, spaces), batch_size=batch_size, window=window
        )

    def _answer(self, lines: Sequence[str], batch_size: int, spaces: bool) -> Iterator[TaggedLine]:
        reader = self._reader()
        places = [spaced(line) if spaces else word_spans(line) for line in lines]
        words = [[line[a:b] for a, b in own] for line, own in zip(lines, places, strict=True)]
        pieces = reader.pieces(words)
        said: list[list[tuple[str, float]]] = [[] for _ in pieces]
        if pieces:
            batches = reader.batches(words, pieces, tokens=1)
            for chosen in alike(batches.texts.lengths.tolist(), batch_size):
                for number, own in zip(chosen, self._judge(batches, chosen, pieces), strict=True):
                    said[number] = own
        found: list[list[tuple[str, float]]] = [[] for _ in lines]
        read = [0] * len(lines)
        for piece, own in zip(pieces, said, strict=True):  # in the order of their lines
            found[piece.sentence] += own
            read[piece.sentence] += 1
        for line, spans, own, count in zip(lines, places, found, read, strict=True):
            yield self._line(line, spans, own, count)

    def _judge(
        self, batches: SpelledBatches, chosen: list[int], pieces: Sequence[Piece]
    ) -> Iterator[list[tuple[str, float]]]:
        """The tag of each word of these pieces, and its probability."""
        batch = to_device(batches.tree(np.array(chosen)), self.device)
        best, probabilities = self.model.answer(batch)
        own = probabilities.gather(2, best.unsqueeze(2)).squeeze(2)  # (B, W)
        for number, tags, values in zip(chosen, best.tolist(), own.tolist(), strict=True):
            count = len(pieces[number].first)
            yield [(self.tags[tag], p) for tag, p in zip(tags[:count], values[:count], strict=True)]

    def _line(self, line: str, spans: Sequence[Span], said: Sequence[tuple[str, float]], pieces: int) -> TaggedLine:
        words = [TaggedWord(line[a:b], a, b, tag, p) for (a, b), (tag, p) in zip(spans, said, strict=True)]
        return TaggedLine(
            text=line,
            words=words,
            entities=entities_of(line, words) if marks_spans(self.tags) else None,
            pieces=pieces,
            unknown=tuple(self.tokenizer.unknown_pieces(join_words([word.text for word in words])[0])),
        )

    def paths(self, line: str, *, spaces: bool = False) -> TagPaths:
        """How probable every tag of every word is, and every step between two, beside the tags that `tag` gives."""
        (said,), reader = self.tag(one_line(line, "text"), spaces=spaces), self._reader()
        words = [word.text for word in said.words]
        found = []
        for piece in reader.pieces([words]):
            batch = to_device(reader.batches([words], [piece], tokens=1).tree(np.array([0])), self.device)
            found.append(lattice_of(self.model, batch, len(piece.first)))
        return joined(found, words, self.tags, how(self.model), list(said.unknown))

    def _looked(self, line: str) -> Read:
        (said,), reader = self.tag(line), self._reader()
        words = [word.text for word in said.words]
        text, piece = join_words(words)[0], reader.pieces([words])[0]
        batch = to_device(reader.batches([words], [piece], tokens=1).tree(np.array([0])), self.device)
        log_prob = self.model.log_likelihood({**batch, "tags": self.model.predict(batch)})[0].item()
        spans = token_spans(self.tokenizer, text)
        return Read(line, text, spans, batch, "tags", said.marked, log_prob, said.unknown, reader.frame)

    def _reader(self) -> SentenceReader:
        return sentence_reader(self._recipe, self.tokenizer, spellings_of(self.run))

    def answers(self, split: str = "dev") -> list[tuple[TokenClassificationExample, list[str]]]:
        """Every sentence of a split of the data it was trained on, and the tags it gives."""
        return list(zip(self.own_task.corpus.split(split), self._said(split)[0], strict=True))

    def _said(self, split: str) -> tuple[list[list[str]], float]:
        """Its tags and its loss; each split is read once."""
        if split not in self._answers:
            self._answers[split] = self.own_task.answers(self.model, split)
        return self._answers[split]

    @cached_property
    def _answers(self) -> dict[str, tuple[list[list[str]], float]]:
        return {}

    def report(self, split: str = "dev") -> TagReport:
        found: TagReport = super().report(split)
        return found

    def _figures(self, split: str) -> TagReport:
        found: TagReport = self.own_task.figures(*self._said(split), split)
        return found


def spaced(line: str) -> list[Span]:
    """Where the words stand that have white space between them."""
    return [match.span() for match in re.finditer(r"\S+", line)]


def entities_of(line: str, words: Sequence[TaggedWord]) -> list[Entity]:
    found = []
    for span in spans_of([word.tag for word in words]):
        own = words[span.start : span.end]
        start, end = own[0].start, own[-1].end
        found.append(Entity(line[start:end], start, end, span.type, min(word.probability for word in own)))
    return found
